/**
 * What is checked before the first child is started: devices, models, memory for the queues, open files, addresses. Everything wrong is told at once, and nothing has
 * been started then.
 */
import { BatchportError } from '../config/errors.ts';
import { ExitError } from '../config/exit-codes.ts';
import type { Logger } from '../config/log.ts';
import type { ServerSettings } from '../config/settings.ts';
import { formatSizeBytes } from '../config/size.ts';
import type { RepositoryModel } from '../repository/model-directory.ts';
import { scanRepository, singleModel } from '../repository/repository.ts';
import { type Device, meantDevices, parseDeviceName } from '../runtime/device-name.ts';
import { SystemError } from '../system/errno.ts';
import { availableMemory } from '../system/host-memory.ts';
import { type Listener, openListener } from '../system/listener.ts';
import { openFilesMax } from '../system/open-files.ts';

const BACKLOG = 1024;
/** Descriptors for the code that is loaded, for pipes and channels, and for a hundred clients. */
const OPEN_FILES_MIN = 256;
/** In the supervisor: its queue, its texts, and the model file. */
const FILES_OF_A_VERSION = 3;

/** Why an address cannot be had, in words; others are told as the kernel tells them. */
const LISTEN_FAULTS = new Map([
  ['EADDRINUSE', 'the port is in use by another process'],
  ['EADDRNOTAVAIL', 'this machine does not have that address'],
  ['EACCES', 'not permitted; ports below 1024 need a privilege'],
  ['ENOTFOUND', 'there is no such host'],
]);
/** What a listener's error begins with, and the message here too. */
const LISTEN_DETAIL = /^listen on host "[^"]*"( port \d+)?: /;
const ADDRESS_FAULTS: ReadonlySet<string> = new Set(['EADDRNOTAVAIL', 'ENOTFOUND', 'EAI_AGAIN', 'EAFNOSUPPORT']);

/** @throws ExitError DEVICE for a name that is none. */
export function readDevices(names: readonly string[]): Device[] {
  return names.map((name) => {
    try {
      return parseDeviceName(name);
    } catch (error) {
      if (error instanceof BatchportError) throw new ExitError('DEVICE', error.message);
      throw error;
    }
  });
}

export interface StartModels {
  /** The models to serve. Faulty ones are kept as unavailable; left out only where no version of theirs is known. */
  readonly served: readonly RepositoryModel[];
  /** Models of the repository that are not loaded at the start, and could be. */
  readonly shelved: readonly RepositoryModel[];
}

/**
 * Looks at what there is to serve. Faulty models are logged.
 *
 * @throws ExitError when there is nothing to serve at all.
 */
export function readModels(settings: ServerSettings, devices: readonly Device[], log: Logger): StartModels {
  if (settings.model !== undefined) {
    if (settings.modelControlMode !== 'none') {
      throw new ExitError(
        'CONFIG',
        '--model-control-mode is for a --model-repository, and not for a single model file.',
      );
    }
    const model = singleModel(settings.model);
    if (model.problem !== undefined) throw new ExitError('MODEL', `${settings.model} ${model.problem}`);
    const faulty = model.versions[0]?.problem;
    if (faulty !== undefined) throw new ExitError('MODEL', `${settings.model}: ${faulty}`);
    return { served: [model], shelved: [] };
  }
  const directory = settings.modelRepository;
  if (directory === undefined) throw new Error('neither a model nor a repository: this is a bug');
  const { models: all, problems } = scanRepository(directory);
  const models = toLoad(all, settings);
  for (const { path, message } of problems) log.warn({ path }, message);
  const kept: RepositoryModel[] = [];
  let usable = 0;
  let why: string | undefined;
  for (const model of models) {
    for (const { name, reason } of model.ignored) log.warn({ model: model.name, entry: name }, reason);
    const problem = model.problem ?? deviceProblem(model, devices);
    if (problem === undefined) {
      usable++;
      kept.push(model);
      continue;
    }
    log.error({ model: model.name, reason: problem }, 'model cannot be served');
    const versions = model.versions.map((version) => ({ ...version, problem: version.problem ?? problem }));
    if (versions.length > 0) kept.push({ ...model, versions });
    why ??= `${JSON.stringify(model.name)} ${problem}`;
  }
  if (usable === 0 && settings.modelControlMode === 'none') {
    why ??= problems[0]?.message ?? 'it holds no model';
    throw new ExitError('CONFIG', `Nothing to serve in ${directory}: ${why}`, {
      hint: 'A repository holds <model>/<version>/model.onnx; bin/serve check-config tells every problem.',
    });
  }
  const shelved =
    settings.modelControlMode === 'explicit' ? all.filter(({ name }) => !kept.some((one) => one.name === name)) : [];
  return { served: kept, shelved };
}

