/**
 * What the supervisor hands over at each scrape: plain data, read at one moment and never changed afterwards.
 *
 * Counts come from the segments and from the supervisor, so they go on over the death of any other process.
 */
import type { QueueCensus } from '../queue/reclaim.ts';
import type { ModelState } from '../repository/model-state.ts';
import type { IngressReading, InstanceReading } from './counters.ts';

export interface MetricsSnapshot {
  /** Of the package. */
  readonly version: string;
  /** What the readiness endpoint answers. */
  readonly ready: boolean;
  readonly models: readonly ModelSnapshot[];
  readonly processes: readonly ProcessSnapshot[];
  readonly memory: readonly DeviceMemorySnapshot[];
}

/** One served version of a model; name and version together are unique. */
export interface ModelSnapshot {
  readonly name: string;
  readonly version: string;
  readonly state: ModelState;
  /** Rows; 0 = no batching. */
  readonly maxBatchSize: number;
  /** It has a response cache. */
  readonly caches: boolean;
  /** One for each ingress slot; none before the version has a segment. */
  readonly ingress: readonly IngressReading[];
  /** All slots of all devices, whether or not a thread runs there, since their counts stay; none before the version has a segment. */
  readonly instances: readonly InstanceSnapshot[];
  /** undefined before the version has a segment. */
  readonly queue: QueueCensus | undefined;
  /** Rows that another instance took over from a dead one, and rows given up after too many deaths. */
  readonly requeuedRows: number;
  readonly lostRows: number;
}

export interface InstanceSnapshot {
  readonly device: string;
  readonly slot: number;
  /** A thread runs in this slot. */
  readonly running: boolean;
  /** For how long it has been executing its batch; 0 when it is not. */
  readonly executingForS: number;
  readonly reading: InstanceReading;
  /** Of the shape that has run most; undefined before any run. */
  readonly cost: RunCostReading | undefined;
}

/** What a run costs: the straight line nearest to its curve, and how far off predictions have been of late. */
export interface RunCostReading {
  readonly baseUs: number;
  readonly rowUs: number;
  readonly errorRatio: number;
}

/** A process of the server; role, device and slot together are unique. */
export interface ProcessSnapshot {
  readonly role: 'supervisor' | 'ingress' | 'device';
  /** Of a device process. */
  readonly device: string | undefined;
  /** Of an ingress process. */
  readonly slot: number | undefined;
  /** `ready`, `running` and `draining` are those in which it does its work. */
  readonly state: string;
  readonly restarts: number;
  /** Since its last start; 0 while there is no process. */
  readonly uptimeS: number;
  readonly rssBytes: number;
  /** How often it ended in which way: `exit code 1`, `signal SIGKILL (out of memory)`. One of few. */
  readonly exits: Readonly<Record<string, number>>;
}

/** The memory account of a device. What nobody tells is undefined. */
export interface DeviceMemorySnapshot {
  readonly device: string;
  readonly totalBytes: number | undefined;
  /** Who tells the total, in words. */
  readonly source: string;
  readonly reserveBytes: number;
  /** Of a GPU: taken by processes that are not ours. */
  readonly othersBytes: number;
  /** What no model has a share of. */
  readonly freeBytes: number | undefined;
  /** As the driver tells: of the whole device, and of our process. */
  readonly usedBytes: number | undefined;
  readonly processBytes: number | undefined;
  readonly models: readonly ModelMemorySnapshot[];
}

/** A version's place in the account of a device. */
export interface ModelMemorySnapshot {
  readonly model: string;
  readonly version: string;
  readonly weightsBytes: number;
  readonly weightsFrom: 'measured' | 'estimated';
  /** Limit of its arena; undefined where there is none, or it is not loaded. */
  readonly shareBytes: number | undefined;
  /** What a batch of `peakRows` rows, its largest, takes beyond the weights; undefined before anything has been measured. */
  readonly peakBytes: number | undefined;
  readonly peakRows: number;
}
