/**
 * Loads and releases sessions, in a thread of its own: reading and optimizing a model blocks for as long as it takes, and the device's
 * main thread has to stay reachable.
 *
 * Owner: this thread's table owns the sessions; instances get plain handles and must have ended before `unload`.
 * Bound: one load at a time.
 */
import { performance } from 'node:perf_hooks';
import { roundSizeBytes } from '../config/size.ts';
import type { Batching, LoadOrder, MemoryReport, ModelKey } from '../protocol/control.ts';
import { BATCH_ROWS_MAX } from '../queue/states.ts';
import type { ArenaState } from '../runtime/allocator-stats.ts';
import { Session, type SessionHandle, WeightsTooLarge } from '../runtime/session.ts';
import type { KeyPoints } from '../scheduler/memory-fit.ts';
import { ResidentPeak } from '../system/resident.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { PROBE_ROWS, probeBatchability, staticObstacle } from './batchability.ts';
import { type Canary, type CanaryFound, findCanary, isRunFailure, runCanary } from './canary.ts';
import { measureRuns } from './measure.ts';
import { isOutOfMemory } from './out-of-memory.ts';
import { RunControl } from './run-control.ts';
import { RunCancelled, WatchedRunner } from './watched-runner.ts';

export interface LoadTask {
  readonly model: ModelKey;
  readonly path: string;
  readonly order: LoadOrder;
  readonly maxBatchSize: number | undefined;
  readonly known: Batching | undefined;
  /** What its runs are known to take; undefined where that has to be measured. */
  readonly measured: readonly KeyPoints[] | undefined;
  /** Sizes of the model's files. */
  readonly filesBytes: number;
  /** Whether nothing else runs in the process, so that what the load takes of its memory can be told. */
  readonly quiet: boolean;
  /** Shared with the main thread, which cancels a trial run that takes longer than the limit. */
  readonly control: SharedArrayBuffer;
  readonly runTimeoutMs: number;
}

export interface LoadResult extends Tried {
  readonly handle: SessionHandle;
  readonly loadMs: number;
}

/** What trial runs found out. */
interface Tried extends CanaryFound {
  readonly batching: Batching;
  readonly memory: MemoryReport;
  /** What the arena holds with nothing running. */
  readonly baseBytes: number;
}

/** Rows of a batch where nothing is configured. */
const DEFAULT_BATCH_ROWS = 64;

const sessions = new Map<ModelKey, Session>();

/** There was no memory for a load. */
export interface NoMemory {
  readonly noMemory: string;
  /** Where that was found out. */
  readonly weightsBytes: number | undefined;
}

/** Not even one row of made-up inputs finds memory beside the weights. */
class RowTooLarge extends Error {
  readonly weightsBytes: number | undefined;

  constructor(reason: string, limitBytes: number | undefined, weightsBytes: number | undefined) {
    const place = limitBytes === undefined ? '' : ` in its share of ${roundSizeBytes(limitBytes)}`;
    super(`a run of one row finds no place beside the weights${place} (${reason.trim()})`);
    this.weightsBytes = weightsBytes;
  }
}

/** @throws what cannot be loaded, for other reasons than memory */
export function load(task: LoadTask): LoadResult | NoMemory {
  try {
    return loadSession(task);
  } catch (error) {
    if (error instanceof WeightsTooLarge) return { noMemory: error.message, weightsBytes: error.weightsBytes };
    if (error instanceof RowTooLarge) return { noMemory: error.message, weightsBytes: error.weightsBytes };
    if (isOutOfMemory(error)) return { noMemory: (error as Error).message, weightsBytes: undefined };
    throw error;
  }
}

function loadSession(task: LoadTask): LoadResult {
  const started = performance.now();
  const peak = task.quiet ? ResidentPeak.start() : undefined;
  const session = Session.load(task.path, { ...task.order, logId: task.model });
  try {
    const tried = tryOut(session, task, peak?.bytes);
    sessions.get(task.model)?.release();
    sessions.set(task.model, session);
    return { ...tried, handle: session.handle, loadMs: performance.now() - started };
  } catch (error) {
    session.release();
    throw error;
  }
}

export function unload(model: ModelKey): void {
  sessions.get(model)?.release();
  sessions.delete(model);
}

