/**
 * Loading of weights: one at a time on this host, whatever wants to be loaded. A stampede of restarting devices thus reads one model after the other, and the
 * first serves while the last still waits.
 *
 * A load that failed is left alone, and so is one that killed its process a few times: the other models of the device go on without it. It is tried again
 * on a slow schedule where that has a point (another file, or nothing else on the device that would suffer), and on command.
 *
 * Bound: one entry per (version, device). An entry of a device that died is settled as `died` and queued anew when the device is back.
 */
import type { Logger } from '../config/log.ts';
import type { Batching } from '../protocol/control.ts';
import { checkModelFile } from '../repository/model-file.ts';
import { type BackoffState, initialBackoff, nextDelay } from '../scheduler/backoff.ts';
import type { BatchingCache } from './batching-cache.ts';
import type { CostCache } from './cost-cache.ts';
import type { DeviceChild, LoadOutcome } from './device-child.ts';
import { DEVICE_POLICY } from './life-policies.ts';
import type { MemoryLedger } from './memory-ledger.ts';
import type { Placement, ServedVersion } from './served-version.ts';
import { transformProblem } from './transform-check.ts';
import type { WeightLock, WeightLockStatus } from './weight-lock.ts';

interface Load {
  readonly device: DeviceChild;
  readonly version: ServedVersion;
  readonly placement: Placement;
}

/** The model was refused; there was no memory for it; it killed the process; its instances could not make their canary run. */
type FailureKind = 'refused' | 'memory' | 'deadly' | 'canary';

interface Failure extends Load {
  readonly kind: FailureKind;
  /** The files that failed. */
  readonly file: string;
  readonly backoff: BackoffState;
  readonly dueMs: number;
}

/** How the reason of a load begins for which there was no memory. */
export const NO_MEMORY = 'there is not enough memory';
/** Deaths of the device process during the load of one version after which it is not tried again for now. */
const LOAD_DEATHS_MAX = 3;

export interface LoadsOptions {
  /** All that are kept. */
  readonly versions: readonly ServedVersion[];
  readonly batching: BatchingCache;
  readonly costs: CostCache;
  readonly lock: WeightLock;
  readonly ledger: MemoryLedger;
  readonly log: Logger;
  /** Tells everybody the state of the models. */
  readonly onChange: () => void;
}

export class Loads {
  readonly #options: LoadsOptions;
  readonly #queue: Load[] = [];
  readonly #deaths = new Map<Placement, number>();
  readonly #failures = new Map<Placement, Failure>();
  #current: Load | undefined;
  #stopped = false;
  readonly #stop = new AbortController();

  constructor(options: LoadsOptions) {
    this.#options = options;
  }

