/**
 * Whether something that is sampled over time grows. Pure.
 *
 * The slope is the median of the slopes of all pairs of samples (Theil and Sen's estimator): a few samples that are far off, as after a garbage collection, do not
 * move it.
 */

export interface Point {
  readonly atS: number;
  readonly value: number;
}

/** Pairs grow with the square of the samples: more of them than this are thinned out evenly. */
const POINTS_MAX = 400;

/** Growth per second; 0 for fewer than two samples. */
export function slope(points: readonly Point[]): number {
  const step = Math.max(1, Math.ceil(points.length / POINTS_MAX));
  const some = points.filter((_, n) => n % step === 0);
  const slopes: number[] = [];
  for (const [n, a] of some.entries()) {
    for (const b of some.slice(n + 1)) if (b.atS > a.atS) slopes.push((b.value - a.value) / (b.atS - a.atS));
  }
  return slopes.length === 0 ? 0 : middle(slopes);
}

export interface Growth {
  /** By which the values grew from the first to the last sample, by their slope. */
  readonly by: number;
  /** Middle value. */
  readonly level: number;
  readonly forS: number;
  readonly samples: number;
}

/** @param points in the order of their times. */
export function growth(points: readonly Point[]): Growth {
  const [first, last] = [points[0], points.at(-1)];
  if (first === undefined || last === undefined) return { by: 0, level: 0, forS: 0, samples: 0 };
  const forS = last.atS - first.atS;
  return { by: slope(points) * forS, level: middle(points.map(({ value }) => value)), forS, samples: points.length };
}

function middle(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1]!;
}
