/**
 * What a server's log tells about a soak: loads and the lock they held, and lines that should not be there.
 *
 * Lines are looked at as they come; bound: one entry per load, `LINES_SHOWN` lines.
 */
import type { LogLine } from '../support/server.ts';

const LINES_SHOWN = 20;

/** Text that is no JSON: something printed past the log, such as the stack of an error that nobody handled. */
function isOutcry({ text, level, msg }: LogLine): boolean {
  return text !== undefined || level === 'fatal' || /\bbug\b/i.test(String(msg));
}

export class Journal {
  /** Times (µs) at which the weight lock was taken and given back. */
  readonly #held: { readonly takenUs: number; readonly givenUs: number }[] = [];
  readonly outcries: string[] = [];
  outcryCount = 0;
  deaths = 0;

  take(line: LogLine): void {
    if (line.msg === 'weight lock given back') {
      this.#held.push({ takenUs: Number(line.takenUs), givenUs: Number(line.givenUs) });
    }
    if (/process ended$/.test(String(line.msg))) this.deaths++;
    if (!isOutcry(line)) return;
    this.outcryCount++;
    if (this.outcries.length < LINES_SHOWN) this.outcries.push(JSON.stringify(line));
  }

  get loads(): number {
    return this.#held.length;
  }

  /** Loads that began before the one before them had ended. */
  get overlaps(): number {
    const sorted = [...this.#held].sort((a, b) => a.takenUs - b.takenUs);
    return sorted.filter(({ takenUs }, n) => n > 0 && takenUs < sorted[n - 1]!.givenUs).length;
  }
}
