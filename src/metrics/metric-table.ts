/**
 * Every metric of the server, in one table: what /metrics prints and what the README lists are both made from it.
 *
 * Base units (seconds, bytes); counters end in `_total`.
 */
import type { QueueCensus } from '../queue/reclaim.ts';
import { MODEL_STATES } from '../repository/model-state.ts';
import { BATCH_BUCKETS_ROWS, LATENCY_BUCKETS_S, OUTCOMES, STAGES, type Stage } from './counters.ts';
import { type FixedLabel, histogram, type Metric, metric, type Subject } from './metric.ts';
import type {
  DeviceMemoryItem,
  ExitItem,
  Measured,
  ModelItem,
  ModelMemoryItem,
  PlacementItem,
  ProcessGroupItem,
  ProcessItem,
  ServerItem,
} from './scrape.ts';

const SERVER: Subject<ServerItem> = { labels: [], items: ({ server }) => server };
const BUILD: Subject<Measured> = { labels: ['version', 'node'], items: ({ build }) => build };
const MODEL: Subject<ModelItem> = { labels: ['model', 'version'], items: ({ models }) => models };
const CACHE: Subject<ModelItem> = {
  labels: ['model', 'version'],
  items: ({ models }) => models.filter(({ model }) => model.caches),
};
const PLACEMENT: Subject<PlacementItem> = {
  labels: ['model', 'version', 'device'],
  items: ({ placements }) => placements,
};
/** Devices, and versions on devices, of which somebody tells the figure. */
const devicesThatTell = (figure: (item: DeviceMemoryItem) => number | undefined): Subject<DeviceMemoryItem> => ({
  labels: ['device'],
  items: ({ deviceMemory }) => deviceMemory.filter((item) => figure(item) !== undefined),
});
const modelsThatTell = (figure: (item: ModelMemoryItem) => number | undefined): Subject<ModelMemoryItem> => ({
  labels: ['model', 'version', 'device'],
  items: ({ modelMemory }) => modelMemory.filter((item) => figure(item) !== undefined),
});
const PROCESS: Subject<ProcessItem> = { labels: ['role', 'device', 'slot'], items: ({ processes }) => processes };
const PROCESSES: Subject<ProcessGroupItem> = {
  labels: ['role', 'device'],
  items: ({ processGroups }) => processGroups,
};
const EXITS: Subject<ExitItem> = { labels: ['role', 'device', 'reason'], items: ({ exits }) => exits };

const LATENCY = { bounds: LATENCY_BUCKETS_S, perUnit: 1e6 };
const BATCH_SIZE = { bounds: BATCH_BUCKETS_ROWS, perUnit: 1 };

const OUTCOME = { label: 'outcome', values: OUTCOMES };
const STAGE: FixedLabel<Stage> = { label: 'stage', values: STAGES.filter((stage) => stage !== 'total') };
const MODEL_STATE = { label: 'state', values: MODEL_STATES };
const INSTANCE_STATE = { label: 'state', values: ['idle', 'running'] } as const;
const ROW_STATE = { label: 'state', values: ['queued', 'running'] } as const;
const SLAB_STATE: FixedLabel<keyof QueueCensus['slabs']> = {
  label: 'state',
  values: ['free', 'filling', 'open', 'sealed', 'running', 'done', 'freeing'],
};

/** States of a process in which it does its work. */
const UP_STATES: ReadonlySet<string> = new Set(['ready', 'running', 'draining']);

