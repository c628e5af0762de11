/**
 * The main thread of a device process: one process per device. It obeys the supervisor, keeps a Piscina pool whose threads are the instances, and a second
 * one of a single thread that loads. It never runs a model itself, so it stays reachable while they do, and can cancel what they run.
 *
 * If the supervisor dies, the kernel ends this process (PR_SET_PDEATHSIG). If an instance throws, which is a bug, this process ends with the exit code BUG.
 */
import { MessageChannel } from 'node:worker_threads';
import { Piscina } from 'piscina';
import { createLogger, flushLogs, type Logger, setLogging } from '../config/log.ts';
import type { LogLevel } from '../config/settings.ts';
import { CHILD_EXIT } from '../protocol/child-exit.ts';
import type { FromDevice, ModelKey, ToDevice } from '../protocol/control.ts';
import { runsForNobody } from '../queue/reclaim.ts';
import { Segment, type SegmentReference } from '../queue/segment.ts';
import { checkAvailable, parseDeviceName } from '../runtime/device-name.ts';
import { startDevice } from '../runtime/device-start.ts';
import { type KeyPoints, withMeasured } from '../scheduler/memory-fit.ts';
import { setAffinity } from '../system/affinity.ts';
import { mapLargeBlocks } from '../system/malloc.ts';
import { openProcessFd } from '../system/memory.ts';
import { ArenaRoom } from './arena-room.ts';
import type { InstanceEnd, InstanceTask } from './instance.ts';
import type { LoadResult, LoadTask, NoMemory } from './loader.ts';
import { RunControl, STARTED_FAILED } from './run-control.ts';
import type { Measured } from './run-memory.ts';

/** How often runs that take longer than this are looked at, whether anybody waits for them. */
const DESERTED_LOOK_MS = 100;
/** How often trial runs of a load are looked at, and how long one may go on after it was cancelled. */
const TRIAL_LOOK_MS = 250;
const TRIAL_GRACE_MS = 2000;
/** How long the last words of a process that has to end may take. */
const LAST_WORDS_MS = 50;

interface Instance {
  readonly control: RunControl;
  readonly done: Promise<InstanceEnd>;
}

interface Model {
  readonly loaded: LoadResult;
  /** What its runs may take together; undefined before it is served where its arena has no limit. */
  roomBytes: number | undefined;
  /** See RunMemoryOptions. */
  readonly canGrow: boolean;
  /** Shared by its instances. */
  readonly room: SharedArrayBuffer;
  /** What runs take, as far as it has been measured. */
  keys: readonly KeyPoints[];
  readonly instances: Map<number, Instance>;
}

type Init = Extract<ToDevice, { type: 'init' }>;
type Serve = Extract<ToDevice, { type: 'serve' }>;

export class DeviceProcess {
  readonly #log: Logger;
  readonly #send: (message: FromDevice) => void;
  readonly #models = new Map<ModelKey, Model>();
  readonly #bellFds: readonly number[];
  readonly #instances: Piscina<InstanceTask, InstanceEnd>;
  readonly #loader: Piscina<LoadTask | ModelKey, LoadResult | NoMemory>;
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

