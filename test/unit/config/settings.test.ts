/** The settings table and how flags, environment and file become settings. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { ExitError } from '../../../src/config/exit-codes.ts';
import { serverConfigJsonSchema } from '../../../src/config/server-config.ts';
import {
  formatOrigin,
  type Machine,
  SETTING_NAMES,
  SETTINGS,
  type SettingName,
  settingRow,
} from '../../../src/config/settings.ts';
import {
  examineSettings,
  formatProblem,
  resolveSettings,
  type SettingSources,
} from '../../../src/config/settings-resolve.ts';
import { settingsTable } from '../../../src/config/settings-table.ts';

const directory = mkdtempSync(join(tmpdir(), 'batchport-settings-'));
after(() => rmSync(directory, { recursive: true }));

const machine: Machine = { cores: 4, env: {}, home: '/home/u', tmp: '/tmp', uid: 7 };
const cwd = '/work';

let files = 0;
function configFile(content: string): string {
  const path = join(directory, `server-${files++}.json`);
  writeFileSync(path, content);
  return path;
}

function settingsOf(sources: SettingSources) {
  return resolveSettings({ env: {}, cwd, machine, ...sources, flags: { model: 'm.onnx', ...sources.flags } }).settings;
}

function problemsOf(sources: SettingSources): string[] {
  const { problems, settings } = examineSettings({ env: {}, cwd, machine, ...sources });
  assert.equal(settings === undefined, problems.length > 0);
  return problems.map(formatProblem);
}

test('without anything but a model, every setting has its default and says so', () => {
  const settings = settingsOf({});
  const { origins, ...values } = settings;
  assert.deepEqual(values, {
    model: '/work/m.onnx',
    modelRepository: undefined,
    modelControlMode: 'none',
    loadModel: undefined,
    repositoryPollS: 15,
    devices: ['cpu'],
    strictReadiness: false,
    memoryBudgetBytes: undefined,
    ingress: 1,
    host: '127.0.0.1',
    httpPort: 8000,
    grpcPort: 8001,
    metricsPort: 8002,
    systemSharedMemory: false,
    maxBodyBytes: 67_108_864,
    headersTimeoutS: 60,
    bodyIdleTimeoutS: 30,
    keepAliveTimeoutS: 75,
    drainTimeoutS: 30,
    runTimeoutS: 60,
    config: undefined,
    cacheDir: '/home/u/.cache/batchport',
    weightCacheMaxBytes: undefined,
    weightCredentials: undefined,
    runtimeDir: '/tmp/batchport-7',
    logLevel: 'info',
  });
  assert.equal(formatOrigin(origins.httpPort), 'default');
  assert.equal(formatOrigin(origins.model), 'MODEL');
});

test('settings are frozen, lists and origins included', () => {
  const settings = settingsOf({});
  for (const part of [settings, settings.devices, settings.origins]) assert.ok(Object.isFrozen(part));
});

test('a flag beats the environment, the environment the file, the file the default', () => {
  const config = configFile('{"host": "file", "http_port": 1, "metrics_port": 2, "ingress": 3}');
  const settings = settingsOf({
    flags: { config, host: 'flag' },
    env: { BATCHPORT_HOST: 'env', BATCHPORT_HTTP_PORT: '11', BATCHPORT_METRICS_PORT: '' },
  });
  assert.deepEqual(
    [settings.host, settings.httpPort, settings.metricsPort, settings.ingress, settings.logLevel],
    ['flag', 11, 2, 3, 'info'],
  );
  const names = (['host', 'httpPort', 'metricsPort', 'ingress', 'logLevel'] as const).map((name) =>
    formatOrigin(settings.origins[name]),
  );
  assert.deepEqual(names, ['--host', 'BATCHPORT_HTTP_PORT', config, config, 'default']);
});

test('text of flags and variables becomes values of the right type', () => {
  const settings = settingsOf({
    flags: { ingress: '2', maxBodyBytes: '64MiB', drainTimeoutS: '0.5', logLevel: 'DEBUG', devices: ['cuda:0', 'cpu'] },
    env: { BATCHPORT_STRICT_READINESS: 'yes', BATCHPORT_HTTP_PORT: '0', BATCHPORT_METRICS_PORT: '0' },
  });
  assert.deepEqual(
    [settings.ingress, settings.maxBodyBytes, settings.drainTimeoutS, settings.logLevel, settings.strictReadiness],
    [2, 67_108_864, 0.5, 'debug', true],
  );
  assert.deepEqual(settings.devices, ['cuda:0', 'cpu']);
});

test('sizes are accepted as bytes, in binary and in decimal units, in files as number or text', () => {
  for (const [text, bytes] of [
    ['2048', 2048],
    ['2KiB', 2048],
    ['1GB', 1_000_000_000],
  ] as const) {
    assert.equal(settingsOf({ flags: { maxBodyBytes: text } }).maxBodyBytes, bytes);
    assert.equal(settingsOf({ env: { BATCHPORT_MAX_BODY_BYTES: text } }).maxBodyBytes, bytes);
    assert.equal(settingsOf({ flags: { config: configFile(`{"max_body_bytes": "${text}"}`) } }).maxBodyBytes, bytes);
    assert.equal(settingsOf({ flags: { config: configFile(`{"max_body_bytes": ${bytes}}`) } }).maxBodyBytes, bytes);
  }
});

test('several devices in a variable are separated by blanks or commas, but not at the comma of a core set', () => {
  const devices = (text: string) => settingsOf({ env: { BATCHPORT_DEVICE: text } }).devices;
  assert.deepEqual(devices('cpu:0,2,cuda:1'), ['cpu:0,2', 'cuda:1']);
  assert.deepEqual(devices(' cpu  cuda:0, cuda:1'), ['cpu', 'cuda:0', 'cuda:1']);
});

test('a value that is not valid names where it came from and what is expected', () => {
  const config = configFile('{\n  "http_port": 99999,\n  "ingress": "2"\n}');
  const cases: [SettingSources, string][] = [
    [{ flags: { model: 'm', httpPort: '99999' } }, '--http-port: 99999 is not a port from 0 to 65535'],
    [{ flags: { model: 'm', httpPort: '80a' } }, '--http-port: "80a" is not a port from 0 to 65535'],
    [{ flags: { model: '' } }, 'MODEL: "" is not the path of an .onnx file'],
    [
      { flags: { model: 'm' }, env: { BATCHPORT_LOG_LEVEL: 'loud' } },
      'BATCHPORT_LOG_LEVEL: "loud" is not one of fatal, error, warn, info, debug, trace',
    ],
    [
      { flags: { model: 'm', maxBodyBytes: '1' } },
      '--max-body-bytes: "1" is not a size from 1KiB to 4GiB, such as 67108864, 64MiB or 1GB',
    ],
    [
      { flags: { model: 'm' }, env: { BATCHPORT_DRAIN_TIMEOUT_S: '-1' } },
      'BATCHPORT_DRAIN_TIMEOUT_S: "-1" is not a number of seconds from 0 to 86400',
    ],
  ];
  for (const [sources, message] of cases) assert.deepEqual(problemsOf(sources), [message]);
  assert.deepEqual(problemsOf({ flags: { model: 'm', config } }), [
    `${config}:3:14: ingress: "2" is not a number of processes from 1 to 64`,
    `${config}:2:16: http_port: 99999 is not a port from 0 to 65535`,
  ]);
});

test('an unknown key of the file is an error that names it and the nearest known one', () => {
  const config = configFile('{"$schema": "x", "htp_port": 1, "grpc_prt": 8001, "config": "y", "zzzz": 1}');
  assert.deepEqual(problemsOf({ flags: { model: 'm', config } }), [
    `${config}:1:18: htp_port: unknown key (did you mean "http_port"?)`,
    `${config}:1:33: grpc_prt: unknown key (did you mean "grpc_port"?)`,
    `${config}:1:51: config: a configuration file cannot name another one`,
    `${config}:1:66: zzzz: unknown key`,
  ]);
});

test('a file that is missing, not JSON, not an object or too large is one problem with its name', () => {
  const missing = join(directory, 'none.json');
  assert.match(problemsOf({ flags: { model: 'm', config: missing } })[0]!, /none\.json: .* cannot be read: ENOENT/);
  assert.match(problemsOf({ flags: { model: 'm', config: configFile('{"host": }') } })[0]!, /\.json:1:10: /);
  assert.match(problemsOf({ flags: { model: 'm', config: configFile('[]') } })[0]!, /must be a JSON object/);
  assert.match(problemsOf({ flags: { model: 'm', config: configFile(' '.repeat(2 ** 20 + 1)) } })[0]!, /1048577 bytes/);
  assert.match(problemsOf({ flags: { model: 'm', config: directory } })[0]!, /cannot be read: EISDIR/);
});

test('relative paths start at the working directory, those of a file at the file', () => {
  const config = configFile('{"model_repository": "models", "cache_dir": "/cache"}');
  const { settings } = resolveSettings({ flags: { config, runtimeDir: 'run' }, env: {}, cwd, machine });
  assert.equal(settings.modelRepository, join(directory, 'models'));
  assert.equal(settings.cacheDir, '/cache');
  assert.equal(settings.runtimeDir, '/work/run');
});

test('exactly one of a model file and a model repository is needed', () => {
  assert.match(problemsOf({})[0]!, /^no model given: name an \.onnx file, or .* --model-repository DIR$/);
  assert.deepEqual(problemsOf({ modelRequired: false }), []);
  assert.deepEqual(problemsOf({ flags: { model: 'm', modelRepository: 'd' } }), [
    '--model-repository: MODEL and --model-repository are alternatives; give only one of them',
  ]);
  const config = configFile('{"model": "a", "model_repository": "b"}');
  assert.deepEqual(problemsOf({ flags: { config } }), [
    `${config}: model and model_repository are alternatives; give only one of them`,
  ]);
});

test('between a model and a repository from different sources, the stronger source decides', () => {
  const env = { BATCHPORT_MODEL_REPOSITORY: 'd', BATCHPORT_MODEL: '' };
  const settings = settingsOf({ env });
  assert.deepEqual([settings.model, settings.modelRepository], ['/work/m.onnx', undefined]);
  const config = configFile('{"model": "a"}');
  const other = resolveSettings({ flags: { config }, env, cwd, machine }).settings;
  assert.deepEqual([other.model, other.modelRepository], [undefined, '/work/d']);
});

test('the same port for two listeners is refused, unless any free one will do', () => {
  assert.deepEqual(problemsOf({ flags: { model: 'm', httpPort: '8002' } }), [
    '--http-port: http_port and metrics_port are both 8002; give them different ports',
  ]);
  assert.deepEqual(problemsOf({ flags: { model: 'm', grpcPort: '8000' } }), [
    '--grpc-port: http_port and grpc_port are both 8000; give them different ports',
  ]);
  assert.deepEqual(problemsOf({ flags: { model: 'm', httpPort: '0', grpcPort: '0', metricsPort: '0' } }), []);
  assert.deepEqual(problemsOf({ flags: { model: 'm', httpPort: '8001', grpcPort: 'none' } }), []);
});

test('the error of bad settings has the exit code of their source and says how many more there are', () => {
  const failure = (sources: SettingSources): ExitError => {
    try {
      resolveSettings({ env: {}, cwd, machine, ...sources });
    } catch (error) {
      if (error instanceof ExitError) return error;
    }
    throw new assert.AssertionError({ message: 'no ExitError' });
  };
  assert.equal(failure({ flags: { model: 'm', ingress: '0' } }).exit, 'USAGE');
  assert.equal(failure({ flags: { model: 'm' }, env: { BATCHPORT_INGRESS: '0' } }).exit, 'CONFIG');
  assert.match(failure({ flags: { model: 'm', ingress: '0', httpPort: 'x' } }).hint!, /^1 more; "check-config"/);
});

test('a mistyped variable is warned of, variables of other programs are not', () => {
  const { warnings } = examineSettings({
    cwd,
    machine,
    flags: { model: 'm' },
    env: {
      BATCHPORT_HTP_PORT: '1',
      BATCHPORT_GRPC_PORT: '8001',
      BATCHPORT_SERVICE_HOST: '10.0.0.1',
      BATCHPORT_PORT_8000_TCP_PROTO: 'tcp',
      BATCHPORT_HOSTS: 'tcp://10.0.0.1:8000',
      HTTP_PORT: '1',
    },
  });
  assert.deepEqual(warnings, ['BATCHPORT_HTP_PORT is not a setting; did you mean BATCHPORT_HTTP_PORT?']);
});

test('a variable that Kubernetes made of a service is refused with how to turn that off', () => {
  const env = { BATCHPORT_HTTP_PORT: 'tcp://10.0.0.1:8000' };
  assert.match(problemsOf({ flags: { model: 'm' }, env })[0]!, /enableServiceLinks: false/);
});

test('the default of ingress grows with the cores beyond four', () => {
  const ingress = (cores: number) => SETTINGS.ingress.default({ ...machine, cores });
  assert.deepEqual([1, 2, 4, 5, 8, 16, 1000].map(ingress), [1, 1, 1, 1, 2, 4, 64]);
});

test('default directories follow the XDG variables where those are absolute', () => {
  const at = (env: Machine['env'], name: 'cacheDir' | 'runtimeDir') => SETTINGS[name].default({ ...machine, env });
  assert.equal(at({ XDG_CACHE_HOME: '/c' }, 'cacheDir'), '/c/batchport');
  assert.equal(at({ XDG_CACHE_HOME: 'c' }, 'cacheDir'), '/home/u/.cache/batchport');
  assert.equal(at({ XDG_RUNTIME_DIR: '/run/user/7' }, 'runtimeDir'), '/run/user/7/batchport');
});

test('names in the table follow one rule: the flag is the key with dashes, the variable the flag in capitals', () => {
  for (const name of SETTING_NAMES) {
    const { key, flag, env } = settingRow(name);
    const words = flag ?? 'model';
    assert.equal(env, `BATCHPORT_${words.toUpperCase().replaceAll('-', '_')}`, name);
    if (name !== 'devices' && key !== undefined) assert.equal(key, words.replaceAll('-', '_'));
    const camel = (key ?? words).replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
    assert.equal(camel, name);
  }
});

test('every default is a value that the setting itself accepts', () => {
  for (const name of SETTING_NAMES) {
    const { kind, default: defaultOf } = settingRow(name);
    const value = defaultOf(machine);
    if (value !== undefined) assert.ok(kind.schema.safeParse(value).success, name);
  }
});

test('the JSON Schema and the markdown table have every setting', () => {
  const { properties, additionalProperties } = serverConfigJsonSchema() as {
    properties: Record<string, unknown>;
    additionalProperties: boolean;
  };
  const keys = SETTING_NAMES.map((name: SettingName) => settingRow(name).key).filter((key) => key !== undefined);
  assert.deepEqual(Object.keys(properties).sort(), ['$schema', ...keys].sort());
  assert.equal(additionalProperties, false);
  for (const name of SETTING_NAMES) assert.match(settingsTable(), new RegExp(`\`${settingRow(name).env}\``));
});
