/**
 * The main thread of a device process: one process per device. It obeys the supervisor, keeps a Piscina pool whose threads are the instances, and a second
 * one of a single thread that loads. It never runs a model itself, so it stays reachable while they do.
 *
 * If the supervisor dies, the kernel ends this process (PR_SET_PDEATHSIG). If an instance throws, which is a bug, this process ends with EXIT_BUG.
 */
import { Piscina } from 'piscina';
import { createLogger, flushLogs, type Logger } from '../config/log.ts';
import type { LogLevel } from '../config/settings.ts';
import type { FromDevice, ModelKey, ToDevice } from '../protocol/control.ts';
import { checkAvailable, parseDeviceName } from '../runtime/device-name.ts';
import { setAffinity } from '../system/affinity.ts';
import { openProcessFd } from '../system/memory.ts';
import type { InstanceTask } from './instance.ts';
import type { LoadResult, LoadTask } from './loader.ts';

/** Exit code after a bug in an instance; the reason is in the log. */
export const EXIT_BUG = 70;

interface Model {
  readonly loaded: LoadResult;
  readonly instances: Map<number, Promise<number>>;
}

type Init = Extract<ToDevice, { type: 'init' }>;
type Serve = Extract<ToDevice, { type: 'serve' }>;

export class DeviceProcess {
  readonly #init: Init;
  readonly #log: Logger;
  readonly #send: (message: FromDevice) => void;
  readonly #models = new Map<ModelKey, Model>();
  readonly #bellFds: readonly number[];
  readonly #instances: Piscina<InstanceTask, number>;
  readonly #loader: Piscina<LoadTask | ModelKey, LoadResult>;
  #stopping = false;

  private constructor(init: Init, workers: URL, send: (message: FromDevice) => void) {
    this.#init = init;
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
      case 'unload':
        void this.#unload(message.model);
        return;
      case 'stop':
        void this.#stop();
    }
  }

  async #load(message: Extract<ToDevice, { type: 'load' }>): Promise<void> {
    const { model, path, order, maxBatchSize, known } = message;
    try {
      const loaded = await this.#loader.run({ model, path, order, maxBatchSize, known }, { name: 'load' });
      this.#models.set(model, { loaded, instances: new Map() });
      this.#log.info({ model, loadMs: Math.round(loaded.loadMs), batching: loaded.batching }, 'model loaded');
      const { handle, batching, loadMs } = loaded;
      this.#send({ type: 'loaded', model, signature: handle.signature, batching, loadMs });
    } catch (error) {
      this.#send({ type: 'load-failed', model, message: (error as Error).message });
    }
  }

  #serve({ model: key, queue, slots, maxQueueDelayUs }: Serve): void {
    const model = this.#models.get(key);
    if (model === undefined) throw new Error(`asked to serve ${key}, which is not loaded: this is a bug`);
    const started = slots.map((slot) => this.#startInstance(key, model, { queue, slot, maxQueueDelayUs }));
    void Promise.all(started).then(() => this.#send({ type: 'serving', model: key, slots }));
  }

  /** Starts an instance thread; resolves once it takes batches. */
  async #startInstance(
    key: ModelKey,
    model: Model,
    rest: Pick<InstanceTask, 'queue' | 'slot' | 'maxQueueDelayUs'>,
  ): Promise<void> {
    const started = new Int32Array(new SharedArrayBuffer(4));
    const task: InstanceTask = { ...rest, session: model.loaded.handle, bellFds: this.#bellFds, started };
    const done = this.#instances.run(task, { name: 'runInstance' });
    model.instances.set(rest.slot, done);
    done.then(
      () => {
        model.instances.delete(rest.slot);
        this.#send({ type: 'instance-stopped', model: key, slot: rest.slot });
      },
      (error: unknown) => this.#bug(error, key),
    );
    while (Atomics.load(started, 0) === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  }

  #bug(error: unknown, model: ModelKey): void {
    if (this.#stopping) return;
    this.#log.fatal({ err: error, model }, 'an instance failed; this is a bug. The process ends and will be restarted');
    flushLogs(this.#log);
    setTimeout(() => process.exit(EXIT_BUG), 50);
  }

  /** Releases a model whose instances have been told to stop (through their stop words). */
  async #unload(key: ModelKey): Promise<void> {
    const model = this.#models.get(key);
    this.#models.delete(key);
    await Promise.all(model?.instances.values() ?? []);
    await this.#loader.run(key, { name: 'unload' });
    this.#send({ type: 'unloaded', model: key });
  }

  /** Ends the process once all instances have. */
  async #stop(): Promise<void> {
    this.#stopping = true;
    for (const { instances } of this.#models.values()) await Promise.allSettled(instances.values());
    this.#log.debug('device stopped');
    flushLogs(this.#log);
    process.exit(0);
  }

  get device(): string {
    return this.#init.device;
  }
}
