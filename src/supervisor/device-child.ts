/**
 * A device process seen from the supervisor: its orders and their answers, and what happens when it dies: its batches are given to others, its models have to be
 * loaded again. While it is given up (broken), its models that no other device serves take no requests.
 */
import { dirname } from 'node:path';
import type { Logger } from '../config/log.ts';
import type { LogSettings } from '../config/log-settings.ts';
import { readInstance } from '../metrics/counters.ts';
import { CHILD_EXIT } from '../protocol/child-exit.ts';
import type { Batching, CanaryReport, FromDevice, LoadOrder, MemoryReport, ToDevice } from '../protocol/control.ts';
import { counterIndex } from '../queue/geometry.ts';
import { executingSinceUs, reclaimInstance, stopInstance } from '../queue/reclaim.ts';
import { warmUpDirectory } from '../repository/model-directory.ts';
import { childEnvironment, type Device } from '../runtime/device-name.ts';
import type { RunSeen } from '../scheduler/vigil.ts';
import type { WorkerLife } from '../scheduler/worker-life.ts';
import { nowUs } from '../system/clock.ts';
import { availableCpu } from '../system/cpu.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { ChildProcess, type Takeover } from './child-process.ts';
import { DEVICE_POLICY, SILENT_MAX_MS } from './life-policies.ts';
import type { Loads } from './loads.ts';
import type { LoadTerms, MemoryLedger } from './memory-ledger.ts';
import type { OomWatch } from './oom-watch.ts';
import type { Placement, ServedVersion } from './served-version.ts';

export type LoadOutcome =
  | {
      readonly kind: 'loaded';
      readonly signature: ModelSignature;
      readonly batching: Batching;
      readonly loadMs: number;
      readonly canary: CanaryReport;
      readonly memory: MemoryReport;
    }
  | { readonly kind: 'failed'; readonly message: string }
  /** There was no memory for it; what the weights take, where that was found out. */
  | { readonly kind: 'no memory'; readonly message: string; readonly weightsBytes: number | undefined }
  /** `outside`: somebody else killed it. */
  | { readonly kind: 'died'; readonly outside: boolean };

export type ServeOutcome = { readonly kind: 'serving' } | Extract<LoadOutcome, { kind: 'failed' | 'died' }>;

/** How long the other instances of a device whose arena is of no use any more may take to finish their batches. */
const RECYCLE_GRACE_MS = 10_000;
/** How long a device is left as it is after it has been started afresh for its arena: if that did not help, it is not the arena. */
const RECYCLE_PAUSE_MS = 60_000;

/** Instances that have been ordered, and who waits for them. */
interface Serving {
  readonly version: ServedVersion;
  readonly slots: Set<number>;
  readonly settle: (outcome: ServeOutcome) => void;
}

export interface DeviceChildOptions {
  readonly bellWriteFds: readonly number[];
  readonly instancesMax: number;
  readonly deviceCount: number;
  readonly runTimeoutMs: number;
  readonly logLevel: string;
  /** What is logged now. */
  readonly logging: () => LogSettings;
  readonly log: Logger;
  readonly oom: OomWatch;
  readonly ledger: MemoryLedger;
  readonly loads: Loads;
  readonly versions: readonly ServedVersion[];
  readonly onRefused: (message: string) => void;
  readonly onChange: () => void;
}

export class DeviceChild {
  readonly name: string;
  readonly device: Device;
  readonly process: ChildProcess<FromDevice, ToDevice>;
  readonly #options: DeviceChildOptions;
  #available = false;
  #onLoad: ((outcome: LoadOutcome) => void) | undefined;
  #serving: Serving | undefined;
  /** Batches that had been finished when the current life began. */
  #batchesBefore = 0;
  #recycledAtMs = Number.NEGATIVE_INFINITY;
  #recycling = false;

  constructor(name: string, device: Device, options: DeviceChildOptions) {
    this.name = name;
    this.device = device;
    this.#options = options;
    this.process = new ChildProcess<FromDevice, ToDevice>({
      role: 'device',
      label: { device: name },
      entry: new URL('../../workers/device.js', import.meta.url),
      env: childEnvironment(device),
      execArgv: [],
      inherit: [],
      policy: DEVICE_POLICY,
      silentMaxMs: SILENT_MAX_MS,
      log: options.log,
      oom: options.oom,
      onMessage: (message) => this.#handle(message),
      onExit: (how, blame) => this.#exited(how, blame === 'outside'),
      confirm: (pid) => options.ledger.returned(name, pid),
      onState: (life) => this.#changed(life),
    });
  }

  start(): void {
    this.process.start();
  }

  /** Whether the process has checked its device and takes orders. */
  get available(): boolean {
    return this.#available;
  }

