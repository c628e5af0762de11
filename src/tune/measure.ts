/**
 * Measures what a model costs on a running server: requests of 1, 2, 4 … rows from a single client, then of one row from as many clients as there are instances.
 *
 * The time of a run comes from the server's own counters, the spread and the rest from the client's latencies. Whatever else loads the model meanwhile would
 * spoil the figures, so it is noticed: the server counts rows that were not sent from here.
 * Bound: about `sizeMs` for each size, and no size whose runs take longer than `runMsMax`.
 */
import type { Target } from '../load/connection.ts';
import { type RunLimits, type RunResult, runClosedLoop } from '../load/run.ts';
import { costUs } from '../scheduler/cost-curve.ts';
import { type CostModel, curveThrough } from './cost-model.ts';
import type { RunCounters } from './run-counters.ts';

const FIRST_REQUESTS = 5;
const REQUESTS_MIN = 10;
const REQUESTS_MAX = 2000;
const TIMEOUT_MS = 60_000;
const QUANTILES = 200;
/** The least share of its mean that a run is taken to last. */
const SPREAD_MIN = 0.1;
/** Rows that others may run meanwhile, as a share. */
const OTHERS_RATIO = 0.02;

export interface Measured {
  /** The same request with so many rows. */
  readonly target: (rows: number) => Target;
  readonly counters: () => Promise<RunCounters>;
  /** Time to be spent on each size. */
  readonly sizeMs: number;
  /** Larger batches than those that run for this long are not measured: they could not meet the objective. */
  readonly runMsMax: number;
  /** Rows of a request of the traffic that is to be predicted. */
  readonly rowsPerRequest: number;
  readonly progress: (text: string) => void;
}

/** The measurement could not be made; the message says why. */
export class MeasurementFault extends Error {}

interface Point {
  readonly rows: number;
  readonly runUs: number;
  readonly aroundUs: number;
  readonly spread: readonly number[];
}

/** @throws MeasurementFault */
export async function measureCosts(measured: Measured): Promise<CostModel> {
  const { instances, maxBatchSize } = await measured.counters();
  const points = await measureSizes(measured, Math.max(1, maxBatchSize));
  const curveUs = curveThrough(points.map(({ runUs }) => runUs));
  const slowdown = [1];
  for (let clients = 2; clients <= instances; clients++) {
    measured.progress(`${clients} instances at a time`);
    const { runUs, rows } = await load(measured, 1, clients, requestsFor(measured, points[0]!.runUs / 1000) * clients);
    // With more clients a run never gets shorter; where it was measured so, the machine has become quieter.
    slowdown.push(Math.max(slowdown.at(-1)!, runUs / costUs(curveUs, rows)));
  }
  const usual = points.findLast(({ rows }) => rows <= measured.rowsPerRequest) ?? points[0]!;
  return {
    curveUs,
    rowsMax: points.at(-1)!.rows,
    slowdown,
    spreads: points.map(({ spread }) => spread),
    aroundUs: usual.aroundUs,
  };
}

async function measureSizes(measured: Measured, rowsMax: number): Promise<Point[]> {
  const points: Point[] = [];
  // The first ones are slower, and tell how many fit into the time.
  let expectedMs = (await load(measured, 1, 1, FIRST_REQUESTS)).runUs / 1000;
  for (let rows = 1; rows <= rowsMax; rows *= 2) {
    measured.progress(`${rows} of ${rowsMax} rows`);
    const { result, runUs } = await load(measured, rows, 1, requestsFor(measured, expectedMs));
    const aroundUs = Math.max(0, result.ok.meanMs * 1000 - runUs);
    const spread = result.okLatencies
      .quantilesMs(QUANTILES)
      .map((latencyMs) => Math.max(SPREAD_MIN, (latencyMs * 1000 - aroundUs) / runUs));
    points.push({ rows, runUs, aroundUs, spread: withMeanOne(spread) });
    if (runUs > measured.runMsMax * 1000) break;
    expectedMs = (2 * runUs) / 1000;
  }
  return points;
}

/** Sends so many requests and reads what their runs took. */
async function load(
  { target, counters }: Measured,
  rows: number,
  clients: number,
  requests: number,
): Promise<{ result: RunResult; runUs: number; rows: number }> {
  const limits: RunLimits = {
    warmUpMs: 0,
    durationMs: Number.POSITIVE_INFINITY,
    requests,
    timeoutMs: TIMEOUT_MS,
    sloMs: undefined,
  };
  const before = await counters();
  const result = await runClosedLoop(target(rows), limits, clients);
  const after = await counters();
  const [other] = result.otherOutcomes;
  if (other !== undefined) {
    throw new MeasurementFault(
      `${other.count} of ${requests} requests of ${rows} rows got ${other.name} ${other.sample}`,
    );
  }
  const batches = after.batches - before.batches;
  const rowsRun = after.rows - before.rows;
  if (batches <= 0)
    throw new MeasurementFault('the server counted no batch of these requests; is --metrics-url its own?');
  if (rowsRun > requests * rows * (1 + OTHERS_RATIO)) {
    throw new MeasurementFault('others use the model meanwhile; measure it without them');
  }
  return { result, runUs: ((after.busyS - before.busyS) / batches) * 1e6, rows: rowsRun / batches };
}

function requestsFor({ sizeMs }: Measured, eachMs: number): number {
  return Math.round(Math.min(REQUESTS_MAX, Math.max(REQUESTS_MIN, sizeMs / Math.max(0.1, eachMs))));
}

function withMeanOne(spread: readonly number[]): number[] {
  const mean = spread.reduce((sum, value) => sum + value, 0) / spread.length;
  return spread.map((value) => value / mean);
}
