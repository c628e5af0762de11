/**
 * What runs of a freshly loaded model take: made-up rows, twice as many each time, until there is enough to fit a line to, or it takes too long.
 *
 * The allocator tells the most that was ever in use, so a run is measured if it goes beyond all before it. The trials that came before have measured the first
 * numbers of rows already. Nothing else may run in the session meanwhile. Bounds: TIME_MAX_MS in all, but for one run; ROUND_BYTES_MAX for a run in an arena without
 * a limit.
 */
import { performance } from 'node:perf_hooks';
import type { Session } from '../runtime/session.ts';
import { bytesOf, fitOf, type KeyPoints, type MemoryPoint, withPoint } from '../scheduler/memory-fit.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { type Canary, canaryDims, isRunFailure, runCanary } from './canary.ts';
import { shapeKey } from './shape-key.ts';
import type { WatchedRunner } from './watched-runner.ts';

const TIME_MAX_MS = 250;
const ROUND_BYTES_MAX = 256 * 2 ** 20;

export interface MeasureOptions {
  readonly canary: Canary;
  /** Rows of the largest batch; 0 where requests run alone. */
  readonly maxBatchSize: number;
  /** Limit of the arena; undefined for none. */
  readonly arenaMaxBytes: number | undefined;
  /** Most that was in use right after the load. */
  readonly loadedPeakBytes: number;
  /** Rows of the largest trial run since then; undefined where nobody knows. */
  readonly triedRows: number | undefined;
}

/** Measures runs. Nothing where the allocator tells nothing. Blocks for the runs it makes. @throws only for a bug */
export function measureRuns(session: Session, runner: WatchedRunner, options: MeasureOptions): readonly KeyPoints[] {
  const { canary, maxBatchSize, arenaMaxBytes, loadedPeakBytes, triedRows } = options;
  const { signature } = session;
  const arena = session.arena();
  if (arena === undefined) return [];
  const weightsBytes = arena.inUseBytes;
  const roomBytes = arenaMaxBytes === undefined ? ROUND_BYTES_MAX : arenaMaxBytes - weightsBytes;
  const deadlineMs = performance.now() + TIME_MAX_MS;
  let points: readonly MemoryPoint[] = [];
  if (triedRows !== undefined && arena.peakBytes > loadedPeakBytes) {
    points = [{ rows: triedRows, bytes: arena.peakBytes - weightsBytes }];
  }
  for (let rows = powerOfTwoAbove(triedRows ?? 0), lastMs = 0; rows <= Math.max(1, maxBatchSize); rows *= 2) {
    const began = performance.now();
    if (began + 2 * lastMs > deadlineMs) break;
    if (inputBytes(signature, canary, rows) > ROUND_BYTES_MAX) break;
    if (points.length > 0 && bytesOf(fitOf(points), rows) > roomBytes) break;
    const bytes = measureRun(session, runner, canary, rows);
    if (bytes === 'failed') break;
    if (bytes !== undefined) points = withPoint(points, { rows, bytes });
    lastMs = performance.now() - began;
  }
  if (points.length === 0) return [];
  const whole = maxBatchSize === 0;
  const dims = signature.inputs.map(({ shape }) => canaryDims(shape, canary.size, 1).slice(whole ? 0 : 1));
  return [{ ...shapeKey(whole, dims), points }];
}

function powerOfTwoAbove(rows: number): number {
  let power = 1;
  while (power <= rows) power *= 2;
  return power;
}

/** What a run took beyond the weights; undefined where that is hidden behind an earlier one. */
function measureRun(
  session: Session,
  runner: WatchedRunner,
  canary: Canary,
  rows: number,
): number | undefined | 'failed' {
  const before = session.arena();
  try {
    runCanary(runner, session.signature, canary, rows);
  } catch (error) {
    if (!isRunFailure(error)) throw error;
    return 'failed';
  }
  const after = session.arena();
  if (before === undefined || after === undefined || after.peakBytes <= before.peakBytes) return undefined;
  return Math.max(0, after.peakBytes - before.inUseBytes);
}

function inputBytes({ inputs }: ModelSignature, { size }: Canary, rows: number): number {
  let bytes = 0;
  for (const { datatype, shape } of inputs) {
    const elements = canaryDims(shape, size, rows).reduce((product, dim) => product * dim, 1);
    bytes += elements * datatypeInfo(datatype).elementBytes;
  }
  return bytes;
}
