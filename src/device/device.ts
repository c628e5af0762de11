/**
 * The main thread of a device process: one process per device. It obeys the supervisor, keeps a Piscina pool whose threads are the instances, and a second
 * one of a single thread that loads. It never runs a model itself, so it stays reachable while they do, and can cancel what they run.
 *
 * If the supervisor dies, the kernel ends this process (PR_SET_PDEATHSIG). If an instance throws, which is a bug, this process ends with the exit code BUG.
 */
import { Piscina } from 'piscina';
import { createLogger, flushLogs, type Logger } from '../config/log.ts';
import type { LogLevel } from '../config/settings.ts';
import { CHILD_EXIT } from '../protocol/child-exit.ts';
import type { FromDevice, ModelKey, ToDevice } from '../protocol/control.ts';
import { checkAvailable, parseDeviceName } from '../runtime/device-name.ts';
import { setAffinity } from '../system/affinity.ts';
import { openProcessFd } from '../system/memory.ts';
import type { InstanceTask } from './instance.ts';
import type { LoadResult, LoadTask } from './loader.ts';
import { RunControl, STARTED_FAILED } from './run-control.ts';

/** How often trial runs of a load are looked at, and how long one may go on after it was cancelled. */
const TRIAL_LOOK_MS = 250;
const TRIAL_GRACE_MS = 2000;
/** How long the last words of a process that has to end may take. */
const LAST_WORDS_MS = 50;

interface Instance {
  readonly control: RunControl;
  /** Why it could not serve; undefined after it did. */
  readonly done: Promise<string | undefined>;
}

interface Model {
  readonly loaded: LoadResult;
  readonly instances: Map<number, Instance>;
}

type Init = Extract<ToDevice, { type: 'init' }>;
type Serve = Extract<ToDevice, { type: 'serve' }>;

export class DeviceProcess {
  readonly #log: Logger;
  readonly #send: (message: FromDevice) => void;
  readonly #models = new Map<ModelKey, Model>();
  readonly #bellFds: readonly number[];
  readonly #instances: Piscina<InstanceTask, string | undefined>;
  readonly #loader: Piscina<LoadTask | ModelKey, LoadResult>;
  #stopping = false;

