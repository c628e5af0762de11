/** The command line as a whole: arguments, errors, exit codes and help. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { EXIT } from '../../../src/config/exit-codes.ts';
import { SETTING_NAMES, settingRow } from '../../../src/config/settings.ts';
import { capture } from './capture.ts';

// The compiled test lies in dist/test/unit/cli.
const root = fileURLToPath(new URL('../../../..', import.meta.url));
const serve = join(root, 'bin/serve');
const cwd = mkdtempSync(join(tmpdir(), 'batchport-cli-'));
after(() => rmSync(cwd, { recursive: true }));

function spawn(...args: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [serve, ...args], { cwd, encoding: 'utf8' });
  return { status, stdout, stderr };
}

const COMMANDS = [
  'run',
  'infer',
  'bench',
  'tune',
  'inspect',
  'pull',
  'status',
  'check-config',
  'install-service',
  'completion',
];

test('--help shows every command, every setting with its default, examples and the exit codes', () => {
  const { status, stdout } = spawn('--help');
  assert.equal(status, 0);
  for (const name of COMMANDS) {
    assert.match(stdout, new RegExp(`bin/serve ${name}`));
  }
  for (const name of SETTING_NAMES) {
    const { flag } = settingRow(name);
    if (flag !== undefined) assert.match(stdout, new RegExp(` --${flag} `));
  }
  assert.match(stdout, /--http-port .*\[default: 8000\]/);
  for (const { code, meaning } of Object.values(EXIT)) assert.ok(stdout.includes(`  ${code}  ${meaning}`));
});

test('each command has a help with examples', () => {
  for (const name of COMMANDS) {
    const { status, stdout } = spawn(name, '--help');
    assert.equal(status, 0, name);
    assert.match(stdout, new RegExp(`^bin/serve ${name}[\\s\\S]*Examples:\\n {2}bin/serve [\\s\\S]*Exit codes:`), name);
  }
});

test('--version is that of the package', () => {
  assert.match(spawn('--version').stdout, /^\d+\.\d+\.\d+\n$/);
});

test('mistakes on the command line end with 2 and one or two lines that say what to do', async () => {
  const cases: [string[], string][] = [
    [[], 'no model given: name an .onnx file, or a directory of models with --model-repository DIR'],
    [['statsu'], 'unknown command "statsu"; did you mean "status"?'],
    [['--htp-port', '1', 'm.onnx'], 'unknown option --htp-port; did you mean --http-port?'],
    [['status', '--jsn'], 'unknown option --jsn; did you mean --json?'],
    [['status', '--http-port', '1'], 'unknown option --http-port'],
    [['-x'], 'unknown option -x'],
    [['m.onnx', '--no-host'], 'unknown option --no-host'],
    [['--http-port'], '--http-port needs a value'],
    [['--http-port', '--host', 'x'], '--http-port needs a value'],
    [['--http-port', '99999', 'm.onnx'], '--http-port: 99999 is not a port from 0 to 65535'],
    [['--log-level', 'loud'], '--log-level: "loud" is not one of fatal, error, warn, info, debug, trace'],
    [['--strict-readiness=maybe'], '--strict-readiness: "maybe" is not true or false'],
    [['--grpc-port', 'off', 'm.onnx'], '--grpc-port: "off" is not a port from 0 to 65535, or none'],
    [['infer'], 'infer needs a model\n       usage: infer <model>; infer --help has examples'],
    [['inspect', 'a', 'b'], 'unexpected argument "b"'],
    [['a.onnx', 'b.onnx'], 'unexpected argument "b.onnx"\n       to serve several models: --model-repository DIR'],
    [
      ['check-config'],
      'nothing to check\n       give --config FILE, --model-repository DIR or MODEL.onnx; or --show for the settings',
    ],
  ];
  for (const [args, message] of cases) {
    assert.deepEqual(
      await capture(args, { cwd }),
      { exitCode: 2, out: '', err: `error: ${message}\n` },
      args.join(' '),
    );
  }
});

test('a model that is missing or not a model ends with 4', async () => {
  writeFileSync(join(cwd, 'text.onnx'), '<html>');
  const cases: [string[], RegExp][] = [
    [['none.onnx'], /^error: none\.onnx does not exist\n$/],
    [['run', '.'], /is a directory; give a directory of models as --model-repository\n$/],
    [['--model-repository', 'none'], /^error: model repository none does not exist\n$/],
    [['--model-repository', 'text.onnx'], /is not a directory\n {7}to serve this one file: run text\.onnx\n$/],
    [['inspect', 'none.onnx'], /^error: none\.onnx does not exist\n$/],
    [['inspect', 'text.onnx'], /^error: text\.onnx is an HTML or XML page/],
  ];
  for (const [args, message] of cases) {
    const { exitCode, err } = await capture(args, { cwd });
    assert.equal(exitCode, 4, args.join(' '));
    assert.match(err, message);
  }
});

test('a mistake in the environment or a file ends with 3', async () => {
  const env = await capture(['m.onnx'], { cwd, env: { BATCHPORT_INGRESS: 'x' } });
  assert.deepEqual(
    [env.exitCode, env.err],
    [3, 'error: BATCHPORT_INGRESS: "x" is not a number of processes from 1 to 64\n'],
  );
  writeFileSync(join(cwd, 'bad.json'), '{"prot": 1}');
  const file = await capture(['m.onnx', '--config', 'bad.json'], { cwd });
  assert.deepEqual([file.exitCode, file.err], [3, `error: ${cwd}/bad.json:1:2: prot: unknown key\n`]);
});

test('an error carries its stack only when debugging is asked for', async () => {
  assert.doesNotMatch((await capture(['none.onnx'], { cwd })).err, /\n {4}at /);
  assert.match((await capture(['none.onnx', '--log-level', 'debug'], { cwd })).err, /\n {4}at /);
  assert.match((await capture(['none.onnx', '--log-level=trace'], { cwd })).err, /\n {4}at /);
  assert.match((await capture(['none.onnx'], { cwd, env: { BATCHPORT_LOG_LEVEL: 'debug' } })).err, /\n {4}at /);
});

test('check-config lists everything that is wrong, by file and key', async () => {
  const repository = join(cwd, 'models');
  mkdirSync(join(repository, 'good/1'), { recursive: true });
  mkdirSync(join(repository, 'bad/1'), { recursive: true });
  writeFileSync(join(repository, 'good/1/model.onnx'), Buffer.of(8, 9));
  writeFileSync(join(repository, 'good/config.json'), '{"max_batch_size": 8}');
  writeFileSync(join(repository, 'bad/1/model.onnx'), Buffer.of(8, 9));
  writeFileSync(join(repository, 'bad/config.json'), '{\n  "max_bach_size": 8,\n  "max_queue_delay_us": -1\n}');
  writeFileSync(join(cwd, 'server.json'), '{"model_repository": "models", "devices": ["cpu", "gpu:0"]}');
  const { exitCode, out } = await capture(['check-config', '--config', 'server.json'], { cwd });
  assert.equal(exitCode, 3);
  const lines = out.split('\n');
  assert.match(lines[0]!, /^error: .*server\.json: "gpu:0" is not a device\. Did you mean cuda:0\?/);
  assert.match(lines[1]!, /^error: models\/bad\/config\.json:2:3: unknown key "max_bach_size"/);
  assert.match(lines[2]!, /^error: models\/bad\/config\.json:3:25: max_queue_delay_us is -1/);
  assert.deepEqual(lines.slice(3), ['3 errors, 0 warnings, 2 models', '']);

  const good = await capture(['check-config', '--model-repository', 'models', '--device', 'cpu'], { cwd });
  assert.equal(good.exitCode, 3);
  rmSync(join(repository, 'bad'), { recursive: true });
  const fixed = await capture(['check-config', '--model-repository', 'models'], { cwd });
  assert.deepEqual(fixed, { exitCode: 0, out: '0 errors, 0 warnings, 1 model\n', err: '' });
});

test('check-config tells of steps that cannot follow one another, and of files that are not there', async () => {
  const checked = join(cwd, 'steps');
  const write = (model: string, outputs: unknown) => {
    mkdirSync(join(checked, 'models', model, '1'), { recursive: true });
    writeFileSync(join(checked, 'models', model, '1/model.onnx'), 'x');
    writeFileSync(join(checked, 'models', model, 'config.json'), JSON.stringify({ outputs }));
  };
  write('texts', [{ name: 'y', postprocess: [{ op: 'top_k', k: 1 }, { op: 'sigmoid' }] }]);
  write('words', [{ name: 'y', postprocess: [{ op: 'ctc_decode', dictionary: 'keys.txt' }] }]);
  const { exitCode, out } = await capture(['check-config', '--model-repository', 'models'], { cwd: checked });
  assert.equal(exitCode, 3);
  assert.match(out, /error: models\/texts\/config\.json:1:\d+: .*goes on behind top_k, which gives texts/);
  assert.match(out, /error: models\/words: keys\.txt, asked for by its configuration, does not exist/);
});

test('check-config --show prints each setting with its value and its origin', async () => {
  writeFileSync(join(cwd, 'ports.json'), '{"http_port": 9000}');
  const env = { BATCHPORT_MAX_BODY_BYTES: '1GiB' };
  const { exitCode, out } = await capture(['check-config', '--show', '--config', 'ports.json', '--host', '::'], {
    cwd,
    env,
  });
  assert.equal(exitCode, 0);
  assert.match(out, new RegExp(`^http_port +9000 +${cwd}/ports\\.json$`, 'm'));
  assert.match(out, /^max_body_bytes +1GiB +BATCHPORT_MAX_BODY_BYTES$/m);
  assert.match(out, /^host +:: +--host$/m);
  assert.match(out, /^drain_timeout_s +30 +default$/m);
});

test('completion offers commands, options and choices, and leaves files to the shell', () => {
  const offers = (...words: string[]) =>
    spawn('--get-yargs-completions', serve, ...words)
      .stdout.split('\n')
      .slice(0, -1);
  assert.deepEqual(
    offers('in').filter((word) => word.startsWith('in')),
    ['infer', 'inspect', 'install-service'],
  );
  assert.ok(offers('--').includes('--http-port'));
  assert.ok(offers('status', '--').includes('--url'));
  assert.ok(!offers('status', '--').includes('--http-port'));
  assert.deepEqual(offers('--log-level', ''), ['fatal', 'error', 'warn', 'info', 'debug', 'trace']);
  assert.deepEqual(offers('inspect', ''), []);
  assert.deepEqual(offers('infer', 'm', '--input', ''), []);
});

test('the completion script calls the program by its absolute path', () => {
  const { stdout } = spawn('completion');
  assert.ok(stdout.includes(`${serve} --get-yargs-completions`));
});

test('without a build, bin/serve says how to get one', () => {
  mkdirSync(join(cwd, 'fresh/bin'), { recursive: true });
  writeFileSync(join(cwd, 'fresh/package.json'), '{"type": "module"}');
  cpSync(serve, join(cwd, 'fresh/bin/serve'));
  const { status, stderr } = spawnSync(process.execPath, [join(cwd, 'fresh/bin/serve')], { encoding: 'utf8' });
  assert.deepEqual([status, stderr], [1, 'error: batchport is not built yet; run npm ci first\n']);
});
