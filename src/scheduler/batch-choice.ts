/**
 * How many rows a batch should collect at most: as many as pay, and no more than can wait for each other inside their deadline.
 *
 * A batch of n rows pays against a smaller one while it brings more rows per second. Where the time of a run is all proportional to its rows, it brings
 * nothing, and small batches answer sooner. An instance that is idle runs what is there at once, whatever this says.
 *
 * Pure.
 */
import { costUs } from './cost-curve.ts';

/** Throughput that is given up for smaller batches. */
const GIVEN_UP_RATIO = 0.03;
/** What a batch costs around its run: closing it, waking, telling the ingress, which takes its results. */
const AROUND_US = 150;

/**
 * Rows of a batch.
 *
 * @param curve µs at powers of two of rows.
 * @param limitUs longest time of a run, so that a batch can wait for another one and run inside its deadline; Infinity for none.
 * @param collects whether batches wait for rows because the model's configuration says so: then they are to be as large as may be, whether it pays or not.
 */
export function batchRows(curve: Float64Array, rowsMax: number, limitUs: number, collects = false): number {
  let best = collects ? Number.POSITIVE_INFINITY : 0;
  for (let rows = 1; rows > 0; rows = nextSize(rows, rowsMax)) {
    best = Math.max(best, rows / (costUs(curve, rows) + AROUND_US));
  }
  let chosen = 1;
  for (let rows = 1; rows > 0; rows = nextSize(rows, rowsMax)) {
    const us = costUs(curve, rows);
    if (rows > 1 && us > limitUs) break;
    chosen = rows;
    if (rows / (us + AROUND_US) >= best * (1 - GIVEN_UP_RATIO)) break;
  }
  return chosen;
}

/** 1, 2, 3, 4, 6, 8, 12 … rowsMax: few sizes, since each has a layout of its own. 0 after the last one. */
function nextSize(rows: number, rowsMax: number): number {
  if (rows >= rowsMax) return 0;
  const power = 2 ** (31 - Math.clz32(rows));
  return Math.min(rowsMax, rows < 2 ? 2 : rows === power ? power * 1.5 : power * 2);
}