  /** Whether nothing is left to load. */
  get settled(): boolean {
    return this.#placements().every(([, { state }]) => state !== 'waiting' && state !== 'loading');
  }

  #placements(): (readonly [ServedVersion, Placement])[] {
    return this.#options.versions.flatMap((version) => {
      const placement = version.placements.find(({ device }) => device === this.name);
      return placement === undefined ? [] : [[version, placement] as const];
    });
  }

  #handle(message: FromDevice): void {
    switch (message.type) {
      case 'hello': {
        const { bellWriteFds, instancesMax, logLevel, logging } = this.#options;
        this.process.send({
          type: 'init',
          supervisorPid: process.pid,
          device: this.device.text,
          bellFds: bellWriteFds,
          instancesMax,
          logLevel,
        });
        this.process.send({ type: 'logging', settings: logging() });
        return;
      }
      case 'alive':
        return;
      case 'ready':
        this.#available = true;
        this.process.up();
        // What waits to be asked for can be loaded again; the others find out by their loads.
        for (const [, placement] of this.#placements()) if (placement.state === 'idle') placement.outage = undefined;
        if (this.settled) this.process.ready();
        this.#options.loads.enqueueAll(this);
        this.#options.onChange();
        return;
      case 'refused':
        this.#options.onRefused(message.message);
        this.process.condemn('refused its device', message.message);
        return;
      case 'loaded': {
        const { signature, batching, loadMs, canary, memory } = message;
        this.#settleLoad({ kind: 'loaded', signature, batching, loadMs, canary, memory });
        return;
      }
      case 'measured':
        this.#options.ledger.measured(this.name, message);
        return;
      case 'poisoned':
        this.#recycle(message, CHILD_EXIT.ARENA_POISONED.code);
        return;
      case 'unsound':
        this.#recycle(message, CHILD_EXIT.UNSOUND.code);
        this.#unserve(`its device process is started afresh: ${message.reason}`);
        this.#options.onChange();
        return;
      case 'load-failed':
        this.#settleLoad(
          message.memory === undefined
            ? { kind: 'failed', message: message.message }
            : { kind: 'no memory', message: message.message, weightsBytes: message.memory.weightsBytes },
        );
        return;
      case 'serving': {
        const [, placement] = this.#placements().find(([{ key }]) => key === message.model) ?? [];
        for (const slot of message.slots) {
          placement?.starting.delete(slot);
          placement?.running.add(slot);
          this.#serving?.slots.delete(slot);
        }
        if (this.#serving?.slots.size === 0) this.#settleServing({ kind: 'serving' });
        this.#options.onChange();
        return;
      }
      case 'serve-failed': {
        const [, placement] = this.#placements().find(([{ key }]) => key === message.model) ?? [];
        placement?.starting.delete(message.slot);
        if (this.#serving?.version.key === message.model && this.#serving.slots.has(message.slot)) {
          this.#settleServing({ kind: 'failed', message: message.message });
        } else {
          const { model, slot, message: reason } = message;
          this.#options.log.error({ model, device: this.name, slot, reason }, 'an instance could not be added');
        }
        return;
      }
      case 'instance-stopped': {
        const [version, placement] = this.#placements().find(([{ key }]) => key === message.model) ?? [];
        placement?.running.delete(message.slot);
        if (version?.segment !== undefined) stopInstance(version.segment, message.slot, false);
        return;
      }
      case 'unloaded': {
        const [version, placement] = this.#placements().find(([{ key }]) => key === message.model) ?? [];
        if (version === undefined || placement?.state !== 'unloading') return;
        placement.state = 'idle';
        this.#options.ledger.unloaded(this.name, version);
        this.#options.onChange();
        return;
      }
    }
  }

  #settleLoad(outcome: LoadOutcome): void {
    const settle = this.#onLoad;
    this.#onLoad = undefined;
    settle?.(outcome);
  }

  #settleServing(outcome: ServeOutcome): void {
    const serving = this.#serving;
    this.#serving = undefined;
    serving?.settle(outcome);
  }

  /** Loads a version. One at a time; see Loads. `known`: what earlier trials found about batching. */
  load(
    version: ServedVersion,
    known: Batching | undefined,
    { arenaMaxBytes, canGrow, measured, filesBytes, outsideBytes }: Extract<LoadTerms, { fits: true }>,
  ): Promise<LoadOutcome> {
    return new Promise((resolve) => {
      this.#onLoad = resolve;
      this.process.send({
        type: 'load',
        model: version.key,
        path: version.file.source,
        order: { ...this.loadOrder(version), ...(arenaMaxBytes === undefined ? {} : { arenaMaxBytes }) },
        ...(version.config.maxBatchSize === undefined ? {} : { maxBatchSize: version.config.maxBatchSize }),
        ...(known === undefined ? {} : { known }),
        ...(measured === undefined ? {} : { measured }),
        filesBytes,
        outsideBytes,
        canGrow,
        runTimeoutMs: this.#runTimeoutMs(version),
      });
    });
  }

  #runTimeoutMs({ config }: ServedVersion): number {
    return config.runTimeoutMs ?? this.#options.runTimeoutMs;
  }

  /** How a version is loaded, but for the limit of its arena. */
  loadOrder({ config }: ServedVersion): LoadOrder {
    const { intraOpThreads, graphOptimization, session, provider } = config.runtime;
    const cores = this.device.cores?.length ?? Number.POSITIVE_INFINITY;
    // Threads of all device processes together are no more than the processor time there is.
    const share = Math.floor(availableCpu().threads / this.#options.deviceCount / config.instances.max);
    return {
      provider: this.device.kind,
      // The device is the only one of its kind that its process sees, see childEnvironment().
      deviceId: 0,
      intraOpThreads: intraOpThreads ?? Math.max(1, Math.min(cores, share)),
      graphOptimization,
      sessionConfig: session,
      providerOptions: provider,
    };
  }

  /** Starts instances of a loaded version; settled when all of them take batches, or one does not. */
  serve(version: ServedVersion, slots: readonly number[]): Promise<ServeOutcome> {
    if (version.segment === undefined) throw new Error('a version without a queue cannot be served: this is a bug');
    return new Promise((settle) => {
      this.#serving = { version, slots: new Set(slots), settle };
      this.#startInstances(version, slots);
    });
  }

  #startInstances(version: ServedVersion, slots: readonly number[]): void {
    const placement = version.placements.find(({ device }) => device === this.name);
    for (const slot of slots) placement?.starting.add(slot);
    const roomBytes = this.#options.ledger.roomBytes(this.name, version);
    // The child's clock is that of the host, ours counts from our start.
    const recycleInMs = Math.max(0, this.#recycledAtMs + RECYCLE_PAUSE_MS - performance.now());
    this.process.send({
      type: 'serve',
      model: version.key,
      queue: version.segment!.reference(),
      slots,
      maxQueueDelayUs: version.config.maxQueueDelayUs,
      runTimeoutMs: this.#runTimeoutMs(version),
      warmUps: { runs: version.config.warmUps, directory: warmUpDirectory(dirname(dirname(version.file.path))) },
      recycleFromUs: nowUs() + recycleInMs * 1000,
      ...(roomBytes === undefined ? {} : { roomBytes }),
    });
  }

  /** Brings the number of running instances of a version to `target`, as far as its slots go. */
  scale(version: ServedVersion, target: number): void {
    const [, placement] = this.#placements().find(([one]) => one === version) ?? [];
    if (placement === undefined || placement.state !== 'serving' || version.segment === undefined) return;
    if (target > placement.running.size) {
      const free = placement.slots.filter((slot) => !placement.running.has(slot) && !placement.starting.has(slot));
      const slots = free.slice(0, target - placement.running.size - placement.starting.size);
      if (slots.length > 0) this.#startInstances(version, slots);
    } else if (target < placement.running.size) {
      for (const slot of [...placement.running].slice(target)) stopInstance(version.segment, slot, true);
    }
  }

  /** Releases a version that is served: its instances end after the batch at hand, then its weights are let go. */
  unload(version: ServedVersion): void {
    const [, placement] = this.#placements().find(([one]) => one === version) ?? [];
    if (placement?.state !== 'serving' || version.segment === undefined) return;
    placement.state = 'unloading';
    for (const slot of placement.running) stopInstance(version.segment, slot, true);
    this.process.send({ type: 'unload', model: version.key });
    this.#options.onChange();
  }

  /** Lets go of a version that was loaded and does not serve. */
  discard(version: ServedVersion): void {
    this.#options.ledger.unloaded(this.name, version);
    this.process.send({ type: 'unload', model: version.key });
  }

  /** Looks after the process: whether it lives, and whether its runs keep to their limits. To be called often. */
  watch(nowMs: number, lookAtState: boolean): void {
    for (const { version, slot, limitMs } of this.process.watch(nowMs, lookAtState, this.#runs())) {
      this.#options.log.error({ model: version.key, device: this.name, slot, limitMs }, 'a run passed its limit');
      this.process.send({ type: 'cancel', model: version.key, slot, olderThanMs: limitMs });
    }
  }

  /** The runs that are going on, canary runs included. */
  #runs(): (RunSeen & { readonly version: ServedVersion; readonly slot: number })[] {
    const now = nowUs();
    return this.#placements().flatMap(([version, { running, starting }]) => {
      const { segment, key } = version;
      if (segment === undefined) return [];
      return [...running, ...starting].flatMap((slot) => {
        const since = executingSinceUs(segment, slot);
        const forMs = Math.max(0, (now - since) / 1000);
        const limitMs = this.#runTimeoutMs(version);
        return since > 0 ? [{ id: `${key}/${slot}@${since}`, what: key, forMs, limitMs, version, slot }] : [];
      });
    });
  }

  #finishedBatches(): number {
    return this.#placements().reduce((sum, [{ segment }, { slots }]) => {
      if (segment === undefined) return sum;
      const blocks = slots.map((slot) => counterIndex(segment.geometry, { instance: slot }));
      return sum + blocks.reduce((batches, at) => batches + readInstance(segment.f64, at).batches, 0);
    }, 0);
  }

  /** Takes back what the dead process held. */
  #exited(how: string, byOthers: boolean): Takeover {
    const outside = byOthers || this.#recycling;
    this.#recycling = false;
    const finished = this.#finishedBatches();
    // A load that kills is counted by Loads, a batch that does by the queue.
    const atWork = this.#onLoad !== undefined || this.#serving !== undefined || this.#runs().length > 0;
    const worked = finished > this.#batchesBefore;
    this.#batchesBefore = finished;
    this.#available = false;
    this.#options.ledger.released(this.name);
    let requeuedRows = 0;
    let lostRows = 0;
    for (const [version, placement] of this.#placements()) {
      placement.running.clear();
      placement.starting.clear();
      if (version.segment === undefined || version.bells === undefined) continue;
      for (const slot of placement.slots) {
        const rows = reclaimInstance(version.segment, version.bells, slot);
        requeuedRows += rows.requeuedRows;
        lostRows += rows.lostRows;
        version.requeuedRows += rows.requeuedRows;
        version.lostRows += rows.lostRows;
      }
    }
    this.#unserve(`its device process ended (${how}) and is being restarted`);
    this.#settleLoad({ kind: 'died', outside });
    this.#settleServing({ kind: 'died', outside });
    return { atWork, worked, fields: { requeuedRows, lostRows } };
  }

  /** Its models are served by others only, from now on. */
  #unserve(reason: string): void {
    for (const [version, placement] of this.#placements()) {
      if (placement.state === 'unloading') placement.state = 'idle';
      if (placement.state === 'failed' || placement.state === 'idle') continue;
      placement.state = 'waiting';
      if (version.placements.some(({ state }) => state === 'serving' || state === 'loading')) continue;
      const { state } = version.record;
      if (state === 'READY' || state === 'LOADING') version.move('lost', reason);
      else version.explain(reason);
    }
  }

  #changed({ state, reason }: WorkerLife): void {
    const stands = state === 'suspect' && this.process.isStopped;
    for (const [, placement] of this.#placements()) {
      placement.doubt = stands ? `its device process ${this.name} stands still: ${reason}` : undefined;
    }
    if (state === 'killing') {
      this.#available = false;
      this.#unserve(`its device process is being ended: ${reason}`);
    }
    if (state === 'broken') {
      const outage = `its device process ${this.name} is given up for now: ${reason}`;
      for (const [, placement] of this.#placements()) placement.outage = outage;
      this.#unserve(`${outage}; it is tried again at intervals, and at once when the server gets SIGHUP`);
    }
    for (const [version] of this.#placements()) version.weighDoubts();
    this.#options.onChange();
  }

  /**
   * Lets the process end, and be started afresh: one of its arenas is of no use any more, and goes only with it, or its device. The batch that showed that is taken
   * over.
   */
  #recycle({ model, slot, reason }: Extract<FromDevice, { type: 'poisoned' | 'unsound' }>, exitCode: number): void {
    if (this.#recycling) return;
    const { pid } = this.process;
    this.#recycling = true;
    this.#recycledAtMs = performance.now();
    this.#available = false;
    this.#options.log.error({ model, device: this.name, slot, reason }, 'device process is started afresh');
    this.#stopInstances(exitCode);
    setTimeout(() => {
      if (this.process.pid === pid) this.process.condemn('did not end in time', 'it did not end to be started afresh');
    }, RECYCLE_GRACE_MS).unref();
  }

  /** Every instance ends after the batch at hand, then the process with this code. */
  #stopInstances(exitCode: number): void {
    for (const [version, placement] of this.#placements()) {
      if (version.segment === undefined) continue;
      for (const slot of placement.slots) stopInstance(version.segment, slot, true);
    }
    this.process.send({ type: 'stop', exitCode });
  }

  /** Stops all instances after their batch and ends the process; kills it after the grace period. */
  async stop(graceMs: number): Promise<void> {
    this.process.stopping();
    this.#stopInstances(0);
    await this.process.ended(graceMs);
  }
}