  private constructor(init: Init, workers: URL, send: (message: FromDevice) => void) {
    this.#send = send;
    this.#log = createLogger('device', init.logLevel as LogLevel, { device: init.device });
    this.#bellFds = init.bellFds.map((fd) => openProcessFd(init.supervisorPid, fd));
    const common = { atomics: 'disabled', concurrentTasksPerWorker: 1, recordTiming: false } as const;
    this.#instances = new Piscina({
      ...common,
      filename: new URL('instance.js', workers).href,
      minThreads: 0,
      maxThreads: init.instancesMax,
      maxQueue: init.instancesMax,
      idleTimeout: 0,
    });
    this.#loader = new Piscina({
      ...common,
      filename: new URL('loader.js', workers).href,
      // Sessions are owned by the one thread that loaded them, so it must be the same for ever.
      minThreads: 1,
      maxThreads: 1,
      idleTimeout: Number.POSITIVE_INFINITY,
    });
  }

  /** Checks and pins the device. `workers` is the directory of the compiled entries. */
  static start(init: Init, workers: URL, send: (message: FromDevice) => void): DeviceProcess | undefined {
    try {
      const device = parseDeviceName(init.device);
      checkAvailable(device);
      if (device.cores !== undefined) setAffinity(device.cores);
    } catch (error) {
      send({ type: 'refused', message: (error as Error).message });
      return undefined;
    }
    const process = new DeviceProcess(init, workers, send);
    send({ type: 'ready' });
    return process;
  }

  handle(message: ToDevice): void {
    switch (message.type) {
      case 'init':
        throw new Error('a device is initialised once: this is a bug');
      case 'load':
        void this.#load(message);
        return;
      case 'serve':
        this.#serve(message);
        return;
      case 'cancel': {
        const model = this.#models.get(message.model);
        const cancelled = model?.instances.get(message.slot)?.control.cancel(message.olderThanMs) ?? false;
        if (cancelled) this.#log.error({ model: message.model, slot: message.slot }, 'a run was cancelled');
        return;
      }
      case 'unload':
        void this.#unload(message.model);
        return;
      case 'stop':
        void this.#stop();
    }
  }

  async #load(message: Extract<ToDevice, { type: 'load' }>): Promise<void> {
    const { model, path, order, maxBatchSize, known, runTimeoutMs } = message;
    const control = new RunControl();
    const watch = setInterval(() => this.#watchTrial(model, control, runTimeoutMs), TRIAL_LOOK_MS);
    try {
      const task = { model, path, order, maxBatchSize, known, runTimeoutMs, control: control.memory };
      const loaded = await this.#loader.run(task, { name: 'load' });
      this.#models.set(model, { loaded, instances: new Map() });
      const { handle, batching, report, loadMs } = loaded;
      this.#log.info({ model, loadMs: Math.round(loadMs), batching, canary: report }, 'model loaded');
      this.#send({ type: 'loaded', model, signature: handle.signature, batching, loadMs, canary: report });
    } catch (error) {
      this.#send({ type: 'load-failed', model, message: (error as Error).message });
    } finally {
      clearInterval(watch);
    }
  }

  /** Cancels a trial run over its limit; if that does not end it, nothing but the end of the process does. */
  #watchTrial(model: ModelKey, control: RunControl, limitMs: number): void {
    const forMs = control.runningForMs;
    if (forMs > limitMs + TRIAL_GRACE_MS) {
      this.#log.fatal({ model, forMs: Math.round(forMs) }, 'a trial run does not end; the process does');
      this.#exitSoon(CHILD_EXIT.TRIAL_STUCK.code);
    } else if (forMs > limitMs) control.cancel(limitMs);
  }

  #serve({ model: key, queue, slots, maxQueueDelayUs, runTimeoutMs }: Serve): void {
    const model = this.#models.get(key);
    if (model === undefined) throw new Error(`asked to serve ${key}, which is not loaded: this is a bug`);
    for (const slot of slots) void this.#startInstance(key, model, { queue, slot, maxQueueDelayUs, runTimeoutMs });
  }

  /** Starts an instance thread, and tells when it takes batches or why it does not. */
  async #startInstance(
    key: ModelKey,
    model: Model,
    rest: Pick<InstanceTask, 'queue' | 'slot' | 'maxQueueDelayUs' | 'runTimeoutMs'>,
  ): Promise<void> {
    const control = new RunControl();
    const { slot } = rest;
    const { handle: session, canary } = model.loaded;
    const task: InstanceTask = { ...rest, session, bellFds: this.#bellFds, canary, control: control.memory };
    const done = this.#instances.run(task, { name: 'runInstance' });
    model.instances.set(slot, { control, done });
    done.then(
      (failure) => {
        model.instances.delete(slot);
        if (failure === undefined) this.#send({ type: 'instance-stopped', model: key, slot });
        else this.#send({ type: 'serve-failed', model: key, slot, message: failure });
      },
      (error: unknown) => this.#bug(error, key),
    );
    while (control.started === 0) await new Promise((resolve) => setTimeout(resolve, 1));
    if (control.started !== STARTED_FAILED) this.#send({ type: 'serving', model: key, slots: [slot] });
  }

  #bug(error: unknown, model: ModelKey): void {
    if (this.#stopping) return;
    this.#log.fatal({ err: error, model }, 'an instance failed; this is a bug. The process ends and will be restarted');
    this.#exitSoon(CHILD_EXIT.BUG.code);
  }

  #exitSoon(code: number): void {
    flushLogs(this.#log);
    setTimeout(() => process.exit(code), LAST_WORDS_MS);
  }

  /** Releases a model whose instances have been told to stop (through their stop words). */
  async #unload(key: ModelKey): Promise<void> {
    const model = this.#models.get(key);
    this.#models.delete(key);
    await Promise.all([...(model?.instances.values() ?? [])].map(({ done }) => done));
    await this.#loader.run(key, { name: 'unload' });
    this.#send({ type: 'unloaded', model: key });
  }

  /** Ends the process once all instances have. */
  async #stop(): Promise<void> {
    this.#stopping = true;
    for (const { instances } of this.#models.values()) {
      await Promise.allSettled([...instances.values()].map(({ done }) => done));
    }
    this.#log.debug('device stopped');
    flushLogs(this.#log);
    process.exit(0);
  }
}