/** Those that are loaded at the start. @throws ExitError CONFIG for names that are none */
function toLoad(models: readonly RepositoryModel[], settings: ServerSettings): readonly RepositoryModel[] {
  const { modelControlMode, loadModel: loadModels = [] } = settings;
  if (modelControlMode !== 'explicit' && loadModels.length > 0) {
    throw new ExitError(
      'CONFIG',
      '--load-model is for --model-control-mode explicit; otherwise every model is loaded.',
    );
  }
  if (modelControlMode !== 'explicit' || loadModels.includes('*')) return models;
  const unknown = loadModels.filter((name) => !models.some((model) => model.name === name));
  if (unknown.length > 0) {
    throw new ExitError(
      'CONFIG',
      `The repository has no model ${unknown.map((name) => JSON.stringify(name)).join(', ')} (--load-model).`,
    );
  }
  return models.filter(({ name }) => loadModels.includes(name));
}

/** Why a model cannot be served on these devices, in words; undefined when it can. */
export function deviceProblem({ config }: RepositoryModel, devices: readonly Device[]): string | undefined {
  const unknown = config.devices?.filter((name) => meantDevices(name, devices).length === 0) ?? [];
  if (unknown.length === 0) return undefined;
  const started = unknown[0]!.replace(/^gpu/, 'cuda');
  return `its configuration asks for the device ${unknown.join(', ')}, which the server does not have; start it with --device ${started}`;
}

/**
 * The queues may grow to their limits only if the machine has that much: found out now and not in the middle of a load peak.
 *
 * @throws ExitError CONFIG with needed and available bytes.
 */
export function requireQueueMemory(models: readonly RepositoryModel[]): void {
  let neededBytes = 0;
  for (const { config, versions } of models) {
    neededBytes += config.queue.maxBytes * versions.filter(({ problem }) => problem === undefined).length;
  }
  const { availableBytes, source } = availableMemory();
  if (neededBytes <= availableBytes) return;
  throw new ExitError(
    'CONFIG',
    `The queues of the models may take ${formatSizeBytes(neededBytes)} of shared memory, but only ${formatSizeBytes(Math.floor(availableBytes))} are available (${source}).`,
    { hint: 'Lower queue.max_bytes in the config.json of the models, or serve fewer of them.' },
  );
}

/**
 * Each process has its own files open, some for each model, and one for each client: a server that runs out of them answers nobody new, and starts no process again.
 *
 * @throws ExitError FAILURE with needed and allowed numbers.
 */
export function requireOpenFiles(versions: number, allowed = openFilesMax()): void {
  const needed = OPEN_FILES_MIN + FILES_OF_A_VERSION * versions;
  if (allowed >= needed) return;
  throw new ExitError('FAILURE', `Each process may have ${allowed} files open, but at least ${needed} are needed.`, {
    hint: 'Allow more, such as with ulimit -n 65536 before the start, or with LimitNOFILE= in the unit of a service.',
  });
}

export interface Listeners {
  readonly http: Listener;
  /** Undefined when gRPC is off. */
  readonly grpc: Listener | undefined;
  readonly metrics: Listener;
}

interface Wanted {
  readonly name: keyof Listeners;
  /** As messages call it. */
  readonly what: string;
  readonly host: string;
  readonly port: number;
  readonly flag: string;
}

/** Opens all addresses; each that cannot be opened is named. @throws ExitError ADDRESS */
export async function openListeners(settings: ServerSettings): Promise<Listeners> {
  const opened = new Map<keyof Listeners, Listener>();
  const messages: string[] = [];
  const mended = new Set<string>();
  for (const { name, what, host, port, flag } of wantedListeners(settings)) {
    try {
      opened.set(name, await openListener({ host, port, backlog: BACKLOG }));
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      const isPath = host.startsWith('unix:');
      mended.add(isPath || ADDRESS_FAULTS.has(error.code) ? '--host' : flag);
      const reason = (isPath ? undefined : LISTEN_FAULTS.get(error.code)) ?? error.message.replace(LISTEN_DETAIL, '');
      const code = reason.includes(error.code) ? '' : ` (${error.code})`;
      messages.push(`Cannot listen for ${what} on ${host}${isPath ? '' : ` port ${port}`}: ${reason}${code}.`);
    }
  }
  const [http, grpc, metrics] = [opened.get('http'), opened.get('grpc'), opened.get('metrics')];
  if (messages.length === 0 && http !== undefined && metrics !== undefined) return { http, grpc, metrics };
  for (const listener of opened.values()) listener.close();
  throw new ExitError('ADDRESS', messages.join('\n'), { hint: `Choose another with ${[...mended].join(' and ')}.` });
}

function wantedListeners({ host, httpPort, grpcPort, metricsPort, origins }: ServerSettings): Wanted[] {
  const isPath = host.startsWith('unix:');
  const wanted: Wanted[] = [{ name: 'http', what: 'HTTP', host, port: httpPort, flag: '--http-port' }];
  // What is served on a path is meant to be reached by whoever may open it: no port is opened besides that nobody has asked for.
  const network = isPath ? '127.0.0.1' : host;
  if (grpcPort !== 'none' && !(isPath && origins.grpcPort.source === 'default')) {
    wanted.push({ name: 'grpc', what: 'gRPC', host: network, port: grpcPort, flag: '--grpc-port' });
  }
  wanted.push({ name: 'metrics', what: 'metrics', host: network, port: metricsPort, flag: '--metrics-port' });
  return wanted;
}