  /** What is being loaded, how much waits, and who on this host may load. */
  get now(): { loading: { model: string; device: string } | null; waiting: number; weight_lock: WeightLockStatus } {
    const current = this.#current;
    const loading = current === undefined ? null : { model: current.version.key, device: current.device.name };
    return { loading, waiting: this.#queue.length, weight_lock: this.#options.lock.status() };
  }

  /** Queues everything that a device has to serve. */
  enqueueAll(device: DeviceChild): void {
    for (const version of this.#options.versions) {
      const placement = version.placements.find(({ device: name }) => name === device.name);
      if (placement === undefined || placement.state !== 'waiting') continue;
      if (this.#queue.some((load) => load.placement === placement)) continue;
      this.#queue.push({ device, version, placement });
    }
    void this.#work();
  }

  /** To be called at intervals: queues failed loads whose time has come. */
  retryDue(nowMs: number): void {
    for (const failure of this.#failures.values()) {
      if (nowMs < failure.dueMs || !failure.device.available) continue;
      if (this.#hasAPoint(failure)) this.#again(failure);
      else this.#putOff(failure, nowMs);
    }
  }

  /** On command: queues all failed loads. */
  retryAll(): void {
    for (const failure of this.#failures.values()) {
      this.#deaths.delete(failure.placement);
      this.#again(failure);
    }
  }

  #again({ device, version, placement }: Failure): void {
    if (placement.state !== 'failed') return;
    this.#options.log.info({ model: version.key, device: device.name }, 'a load that failed is tried again');
    placement.state = 'waiting';
    placement.probation = true;
    if (device.available) this.enqueueAll(device);
  }

  #putOff(failure: Failure, nowMs: number): void {
    const { state: backoff, delayMs } = nextDelay(failure.backoff, nowMs, Math.random());
    this.#failures.set(failure.placement, { ...failure, backoff, dueMs: nowMs + delayMs });
  }

  /** A file that was refused will be refused again, and one that kills its process takes the other models of the device with it; memory comes and goes. */
  #hasAPoint({ device, version, placement, kind, file }: Failure): boolean {
    if (version.file.stamp !== file) return true;
    return kind === 'canary' || kind === 'memory' || (kind === 'deadly' && !this.#hasOthers(device, placement));
  }

  /** Whether a device serves another version. */
  #hasOthers(device: DeviceChild, placement: Placement): boolean {
    return this.#options.versions.some(({ placements }) =>
      placements.some((other) => other !== placement && other.device === device.name && other.state === 'serving'),
    );
  }

  /** A version is no longer kept. */
  forget({ placements }: ServedVersion): void {
    for (const placement of placements) {
      this.#deaths.delete(placement);
      this.#failures.delete(placement);
    }
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
    device.process.loading();
    if (version.record.state === 'UNAVAILABLE') version.move('load');
    this.#options.onChange();
    const outcome = await this.#loadAlone(device, version);
    if (this.#stopped) return;
    const load = { device, version, placement };
    this.#tellLedger(device, version, outcome);
    if (outcome.kind === 'loaded') await this.#serve(load, outcome);
    else if (outcome.kind === 'no memory') this.#failed(load, `${NO_MEMORY}: ${outcome.message}`, 'memory');
    else if (outcome.kind === 'failed') this.#failed(load, outcome.message, 'refused');
    else this.#died(load, outcome.outside);
    if (device.available) {
      if (device.settled) device.process.ready();
      else device.process.loading();
    }
    this.#options.onChange();
  }

  /** What earlier trials of the same files have found out. */
  #knownBatching({ batching, config, fingerprint: loaded }: ServedVersion, fingerprint: string): Batching | undefined {
    if (batching !== undefined && loaded === fingerprint) return batching;
    return config.maxBatchSize === undefined ? this.#options.batching.get(fingerprint) : undefined;
  }

  #tellLedger(device: DeviceChild, version: ServedVersion, outcome: LoadOutcome): void {
    switch (outcome.kind) {
      case 'loaded':
        this.#options.ledger.loaded(device.name, version, outcome.memory);
        break;
      case 'no memory':
        this.#options.ledger.notLoaded(device.name, version, outcome.weightsBytes);
        break;
      case 'failed':
        this.#options.ledger.notLoaded(device.name, version, undefined);
        break;
      case 'died':
        if (!outcome.outside && device.process.lastExit?.outOfMemory) this.#options.ledger.killed(device.name, version);
        break;
    }
  }

  /** Loads while nobody else on the host does. */
  async #loadAlone(device: DeviceChild, version: ServedVersion): Promise<LoadOutcome> {
    try {
      await this.#options.lock.acquire(`${version.key} on ${device.name}`, this.#stop.signal);
    } catch {
      return { kind: 'died', outside: true }; // stopped meanwhile
    }
    try {
      const { file } = version;
      // What has never been loaded may have been mended.
      if (version.signature === undefined) file.look();
      const { problem } = checkModelFile(file.source);
      if (problem !== undefined) return { kind: 'failed', message: `its file ${problem} (${file.path})` };
      // Under the lock, so that nobody else takes meanwhile what is counted on here.
      const terms = await this.#options.ledger.admit(device, version);
      if (!terms.fits) return { kind: 'no memory', message: terms.reason, weightsBytes: undefined };
      // A death of the device must not need a file that may have been replaced by then.
      if (terms.alone) file.hold();
      const { fingerprint } = terms;
      const known = fingerprint === undefined ? undefined : this.#knownBatching(version, fingerprint);
      version.fingerprint = fingerprint;
      return device.available ? await device.load(version, known, terms) : { kind: 'died', outside: true };
    } finally {
      this.#options.lock.release();
    }
  }

  async #serve(load: Load, outcome: Extract<LoadOutcome, { kind: 'loaded' }>): Promise<void> {
    const { device, version, placement } = load;
    const { transform } = version.config;
    if (transform !== undefined && version.signature === undefined) {
      const problem = await transformProblem(version.transformFile, transform);
      if (problem !== undefined) {
        this.#failed(load, problem, 'refused');
        device.discard(version);
        return;
      }
    }
    try {
      version.establish(outcome.signature, outcome.batching);
    } catch (error) {
      this.#failed(load, (error as Error).message, 'refused');
      device.discard(version);
      return;
    }
    placement.loadMs = outcome.loadMs;
    if (placement.canary?.found && !outcome.canary.found) {
      // Without a canary it would be taken for sound.
      this.#failed(
        load,
        `it has run on ${device.name} before, and does not any more: ${outcome.canary.detail}`,
        'canary',
      );
      device.discard(version);
      return;
    }
    placement.canary = outcome.canary;
    // What has been found out must not be taken for a fact about a file that has come in its place meanwhile.
    const { config, file, fingerprint } = version;
    const isFact = config.maxBatchSize === undefined && outcome.batching.provisional !== true;
    if (isFact && fingerprint !== undefined && !file.hasChanged) {
      this.#options.batching.put(fingerprint, outcome.batching);
    }
    this.#options.costs.seed(version, placement);
    device.process.warming();
    const served = await device.serve(version, placement.slots.slice(0, version.config.instances.min));
    if (served.kind !== 'serving') {
      if (served.kind === 'failed') {
        this.#failed(load, served.message, 'canary');
        device.discard(version);
      } else this.#died(load, served.outside);
      return;
    }
    placement.state = 'serving';
    placement.probation = false;
    placement.outage = undefined;
    this.#deaths.delete(placement);
    this.#failures.delete(placement);
    // Another device that had it may have died meanwhile.
    if (version.record.state === 'UNAVAILABLE') version.move('load');
    if (version.record.state === 'LOADING') version.move('loaded');
    this.#options.log.info(
      { model: version.key, device: device.name, loadMs: Math.round(outcome.loadMs), batching: version.batching },
      'model is served',
    );
  }

  #failed(load: Load, reason: string, kind: FailureKind): void {
    const { device, version, placement } = load;
    placement.state = 'failed';
    placement.reason = reason;
    const nowMs = performance.now();
    const backoff = this.#failures.get(placement)?.backoff ?? initialBackoff(DEVICE_POLICY.slow);
    this.#putOff({ ...load, kind, file: version.file.stamp, backoff, dueMs: nowMs }, nowMs);
    this.#options.log.error({ model: version.key, device: device.name, reason }, 'model could not be loaded');
    if (version.servingDevices.length > 0 || version.comingElsewhere(placement)) return;
    const { state } = version.record;
    if (state === 'LOADING') version.move('load_failed', reason);
    // It was idle, and is asked for.
    else if (state === 'READY') version.move('lost', reason);
    else version.explain(reason);
  }

  /** @param outside whether the process was killed by somebody, which says nothing about the load */
  #died(load: Load, outside: boolean): void {
    if (outside) return;
    const { device, placement } = load;
    const deaths = (this.#deaths.get(placement) ?? 0) + 1;
    this.#deaths.set(placement, deaths);
    if (deaths < LOAD_DEATHS_MAX) return;
    const how = device.process.lastExit?.how ?? 'unknown';
    this.#failed(load, `the device process died ${deaths} times in a row while loading it, at last: ${how}`, 'deadly');
  }
}