export const METRICS: readonly Metric[] = [
  metric({
    of: MODEL,
    by: OUTCOME,
    type: 'counter',
    name: 'requests_total',
    help: 'Requests by what became of them.',
    read: ({ ingress }, outcome) => ingress.outcomes[outcome],
  }),
  metric({
    of: MODEL,
    type: 'counter',
    name: 'request_rows_total',
    help: 'Rows of valid requests.',
    read: ({ ingress }) => ingress.rows,
  }),
  metric({
    of: MODEL,
    type: 'counter',
    name: 'request_bytes_total',
    help: 'Bytes of the bodies of valid requests.',
    read: ({ ingress }) => ingress.bytesIn,
  }),
  metric({
    of: MODEL,
    type: 'counter',
    name: 'response_bytes_total',
    help: 'Bytes of the bodies of successful responses.',
    read: ({ ingress }) => ingress.bytesOut,
  }),
  metric({
    of: MODEL,
    type: 'gauge',
    name: 'requests_in_flight',
    help: 'Requests that have arrived and have not been answered yet.',
    read: ({ ingress }) => ingress.inFlight,
  }),
  histogram({
    of: MODEL,
    by: STAGE,
    buckets: LATENCY,
    name: 'request_stage_seconds',
    help: 'Time of requests by stage: reading and checking, waiting for a batch, the run of the batch, writing the answer. Without those answered from the response cache.',
    read: ({ ingress }, stage) => ingress.stages[stage],
  }),
  histogram({
    of: MODEL,
    buckets: LATENCY,
    name: 'request_seconds',
    help: 'Time of successful requests from their arrival to their answer.',
    read: ({ ingress }) => ingress.stages.total,
  }),

  metric({
    of: CACHE,
    type: 'counter',
    name: 'response_cache_hits_total',
    help: 'Requests of a model with a response cache that were answered from it.',
    read: ({ ingress }) => ingress.cache.hits,
  }),
  metric({
    of: CACHE,
    type: 'counter',
    name: 'response_cache_misses_total',
    help: 'Requests that were answered by a run since the cache did not have the answer.',
    read: ({ ingress }) => ingress.cache.misses,
  }),
  metric({
    of: CACHE,
    type: 'counter',
    name: 'response_cache_evictions_total',
    help: 'Kept answers that went to make room for others.',
    read: ({ ingress }) => ingress.cache.evictions,
  }),
  metric({
    of: CACHE,
    type: 'gauge',
    name: 'response_cache_entries',
    help: 'Answers kept, in all ingress processes together.',
    read: ({ ingress }) => ingress.cache.entries,
  }),
  metric({
    of: CACHE,
    type: 'gauge',
    name: 'response_cache_bytes',
    help: 'Memory of the answers kept, in all ingress processes together.',
    read: ({ ingress }) => ingress.cache.bytes,
  }),

  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'batches_total',
    help: 'Batches run.',
    read: ({ reading }) => reading.batches,
  }),
  histogram({
    of: PLACEMENT,
    buckets: BATCH_SIZE,
    name: 'batch_rows',
    help: 'Rows of a batch.',
    read: ({ reading }) => reading.batchRows,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'batch_rows_executed_total',
    help: 'Rows run in batches.',
    read: ({ reading }) => reading.rows,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'batch_failures_total',
    help: 'Runs of a single request that failed.',
    read: ({ reading }) => reading.failures,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'batch_splits_total',
    help: 'Batches, or parts of one, that failed and were run again in halves.',
    read: ({ reading }) => reading.splits,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'batch_out_of_memory_total',
    help: 'Runs that found too little memory.',
    read: ({ reading }) => reading.outOfMemory,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'batch_skipped_total',
    help: 'Batches that were not run since nobody waited for them any more.',
    read: ({ reading }) => reading.skipped,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'batch_rows_late_total',
    help: 'Rows that were not run, and answered 504, since they were past their deadline or would have been after the run.',
    read: ({ reading }) => reading.lateRows,
  }),
  metric({
    of: PLACEMENT,
    type: 'gauge',
    name: 'run_cost_base_seconds',
    help: 'What a run costs whatever its rows, as learnt from the runs of the shape that has run most.',
    read: ({ cost }) => cost.baseUs / 1e6,
  }),
  metric({
    of: PLACEMENT,
    type: 'gauge',
    name: 'run_cost_row_seconds',
    help: 'What each row adds to the cost of a run.',
    read: ({ cost }) => cost.rowUs / 1e6,
  }),
  metric({
    of: PLACEMENT,
    type: 'gauge',
    name: 'run_cost_error_ratio',
    help: 'Mean error of the predicted time of a run, relative to the prediction, over the latest runs.',
    read: ({ cost }) => cost.errorRatio,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'instance_busy_seconds_total',
    help: 'Time that instances have spent on batches.',
    read: ({ reading }) => reading.busyUs / 1e6,
  }),
  metric({
    of: PLACEMENT,
    by: INSTANCE_STATE,
    type: 'gauge',
    name: 'instances',
    help: 'Instances that wait for a batch and instances that run one.',
    read: ({ instances }, state) => instances[state],
  }),
  metric({
    of: PLACEMENT,
    type: 'gauge',
    name: 'instance_executing_seconds',
    help: 'Age of the oldest run that is going on; 0 when there is none.',
    read: ({ executingForS }) => executingForS,
  }),

  memoryGauge(
    devicesThatTell,
    'device_memory_total_bytes',
    'Memory that models may take on the device: its budget, or what a GPU has.',
    ({ memory }) => memory.totalBytes,
  ),
  memoryGauge(
    devicesThatTell,
    'device_memory_reserve_bytes',
    'Part of it that is kept back.',
    ({ memory }) => memory.reserveBytes,
  ),
  memoryGauge(
    devicesThatTell,
    'device_memory_free_bytes',
    'Part of it that no model has a share of.',
    ({ memory }) => memory.freeBytes,
  ),
  memoryGauge(
    devicesThatTell,
    'device_memory_used_bytes',
    'Memory of a GPU that is in use, by whomever, as its driver tells.',
    ({ memory }) => memory.usedBytes,
  ),
  memoryGauge(
    devicesThatTell,
    'device_memory_process_bytes',
    'Memory of a GPU that the process of the device has, as the driver tells.',
    ({ memory }) => memory.processBytes,
  ),
  memoryGauge(
    modelsThatTell,
    'model_memory_weights_bytes',
    'Memory of the weights: measured, or before the first load the size of the files.',
    ({ memory }) => memory.weightsBytes,
  ),
  memoryGauge(
    modelsThatTell,
    'model_memory_peak_bytes',
    'Memory that the largest batch takes beyond the weights, by a line fitted to what runs have taken.',
    ({ memory }) => memory.peakBytes,
  ),
  memoryGauge(
    modelsThatTell,
    'model_memory_share_bytes',
    'Limit of the memory that weights and runs take.',
    ({ memory }) => memory.shareBytes,
  ),
  metric({
    of: PLACEMENT,
    type: 'gauge',
    name: 'model_memory_held_bytes',
    help: 'Memory that weights and runs hold, in use or not.',
    read: ({ arenaHeldBytes }) => arenaHeldBytes,
  }),
  metric({
    of: PLACEMENT,
    type: 'counter',
    name: 'model_memory_given_back_total',
    help: 'Times that memory which runs had held and did not use was given back.',
    read: ({ reading }) => reading.gaveBack,
  }),

  metric({
    of: MODEL,
    by: ROW_STATE,
    type: 'gauge',
    name: 'queue_rows',
    help: 'Rows that wait in the queue and rows that are in a batch.',
    read: ({ queue }, state) => (state === 'queued' ? queue.queuedRows : queue.runningRows),
  }),
  metric({
    of: MODEL,
    by: SLAB_STATE,
    type: 'gauge',
    name: 'queue_slabs',
    help: 'Slabs of the queue.',
    read: ({ queue }, state) => queue.slabs[state],
  }),
  metric({
    of: MODEL,
    type: 'gauge',
    name: 'queue_committed_bytes',
    help: 'Shared memory that the queue holds.',
    read: ({ queue }) => queue.committedBytes,
  }),
  metric({
    of: MODEL,
    type: 'gauge',
    name: 'queue_used_bytes',
    help: 'Shared memory of the queue that is in use.',
    read: ({ queue }) => queue.usedBytes,
  }),
  metric({
    of: MODEL,
    type: 'counter',
    name: 'rows_requeued_total',
    help: 'Rows taken over from instances that died with them.',
    read: ({ model }) => model.requeuedRows,
  }),
  metric({
    of: MODEL,
    type: 'counter',
    name: 'rows_lost_total',
    help: 'Rows given up after too many instances had died with them.',
    read: ({ model }) => model.lostRows,
  }),
  metric({
    of: MODEL,
    type: 'gauge',
    name: 'model_max_batch_rows',
    help: 'Most rows in a batch; 0 for a model without batching.',
    read: ({ model }) => model.maxBatchSize,
  }),
  metric({
    of: MODEL,
    type: 'gauge',
    name: 'model_ready',
    help: '1 while the version is ready.',
    read: ({ model }) => Number(model.state === 'READY'),
  }),
  metric({
    of: MODEL,
    by: MODEL_STATE,
    type: 'gauge',
    name: 'model_state',
    help: '1 for the state that the version is in, 0 for the others.',
    read: ({ model }, state) => Number(model.state === state),
  }),

  metric({
    of: PROCESSES,
    type: 'counter',
    name: 'process_restarts_total',
    help: 'Restarts of processes.',
    read: ({ restarts }) => restarts,
  }),
  metric({
    of: EXITS,
    type: 'counter',
    name: 'process_exits_total',
    help: 'Ends of processes, by exit code, signal, or who killed them and why.',
    read: ({ count }) => count,
  }),
  metric({
    of: PROCESS,
    type: 'gauge',
    name: 'process_up',
    help: '1 while the process does its work, 0 while it starts, stops or waits for its restart.',
    read: ({ process }) => Number(UP_STATES.has(process.state)),
  }),
  metric({
    of: PROCESS,
    type: 'gauge',
    name: 'process_uptime_seconds',
    help: 'Time since the last start of the process; 0 while there is none.',
    read: ({ process }) => process.uptimeS,
  }),
  metric({
    of: PROCESS,
    type: 'gauge',
    name: 'process_resident_bytes',
    help: 'Memory of the process in RAM, its part of the shared memory included.',
    read: ({ process }) => process.rssBytes,
  }),

  metric({
    of: SERVER,
    type: 'counter',
    name: 'supervisor_busy_seconds_total',
    help: "Time in which the supervisor's event loop was busy.",
    read: ({ loopBusyS }) => loopBusyS,
  }),
  metric({
    of: SERVER,
    type: 'gauge',
    name: 'ready',
    help: '1 while the server says that it is ready.',
    read: ({ ready }) => Number(ready),
  }),
  metric({
    of: BUILD,
    type: 'gauge',
    name: 'build_info',
    help: 'Always 1: the labels tell the versions of batchport and of Node.js.',
    read: () => 1,
  }),
];

/** A figure of the memory accounts, of those that tell it. */
function memoryGauge<Item extends Measured>(
  subject: (figure: (item: Item) => number | undefined) => Subject<Item>,
  name: string,
  help: string,
  figure: (item: Item) => number | undefined,
): Metric {
  return metric({ of: subject(figure), type: 'gauge', name, help, read: (item) => figure(item)! });
}
