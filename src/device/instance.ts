/**
 * An instance: one thread running one session, for ever: next batch, run, hand over. It blocks in the queue's futex and in ONNX Runtime, nowhere else.
 *
 * It ends when its stop word is set (after the batch at hand), or by an exception, which is a bug: the device process then ends, the supervisor
 * restarts it, and what the instance held is taken over.
 */
import { COUNTER_WORDS, InstanceCounters } from '../metrics/counters.ts';
import { Doorbells } from '../queue/bells.ts';
import { Consumer } from '../queue/consumer.ts';
import { counterOffset } from '../queue/geometry.ts';
import { Segment, type SegmentReference } from '../queue/segment.ts';
import { Runner } from '../runtime/runner.ts';
import type { SessionHandle } from '../runtime/session.ts';
import { BatchRunner } from './batch-runner.ts';

/** What the device's main thread hands to an instance. Plain data. */
export interface InstanceTask {
  readonly session: SessionHandle;
  readonly queue: SegmentReference;
  readonly slot: number;
  /** Write ends of the ingress doorbells, open in this process. */
  readonly bellFds: readonly number[];
  readonly maxQueueDelayUs: number;
  /** Shared with the main thread: [0] becomes 1 once the instance takes batches. */
  readonly started: Int32Array;
}

/** Runs an instance until it is told to stop. Returns the number of batches it ran. */
export function runInstance(task: InstanceTask): number {
  const segment = Segment.attach(task.queue);
  if (segment.geometry.counters !== COUNTER_WORDS) throw new Error('the segment has other counters: this is a bug');
  const bells = new Doorbells(segment, task.bellFds);
  const consumer = new Consumer(segment, task.slot, bells, task.session.signature, {
    maxQueueDelayUs: task.maxQueueDelayUs,
  });
  const counters = new InstanceCounters(segment.f64, counterOffset(segment.geometry, { instance: task.slot }) / 8);
  const runner = new Runner(task.session);
  const batches = new BatchRunner(runner, segment, consumer, task.session.signature, counters);
  let count = 0;
  try {
    Atomics.store(task.started, 0, 1);
    while (!consumer.stopping) {
      const batch = consumer.next();
      if (batch === undefined) continue;
      batches.run(batch);
      consumer.finish(batch);
      count++;
    }
  } finally {
    runner.dispose();
    segment.close();
  }
  return count;
}
