/** `install-service`: what the unit says, what is refused, what is warned of. The unit's life under systemd is tested in test/integration/systemd.test.ts. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { deviceGroups, obstacle } from '../../../src/cli/service-access.ts';
import { renderUnit, type UnitOptions } from '../../../src/cli/service-unit.ts';
import { resolveSettings } from '../../../src/config/settings-resolve.ts';
import { stopLimitS } from '../../../src/config/stop-limit.ts';
import { makeRepository, temporaryDirectory } from '../../support/repository.ts';
import { capture } from './capture.ts';

const root = fileURLToPath(new URL('../../../..', import.meta.url));
const template = readFileSync(join(root, 'config/systemd/batchport.service'), 'utf8');
const hasAnalyze = spawnSync('systemd-analyze', ['--version']).error === undefined;
const isRoot = process.getuid?.() === 0;

/** Values of a directive, in their order. */
function valuesOf(unit: string, key: string): string[] {
  return unit
    .split('\n')
    .filter((line) => line.startsWith(`${key}=`))
    .map((line) => line.slice(key.length + 1));
}

/** A unit for an installation in /opt/batchport. */
function render(flags: UnitOptions['flags'], more: Partial<UnitOptions> = {}): string {
  const { settings } = resolveSettings({ flags, env: {}, cwd: '/home/ada' });
  return renderUnit({
    template,
    node: '/usr/bin/node',
    root: '/opt/batchport',
    settings,
    flags,
    cwd: '/home/ada',
    user: undefined,
    groups: [],
    systemdVersion: 255,
    ...more,
  });
}

/** Splits a command line as systemd.service(5) says: quotes, escapes, `%%` and `$$`. */
function splitCommand(text: string): string[] {
  const words = [...text.matchAll(/"((?:[^"\\]|\\.)*)"|(\S+)/g)].map(([, inner, bare]) => {
    if (inner === undefined) return bare!;
    return inner
      .replaceAll(/\\x([0-9a-f]{2})/g, (_, digits) => String.fromCharCode(Number.parseInt(digits, 16)))
      .replaceAll(/\\(.)/g, '$1');
  });
  return words.map((word) => word.replaceAll('%%', '%').replaceAll('$$', '$'));
}

test('the unit that is shipped is what the settings give by default, apart from its head', () => {
  const body = (unit: string) => unit.slice(unit.indexOf('[Unit]'));
  const made = render({ modelRepository: '/var/lib/batchport/models' });
  assert.equal(body(made), body(template));
  assert.notEqual(made, template);
  assert.deepEqual(valuesOf(template, 'TimeoutStopSec'), [String(stopLimitS(30))]);
});

test('every line of the unit that is not obvious has a comment, and none confines GPUs away', () => {
  assert.deepEqual(valuesOf(template, 'Type'), ['notify']);
  for (const key of ['PrivateDevices', 'ProtectClock', 'DevicePolicy', 'DeviceAllow', 'MemoryDenyWriteExecute']) {
    assert.deepEqual(valuesOf(template, key), [], key);
  }
  for (const key of [
    'KillMode',
    'OOMPolicy',
    'TimeoutStopSec',
    'WatchdogSec',
    'LimitMEMLOCK',
    'RestartPreventExitStatus',
  ]) {
    assert.match(template, new RegExp(`\n#[^\n]*\n${key}=`), key);
  }
});

test('options become the command line, with absolute paths; nothing of them is lost on the way', () => {
  const odd = '/srv/my models/50% "new" $HOME\\x';
  const unit = render({
    modelRepository: odd,
    devices: ['cpu:0-3', 'cuda:0'],
    strictReadiness: false,
    maxBodyBytes: '1GiB',
    drainTimeoutS: '2.5',
    config: undefined,
    host: 'unix:run/b.sock',
  });
  assert.deepEqual(splitCommand(valuesOf(unit, 'ExecStart')[0]!), [
    ...['/usr/bin/node', '/opt/batchport/bin/serve', 'run', '--model-repository', odd],
    ...['--device', 'cpu:0-3', '--device', 'cuda:0', '--strict-readiness=false', '--host', 'unix:/home/ada/run/b.sock'],
    ...['--max-body-bytes', '1GiB', '--drain-timeout-s', '2.5'],
  ]);
  assert.deepEqual(splitCommand(valuesOf(unit, 'RequiresMountsFor')[0]!), ['/opt/batchport', odd]);
  assert.deepEqual(valuesOf(unit, 'TimeoutStopSec'), ['18']);
  assert.deepEqual(valuesOf(unit, 'ReadWritePaths'), ['/home/ada/run']);
});

test('a model file is served as it would be from here', () => {
  const [command] = valuesOf(render({ model: 'm.onnx' }), 'ExecStart');
  assert.equal(command, '/usr/bin/node /opt/batchport/bin/serve run /home/ada/m.onnx');
});

