/**
 * A snapshot summed up to the things that have labels: the server, versions of models, versions on devices, processes.
 *
 * All slots of a version and device are summed, those without a thread as well, so that a sum never falls while its parts do not. The number of
 * items is that of versions, of versions × devices, and of processes; nothing of a request is among them.
 */
import type { QueueCensus } from '../queue/reclaim.ts';
import {
  type CacheReading,
  COUNTER_WORDS,
  type HistogramReading,
  type IngressReading,
  type InstanceReading,
  OUTCOMES,
  readIngress,
  STAGES,
} from './counters.ts';
import type {
  DeviceMemorySnapshot,
  InstanceSnapshot,
  MetricsSnapshot,
  ModelMemorySnapshot,
  ModelSnapshot,
  ProcessSnapshot,
  RunCostReading,
} from './snapshot.ts';

export type Labels = Readonly<Record<string, string>>;

/** Something that is measured, with the labels that name it. */
export interface Measured {
  readonly labels: Labels;
}

export interface ServerItem extends Measured {
  readonly ready: boolean;
  /** Time the supervisor's event loop has been busy. */
  readonly loopBusyS: number;
}

export interface ModelItem extends Measured {
  readonly model: ModelSnapshot;
  /** Sum over the ingress slots. */
  readonly ingress: IngressReading;
  /** All zero before the version has one. */
  readonly queue: QueueCensus;
}

/** A version on a device. */
export interface PlacementItem extends Measured {
  /** Sum over the slots. */
  readonly reading: InstanceReading;
  readonly instances: Readonly<Record<'idle' | 'running', number>>;
  /** Longest of the runs going on; 0 when there is none. */
  readonly executingForS: number;
  /** Of the arena that its runs lie in; 0 where there is no instance. */
  readonly arenaHeldBytes: number;
  /** Mean over the instances that have run; zeros before the first run. */
  readonly cost: RunCostReading;
}

export interface DeviceMemoryItem extends Measured {
  readonly memory: DeviceMemorySnapshot;
}

export interface ModelMemoryItem extends Measured {
  readonly memory: ModelMemorySnapshot;
}

export interface ProcessItem extends Measured {
  readonly process: ProcessSnapshot;
}

/** Processes of one role and device. */
export interface ProcessGroupItem extends Measured {
  readonly restarts: number;
}

/** Ends of one kind in a group of processes. */
export interface ExitItem extends Measured {
  readonly count: number;
}

export interface Scrape {
  readonly server: readonly ServerItem[];
  readonly build: readonly Measured[];
  readonly models: readonly ModelItem[];
  readonly placements: readonly PlacementItem[];
  readonly deviceMemory: readonly DeviceMemoryItem[];
  readonly modelMemory: readonly ModelMemoryItem[];
  readonly processes: readonly ProcessItem[];
  readonly processGroups: readonly ProcessGroupItem[];
  readonly exits: readonly ExitItem[];
}

/** What the supervisor's own process knows about itself. */
export interface OwnReadings {
  readonly nodeVersion: string;
  readonly loopBusyS: number;
}

const NO_QUEUE: QueueCensus = {
  slabs: { free: 0, filling: 0, open: 0, sealed: 0, running: 0, done: 0, freeing: 0 },
  queuedRows: 0,
  runningRows: 0,
  committedBytes: 0,
  usedBytes: 0,
};
const NOTHING_COUNTED = readIngress(new Float64Array(COUNTER_WORDS), 0);
const CACHE_KEYS = Object.keys(NOTHING_COUNTED.cache) as (keyof CacheReading)[];

export function sumUp(snapshot: MetricsSnapshot, own: OwnReadings): Scrape {
  const groups = [...grouped(snapshot.processes, ({ role, device }) => JSON.stringify([role, device])).values()];
  return {
    server: [{ labels: {}, ready: snapshot.ready, loopBusyS: own.loopBusyS }],
    build: [{ labels: { version: snapshot.version, node: own.nodeVersion } }],
    models: snapshot.models.map((model) => ({
      labels: { model: model.name, version: model.version },
      model,
      ingress: model.ingress.length === 0 ? NOTHING_COUNTED : model.ingress.reduce(addIngress),
      queue: model.queue ?? NO_QUEUE,
    })),
    placements: snapshot.models.flatMap(placementsOf),
    deviceMemory: snapshot.memory.map((memory) => ({ labels: { device: memory.device }, memory })),
    modelMemory: snapshot.memory.flatMap(({ device, models }) =>
      models.map((memory) => ({ labels: { model: memory.model, version: memory.version, device }, memory })),
    ),
    processes: snapshot.processes.map((process) => ({
      labels: {
        role: process.role,
        device: process.device ?? '',
        slot: process.slot === undefined ? '' : String(process.slot),
      },
      process,
    })),
    processGroups: groups.map((members) => ({
      labels: groupLabels(members),
      restarts: members.reduce((sum, { restarts }) => sum + restarts, 0),
    })),
    exits: groups.flatMap(exitsOf),
  };
}