  /** Checks, pins and starts the device. `workers` is the directory of the compiled entries. */
  static start(init: Init, workers: URL, send: (message: FromDevice) => void): DeviceProcess | undefined {
    try {
      const device = parseDeviceName(init.device);
      checkAvailable(device);
      if (device.cores !== undefined) setAffinity(device.cores);
      mapLargeBlocks();
      startDevice(device);
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
      case 'logging':
        setLogging(this.#log, message.settings);
        return;
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
        void this.#stop(message.exitCode);
    }
  }

  async #load(message: Extract<ToDevice, { type: 'load' }>): Promise<void> {
    const { model, path, order, maxBatchSize, known, measured, filesBytes, runTimeoutMs } = message;
    const control = new RunControl();
    const quiet = [...this.#models.values()].every(({ instances }) => instances.size === 0);
    const watch = setInterval(() => this.#watchTrial(model, control, runTimeoutMs), TRIAL_LOOK_MS);
    try {
      const about = { model, path, order, maxBatchSize, known, measured, filesBytes, quiet, runTimeoutMs };
      const loaded = await this.#loader.run({ ...about, control: control.memory }, { name: 'load' });
      if ('noMemory' in loaded) {
        this.#send({
          type: 'load-failed',
          model,
          message: loaded.noMemory,
          memory: { weightsBytes: loaded.weightsBytes },
        });
        return;
      }
      const { handle, batching, report, loadMs, memory, baseBytes } = loaded;
      const { arenaMaxBytes } = order;
      // What lies outside of the arena counts too, as far as its limit has not been lowered for it.
      const outsideBytes = Math.max(0, memory.outsideBytes - message.outsideBytes);
      const roomBytes = arenaMaxBytes === undefined ? undefined : Math.max(0, arenaMaxBytes - baseBytes - outsideBytes);
      const { weightsBytes, keys } = memory;
      const { canGrow } = message;
      this.#models.set(model, { loaded, roomBytes, canGrow, room: ArenaRoom.memory(), keys, instances: new Map() });
      this.#log.info({ model, loadMs: Math.round(loadMs), batching, canary: report, weightsBytes }, 'model loaded');
      this.#send({ type: 'loaded', model, signature: handle.signature, batching, loadMs, canary: report, memory });
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

  #serve(order: Serve): void {
    const model = this.#models.get(order.model);
    if (model === undefined) throw new Error(`asked to serve ${order.model}, which is not loaded: this is a bug`);
    for (const slot of order.slots) void this.#startInstance(order, model, slot);
  }

  /** Starts an instance thread, and tells when it takes batches or why it does not. */
  async #startInstance(order: Serve, model: Model, slot: number): Promise<void> {
    const { model: key, queue, maxQueueDelayUs, runTimeoutMs, recycleFromUs, warmUps } = order;
    const { handle: session, canary, baseBytes } = model.loaded;
    const control = new RunControl();
    model.roomBytes ??= order.roomBytes ?? Number.POSITIVE_INFINITY;
    const { port1: reports, port2: report } = new MessageChannel();
    reports.on('message', (measured: Measured) => {
      model.keys = withMeasured(model.keys, measured);
      this.#send({ type: 'measured', model: key, ...measured });
    });
    const task: InstanceTask = {
      queue,
      slot,
      maxQueueDelayUs,
      runTimeoutMs,
      session,
      bellFds: this.#bellFds,
      canary,
      warmUps,
      control: control.memory,
      memory: {
        room: model.room,
        roomBytes: model.roomBytes,
        canGrow: model.canGrow,
        baseBytes,
        keys: model.keys,
        recycleFromUs,
        report,
      },
    };
    const stopLooking = this.#endDesertedRuns(key, queue, slot, control);
    const done = this.#instances.run(task, { name: 'runInstance', transferList: [report] });
    model.instances.set(slot, { control, done });
    done.then(
      (end) => {
        stopLooking();
        this.#ended(key, model, slot, end);
      },
      (error: unknown) => this.#bug(error, key),
    );
    while (control.started === 0) await new Promise((resolve) => setTimeout(resolve, 1));
    if (control.started !== STARTED_FAILED) this.#send({ type: 'serving', model: key, slots: [slot] });
  }

  /** Cancels runs whose clients have all left. @returns what ends that. */
  #endDesertedRuns(model: ModelKey, queue: SegmentReference, slot: number, control: RunControl): () => void {
    const segment = Segment.attach(queue);
    const timer = setInterval(() => {
      // The batch looked at may end meanwhile; the run of the next one is younger.
      if (control.runningForMs < DESERTED_LOOK_MS || !runsForNobody(segment, slot)) return;
      if (control.cancel(DESERTED_LOOK_MS))
        this.#log.debug({ model, slot }, 'a run that nobody waits for was cancelled');
    }, DESERTED_LOOK_MS);
    return () => {
      clearInterval(timer);
      segment.close();
    };
  }

  #ended(key: ModelKey, model: Model, slot: number, end: InstanceEnd): void {
    model.instances.delete(slot);
    switch (end.is) {
      case 'stopped':
        this.#send({ type: 'instance-stopped', model: key, slot });
        break;
      case 'unfit':
        this.#send({ type: 'serve-failed', model: key, slot, message: end.reason });
        break;
      case 'poisoned':
        this.#log.error({ model: key, slot, reason: end.reason }, 'an arena is of no use any more');
        this.#send({ type: 'poisoned', model: key, slot, reason: end.reason });
        break;
      case 'unsound':
        this.#log.error({ model: key, slot, reason: end.reason }, 'an instance cannot run its model any more');
        this.#send({ type: 'unsound', model: key, slot, reason: end.reason });
        break;
    }
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
  async #stop(exitCode: number): Promise<void> {
    this.#stopping = true;
    for (const { instances } of this.#models.values()) {
      await Promise.allSettled([...instances.values()].map(({ done }) => done));
    }
    this.#log.debug('device stopped');
    flushLogs(this.#log);
    process.exit(exitCode);
  }
}
