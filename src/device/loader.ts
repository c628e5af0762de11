/**
 * Loads and releases sessions, in a thread of its own: reading and optimizing a model blocks for as long as it takes, and the device's
 * main thread has to stay reachable.
 *
 * Owner: this thread's table owns the sessions; instances get plain handles and must have ended before `unload`.
 * Bound: one load at a time.
 */
import { performance } from 'node:perf_hooks';
import type { Batching, LoadOrder, ModelKey } from '../protocol/control.ts';
import { BATCH_ROWS_MAX } from '../queue/states.ts';
import { Session, type SessionHandle } from '../runtime/session.ts';
import { probeBatchability } from './batchability.ts';
import { type CanaryFound, findCanary } from './canary.ts';
import { RunControl } from './run-control.ts';
import { RunCancelled, WatchedRunner } from './watched-runner.ts';

export interface LoadTask {
  readonly model: ModelKey;
  readonly path: string;
  readonly order: LoadOrder;
  readonly maxBatchSize: number | undefined;
  readonly known: Batching | undefined;
  /** Shared with the main thread, which cancels a trial run that takes longer than the limit. */
  readonly control: SharedArrayBuffer;
  readonly runTimeoutMs: number;
}

export interface LoadResult extends CanaryFound {
  readonly handle: SessionHandle;
  readonly batching: Batching;
  readonly loadMs: number;
}

/** Rows of a batch where nothing is configured. */
const DEFAULT_BATCH_ROWS = 64;

const sessions = new Map<ModelKey, Session>();

export function load(task: LoadTask): LoadResult {
  const started = performance.now();
  const session = Session.load(task.path, { ...task.order, logId: task.model });
  try {
    const { batching, canary, report } = tryOut(session, task);
    sessions.get(task.model)?.release();
    sessions.set(task.model, session);
    return { handle: session.handle, batching, canary, report, loadMs: performance.now() - started };
  } catch (error) {
    session.release();
    throw error;
  }
}

export function unload(model: ModelKey): void {
  sessions.get(model)?.release();
  sessions.delete(model);
}

/** Trial runs: whether rows may be batched, unless that is known, and which made-up inputs the model takes. */
function tryOut(session: Session, task: LoadTask): CanaryFound & { readonly batching: Batching } {
  const { known, maxBatchSize, runTimeoutMs } = task;
  const runner = new WatchedRunner(session.handle, new RunControl(task.control), runTimeoutMs);
  try {
    const batching = known ?? decideBatching(runner, session, maxBatchSize);
    return { batching, ...findCanary(runner, session.signature) };
  } catch (error) {
    if (!(error instanceof RunCancelled)) throw error;
    const detail = `A trial of the model was given up. ${error.message}`;
    return {
      batching: { maxBatchSize: Math.min(maxBatchSize ?? 0, BATCH_ROWS_MAX), reason: detail },
      canary: undefined,
      report: { found: false, detail },
    };
  } finally {
    runner.dispose();
  }
}

function decideBatching(runner: WatchedRunner, session: Session, wanted: number | undefined): Batching {
  if (wanted === 0) return { maxBatchSize: 0, reason: 'max_batch_size is 0' };
  const { batchable, proven, reason } = probeBatchability(runner, session.signature);
  if (batchable && (proven || wanted !== undefined)) {
    return { maxBatchSize: Math.min(wanted ?? DEFAULT_BATCH_ROWS, BATCH_ROWS_MAX), reason };
  }
  if (wanted !== undefined && wanted > 1) {
    throw new Error(`max_batch_size is ${wanted}, but the model cannot be batched: ${reason}. Set it to 0.`);
  }
  return { maxBatchSize: 0, reason };
}
