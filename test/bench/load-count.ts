/** What a load worker counts of a run, however its requests travel. */
import { LatencyHistogram } from './statistics.ts';

export interface LoadReport {
  readonly requests: number;
  readonly seconds: number;
  readonly medianUs: number;
  readonly p99Us: number;
}

/** The clock and the counts of one run, begun when it is made. */
export class LoadCount {
  readonly #latencies = new LatencyHistogram();
  readonly #started = performance.now();
  #end: number;
  #requests = 0;

  constructor(seconds: number) {
    this.#end = this.#started + seconds * 1000;
  }

  /**
   * An answer has come.
   *
   * @param sentAt of its request, as performance.now() tells it.
   * @returns whether its connection goes on; an answer after the end is not counted, but a run without any answer yet goes on until the first one.
   */
  answered(sentAt: number): boolean {
    const now = performance.now();
    if (now >= this.#end && this.#requests > 0) return false;
    this.#end = Math.max(this.#end, now);
    this.#requests++;
    this.#latencies.add((now - sentAt) * 1000);
    return true;
  }

  report(): LoadReport {
    return {
      requests: this.#requests,
      seconds: (this.#end - this.#started) / 1000,
      medianUs: this.#latencies.percentile(0.5),
      p99Us: this.#latencies.percentile(0.99),
    };
  }
}
