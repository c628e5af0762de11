/**
 * What a model costs, as measured, in the form that the simulation draws from.
 *
 * Pure but for the random numbers, which are passed in.
 */
import { COST_POINTS } from '../queue/geometry.ts';

export interface CostModel {
  /** Mean time of a run of 2^n rows, µs, as `costUs` reads it; beyond what was measured it goes on in a straight line. */
  readonly curveUs: Float64Array;
  /** Most rows that were measured in one run. */
  readonly rowsMax: number;
  /** By the number of instances that run at the same time, from 1: how much longer their runs take. The first is 1. */
  readonly slowdown: readonly number[];
  /** By power of two of rows, as far as measured: time of single runs ÷ their mean, equally likely values. */
  readonly spreads: readonly (readonly number[])[];
  /** Mean time of a request outside its run: reading, checking, waking, answering, and the client's own part. µs. */
  readonly aroundUs: number;
}

/**
 * A curve through measured points.
 *
 * @param points mean µs by rows, powers of two from 1 on without gaps
 */
export function curveThrough(points: readonly number[]): Float64Array {
  if (points.length === 0) throw new Error('This is a bug: a curve without points');
  const curve = new Float64Array(COST_POINTS);
  for (let n = 0; n < COST_POINTS; n++) {
    const point = points[n];
    // A larger batch that took less time was measured in a quieter moment.
    if (point !== undefined) curve[n] = Math.max(point, curve[n - 1] ?? 0);
    // One point tells nothing of how the time grows: all of it with the rows.
    else if (points.length === 1) curve[n] = 2 * curve[n - 1]!;
    else curve[n] = curve[n - 1]! + 2 * Math.max(0, curve[n - 1]! - curve[n - 2]!);
  }
  return curve;
}

/** How much longer runs take while so many instances run. Beyond what was measured: as if the last one shared with all. */
export function slowdownOf({ slowdown }: CostModel, instances: number): number {
  const known = slowdown[instances - 1];
  return known ?? (slowdown.at(-1)! * instances) / slowdown.length;
}

/** Time of a run ÷ the mean of such runs. @param random a draw from [0, 1) */
export function spreadOf({ spreads }: CostModel, rows: number, random: number): number {
  const point = Math.min(spreads.length - 1, 31 - Math.clz32(Math.max(1, rows)));
  const spread = spreads[point]!;
  return spread[Math.floor(random * spread.length)]!;
}
