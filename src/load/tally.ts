/**
 * What became of the requests of one run.
 *
 * A request is *measured* when it was meant to be sent in the measured time: what was meant before it is warm-up. Counts and latencies are of measured
 * requests, latencies from the intended time of sending to the whole answer. Rates are of the answers that came within the measured time.
 * Bound: OUTCOMES_MAX kinds of outcome; what goes beyond is counted together as `other`.
 */
import { Latencies, type LatencySummary } from './latencies.ts';

const OUTCOMES_MAX = 32;
const OTHER = 'other';

export interface Outcome {
  /** A status such as `429`, or why there was none, such as `timeout` or `ECONNRESET`. */
  readonly name: string;
  readonly count: number;
  /** From the intended time of sending to the answer, or to the failure. */
  readonly latency: LatencySummary;
  /** What the first such answer said, shortened. */
  readonly sample: string;
}

export interface TallyResult {
  /** Measured requests, each of which is in one of the outcomes. */
  readonly requests: number;
  readonly measuredMs: number;
  readonly ok: LatencySummary;
  /** The same as the whole distribution. */
  readonly okLatencies: Latencies;
  readonly okPerS: number;
  /** Answers within the objective; undefined without one. */
  readonly goodPerS: number | undefined;
  /** Measured requests that were answered within the objective; undefined without one. */
  readonly goodCount: number | undefined;
  /** Without the successes, the most frequent first. */
  readonly otherOutcomes: readonly Outcome[];
  /** How much later than intended the measured requests were sent. */
  readonly lateness: LatencySummary;
}

interface Kind {
  readonly latencies: Latencies;
  readonly sample: string;
}

export class Tally {
  readonly ok = new Latencies(3);
  readonly #lateness = new Latencies(2);
  readonly #others = new Map<string, Kind>();
  readonly #fromMs: number;
  readonly #toMs: number;
  readonly #sloMs: number | undefined;
  #requests = 0;
  #okInTime = 0;
  #goodInTime = 0;
  #good = 0;
  #lastAnswerMs = 0;

  /** @param toMs end of the measured time; Infinity where something else ends it */
  constructor(fromMs: number, toMs: number, sloMs: number | undefined) {
    this.#fromMs = fromMs;
    this.#toMs = toMs;
    this.#sloMs = sloMs;
  }

  get requests(): number {
    return this.#requests;
  }

  get otherCount(): number {
    let count = 0;
    for (const { latencies } of this.#others.values()) count += latencies.count;
    return count;
  }

  isMeasured(intendedMs: number): boolean {
    return intendedMs >= this.#fromMs && intendedMs < this.#toMs;
  }

  /** A request is sent now. */
  sent(intendedMs: number, nowMs: number): void {
    if (!this.isMeasured(intendedMs)) return;
    this.#requests++;
    this.#lateness.add(nowMs - intendedMs);
  }

  /** It could not be sent at all. */
  unsent(intendedMs: number, nowMs: number): void {
    if (!this.isMeasured(intendedMs)) return;
    this.#requests++;
    this.#other('unsent', nowMs - intendedMs, '');
  }

  succeeded(intendedMs: number, nowMs: number): void {
    const latencyMs = nowMs - intendedMs;
    const isGood = this.#sloMs !== undefined && latencyMs <= this.#sloMs;
    if (nowMs >= this.#fromMs && nowMs < this.#toMs) {
      this.#okInTime++;
      if (isGood) this.#goodInTime++;
    }
    this.#lastAnswerMs = nowMs;
    if (!this.isMeasured(intendedMs)) return;
    this.ok.add(latencyMs);
    if (isGood) this.#good++;
  }

  /** @param name the status, or why there is none */
  failed(intendedMs: number, nowMs: number, name: string, sample: string): void {
    this.#lastAnswerMs = nowMs;
    if (this.isMeasured(intendedMs)) this.#other(name, nowMs - intendedMs, sample);
  }

  /** @param toMs end of the measured time; undefined where it ended with the last answer, before the time set for it */
  result(toMs: number | undefined): TallyResult {
    const measuredMs = Math.max(0, (toMs ?? this.#lastAnswerMs) - this.#fromMs);
    const perS = (count: number) => (measuredMs === 0 ? 0 : (count / measuredMs) * 1000);
    const outcomes = [...this.#others].map(([name, { latencies, sample }]) => ({
      name,
      count: latencies.count,
      latency: latencies.summary(),
      sample,
    }));
    return {
      requests: this.#requests,
      measuredMs,
      ok: this.ok.summary(),
      okLatencies: this.ok,
      okPerS: perS(this.#okInTime),
      goodPerS: this.#sloMs === undefined ? undefined : perS(this.#goodInTime),
      goodCount: this.#sloMs === undefined ? undefined : this.#good,
      otherOutcomes: outcomes.sort((a, b) => b.count - a.count),
      lateness: this.#lateness.summary(),
    };
  }

  #other(name: string, latencyMs: number, sample: string): void {
    const known = this.#others.get(name);
    const full = known === undefined && this.#others.size >= OUTCOMES_MAX - 1;
    const key = full ? OTHER : name;
    let kind = full ? this.#others.get(OTHER) : known;
    if (kind === undefined) {
      kind = { latencies: new Latencies(2), sample };
      this.#others.set(key, kind);
    }
    kind.latencies.add(latencyMs);
  }
}