/** Trial runs: whether rows may be batched, unless that is known, which made-up inputs the model takes, and what runs of them take. */
function tryOut(session: Session, task: LoadTask, loadPeakBytes: number | undefined): Tried {
  const { maxBatchSize, runTimeoutMs, order } = task;
  const { signature } = session;
  const known = fits(task.known, signature) ? task.known : undefined;
  const arena = session.arena();
  const weights = weightsOf(arena, task);
  const runner = new WatchedRunner(session.handle, new RunControl(task.control), runTimeoutMs);
  try {
    const batching = known ?? decideBatching(runner, session, maxBatchSize);
    const found = findCanary(runner, signature);
    const { canary } = found;
    const measure = (of: Canary): readonly KeyPoints[] =>
      measureRuns(session, runner, {
        canary: of,
        maxBatchSize: batching.maxBatchSize,
        arenaMaxBytes: order.arenaMaxBytes,
        loadedPeakBytes: arena?.peakBytes ?? 0,
        triedRows: triedRows({ ...task, known }, batching),
      });
    const keys = task.measured ?? (canary === undefined ? [] : measure(canary));
    if (canary !== undefined) giveBack(() => runCanary(runner, signature, canary, 1, true));
    const fixedShape = isFixed(signature, batching.maxBatchSize > 0);
    const baseBytes = session.arena()?.heldBytes ?? 0;
    return { ...found, batching, memory: { ...weights, loadPeakBytes, fixedShape, keys }, baseBytes };
  } catch (error) {
    if (isOutOfMemory(error)) throw new RowTooLarge(error.message, order.arenaMaxBytes, weights.weightsBytes);
    if (!(error instanceof RunCancelled)) throw error;
    const detail = `A trial of the model was given up. ${error.message}`;
    return {
      batching: known ?? { maxBatchSize: Math.min(maxBatchSize ?? 0, BATCH_ROWS_MAX), reason: detail },
      canary: undefined,
      report: { found: false, detail },
      memory: { ...weights, loadPeakBytes, fixedShape: false, keys: task.measured ?? [] },
      baseBytes: arena?.inUseBytes ?? 0,
    };
  } finally {
    runner.dispose();
  }
}

/** On a CPU, weights in a form of its own lie outside of the arena, where nobody counts them: they take about what they take in the file. */
function weightsOf(arena: ArenaState | undefined, { order, filesBytes }: LoadTask) {
  if (arena === undefined) return { weightsBytes: undefined, outsideBytes: 0 };
  const outsideBytes = order.provider === 'cpu' ? Math.max(0, filesBytes - arena.inUseBytes) : 0;
  return { weightsBytes: arena.inUseBytes + outsideBytes, outsideBytes };
}

/** Rows of the largest run of the trials; undefined where these may have ended before it. */
function triedRows({ known, maxBatchSize }: LoadTask, batching: Batching): number | undefined {
  if (known !== undefined || maxBatchSize === 0) return 1;
  return batching.maxBatchSize > 0 ? PROBE_ROWS : undefined;
}

/** The trials have taken memory that is not needed any more; if that cannot be given back now, it will be later. */
function giveBack(run: () => void): void {
  try {
    run();
  } catch (error) {
    if (!isRunFailure(error)) throw error;
  }
}

function isFixed({ inputs }: ModelSignature, batched: boolean): boolean {
  return inputs.every(({ datatype, shape }) => datatype !== 'BYTES' && !shape.includes(-1, batched ? 1 : 0));
}

/** What is known may be of another model that the same file once held: one that cannot have batches by its signature is tried anew. */
function fits(known: Batching | undefined, signature: ModelSignature): known is Batching {
  return known !== undefined && (known.maxBatchSize === 0 || staticObstacle(signature) === undefined);
}

function decideBatching(runner: WatchedRunner, session: Session, wanted: number | undefined): Batching {
  if (wanted === 0) return { maxBatchSize: 0, reason: 'max_batch_size is 0' };
  const { batchable, proven, reason, provisional = false } = probeBatchability(runner, session.signature);
  if (batchable && (proven || wanted !== undefined)) {
    return { maxBatchSize: Math.min(wanted ?? DEFAULT_BATCH_ROWS, BATCH_ROWS_MAX), reason };
  }
  if (wanted !== undefined && wanted > 1) {
    throw new Error(`max_batch_size is ${wanted}, but the model cannot be batched: ${reason}. Set it to 0.`);
  }
  return { maxBatchSize: 0, reason, ...(provisional ? { provisional } : {}) };
}
