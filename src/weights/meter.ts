/**
 * How fast bytes come: rate over the last RATE_WINDOW_MS, and the time that the rest will take. The clock is passed in.
 *
 * Bound: SAMPLES_MAX samples, one for each SAMPLE_MS at the most.
 */

const RATE_WINDOW_MS = 5000;
const SAMPLE_MS = 100;
const SAMPLES_MAX = RATE_WINDOW_MS / SAMPLE_MS + 2;

export class Meter {
  /** Oldest first. */
  readonly #samples: { readonly atMs: number; readonly bytes: number }[] = [];

  /** `bytes` of the file are there now. */
  note(bytes: number, nowMs: number): void {
    const last = this.#samples.at(-1);
    if (last !== undefined && bytes >= last.bytes && nowMs - last.atMs < SAMPLE_MS) return;
    // A transfer that begins anew says nothing about how it went before.
    if (last !== undefined && bytes < last.bytes) this.#samples.length = 0;
    this.#samples.push({ atMs: nowMs, bytes });
    if (this.#samples.length > SAMPLES_MAX) this.#samples.shift();
  }

  /** Bytes per second; undefined until that can be told. */
  rate(nowMs: number): number | undefined {
    const last = this.#samples.at(-1);
    const first = this.#samples.find(({ atMs }) => nowMs - atMs <= RATE_WINDOW_MS);
    if (first === undefined || last === undefined || first === last) return undefined;
    return ((last.bytes - first.bytes) / (nowMs - first.atMs)) * 1000;
  }

  /** Seconds that the rest will take at this rate. */
  remainingS(sizeBytes: number | undefined, nowMs: number): number | undefined {
    const rate = this.rate(nowMs);
    const bytes = this.#samples.at(-1)?.bytes ?? 0;
    if (rate === undefined || rate <= 0 || sizeBytes === undefined) return undefined;
    return Math.max(0, sizeBytes - bytes) / rate;
  }
}