function placementsOf(model: ModelSnapshot): PlacementItem[] {
  const devices = grouped(model.instances, ({ device }) => device);
  return [...devices].map(([device, instances]) => {
    const alive = instances.filter(({ running }) => running);
    const executing = alive.filter(({ executingForS }) => executingForS > 0);
    return {
      labels: { model: model.name, version: model.version, device },
      reading: instances.map(({ reading }) => reading).reduce(addInstances),
      instances: { idle: alive.length - executing.length, running: executing.length },
      cost: meanCost(instances),
      executingForS: executing.reduce((longest, { executingForS }) => Math.max(longest, executingForS), 0),
      arenaHeldBytes: alive.reduce((most, { reading }) => Math.max(most, reading.arenaHeldBytes), 0),
    };
  });
}

function meanCost(instances: readonly InstanceSnapshot[]): RunCostReading {
  const costs = instances.map(({ cost }) => cost).filter((cost) => cost !== undefined);
  const mean = (of: (cost: RunCostReading) => number) =>
    costs.reduce((sum, cost) => sum + of(cost), 0) / Math.max(1, costs.length);
  return {
    baseUs: mean(({ baseUs }) => baseUs),
    rowUs: mean(({ rowUs }) => rowUs),
    errorRatio: mean(({ errorRatio }) => errorRatio),
  };
}

function exitsOf(members: readonly ProcessSnapshot[]): ExitItem[] {
  const counts = new Map<string, number>();
  for (const { exits } of members) {
    for (const [reason, count] of Object.entries(exits)) counts.set(reason, (counts.get(reason) ?? 0) + count);
  }
  return [...counts].map(([reason, count]) => ({ labels: { ...groupLabels(members), reason }, count }));
}

function groupLabels([first]: readonly ProcessSnapshot[]): Labels {
  return { role: first!.role, device: first!.device ?? '' };
}

function grouped<Item>(items: readonly Item[], keyOf: (item: Item) => string): Map<string, Item[]> {
  const groups = new Map<string, Item[]>();
  for (const item of items) {
    const key = keyOf(item);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [item]);
    else group.push(item);
  }
  return groups;
}

function addIngress(a: IngressReading, b: IngressReading): IngressReading {
  return {
    outcomes: combine(OUTCOMES, (outcome) => a.outcomes[outcome] + b.outcomes[outcome]),
    rows: a.rows + b.rows,
    bytesIn: a.bytesIn + b.bytesIn,
    bytesOut: a.bytesOut + b.bytesOut,
    inFlight: a.inFlight + b.inFlight,
    cache: combine(CACHE_KEYS, (key) => a.cache[key] + b.cache[key]),
    stages: combine(STAGES, (stage) => addHistograms(a.stages[stage], b.stages[stage])),
  };
}

function addInstances(a: InstanceReading, b: InstanceReading): InstanceReading {
  return {
    batches: a.batches + b.batches,
    rows: a.rows + b.rows,
    failures: a.failures + b.failures,
    splits: a.splits + b.splits,
    outOfMemory: a.outOfMemory + b.outOfMemory,
    skipped: a.skipped + b.skipped,
    lateRows: a.lateRows + b.lateRows,
    busyUs: a.busyUs + b.busyUs,
    arenaHeldBytes: Math.max(a.arenaHeldBytes, b.arenaHeldBytes),
    gaveBack: a.gaveBack + b.gaveBack,
    batchRows: addHistograms(a.batchRows, b.batchRows),
  };
}

function addHistograms(a: HistogramReading, b: HistogramReading): HistogramReading {
  return { buckets: a.buckets.map((count, n) => count + b.buckets[n]!), sum: a.sum + b.sum };
}

function combine<Key extends string, Value>(keys: readonly Key[], read: (key: Key) => Value): Record<Key, Value> {
  return Object.fromEntries(keys.map((key) => [key, read(key)])) as Record<Key, Value>;
}
