/**
 * When the requests of an open loop are to be sent: a plan that is data, and the times that follow from it.
 *
 * Poisson and constant arrivals are unit-rate arrivals (exponential gaps of mean 1, or gaps of exactly 1) put through the inverse of the plan's cumulated
 * rate, so that bursts need no rejection and a seed gives the same times on every machine (Çinlar, "Introduction to Stochastic Processes", 1975, 4.5).
 * Pure: whoever has the plan can make the times, also in another thread.
 */
import { seededRandom } from '../scheduler/random.ts';

/** `factor` times the rate during the last `onMs` of every `everyMs`. */
export interface Burst {
  readonly factor: number;
  readonly onMs: number;
  readonly everyMs: number;
}

export type ArrivalPlan =
  | {
      readonly kind: 'poisson' | 'constant';
      /** Outside bursts. */
      readonly ratePerS: number;
      readonly seed: number;
      readonly burst?: Burst | undefined;
    }
  /** Recorded times, in order, from 0; each is multiplied by `stretch`. */
  | { readonly kind: 'trace'; readonly timesMs: Float64Array; readonly stretch: number };

/** The times of a plan, one after another. */
export interface Arrivals {
  /** Time of the next arrival since the start, ms, never less than the one before; Infinity after the last. */
  next(): number;
}

export function arrivalsOf(plan: ArrivalPlan): Arrivals {
  return plan.kind === 'trace' ? new TraceArrivals(plan) : new RateArrivals(plan);
}

class TraceArrivals implements Arrivals {
  readonly #timesMs: Float64Array;
  readonly #stretch: number;
  #at = 0;

  constructor({ timesMs, stretch }: Extract<ArrivalPlan, { kind: 'trace' }>) {
    this.#timesMs = timesMs;
    this.#stretch = stretch;
  }

  next(): number {
    const timeMs = this.#timesMs[this.#at];
    if (timeMs === undefined) return Number.POSITIVE_INFINITY;
    this.#at++;
    return timeMs * this.#stretch;
  }
}

/** Walks through the pieces of constant rate. */
class RateArrivals implements Arrivals {
  readonly #gap: () => number;
  readonly #ratePerMs: number;
  readonly #burst: Burst | undefined;
  #timeMs = 0;
  #bursting = false;
  #pieceEndMs: number;

  constructor({ kind, ratePerS, seed, burst }: Exclude<ArrivalPlan, { kind: 'trace' }>) {
    const random = seededRandom(seed);
    // 1 - random is never 0, whose logarithm would be infinite.
    this.#gap = kind === 'poisson' ? () => -Math.log(1 - random()) : () => 1;
    this.#ratePerMs = ratePerS / 1000;
    this.#burst = burst;
    this.#pieceEndMs = burst === undefined ? Number.POSITIVE_INFINITY : burst.everyMs - burst.onMs;
  }

  next(): number {
    let left = this.#gap();
    for (;;) {
      const rate = this.#bursting ? this.#ratePerMs * this.#burst!.factor : this.#ratePerMs;
      const within = rate * (this.#pieceEndMs - this.#timeMs);
      if (left <= within) {
        this.#timeMs += left / rate;
        return this.#timeMs;
      }
      left -= within;
      this.#timeMs = this.#pieceEndMs;
      this.#bursting = !this.#bursting;
      this.#pieceEndMs += this.#bursting ? this.#burst!.onMs : this.#burst!.everyMs - this.#burst!.onMs;
    }
  }
}
