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
import { Runner } from '../runtime/runner.ts';
import { Session, type SessionHandle } from '../runtime/session.ts';
import { probeBatchability } from './batchability.ts';

export interface LoadTask {
  readonly model: ModelKey;
  readonly path: string;
  readonly order: LoadOrder;
  readonly maxBatchSize: number | undefined;
  readonly known: Batching | undefined;
}

export interface LoadResult {
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
    const batching = task.known ?? decideBatching(session, task.maxBatchSize);
    sessions.get(task.model)?.release();
    sessions.set(task.model, session);
    return { handle: session.handle, batching, loadMs: performance.now() - started };
  } catch (error) {
    session.release();
    throw error;
  }
}

export function unload(model: ModelKey): void {
  sessions.get(model)?.release();
  sessions.delete(model);
}

function decideBatching(session: Session, wanted: number | undefined): Batching {
  if (wanted === 0) return { maxBatchSize: 0, reason: 'max_batch_size is 0' };
  const runner = new Runner(session.handle);
  try {
    const { batchable, proven, reason } = probeBatchability(runner, session.signature);
    if (batchable && (proven || wanted !== undefined)) {
      return { maxBatchSize: Math.min(wanted ?? DEFAULT_BATCH_ROWS, BATCH_ROWS_MAX), reason };
    }
    if (wanted !== undefined && wanted > 1) {
      throw new Error(`max_batch_size is ${wanted}, but the model cannot be batched: ${reason}. Set it to 0.`);
    }
    return { maxBatchSize: 0, reason };
  } finally {
    runner.dispose();
  }
}
