/**
 * What a schedule that knows the future could answer inside the objective: a bound for servers, which do not.
 *
 * Rows that come at known times, one instance whose runs take `us[rows]`. Whenever it is free, it takes the rows whose deadlines come first, in batches of one size; rows that
 * cannot be in time any more are passed over. The best size counts. With equal objectives the deadlines are in the order of the arrivals, for which this order is the best
 * (Jackson, "Scheduling a production line to minimize maximum tardiness", 1955).
 */
import { costUs } from '../../src/scheduler/cost-curve.ts';

const ROWS_MAX = 64;

/** Rows answered within `objectiveMs` of their arrival, of those that came in [fromMs, …). @param arrivalsMs in order */
export function answerable(
  us: Float64Array,
  arrivalsMs: readonly number[],
  objectiveMs: number,
  fromMs: number,
): number {
  let best = 0;
  for (let rows = 1; rows <= ROWS_MAX; rows++)
    best = Math.max(best, withBatches(us, arrivalsMs, objectiveMs, fromMs, rows));
  return best;
}

function withBatches(
  us: Float64Array,
  arrivalsMs: readonly number[],
  objectiveMs: number,
  fromMs: number,
  rowsMax: number,
): number {
  let good = 0;
  let freeMs = 0;
  for (let next = 0; next < arrivalsMs.length; ) {
    const startMs = Math.max(freeMs, arrivalsMs[next]!);
    let there = next;
    while (there < arrivalsMs.length && there - next < rowsMax && arrivalsMs[there]! <= startMs) there++;
    const endMs = startMs + costUs(us, there - next) / 1000;
    if (arrivalsMs[next]! + objectiveMs < endMs) {
      next++; // too late for any batch with it
      continue;
    }
    for (let n = next; n < there; n++) if (arrivalsMs[n]! >= fromMs) good++;
    next = there;
    freeMs = endMs;
  }
  return good;
}
