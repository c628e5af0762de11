/**
 * The settings of the server, in one table: command-line options, environment variables, keys of the configuration file,
 * the published JSON Schema and the README's table are all derived from `SETTINGS`.
 *
 * Invariant: a `ServerSettings` is complete, validated and frozen; paths in it are absolute; `origins` says where each
 * value came from. Precedence: flag, then environment, then file, then default (`settings-resolve.ts`).
 */
import { availableParallelism, homedir, tmpdir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import {
  choice,
  flag,
  integer,
  path,
  port,
  portOrNone,
  type SettingKind,
  seconds,
  size,
  text,
  textList,
} from './setting-kinds.ts';

export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export const MODEL_CONTROL_MODES = ['none', 'poll', 'explicit'] as const;
export type ModelControlMode = (typeof MODEL_CONTROL_MODES)[number];

export interface SettingValues {
  /** A single model file; exactly one of `model` and `modelRepository` is set wherever a server is to be run. */
  readonly model: string | undefined;
  readonly modelRepository: string | undefined;
  readonly modelControlMode: ModelControlMode;
  /** Models to load at the start in the mode explicit. */
  readonly loadModel: readonly string[] | undefined;
  readonly repositoryPollS: number;
  readonly devices: readonly string[];
  readonly strictReadiness: boolean;
  /** Of each device; undefined = what it has. */
  readonly memoryBudgetBytes: number | undefined;
  readonly ingress: number;
  readonly host: string;
  /** 0 = any free port. */
  readonly httpPort: number;
  /** 0 = any free port. */
  readonly grpcPort: number | 'none';
  /** 0 = any free port. */
  readonly metricsPort: number;
  /** Whether clients on this host may pass tensors in shared memory. */
  readonly systemSharedMemory: boolean;
  readonly maxBodyBytes: number;
  readonly headersTimeoutS: number;
  readonly bodyIdleTimeoutS: number;
  readonly keepAliveTimeoutS: number;
  readonly drainTimeoutS: number;
  readonly runTimeoutS: number;
  readonly config: string | undefined;
  readonly cacheDir: string;
  /** Of the weights in the cache; undefined = what the disk has, less a reserve. */
  readonly weightCacheMaxBytes: number | undefined;
  readonly weightCredentials: string | undefined;
  readonly runtimeDir: string;
  readonly logLevel: LogLevel;
}

export type SettingName = keyof SettingValues;

/** Where a value came from: `name` is the flag, the variable or the file. */
export interface Origin {
  readonly source: 'flag' | 'environment' | 'file' | 'default';
  readonly name: string;
}

export interface ServerSettings extends SettingValues {
  readonly origins: Readonly<Record<SettingName, Origin>>;
}

/** What defaults depend on; passed in so that they can be tested. */
export interface Machine {
  readonly cores: number;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly home: string;
  readonly tmp: string;
  readonly uid: number;
}

export interface Setting<T> {
  /** Key in the configuration file; undefined for `config` itself. */
  readonly key: string | undefined;
  /** Without the dashes; undefined for the positional MODEL. */
  readonly flag: string | undefined;
  readonly env: string;
  readonly kind: SettingKind<NonNullable<T>>;
  readonly default: (machine: Machine) => T;
  /** The default as help and README print it. */
  readonly defaultText: string;
  readonly unit?: 'bytes' | 'seconds';
  readonly group: 'Model' | 'Network' | 'Limits and timeouts' | 'Files and logs';
  readonly description: string;
}

const INGRESS_MAX = 64;

export const SETTINGS: {
  readonly [K in SettingName]: Setting<SettingValues[K]>;
} = {
  model: {
    key: 'model',
    flag: undefined,
    env: 'BATCHPORT_MODEL',
    kind: path('an .onnx file'),
    default: () => undefined,
    defaultText: 'none',
    group: 'Model',
    description:
      'The .onnx file to serve, under the name of the file without its ending; on the command line the positional MODEL.',
  },
  modelRepository: {
    key: 'model_repository',
    flag: 'model-repository',
    env: 'BATCHPORT_MODEL_REPOSITORY',
    kind: path('a directory'),
    default: () => undefined,
    defaultText: 'none',
    group: 'Model',
    description: 'Directory of models to serve, <model>/<version>/model.onnx; instead of MODEL.',
  },
  modelControlMode: {
    key: 'model_control_mode',
    flag: 'model-control-mode',
    env: 'BATCHPORT_MODEL_CONTROL_MODE',
    kind: choice('MODE', MODEL_CONTROL_MODES),
    default: () => 'none',
    defaultText: 'none',
    group: 'Model',
    description:
      'none: the repository is read at start. poll: it is looked at again at intervals, and changes are loaded. explicit: models are loaded and unloaded on command.',
  },
  loadModel: {
    key: 'load_model',
    flag: 'load-model',
    env: 'BATCHPORT_LOAD_MODEL',
    kind: textList('names of models'),
    default: () => undefined,
    defaultText: 'none',
    group: 'Model',
    description: 'Model to load at the start with --model-control-mode explicit; may be repeated, * for all.',
  },
  repositoryPollS: {
    key: 'repository_poll_s',
    flag: 'repository-poll-s',
    env: 'BATCHPORT_REPOSITORY_POLL_S',
    kind: seconds(0.1, 86_400),
    default: () => 15,
    defaultText: '15',
    unit: 'seconds',
    group: 'Model',
    description: 'Time between two looks at the repository with --model-control-mode poll.',
  },
  devices: {
    key: 'devices',
    flag: 'device',
    env: 'BATCHPORT_DEVICE',
    kind: textList('device names such as "cpu", "cpu:0-3" or "cuda:0"'),
    default: () => ['cpu'],
    defaultText: 'cpu',
    group: 'Model',
    description: 'Device to run models on, one process each; may be repeated.',
  },
  strictReadiness: {
    key: 'strict_readiness',
    flag: 'strict-readiness',
    env: 'BATCHPORT_STRICT_READINESS',
    kind: flag(),
    default: () => false,
    defaultText: 'false',
    group: 'Model',
    description:
      'Report the server as not ready while any model has failed to load, instead of leaving failed models out.',
  },
  memoryBudgetBytes: {
    key: 'memory_budget_bytes',
    flag: 'memory-budget-bytes',
    env: 'BATCHPORT_MEMORY_BUDGET_BYTES',
    kind: size(2 ** 20, 2 ** 44),
    default: () => undefined,
    defaultText: 'of a GPU what it has, less a reserve; of a CPU no limit',
    unit: 'bytes',
    group: 'Limits and timeouts',
    description: 'Most memory that the models on one device may take together, weights and runs.',
  },
  ingress: {
    key: 'ingress',
    flag: 'ingress',
    env: 'BATCHPORT_INGRESS',
    kind: integer(1, INGRESS_MAX, 'a number of processes'),
    default: (machine) => Math.min(INGRESS_MAX, Math.max(1, Math.round(machine.cores / 4))),
    defaultText: 'cores / 4, at least 1',
    group: 'Network',
    description: 'Processes that take requests from the HTTP and gRPC ports.',
  },
  host: {
    key: 'host',
    flag: 'host',
    env: 'BATCHPORT_HOST',
    kind: text('a host name, an address or unix:PATH', 'ADDRESS', /^(unix:.+|(?!unix:)[^\s/]+)$/),
    default: () => '127.0.0.1',
    defaultText: '127.0.0.1',
    group: 'Network',
    description:
      'Address to listen on; 0.0.0.0 or :: for all, unix:PATH to serve on a Unix socket instead of the HTTP port.',
  },
  httpPort: {
    key: 'http_port',
    flag: 'http-port',
    env: 'BATCHPORT_HTTP_PORT',
    kind: port(),
    default: () => 8000,
    defaultText: '8000',
    group: 'Network',
    description: 'Port of the inference protocol; 0 picks a free one.',
  },
  grpcPort: {
    key: 'grpc_port',
    flag: 'grpc-port',
    env: 'BATCHPORT_GRPC_PORT',
    kind: portOrNone(),
    default: () => 8001,
    defaultText: '8001',
    group: 'Network',
    description:
      'Port of the inference protocol over gRPC; 0 picks a free one, none turns gRPC off. With --host unix:PATH it is off unless given, and then on 127.0.0.1.',
  },
  metricsPort: {
    key: 'metrics_port',
    flag: 'metrics-port',
    env: 'BATCHPORT_METRICS_PORT',
    kind: port(),
    default: () => 8002,
    defaultText: '8002',
    group: 'Network',
    description: 'Port of /metrics, /status and /healthz; 0 picks a free one.',
  },
  systemSharedMemory: {
    key: 'system_shared_memory',
    flag: 'system-shared-memory',
    env: 'BATCHPORT_SYSTEM_SHARED_MEMORY',
    kind: flag(),
    default: () => false,
    defaultText: 'false',
    group: 'Network',
    description:
      'Let clients on this host pass tensors in POSIX shared memory; whoever reaches the ports may then read and write what this user may in /dev/shm.',
  },
  maxBodyBytes: {
    key: 'max_body_bytes',
    flag: 'max-body-bytes',
    env: 'BATCHPORT_MAX_BODY_BYTES',
    kind: size(1024, 2 ** 32),
    default: () => 64 * 2 ** 20,
    defaultText: '64MiB',
    unit: 'bytes',
    group: 'Limits and timeouts',
    description: 'Largest request body, as sent and after decompression.',
  },
  headersTimeoutS: {
    key: 'headers_timeout_s',
    flag: 'headers-timeout-s',
    env: 'BATCHPORT_HEADERS_TIMEOUT_S',
    kind: seconds(0.1, 86_400),
    default: () => 60,
    defaultText: '60',
    unit: 'seconds',
    group: 'Limits and timeouts',
    description: 'Time for a client to send the headers of a request.',
  },
  bodyIdleTimeoutS: {
    key: 'body_idle_timeout_s',
    flag: 'body-idle-timeout-s',
    env: 'BATCHPORT_BODY_IDLE_TIMEOUT_S',
    kind: seconds(0.1, 86_400),
    default: () => 30,
    defaultText: '30',
    unit: 'seconds',
    group: 'Limits and timeouts',
    description:
      'Longest time in which a client may send less than 1 KiB of an unfinished request body, or take nothing of its answer.',
  },
  keepAliveTimeoutS: {
    key: 'keep_alive_timeout_s',
    flag: 'keep-alive-timeout-s',
    env: 'BATCHPORT_KEEP_ALIVE_TIMEOUT_S',
    kind: seconds(0.1, 86_400),
    default: () => 75,
    defaultText: '75',
    unit: 'seconds',
    group: 'Limits and timeouts',
    description: 'Time after which a connection without requests is closed.',
  },
  drainTimeoutS: {
    key: 'drain_timeout_s',
    flag: 'drain-timeout-s',
    env: 'BATCHPORT_DRAIN_TIMEOUT_S',
    kind: seconds(0, 86_400),
    default: () => 30,
    defaultText: '30',
    unit: 'seconds',
    group: 'Limits and timeouts',
    description: 'Time for requests in flight to be answered when the server stops; then they are cut off.',
  },
  runTimeoutS: {
    key: 'run_timeout_s',
    flag: 'run-timeout-s',
    env: 'BATCHPORT_RUN_TIMEOUT_S',
    kind: seconds(0.1, 86_400),
    default: () => 60,
    defaultText: '60',
    unit: 'seconds',
    group: 'Limits and timeouts',
    description:
      'Longest time of one run of a model; then it is cancelled, and its process killed if that does not end it. A model may have its own run_timeout_ms.',
  },
  config: {
    key: undefined,
    flag: 'config',
    env: 'BATCHPORT_CONFIG',
    kind: path('a JSON file'),
    default: () => undefined,
    defaultText: 'none',
    group: 'Files and logs',
    description: 'JSON file with settings, such as {"http_port": 9000}; config/server.schema.json describes it.',
  },
  cacheDir: {
    key: 'cache_dir',
    flag: 'cache-dir',
    env: 'BATCHPORT_CACHE_DIR',
    kind: path('a directory'),
    default: (machine) => join(absoluteOr(machine.env.XDG_CACHE_HOME, join(machine.home, '.cache')), 'batchport'),
    defaultText: '$XDG_CACHE_HOME/batchport',
    group: 'Files and logs',
    description:
      'Directory for what can be fetched or computed again: weights, facts about models. Without XDG_CACHE_HOME, ~/.cache/batchport.',
  },
  weightCacheMaxBytes: {
    key: 'weight_cache_max_bytes',
    flag: 'weight-cache-max-bytes',
    env: 'BATCHPORT_WEIGHT_CACHE_MAX_BYTES',
    kind: size(2 ** 20, 2 ** 50),
    default: () => undefined,
    defaultText: 'what the disk has, less a reserve',
    unit: 'bytes',
    group: 'Files and logs',
    description:
      'Most bytes of weights that the cache directory may hold; what has not been used for longest is removed, never what is in use.',
  },
  weightCredentials: {
    key: 'weight_credentials',
    flag: 'weight-credentials',
    env: 'BATCHPORT_WEIGHT_CREDENTIALS',
    kind: path('a JSON file'),
    default: () => undefined,
    defaultText: 'none',
    group: 'Files and logs',
    description:
      'JSON file with the authorization that servers of weights are given, such as {"https://host": {"authorization_env": "NAME"}}. Hugging Face is given HF_TOKEN.',
  },
  runtimeDir: {
    key: 'runtime_dir',
    flag: 'runtime-dir',
    env: 'BATCHPORT_RUNTIME_DIR',
    kind: path('a directory'),
    default: (machine) => {
      const runtimeHome = absoluteOr(machine.env.XDG_RUNTIME_DIR, undefined);
      return runtimeHome === undefined ? join(machine.tmp, `batchport-${machine.uid}`) : join(runtimeHome, 'batchport');
    },
    defaultText: '$XDG_RUNTIME_DIR/batchport',
    group: 'Files and logs',
    description:
      'Directory for what lives as long as the server: locks, sockets. Without XDG_RUNTIME_DIR, batchport-<uid> in the temporary directory.',
  },
  logLevel: {
    key: 'log_level',
    flag: 'log-level',
    env: 'BATCHPORT_LOG_LEVEL',
    kind: choice('LEVEL', LOG_LEVELS),
    default: () => 'info',
    defaultText: 'info',
    group: 'Files and logs',
    description: 'Least important level that is logged; from debug on, errors of the command line carry their stack.',
  },
};

export const SETTING_NAMES = Object.keys(SETTINGS) as readonly SettingName[];

/** The row of a setting, with the types of the values forgotten: for loops over the table. */
export function settingRow(name: SettingName): Setting<unknown> {
  return SETTINGS[name] as Setting<unknown>;
}

/** What this machine and process offer to defaults. */
export function thisMachine(env: Machine['env']): Machine {
  return {
    cores: availableParallelism(),
    env,
    home: homedir(),
    tmp: tmpdir(),
    uid: process.getuid?.() ?? 0,
  };
}

/** As messages print it: `--http-port`, `BATCHPORT_HTTP_PORT`, a file's path, or `default`. */
export function formatOrigin(origin: Origin): string {
  return origin.source === 'default' ? 'default' : origin.name;
}

/** The XDG specification says that a relative path in these variables is to be ignored. */
function absoluteOr<T>(directory: string | undefined, otherwise: T): string | T {
  return directory !== undefined && isAbsolute(directory) ? directory : otherwise;
}
