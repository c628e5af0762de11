/**
 * What the supervisor does at intervals: looks after its children (stopped, silent, stuck in a run) and after the queues (a wake-up lost with a process), scales
 * instances, tries failed loads again, gives unused shared memory back, looks at the memory of GPUs, writes down what runs cost. Nothing here blocks.
 */
import type { Logger } from '../config/log.ts';
import { census, executingSinceUs, failQueued, nudge } from '../queue/reclaim.ts';
import { STATUS_WORKER_LOST } from '../queue/result.ts';
import { type ConcurrencyState, decideByRows, initialConcurrency } from '../scheduler/concurrency-scaler.ts';
import { decide, initialScaler, type ScalerState } from '../scheduler/instance-scaler.ts';
import type { CostCache } from './cost-cache.ts';
import type { DeviceChild } from './device-child.ts';
import { Idleness } from './idleness.ts';
import type { IngressChild } from './ingress-child.ts';
import type { Loads } from './loads.ts';
import type { MemoryLedger } from './memory-ledger.ts';
import type { OomWatch } from './oom-watch.ts';
import type { Placement, ServedVersion } from './served-version.ts';

const TICK_MS = 100;
const TRIM_TICKS = 100;
const KEEP_COSTS_TICKS = 600;
/** The kernel is asked for the state of the processes, and failed loads are looked at. */
const LOOK_TICKS = 5;
/** Memory of GPUs is looked at, and measurements are written down. */
const MEMORY_TICKS = 10;

export interface UpkeepOptions {
  readonly versions: readonly ServedVersion[];
  readonly devices: readonly DeviceChild[];
  readonly ingresses: readonly IngressChild[];
  readonly loads: Loads;
  readonly ledger: MemoryLedger;
  readonly costs: CostCache;
  readonly oom: OomWatch;
  readonly log: Logger;
}

export class Upkeep {
  readonly #versions: readonly ServedVersion[];
  readonly #devices: readonly DeviceChild[];
  readonly #ingresses: readonly IngressChild[];
  readonly #loads: Loads;
  readonly #ledger: MemoryLedger;
  readonly #costs: CostCache;
  readonly #oom: OomWatch;
  readonly #log: Logger;
  readonly #scalers = new WeakMap<Placement, ScalerState>();
  readonly #byRowsScalers = new WeakMap<Placement, ConcurrencyState>();
  readonly #idleness: Idleness;
  #timer: NodeJS.Timeout | undefined;
  #ticks = 0;
  #scaling = true;

  constructor({ versions, devices, ingresses, loads, ledger, costs, oom, log }: UpkeepOptions) {
    this.#versions = versions;
    this.#devices = devices;
    this.#ingresses = ingresses;
    this.#loads = loads;
    this.#ledger = ledger;
    this.#costs = costs;
    this.#oom = oom;
    this.#log = log;
    this.#idleness = new Idleness(devices, loads, log);
  }

  start(): void {
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#costs.keep(this.#versions);
  }

  /** While the server drains, instances are neither added nor removed. */
  stopScaling(): void {
    this.#scaling = false;
  }

  #tick(): void {
    this.#ticks++;
    const now = performance.now();
    const isLook = this.#ticks % LOOK_TICKS === 0;
    for (const child of [...this.#devices, ...this.#ingresses]) child.watch(now, isLook);
    this.#oom.sample(now);
    if (isLook && this.#scaling) this.#loads.retryDue(now);
    if (this.#ticks % MEMORY_TICKS === 0) this.#ledger.sample();
    if (this.#ticks % KEEP_COSTS_TICKS === 0) this.#costs.keep(this.#versions);
    for (const version of this.#versions) {
      const { segment, bells } = version;
      if (segment === undefined || bells === undefined) continue;
      // At every tick: requests may still come in until every ingress has heard of it.
      if (version.abandoned) failQueued(segment, bells, STATUS_WORKER_LOST);
      nudge(segment, bells);
      if (this.#scaling && version.config.instances.max > version.config.instances.min) this.#scale(version);
      if (this.#scaling) this.#idleness.look(version, now);
      if (this.#ticks % TRIM_TICKS === 0) segment.trim(bells);
    }
  }

  #scale(version: ServedVersion): void {
    const segment = version.segment!;
    const { queuedRows, runningRows } = census(segment);
    const { targetRows } = version.config.instances;
    const serving = version.placements.filter(({ state }) => state === 'serving');
    for (const placement of serving) {
      const running = placement.running.size;
      const { target, reason } =
        targetRows === undefined
          ? this.#byWaiting(version, placement, queuedRows)
          : this.#byRows(version, placement, targetRows, (queuedRows + runningRows) / serving.length);
      // Those that were ordered will run in a moment.
      if (target === running + placement.starting.size) continue;
      this.#log.info({ model: version.key, device: placement.device, from: running, to: target, reason }, 'instances');
      this.#devices.find(({ name }) => name === placement.device)?.scale(version, target);
    }
  }

  /** More where rows wait for busy instances. */
  #byWaiting({ config, segment }: ServedVersion, placement: Placement, queuedRows: number) {
    const { running } = placement;
    const decision = decide(this.#scalers.get(placement) ?? initialScaler(), {
      nowMs: performance.now(),
      running: running.size,
      queuedRows,
      busyInstances: [...running].filter((slot) => executingSinceUs(segment!, slot) > 0).length,
      min: config.instances.min,
      max: Math.min(config.instances.max, placement.slots.length),
      maxBatchRows: segment!.geometry.maxBatchRows,
    });
    this.#scalers.set(placement, decision.state);
    return decision;
  }

  /** As many as the rows that wait or run ask for, of which the device has its part. */
  #byRows({ config }: ServedVersion, placement: Placement, targetRows: number, rows: number) {
    const decision = decideByRows(this.#byRowsScalers.get(placement) ?? initialConcurrency(), {
      nowMs: performance.now(),
      rows,
      min: config.instances.min,
      max: Math.min(config.instances.max, placement.slots.length),
      targetRows,
    });
    this.#byRowsScalers.set(placement, decision.state);
    return decision;
  }
}
