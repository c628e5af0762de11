/**
 * The statistics extension of the protocol, from the counters in a model's segment: those of all ingress processes and instances together, dead ones included.
 *
 *     compute_input: from the head of a request until it lies in a slab    queue: until its batch is closed
 *     compute_infer: the run of its batch    compute_output: from the result to the answer's last write    success: all of it
 *     cache_hit: the look for an answer that was kept, which has none of these    cache_miss: the look for one that was not, and the keeping of it
 *
 * Batches are formed where they lie, so a batch itself has no time of input or output. They begin anew with a new version, and with a reload of one.
 */
import { readFailedUs, readIngress, readInstance, readLastRunUs, readSizes, type Stage } from '../metrics/counters.ts';
import { counterIndex } from '../queue/geometry.ts';
import type { Segment } from '../queue/segment.ts';
import { nowUs } from '../system/clock.ts';
import type { ModelEntry } from './model-table.ts';

/** How often something was done, and how long it took in all. */
interface Duration {
  readonly count: number;
  readonly ns: number;
}

const NOTHING: Duration = { count: 0, ns: 0 };

export interface BatchStatistics {
  readonly batch_size: number;
  readonly compute_input: Duration;
  readonly compute_infer: Duration;
  readonly compute_output: Duration;
}

export interface ModelStatistics {
  readonly name: string;
  readonly version: string;
  /** When the last batch was run, ms since 1970; 0 for never. */
  readonly last_inference: number;
  /** Rows. */
  readonly inference_count: number;
  /** Batches. */
  readonly execution_count: number;
  readonly inference_stats: Readonly<Record<string, Duration>>;
  readonly batch_stats: readonly BatchStatistics[];
}

export function statisticsOf({ name, version, serving }: ModelEntry): ModelStatistics {
  const ingresses = serving === undefined ? [] : slotsOf(serving.segment, 'ingress', readIngressSlot);
  const instances = serving === undefined ? [] : slotsOf(serving.segment, 'instance', readInstanceSlot);
  const success = durationOf(ingresses, 'total');
  // Another ingress may be just counting: clients take it amiss when there are more of one than of another.
  const hits = cacheDuration(ingresses, 'hits', 'hitUs');
  // What the cache has answered has no stages.
  const count = Math.max(0, success.count - hits.count);
  const stage = (name: Stage) => ({ ...durationOf(ingresses, name), count });
  const lastUs = instances.reduce((last, { lastRunUs }) => Math.max(last, lastRunUs), 0);
  return {
    name,
    version,
    last_inference: lastUs === 0 ? 0 : Math.round(Date.now() - (nowUs() - lastUs) / 1000),
    inference_count: instances.reduce((sum, { rows }) => sum + rows, 0),
    execution_count: instances.reduce((sum, { batches }) => sum + batches, 0),
    inference_stats: {
      success,
      fail: failures(ingresses),
      queue: stage('queue'),
      compute_input: stage('receive'),
      compute_infer: stage('run'),
      compute_output: stage('send'),
      cache_hit: hits,
      cache_miss: cacheDuration(ingresses, 'misses', 'missUs'),
    },
    batch_stats: batchesOf(instances),
  };
}

type IngressSlot = ReturnType<typeof readIngressSlot>;
function readIngressSlot(words: Float64Array, base: number) {
  return { ...readIngress(words, base), failedUs: readFailedUs(words, base) };
}

type InstanceSlot = ReturnType<typeof readInstanceSlot>;
function readInstanceSlot(words: Float64Array, base: number) {
  const { rows, batches } = readInstance(words, base);
  return { rows, batches, lastRunUs: readLastRunUs(words, base), sizes: readSizes(words, base) };
}

function slotsOf<T>(
  { geometry, f64 }: Segment,
  role: 'ingress' | 'instance',
  read: (words: Float64Array, base: number) => T,
): T[] {
  const length = role === 'ingress' ? geometry.ingressSlots : geometry.instanceSlots;
  return Array.from({ length }, (_, n) => {
    return read(f64, counterIndex(geometry, role === 'ingress' ? { ingress: n } : { instance: n }));
  });
}

function durationOf(ingresses: readonly IngressSlot[], name: Stage): Duration {
  return sum(
    ingresses.map(({ stages: { [name]: stage } }) => {
      return { count: stage.buckets.reduce((all, count) => all + count, 0), ns: Math.round(stage.sum * 1000) };
    }),
  );
}

/** Times of looking for answers in the cache, of misses also of keeping them. */
function cacheDuration(ingresses: readonly IngressSlot[], count: 'hits' | 'misses', us: 'hitUs' | 'missUs'): Duration {
  return sum(ingresses.map(({ cache }) => ({ count: cache[count], ns: Math.round(cache[us] * 1000) })));
}

function failures(ingresses: readonly IngressSlot[]): Duration {
  return sum(
    ingresses.map(({ outcomes, failedUs }) => {
      const { ok, cancelled, ...failed } = outcomes;
      return { count: Object.values(failed).reduce((all, count) => all + count, 0), ns: Math.round(failedUs * 1000) };
    }),
  );
}

function sum(durations: readonly Duration[]): Duration {
  return durations.reduce((all, { count, ns }) => ({ count: all.count + count, ns: all.ns + ns }), NOTHING);
}

/** Of the sizes that have been run; large ones under the largest power of two that they reach, see counters.ts. */
function batchesOf(instances: readonly InstanceSlot[]): BatchStatistics[] {
  const bySize = new Map<number, Duration>();
  for (const { sizes } of instances) {
    for (const { rows, batches: count, us } of sizes) {
      bySize.set(rows, sum([bySize.get(rows) ?? NOTHING, { count, ns: Math.round(us * 1000) }]));
    }
  }
  return [...bySize]
    .sort(([a], [b]) => a - b)
    .map(([rows, run]) => {
      const instant = { count: run.count, ns: 0 };
      return { batch_size: rows, compute_input: instant, compute_infer: run, compute_output: instant };
    });
}
