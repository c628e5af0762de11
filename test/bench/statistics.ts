/** Medians and percentiles. */

/** The middle value, or the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (sorted.length === 0) throw new RangeError('no value has no median');
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Counts of whole microseconds up to one second, later ones in the last: percentiles exact to 1 µs without a list of all values. */
export class LatencyHistogram {
  readonly #counts = new Uint32Array(1_000_001);
  #total = 0;

  add(us: number): void {
    this.#counts[Math.min(this.#counts.length - 1, Math.max(0, Math.round(us)))]!++;
    this.#total++;
  }

  /** The least number of microseconds that `fraction` of the values do not pass. 0 when there are none. */
  percentile(fraction: number): number {
    let left = Math.ceil(this.#total * fraction);
    for (let us = 0; us < this.#counts.length && left > 0; us++) {
      left -= this.#counts[us]!;
      if (left <= 0) return us;
    }
    return 0;
  }
}
