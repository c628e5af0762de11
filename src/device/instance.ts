/**
 * An instance: one thread running one session, for ever: next batch, run, hand over. It blocks in the queue's futex and in ONNX Runtime, nowhere else. Before it
 * takes batches it proves with a canary run that it can, and again when no batch has succeeded for a while.
 *
 * It ends when its stop word is set (after the batch at hand), when its arena is of no use any more, when its canary runs fail, or by an exception, which is a bug. In
 * the last three cases the device process ends as well, the supervisor restarts it, and what the instance held is taken over.
 */
import type { MessagePort } from 'node:worker_threads';
import { COUNTER_WORDS, InstanceCounters } from '../metrics/counters.ts';
import type { WarmUpOrder } from '../protocol/control.ts';
import { Doorbells } from '../queue/bells.ts';
import { Consumer } from '../queue/consumer.ts';
import { counterIndex, INSTANCE_EXECUTING_SINCE } from '../queue/geometry.ts';
import { Segment, type SegmentReference } from '../queue/segment.ts';
import { type SessionHandle, sessionArena } from '../runtime/session.ts';
import type { KeyPoints } from '../scheduler/memory-fit.ts';
import { ArenaRoom } from './arena-room.ts';
import { BatchRunner } from './batch-runner.ts';
import { type Canary, isRunFailure, runCanary } from './canary.ts';
import { InstanceUnsound, Proof } from './proof.ts';
import { RunControl, STARTED_FAILED, STARTED_SERVING } from './run-control.ts';
import { RunCosts } from './run-costs.ts';
import { ArenaPoisoned, type Measured, RunMemory } from './run-memory.ts';
import { canaryLayout, warmUp } from './warm-up.ts';
import { runWarmUps, WarmUpFailed } from './warm-up-runs.ts';
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
  readonly warmUps: WarmUpOrder;
  /** Shared with the main thread; see RunControl. */
  readonly control: SharedArrayBuffer;
  readonly memory: InstanceMemory;
}

/** What an instance is told about its memory; see RunMemoryOptions. */
export interface InstanceMemory {
  /** Of an ArenaRoom, shared with the other instances of the model. */
  readonly room: SharedArrayBuffer;
  readonly roomBytes: number;
  readonly canGrow: boolean;
  readonly baseBytes: number;
  readonly keys: readonly KeyPoints[];
  readonly recycleFromUs: number;
  /** Takes what it measures. */
  readonly report: MessagePort;
}

export type InstanceEnd =
  | { readonly is: 'stopped' }
  /** It never took a batch. */
  | { readonly is: 'unfit'; readonly reason: string }
  /** Its batch is not finished; the process has to end. */
  | { readonly is: 'poisoned'; readonly reason: string }
  /** Runs that have to succeed fail; the process has to end. */
  | { readonly is: 'unsound'; readonly reason: string };

/** Runs an instance until it is told to stop, or cannot go on. */
export function runInstance(task: InstanceTask): InstanceEnd {
  const segment = Segment.attach(task.queue);
  if (segment.geometry.counters !== COUNTER_WORDS) throw new Error('the segment has other counters: this is a bug');
  const { signature } = task.session;
  const bells = new Doorbells(segment, task.bellFds);
  const consumer = new Consumer(segment, task.slot, bells, signature, { maxQueueDelayUs: task.maxQueueDelayUs });
  const counters = new InstanceCounters(segment.f64, counterIndex(segment.geometry, { instance: task.slot }));
  const control = new RunControl(task.control);
  // A batch may take several runs; what is watched from outside is the time of each.
  const executingSince = segment.instanceLine(task.slot) / 2 + INSTANCE_EXECUTING_SINCE;
  const runner = new WatchedRunner(task.session, control, task.runTimeoutMs, (sinceUs) => {
    segment.f64[executingSince] = sinceUs;
  });
  const { report, room, ...account } = task.memory;
  const memory = new RunMemory({
    ...account,
    slot: task.slot,
    room: new ArenaRoom(account.roomBytes, room),
    counters,
    arena: () => sessionArena(task.session),
    onWait: () => consumer.runningOn(),
    onMeasured: (measured: Measured) => report.postMessage(measured),
  });
  const costs = new RunCosts(segment, task.slot);
  const batches = new BatchRunner(runner, segment, consumer, signature, counters, memory, costs);
  const { canary } = task;
  const makeCanaryRun = (): void => {
    try {
      if (canary !== undefined) runCanary(runner, signature, canary, 1, true);
    } finally {
      segment.f64[executingSince] = 0;
    }
  };
  const makeProof = (canary: Canary): Proof => {
    const layout = canaryLayout(segment, signature, canary);
    const run = (): void => {
      try {
        memory.run(layout, 1, (giveBack) => runCanary(runner, signature, canary, 1, giveBack));
      } finally {
        segment.f64[executingSince] = 0;
      }
    };
    return new Proof(() => counters.lastRunUs, run);
  };
  try {
    // What it takes is given back, so that the first batch finds the arena in one piece.
    makeCanaryRun();
    if (canary !== undefined && !costs.known) {
      warmUp({ runner, memory, segment, signature, canary, costs });
      makeCanaryRun();
    }
    if (task.warmUps.runs.length > 0) {
      try {
        runWarmUps(task.warmUps, { runner, memory, segment, signature, canary });
      } finally {
        segment.f64[executingSince] = 0;
      }
    }
    const proof = canary === undefined ? undefined : makeProof(canary);
    consumer.serving = true;
    control.started = STARTED_SERVING;
    while (!consumer.stopping) {
      const batch = consumer.next();
      if (batch === undefined) memory.idle(canary === undefined ? undefined : makeCanaryRun);
      else {
        batches.run(batch);
        consumer.finish(batch);
      }
      proof?.renew();
    }
    return { is: 'stopped' };
  } catch (error) {
    if (error instanceof ArenaPoisoned) return { is: 'poisoned', reason: error.message };
    if (error instanceof InstanceUnsound) return { is: 'unsound', reason: error.message };
    if (error instanceof WarmUpFailed) {
      control.started = STARTED_FAILED;
      return { is: 'unfit', reason: error.message };
    }
    if (control.started !== 0 || !isRunFailure(error)) throw error;
    control.started = STARTED_FAILED;
    return { is: 'unfit', reason: `its canary run failed: ${error.message}` };
  } finally {
    consumer.serving = false;
    memory.close();
    runner.dispose();
    segment.close();
    report.close();
  }
}
