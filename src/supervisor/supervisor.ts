/**
 * The supervisor: owns the sockets, the shared memory and the doorbells; starts the ingress and device processes and starts them again; decides what is
 * loaded where; drains and stops. It never touches a tensor and never blocks.
 *
 *     settings ─▶ listeners, pipes ─▶ children ─▶ loads, one at a time ─▶ ready ─▶ … ─▶ SIGTERM: drain ─▶ exit
 *
 * If it dies, the kernel ends its children and frees everything: segments have no names.
 */
import { closeSync } from 'node:fs';
import { BatchportError } from '../config/errors.ts';
import { ExitError, exitCode } from '../config/exit-codes.ts';
import { createLogger, flushLogs, type Logger, setLogging } from '../config/log.ts';
import { changedLogSettings, logSettingsOf } from '../config/log-settings.ts';
import type { ServerSettings } from '../config/settings.ts';
import { STOP_GRACE_MS, stopLimitS } from '../config/stop-limit.ts';
import { PACKAGE_VERSION } from '../config/version.ts';
import { createRegistry } from '../metrics/prometheus.ts';
import type { ControlRequest } from '../protocol/control.ts';
import { type Device, meantDevices } from '../runtime/device-name.ts';
import type { Listener } from '../system/listener.ts';
import { takeServiceManager } from '../system/notify.ts';
import { createPipe, type Pipe } from '../system/pipe.ts';
import { AdminServer } from './admin-server.ts';
import { announced } from './announced.ts';
import { BatchingCache } from './batching-cache.ts';
import { CommonState } from './common-state.ts';
import { CostCache } from './cost-cache.ts';
import { DeviceChild } from './device-child.ts';
import { GpuWatch } from './gpu-watch.ts';
import { IngressChild } from './ingress-child.ts';
import { Loads } from './loads.ts';
import { MemoryCache } from './memory-cache.ts';
import { MemoryLedger } from './memory-ledger.ts';
import { ModelControl, type ModelControlOptions } from './model-control.ts';
import { OomWatch } from './oom-watch.ts';
import {
  type Listeners,
  openListeners,
  readDevices,
  readModels,
  requireOpenFiles,
  requireQueueMemory,
  type StartModels,
} from './preparation.ts';
import { Readiness } from './readiness.ts';
import { RegionTable } from './region-table.ts';
import { RepositoryPoll } from './repository-poll.ts';
import { RuntimeFile } from './runtime-file.ts';
import { ServedVersion } from './served-version.ts';
import { ServiceNotifier } from './service-notifier.ts';
import { serviceReport } from './service-report.ts';
import { metricsSnapshot, statusDocument } from './status.ts';
import { Upkeep } from './upkeep.ts';
import { WeightLock } from './weight-lock.ts';

/** Instances on one device where models may come and go; threads are made as they are needed. */
const CONTROLLED_INSTANCES_MAX = 1024;

export type ServerState = 'starting' | 'running' | 'draining' | 'stopped';

/**
 * Runs a server until it is told to stop (SIGTERM or SIGINT; a second one stops at once).
 *
 * @returns the exit code.
 * @throws ExitError when it cannot start.
 */
export async function runServer(settings: ServerSettings): Promise<number> {
  const supervisor = await Supervisor.start(settings);
  return supervisor.finished;
}

export class Supervisor {
  readonly settings: ServerSettings;
  readonly log: Logger;
  readonly startedMs = performance.now();
  readonly versions: ServedVersion[] = [];
  readonly devices: DeviceChild[] = [];
  readonly ingresses: IngressChild[] = [];
  readonly readiness: Readiness;
  readonly ledger: MemoryLedger;
  readonly finished: Promise<number>;
  state: ServerState = 'starting';
  httpUrl = '';
  /** Undefined when gRPC is off. */
  grpcTarget: string | undefined;
  metricsUrl = '';
  /** It has been ready, and has said so. */
  #announced = false;
  readonly #listeners: Listeners;
  readonly #pipes: Pipe[] = [];
  readonly #loads: Loads;
  readonly #weightLock: WeightLock;
  readonly #upkeep: Upkeep;
  /** Undefined where models are not loaded or unloaded while the server runs. */
  readonly #modelControl: ModelControl | undefined;
  readonly #poll: RepositoryPoll | undefined;
  readonly #common: CommonState;
  readonly #regions: RegionTable;
  #announcements = 0;
  readonly #admin: AdminServer;
  readonly #runtimeFile: RuntimeFile;
  readonly #service: ServiceNotifier;
  #finish!: (code: number) => void;
  #failStart: ((error: ExitError) => void) | undefined;

