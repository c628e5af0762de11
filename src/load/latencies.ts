/**
 * A distribution of times in bounded memory: Node's own HDR histogram (Gil Tene's HdrHistogram), in whole microseconds from 1 µs to an hour.
 *
 * Percentiles are off by less than 1 in 10^`figures`; the largest value is exact. A percentile is told only where enough values lie beyond it to make it
 * more than the largest value under another name.
 */
import { createHistogram, type RecordableHistogram } from 'node:perf_hooks';

const HIGHEST_US = 3_600_000_000;

/** In the order of tables. */
export const PERCENTILES = [50, 90, 95, 99, 99.9, 99.99] as const;
export type Percentile = (typeof PERCENTILES)[number];

export interface LatencySummary {
  readonly count: number;
  readonly meanMs: number;
  readonly maxMs: number;
  /** Undefined where there are too few values for it. */
  readonly percentilesMs: ReadonlyMap<Percentile, number | undefined>;
}

export class Latencies {
  readonly #histogram: RecordableHistogram;
  #maxUs = 0;
  #sumUs = 0;

  /** @param figures significant decimal digits: 3 take 200 KB at most, 2 take 30 KB */
  constructor(figures: 2 | 3) {
    this.#histogram = createHistogram({ lowest: 1, highest: HIGHEST_US, figures });
  }

  /** Negative times count as 0, which the histogram holds as 1 µs. */
  add(ms: number): void {
    const us = Math.min(HIGHEST_US, Math.max(0, Math.round(ms * 1000)));
    this.#histogram.record(Math.max(1, us));
    this.#sumUs += us;
    if (us > this.#maxUs) this.#maxUs = us;
  }

  get count(): number {
    return this.#histogram.count;
  }

  /** Undefined with fewer than 100 / (100 - percentile) values: with 100 for the 99th, say. */
  percentileMs(percentile: number): number | undefined {
    const { count } = this.#histogram;
    // A hair less, for what 100 - 99.99 gives in binary.
    if (count === 0 || count * (100 - percentile) < 100 - 1e-6) return undefined;
    return Math.min(this.#maxUs, this.#histogram.percentile(percentile)) / 1000;
  }

  /** `count` equally likely values: the middles of as many equal parts of the distribution. Empty without values. */
  quantilesMs(count: number): number[] {
    if (this.#histogram.count === 0) return [];
    const part = (index: number) => (100 * (index + 0.5)) / count;
    return Array.from({ length: count }, (_, index) => this.#histogram.percentile(part(index)) / 1000);
  }

  summary(): LatencySummary {
    const { count } = this.#histogram;
    return {
      count,
      meanMs: count === 0 ? 0 : this.#sumUs / count / 1000,
      maxMs: this.#maxUs / 1000,
      percentilesMs: new Map(PERCENTILES.map((percentile) => [percentile, this.percentileMs(percentile)])),
    };
  }
}
