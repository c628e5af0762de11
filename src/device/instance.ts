/**
 * An instance: one thread running one session, for ever: next batch, run, hand over. It blocks in the queue's futex and in ONNX Runtime, nowhere else. Before it
 * takes batches it proves with a canary run that it can.
 *
 * It ends when its stop word is set (after the batch at hand), or by an exception, which is a bug: the device process then ends, the supervisor
 * restarts it, and what the instance held is taken over.
 */
import { COUNTER_WORDS, InstanceCounters } from '../metrics/counters.ts';
import { Doorbells } from '../queue/bells.ts';
import { Consumer } from '../queue/consumer.ts';
import { counterOffset, INSTANCE_EXECUTING_SINCE } from '../queue/geometry.ts';
import { Segment, type SegmentReference } from '../queue/segment.ts';
import type { SessionHandle } from '../runtime/session.ts';
import { BatchRunner } from './batch-runner.ts';
import { type Canary, isRunFailure, runCanary } from './canary.ts';
import { RunControl, STARTED_FAILED, STARTED_SERVING } from './run-control.ts';
import { WatchedRunner } from './watched-runner.ts';

/** What the device's main thread hands to an instance. Plain data. */
export interface InstanceTask {
  readonly session: SessionHandle;
  readonly queue: SegmentReference;
  readonly slot: number;
  /** Write ends of the ingress doorbells, open in this process. */
  readonly bellFds: readonly number[];
  readonly maxQueueDelayUs: number;
  readonly runTimeoutMs: number;
  /** Undefined where the model takes no made-up inputs. */
  readonly canary: Canary | undefined;
  /** Shared with the main thread; see RunControl. */
  readonly control: SharedArrayBuffer;
}

/** Runs an instance until it is told to stop. Returns why it could not serve; undefined after it did. */
export function runInstance(task: InstanceTask): string | undefined {
  const segment = Segment.attach(task.queue);
  if (segment.geometry.counters !== COUNTER_WORDS) throw new Error('the segment has other counters: this is a bug');
  const { signature } = task.session;
  const bells = new Doorbells(segment, task.bellFds);
  const consumer = new Consumer(segment, task.slot, bells, signature, { maxQueueDelayUs: task.maxQueueDelayUs });
  const counters = new InstanceCounters(segment.f64, counterOffset(segment.geometry, { instance: task.slot }) / 8);
  const control = new RunControl(task.control);
  // A batch may take several runs; what is watched from outside is the time of each.
  const executingSince = segment.instanceLine(task.slot) / 2 + INSTANCE_EXECUTING_SINCE;
  const runner = new WatchedRunner(task.session, control, task.runTimeoutMs, (sinceUs) => {
    segment.f64[executingSince] = sinceUs;
  });
  const batches = new BatchRunner(runner, segment, consumer, signature, counters);
  try {
    if (task.canary !== undefined) {
      runCanary(runner, signature, task.canary);
      segment.f64[executingSince] = 0;
    }
    control.started = STARTED_SERVING;
    while (!consumer.stopping) {
      const batch = consumer.next();
      if (batch === undefined) continue;
      batches.run(batch);
      consumer.finish(batch);
    }
    return undefined;
  } catch (error) {
    if (control.started !== 0 || !isRunFailure(error)) throw error;
    segment.f64[executingSince] = 0;
    control.started = STARTED_FAILED;
    return `its canary run failed: ${error.message}`;
  } finally {
    runner.dispose();
    segment.close();
  }
}