  static async start(settings: ServerSettings): Promise<Supervisor> {
    const log = createLogger('supervisor', settings.logLevel);
    const devices = readDevices(settings.devices);
    const models = readModels(settings, devices, log);
    requireQueueMemory(models.served);
    requireOpenFiles(models.served.reduce((sum, { versions }) => sum + versions.length, 0));
    const listeners = await openListeners(settings);
    const supervisor = new Supervisor(settings, log, devices, models, listeners);
    try {
      await supervisor.#startChildren();
    } catch (error) {
      await supervisor.#stopEverything(0);
      throw error;
    }
    return supervisor;
  }

  private constructor(
    settings: ServerSettings,
    log: Logger,
    devices: readonly Device[],
    { served: models, shelved }: StartModels,
    listeners: Listeners,
  ) {
    this.settings = settings;
    this.log = log;
    this.#listeners = listeners;
    this.httpUrl = urlOf(listeners.http);
    this.grpcTarget = listeners.grpc === undefined ? undefined : targetOf(listeners.grpc);
    this.metricsUrl = urlOf(listeners.metrics);
    this.finished = new Promise((resolve) => {
      this.#finish = resolve;
    });
    for (let slot = 0; slot < settings.ingress; slot++) this.#pipes.push(createPipe());
    const bellWriteFds = this.#pipes.map(({ writeFd }) => writeFd);
    const names = uniqueNames(devices);
    const make: ModelControlOptions['make'] = (model, { version, path, sizeBytes, problem }, generation) => {
      const wanted = model.config.devices?.flatMap((name) => meantDevices(name, devices));
      const on = names.filter((_, n) => wanted === undefined || wanted.includes(devices[n]!));
      const about = { ...model, version, path, sizeBytes };
      const served = new ServedVersion(about, on, settings.ingress, bellWriteFds, generation);
      if (problem !== undefined) served.refuse(problem);
      return served;
    };
    for (const model of models) for (const one of model.versions) this.versions.push(make(model, one, 1));
    for (const model of shelved) {
      for (const one of model.versions) {
        const version = make(model, one, 1);
        version.end();
        version.counts = false;
        if (one.problem === undefined) version.explain('not loaded');
        this.versions.push(version);
      }
    }
    this.readiness = new Readiness(this.versions, settings.strictReadiness, settings.modelControlMode === 'explicit');
    this.#weightLock = new WeightLock(log);
    this.ledger = new MemoryLedger({
      versions: this.versions,
      devices: new Map(names.map((name, n) => [name, devices[n]!])),
      budgetBytes: settings.memoryBudgetBytes,
      cache: new MemoryCache(settings.cacheDir, log),
      gpus: new GpuWatch(log),
      log,
    });
    const batching = new BatchingCache(settings.cacheDir, log);
    const costs = new CostCache(settings.cacheDir, log);
    this.#loads = new Loads({
      versions: this.versions,
      batching,
      costs,
      lock: this.#weightLock,
      ledger: this.ledger,
      log,
      onChange: () => this.changed(),
    });
    const oom = new OomWatch(performance.now());
    devices.forEach((device, n) => {
      const instancesMax = this.versions.reduce(
        (sum, { placements }) => sum + (placements.find(({ device: name }) => name === names[n])?.slots.length ?? 0),
        0,
      );
      const child = new DeviceChild(names[n]!, device, {
        bellWriteFds,
        instancesMax: settings.modelControlMode === 'none' ? Math.max(1, instancesMax) : CONTROLLED_INSTANCES_MAX,
        deviceCount: devices.length,
        runTimeoutMs: settings.runTimeoutS * 1000,
        logLevel: settings.logLevel,
        logging: () => this.#common.logging,
        log,
        oom,
        ledger: this.ledger,
        loads: this.#loads,
        versions: this.versions,
        onRefused: (message) => this.#refused(message),
        onChange: () => this.changed(),
      });
      this.devices.push(child);
    });
    for (let slot = 0; slot < settings.ingress; slot++) {
      this.ingresses.push(
        new IngressChild(slot, {
          settings,
          listenFd: listeners.http.fd,
          grpcListenFd: listeners.grpc?.fd,
          bellReadFd: this.#pipes[slot]!.readFd,
          bellWriteFds,
          log,
          oom,
          versions: this.versions,
          announcement: () => this.#announcement(),
          common: () => this.#common.message(),
          onControl: (request) => this.#control(request),
          onListening: () => this.changed(),
        }),
      );
    }
    const { versions, ingresses, ledger } = this;
    this.#common = new CommonState(ingresses, logSettingsOf(settings.logLevel));
    this.#regions = new RegionTable({ enabled: settings.systemSharedMemory, common: this.#common, log });
    this.#upkeep = new Upkeep({
      versions,
      devices: this.devices,
      ingresses,
      loads: this.#loads,
      ledger,
      costs,
      oom,
      log,
    });
    if (settings.modelRepository !== undefined && settings.modelControlMode !== 'none') {
      this.#modelControl = new ModelControl({
        repository: settings.modelRepository,
        versions,
        devices: this.devices,
        ingresses,
        loads: this.#loads,
        drainTimeoutS: settings.drainTimeoutS,
        log,
        make,
        onChange: () => this.changed(),
      });
      if (settings.modelControlMode === 'poll') {
        this.#poll = new RepositoryPoll(settings.modelRepository, models, this.#modelControl, log);
      }
    }
    const registry = createRegistry(() => metricsSnapshot(this));
    this.#admin = new AdminServer(listeners.metrics.fd, {
      metrics: () => registry.metrics(),
      contentType: registry.contentType,
      status: () => statusDocument(this),
      live: () => this.state !== 'stopped',
    });
    this.#runtimeFile = new RuntimeFile(settings.runtimeDir, log);
    this.#service = new ServiceNotifier(takeServiceManager(), () => serviceReport(this), log);
  }

  async #startChildren(): Promise<void> {
    const refused = new Promise<never>((_, reject) => {
      this.#failStart = reject;
    });
    refused.catch(() => {});
    const stop = (signal: NodeJS.Signals): void => this.stop(signal);
    process.on('SIGTERM', stop);
    process.on('SIGINT', stop);
    process.on('SIGHUP', () => this.#hangUp());
    await this.#admin.listen();
    this.#runtimeFile.write(this.addresses);
    this.#service.start();
    for (const child of this.ingresses) child.start();
    for (const child of this.devices) child.start();
    this.#upkeep.start();
    await Promise.race([refused, this.#settled(), this.finished]);
    this.#failStart = undefined;
    if (this.state !== 'starting') return;
    this.state = 'running';
    this.#poll?.start(this.settings.repositoryPollS);
    this.#failIfUseless();
    // Whoever started the server may have stopped listening: no reason to stop serving, as it would be for a command that has nothing but its output.
    const { stdout } = process;
    stdout.removeAllListeners('error');
    stdout.once('error', (error) => this.log.warn({ err: error }, 'the ready line could not be written to stdout'));
    stdout.on('error', () => {});
    this.changed();
    if (!this.#announced) this.#announce(this.readiness.now(this.state).reason);
  }

  /** Tells whoever started the server where it is, and that it is ready, or why not. */
  #announce(notReady: string): void {
    const { addresses } = this;
    const summary = { ...addresses, ...this.readiness.summary() };
    if (notReady === '') this.log.info(summary, 'ready');
    else this.log.error({ reason: notReady, ...summary }, 'started, but not ready');
    const what = notReady === '' ? 'ready' : 'not ready';
    const listed = Object.entries(addresses).map(([name, address]) => ` ${name}=${address}`);
    process.stdout.write(`batchport ${what}${listed.join('')}\n`);
  }

  /** Resolves when every ingress listens and every model has been loaded or has failed. */
  async #settled(): Promise<void> {
    while (!this.ingresses.every(({ listening }) => listening) || !this.readiness.settled) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  /** A server for one model file that cannot be loaded is of no use. */
  #failIfUseless(): void {
    const [only] = this.versions;
    if (this.settings.model === undefined || only === undefined || only.record.state === 'READY') return;
    throw new ExitError('MODEL', `${only.file.path} cannot be served: ${only.record.reason}`);
  }

  #refused(message: string): void {
    if (this.#failStart !== undefined) this.#failStart(new ExitError('DEVICE', message));
    else this.log.error({ reason: message }, 'a device that was there is no longer available');
  }

  /** A terminal that goes away ends the server, as it ends everything else; without one, it is the command to try again what has been given up. */
  #hangUp(): void {
    if (process.stderr.isTTY) {
      this.stop('SIGHUP');
      return;
    }
    if (this.state !== 'starting' && this.state !== 'running') return;
    this.log.info('told to try again what has been given up');
    for (const child of [...this.ingresses, ...this.devices]) child.process.retry();
    this.#loads.retryAll();
  }

  #announcement() {
    return {
      type: 'models' as const,
      number: ++this.#announcements,
      ...this.readiness.now(this.state),
      models: announced(this.versions).map((version) => version.announcement()),
    };
  }

  /** @throws BatchportError */
  async #control(request: ControlRequest): Promise<void> {
    if (request.action === 'register-region') return this.#regions.register(request.region);
    if (request.action === 'unregister-region') return this.#regions.unregister(request.name);
    if (request.action === 'change-logging') return this.#changeLogging(request.changes);
    const { action, model, config } = request;
    if (this.#modelControl === undefined || this.settings.modelControlMode !== 'explicit') {
      throw new BatchportError(
        'BAD_REQUEST',
        'Models are not loaded or unloaded on command (--model-control-mode explicit).',
      );
    }
    if (this.state !== 'running') throw new BatchportError('NOT_READY', 'The server is starting or shutting down.');
    this.log.info({ model, action, givenConfig: config !== undefined }, 'a client asks for a model');
    await (action === 'load' ? this.#modelControl.load(model, config) : this.#modelControl.unload(model));
  }

  /** @throws BAD_REQUEST */
  async #changeLogging(changes: Readonly<Record<string, unknown>>): Promise<void> {
    const settings = changedLogSettings(this.#common.logging, changes);
    // While it is sure to be logged if anything is.
    this.log.info({ before: this.#common.logging, settings }, 'a client changes what is logged');
    this.#common.logging = settings;
    setLogging(this.log, settings);
    for (const device of this.devices) device.process.send({ type: 'logging', settings });
    await this.#common.tell();
  }

  /** Where the server is, by protocol. */
  get addresses(): Readonly<Record<string, string>> {
    const grpc = this.grpcTarget === undefined ? {} : { grpc: this.grpcTarget };
    return { http: this.httpUrl, ...grpc, metrics: this.metricsUrl };
  }

  get loads() {
    return this.#loads.now;
  }

  /** Tells everybody the state of the models. */
  changed(): void {
    const announcement = this.#announcement();
    for (const ingress of this.ingresses) ingress.announce(announcement);
    this.#service.update();
    if (this.#announced || this.state !== 'running' || !this.readiness.now(this.state).ready) return;
    this.#announced = true;
    this.#announce('');
  }

  /** Drains and stops; a second call stops at once. */
  stop(signal: NodeJS.Signals): void {
    if (this.state === 'draining') {
      this.log.warn({ signal }, 'told to stop again: stopping at once');
      void this.#stopEverything(exitCode('DRAIN_CUT'));
      return;
    }
    if (this.state === 'stopped') return;
    this.state = 'draining';
    this.#poll?.stop();
    this.#modelControl?.stop();
    this.#upkeep.stopScaling();
    this.#service.stopping(stopLimitS(this.settings.drainTimeoutS));
    this.log.info({ signal, drainTimeoutS: this.settings.drainTimeoutS }, 'draining');
    this.changed();
    void this.#drain();
  }

  async #drain(): Promise<void> {
    const timeoutMs = this.settings.drainTimeoutS * 1000;
    const cut = await Promise.all(this.ingresses.map((child) => child.drain(timeoutMs, STOP_GRACE_MS)));
    // Nobody accepts any more: new clients are refused instead of left waiting.
    this.#closeListeners();
    await Promise.all(this.devices.map((child) => child.stop(STOP_GRACE_MS)));
    const unanswered = cut.reduce((sum, requests) => sum + requests, 0);
    await this.#stopEverything(unanswered > 0 ? exitCode('DRAIN_CUT') : exitCode('OK'));
  }

  /** Those that ingress processes accept on; a second call does nothing. */
  #closeListeners(): void {
    this.#listeners.http.close();
    this.#listeners.grpc?.close();
  }

  async #stopEverything(code: number): Promise<void> {
    if (this.state === 'stopped') return;
    this.state = 'stopped';
    this.#poll?.stop();
    this.#modelControl?.stop();
    this.#upkeep.stop();
    this.#loads.stop();
    this.ledger.keep();
    for (const child of [...this.ingresses, ...this.devices]) {
      child.process.stopping();
      child.process.condemn('server stopped', 'the server was stopped');
    }
    await Promise.all([...this.ingresses, ...this.devices].map((child) => child.process.gone));
    // The admin server closes the descriptor that it listens on.
    this.#admin.close();
    this.#closeListeners();
    for (const { readFd, writeFd } of this.#pipes) {
      closeSync(readFd);
      closeSync(writeFd);
    }
    this.#common.close();
    this.#regions.close();
    this.#weightLock.close();
    this.#runtimeFile.remove();
    this.#service.close();
    this.log.info({ code, version: PACKAGE_VERSION }, 'stopped');
    flushLogs(this.log);
    this.#finish(code);
  }
}

/** Devices by the names they get in status and metrics: the same device given twice is two processes. */
function uniqueNames(devices: readonly Device[]): string[] {
  const seen = new Map<string, number>();
  return devices.map(({ text }) => {
    const count = (seen.get(text) ?? 0) + 1;
    seen.set(text, count);
    return count === 1 ? text : `${text}#${count}`;
  });
}

function urlOf(listener: Listener): string {
  return listener.family === 'unix' ? `unix:${listener.address}` : `http://${targetOf(listener)}`;
}

/** As gRPC clients take it. */
function targetOf({ address, port, family }: Listener): string {
  return `${family === 'IPv6' ? `[${address}]` : address}:${port}`;
}