test('a user that is given takes the place of the one made for the service', () => {
  const unit = render({ model: 'm.onnx' }, { user: 'models', groups: [44, 105] });
  assert.deepEqual([valuesOf(unit, 'User'), valuesOf(unit, 'DynamicUser')], [['models'], []]);
  assert.doesNotMatch(unit, /exists only while the service runs/);
  assert.deepEqual(valuesOf(unit, 'SupplementaryGroups'), ['44 105']);
});

test('directories that are given take the place of the service’s own', () => {
  const unit = render({ model: 'm.onnx', cacheDir: '/data/cache', runtimeDir: '/run/batchport/x' });
  assert.deepEqual(valuesOf(unit, 'Environment'), ['HOME=%S/batchport']);
  assert.deepEqual(valuesOf(unit, 'ReadWritePaths'), ['/data/cache']);
});

test('a port below 1024 brings the one capability that it needs', () => {
  const unit = render({ model: 'm.onnx', httpPort: '80' });
  assert.deepEqual(valuesOf(unit, 'AmbientCapabilities'), ['CAP_NET_BIND_SERVICE']);
  assert.deepEqual(valuesOf(unit, 'CapabilityBoundingSet'), ['CAP_NET_BIND_SERVICE']);
  const free = render({ model: 'm.onnx', httpPort: '0', metricsPort: '0' });
  assert.deepEqual([valuesOf(free, 'AmbientCapabilities'), valuesOf(free, 'CapabilityBoundingSet')], [[], ['']]);
});

test('lines that an older systemd does not know are left out', () => {
  assert.deepEqual(valuesOf(render({ model: 'm.onnx' }), 'RestartSteps'), ['5']);
  const old = render({ model: 'm.onnx' }, { systemdVersion: 252 });
  assert.deepEqual([valuesOf(old, 'RestartSteps'), valuesOf(old, 'RestartMaxDelaySec')], [[], []]);
  assert.doesNotMatch(old, /254/);
  assert.deepEqual(valuesOf(old, 'RestartSec'), ['2']);
});

test('--dry-run prints the unit and writes nothing', async (t) => {
  const unitDir = temporaryDirectory(t);
  const { dir } = makeRepository(t, ['simple']);
  const args = ['install-service', '--model-repository', dir, '--unit-dir', unitDir, '--dry-run'];
  const { exitCode, out } = await capture(args);
  assert.equal(exitCode, 0);
  assert.match(
    out,
    /^# Written by "bin\/serve install-service"[\s\S]*\n\[Unit\]\n[\s\S]*\n\[Install\]\nWantedBy=multi-user.target\n$/,
  );
  const [command] = valuesOf(out, 'ExecStart');
  assert.equal(command, `${process.execPath} ${join(root, 'bin/serve')} run --model-repository ${dir}`);
  assert.deepEqual(readdirSync(unitDir), []);
});

test('the unit is written once, says what to do next, and never replaces another without --force', async (t) => {
  const unitDir = temporaryDirectory(t);
  const { dir } = makeRepository(t, ['simple']);
  const path = join(unitDir, 'batchport.service');
  const install = (...more: string[]) =>
    capture(['install-service', '--model-repository', dir, '--unit-dir', unitDir, ...more]);
  const first = await install();
  assert.equal(first.exitCode, 0, first.err);
  assert.match(first.out, /written\nNext:\n {2}systemctl daemon-reload\n {2}systemctl enable --now batchport/);
  const unit = readFileSync(path, 'utf8');
  assert.match((await install()).out, /^\S+ is up to date\n/);

  const other = await install('--http-port', '9000');
  assert.deepEqual([other.exitCode, other.out], [1, '']);
  assert.match(
    other.err,
    /batchport\.service is already there and differs\n.*--dry-run prints the new one, --force replaces/,
  );
  assert.equal(readFileSync(path, 'utf8'), unit);
  assert.equal((await install('--http-port', '9000', '--force')).exitCode, 0);
  assert.match(valuesOf(readFileSync(path, 'utf8'), 'ExecStart')[0]!, / --http-port 9000$/);
  assert.deepEqual(readdirSync(unitDir), ['batchport.service']);
});

test('a masked service stays masked', async (t) => {
  const unitDir = temporaryDirectory(t);
  const { dir } = makeRepository(t, ['simple']);
  symlinkSync('/dev/null', join(unitDir, 'batchport.service'));
  const { exitCode, err } = await capture(['install-service', '--model-repository', dir, '--unit-dir', unitDir]);
  assert.equal(exitCode, 1);
  assert.match(err, /already there and differs/);
});

test('what cannot be served, run as or written to is refused before anything is written', async (t) => {
  const { dir } = makeRepository(t, ['simple']);
  const cases: [string[], number, RegExp][] = [
    [['--model-repository', join(dir, 'none')], 4, /no such file or directory|does not exist|not there/],
    [[], 2, /no model given/],
    [
      ['--model-repository', dir, '--user', 'nobody-of-that-name'],
      2,
      /no user "nobody-of-that-name"\n.*useradd --system/,
    ],
    [['--model-repository', dir, '--device', 'abacus'], 6, /abacus/],
    [['--model-repository', dir, '--unit-dir', join(dir, 'none')], 1, /cannot write .*none\/batchport\.service/],
    [['--model-repository', dir, '--http-port', '99999'], 2, /99999 is not a port/],
  ];
  for (const [args, code, message] of cases) {
    const { exitCode, out, err } = await capture(['install-service', ...args], { cwd: dir });
    assert.equal(exitCode, code, `${args}: ${err}`);
    assert.match(err, message);
    assert.equal(out, '');
  }
});

