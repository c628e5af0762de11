/**
 * Whether to look for a result for a moment instead of going to sleep.
 *
 * Being woken costs about 50 µs on a virtual machine, on both sides; a tiny model has run before that. So an ingress that has just published several requests looks for
 * the result itself for up to LOOK_MAX_US, where that has paid off lately. A model that takes longer gets a look only once in PROBE_EVERY turns, which is
 * how a change is noticed. The rule is that of an adaptive mutex. Pure.
 */

/** Longest look: tiny models at 16 connections answer within 40 to 70 µs of their wake-up. */
export const LOOK_MAX_US = 100;
/** For fewer requests the look costs more processor time than sleeping, and gains no time. */
export const LOOK_FROM_REQUESTS = 4;
export const PROBE_EVERY = 64;
/** Weight of the latest look. */
const WEIGHT = 1 / 8;
const PAYS_FROM = 0.5;

export class BriefLook {
  #found = 1;
  #skipped = 0;

  /**
   * To be asked once per turn; when true, note() is to be told what came of it.
   *
   * @param requests published in the turn.
   */
  worthwhile(requests: number): boolean {
    if (requests < LOOK_FROM_REQUESTS) return false;
    if (this.pays) return true;
    if (++this.#skipped < PROBE_EVERY) return false;
    this.#skipped = 0;
    return true;
  }

  /** Whether looks have found their results lately. */
  get pays(): boolean {
    return this.#found >= PAYS_FROM;
  }

  note(found: boolean): void {
    this.#found += WEIGHT * (Number(found) - this.#found);
  }
}
