/**
 * Loading of weights: one at a time on this host, whatever wants to be loaded. A stampede of restarting devices thus reads one model after the other, and the
 * first serves while the last still waits.
 *
 * Bound: one entry per (version, device). An entry of a device that died is settled as `died` and queued anew when the device is back.
 */
import type { Logger } from '../config/log.ts';
import type { Batching } from '../protocol/control.ts';
import type { BatchingCache } from './batching-cache.ts';
import type { DeviceChild, LoadOutcome } from './device-child.ts';
import type { Placement, ServedVersion } from './served-version.ts';
import type { WeightLock, WeightLockStatus } from './weight-lock.ts';

interface Load {
  readonly device: DeviceChild;
  readonly version: ServedVersion;
  readonly placement: Placement;
}

/** Deaths of the device process during the load of one version after which it is not tried again. */
const LOAD_DEATHS_MAX = 3;

export class Loads {
  readonly #versions: readonly ServedVersion[];
  readonly #batchingCache: BatchingCache;
  readonly #log: Logger;
  readonly #onChange: () => void;
  readonly #queue: Load[] = [];
  readonly #deaths = new Map<Placement, number>();
  #current: Load | undefined;
  #stopped = false;
  readonly #stop = new AbortController();
  readonly #lock: WeightLock;

  constructor(
    versions: readonly ServedVersion[],
    batchingCache: BatchingCache,
    lock: WeightLock,
    log: Logger,
    onChange: () => void,
  ) {
    this.#batchingCache = batchingCache;
    this.#lock = lock;
    this.#versions = versions;
    this.#log = log;
    this.#onChange = onChange;
  }

  /** What is being loaded, how much waits, and who on this host may load. */
  get now(): { loading: { model: string; device: string } | null; waiting: number; weight_lock: WeightLockStatus } {
    const current = this.#current;
    const loading = current === undefined ? null : { model: current.version.key, device: current.device.name };
    return { loading, waiting: this.#queue.length, weight_lock: this.#lock.status() };
  }

  /** Queues everything that a device has to serve. */
  enqueueAll(device: DeviceChild): void {
    for (const version of this.#versions) {
      const placement = version.placements.find(({ device: name }) => name === device.name);
      if (placement === undefined || placement.state !== 'waiting') continue;
      if (this.#queue.some((load) => load.placement === placement)) continue;
      this.#queue.push({ device, version, placement });
    }
    void this.#work();
  }

  stop(): void {
    this.#stopped = true;
    this.#stop.abort();
    this.#queue.length = 0;
  }

  async #work(): Promise<void> {
    if (this.#current !== undefined || this.#stopped) return;
    for (let load = this.#queue.shift(); load !== undefined; load = this.#queue.shift()) {
      this.#current = load;
      await this.#load(load);
      this.#current = undefined;
      if (this.#stopped) return;
    }
  }

  async #load({ device, version, placement }: Load): Promise<void> {
    if (!device.available || placement.state !== 'waiting') return;
    placement.state = 'loading';
    if (version.record.state === 'UNAVAILABLE') version.move('load');
    this.#onChange();
    const known =
      version.batching ??
      (version.config.maxBatchSize === undefined ? this.#batchingCache.get(version.path) : undefined);
    const outcome = await this.#loadAlone(device, version, known);
    if (this.#stopped) return;
    if (outcome.kind === 'loaded') await this.#serve(device, version, placement, outcome);
    else if (outcome.kind === 'failed') this.#failed(device, version, placement, outcome.message);
    else this.#died(device, version, placement);
    if (device.available && device.settled) device.process.ready();
    this.#onChange();
  }

  /** Loads while nobody else on the host does. */
  async #loadAlone(device: DeviceChild, version: ServedVersion, known: Batching | undefined): Promise<LoadOutcome> {
    try {
      await this.#lock.acquire(version.key, this.#stop.signal);
    } catch {
      return { kind: 'died' }; // stopped meanwhile
    }
    try {
      return device.available ? await device.load(version, known) : { kind: 'died' };
    } finally {
      this.#lock.release();
    }
  }

  async #serve(
    device: DeviceChild,
    version: ServedVersion,
    placement: Placement,
    outcome: Extract<LoadOutcome, { kind: 'loaded' }>,
  ): Promise<void> {
    try {
      version.establish(outcome.signature, outcome.batching);
    } catch (error) {
      this.#failed(device, version, placement, (error as Error).message);
      return;
    }
    placement.loadMs = outcome.loadMs;
    if (version.config.maxBatchSize === undefined) this.#batchingCache.put(version.path, outcome.batching);
    const served = await device.serve(version, placement.slots.slice(0, version.config.instances.min));
    if (!served) {
      this.#died(device, version, placement);
      return;
    }
    placement.state = 'serving';
    this.#deaths.delete(placement);
    if (version.record.state === 'LOADING') version.move('loaded');
    this.#log.info(
      { model: version.key, device: device.name, loadMs: Math.round(outcome.loadMs), batching: version.batching },
      'model is served',
    );
  }

  #failed(device: DeviceChild, version: ServedVersion, placement: Placement, reason: string): void {
    placement.state = 'failed';
    placement.reason = reason;
    this.#log.error({ model: version.key, device: device.name, reason }, 'model could not be loaded');
    if (version.record.state === 'LOADING' && !version.comingElsewhere(placement)) version.move('load_failed', reason);
  }

  #died(device: DeviceChild, version: ServedVersion, placement: Placement): void {
    const deaths = (this.#deaths.get(placement) ?? 0) + 1;
    this.#deaths.set(placement, deaths);
    if (deaths < LOAD_DEATHS_MAX) return;
    this.#failed(device, version, placement, `the device process died ${deaths} times in a row while loading it`);
  }
}