test('systemd accepts the units, shipped and made', { skip: !hasAnalyze && 'needs systemd-analyze' }, async (t) => {
  const unitDir = temporaryDirectory(t);
  const { dir } = makeRepository(t, ['simple']);
  const options = ['--http-port', '80', '--cache-dir', unitDir, '--host', 'localhost', '--user', 'root'];
  const { exitCode, err } = await capture([
    'install-service',
    '--model-repository',
    dir,
    '--unit-dir',
    unitDir,
    ...options,
  ]);
  assert.equal(exitCode, 0, err);
  for (const path of [join(unitDir, 'batchport.service'), join(root, 'config/systemd/batchport.service')]) {
    const { status, stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', path], { encoding: 'utf8' });
    assert.equal(status, 0, stderr);
    const remarks = stderr.split('\n').filter((line) => line.includes('batchport.service'));
    // Written for systemd 254 and later too.
    assert.deepEqual(
      remarks.filter((line) => !/RestartSteps|RestartMaxDelaySec|not executable/.test(line)),
      [],
    );
  }
});

test('variables of the shell are named, since the service will not have them', async (t) => {
  const { dir } = makeRepository(t, ['simple']);
  const { err } = await capture(['install-service', '--model-repository', dir, '--dry-run'], {
    env: { BATCHPORT_HTTP_PORT: '9000', PATH: '/bin' },
  });
  assert.match(err, /^warning: BATCHPORT_HTTP_PORT of this shell is not passed on/m);
});

test('a model in a temporary directory is warned of: the service has its own', async (t) => {
  const { dir } = makeRepository(t, ['simple']);
  const { err } = await capture(['install-service', '--model-repository', dir, '--dry-run']);
  assert.equal(/^warning: .*the service, which has a \/tmp of its own/m.test(err), /^\/(var\/)?tmp\//.test(dir));
});

test('what the service’s user may not use is found, on the way and at the end', {
  skip: !isRoot && 'needs root',
}, (t) => {
  const base = temporaryDirectory(t);
  const file = join(base, 'home/models/m.onnx');
  mkdirSync(join(base, 'home/models'), { recursive: true });
  writeFileSync(file, '');
  const set = (mode: number, ...parts: string[]) => chmodSync(join(base, ...parts), mode);
  for (const parts of [[], ['home'], ['home/models']]) set(0o755, ...parts);
  set(0o644, 'home/models/m.onnx');
  const stranger = { uid: undefined, gids: [] };
  const owner = { uid: 4001, gids: [4001] };
  const member = { uid: 4002, gids: [4001] };
  assert.equal(obstacle(file, 'read', stranger), undefined);
  assert.equal(obstacle(file, 'write', stranger), file);
  assert.equal(obstacle(join(base, 'none'), 'read', stranger), join(base, 'none'));

  chownSync(join(base, 'home'), 4001, 4001);
  set(0o710, 'home');
  assert.equal(obstacle(file, 'read', stranger), join(base, 'home'));
  assert.equal(obstacle(file, 'read', member), undefined);
  assert.equal(obstacle(file, 'read', owner), undefined);
  set(0o070, 'home');
  assert.equal(obstacle(file, 'read', owner), join(base, 'home'));
  assert.equal(obstacle(file, 'read', { uid: 0, gids: [0] }), undefined);

  set(0o755, 'home');
  set(0o600, 'home/models/m.onnx');
  symlinkSync(file, join(base, 'link.onnx'));
  assert.equal(obstacle(join(base, 'link.onnx'), 'read', stranger), join(base, 'link.onnx'));
  set(0o711, 'home/models');
  assert.equal(obstacle(join(base, 'home/models'), 'read', stranger), join(base, 'home/models'));
});

test('the groups that GPUs ask for are found from their device files', { skip: !isRoot && 'needs root' }, (t) => {
  const dev = temporaryDirectory(t);
  mkdirSync(join(dev, 'dri'));
  for (const [name, mode, group] of [
    ['nvidia0', 0o666, 4001],
    ['nvidiactl', 0o660, 4002],
    ['dri/renderD128', 0o660, 4003],
    ['dri/card0', 0o660, 4004],
    ['null', 0o660, 4005],
  ] as const) {
    writeFileSync(join(dev, name), '');
    chmodSync(join(dev, name), mode);
    chownSync(join(dev, name), 0, group);
  }
  assert.deepEqual(deviceGroups(['cuda', 'cpu'], dev), [4002, 4003]);
  assert.deepEqual(deviceGroups(['cpu'], dev), []);
  assert.deepEqual(deviceGroups(['webgpu'], join(dev, 'none')), []);
});
