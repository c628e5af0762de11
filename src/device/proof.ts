/**
 * The proof that an instance still can run: its batches are, and where none has succeeded for a while, since none came or all failed, another canary run is.
 *
 *     batch succeeded, or canary ──▶ proven ── PROOF_MAX_AGE_US ──▶ another canary ──▶ proven
 *                                                                       └─ fails again and again ──▶ InstanceUnsound
 *
 * So a model is not said to be ready for a run of long ago on a device that has broken since. A canary that hangs is found like any other run, by its age.
 *
 * Bounds: canaries take no more than 1/COST_RATIO of the time; CANARY_TRIES of them in a row.
 */
import { nowUs } from '../system/clock.ts';
import { isRunFailure } from './canary.ts';
import { isOutOfMemory } from './out-of-memory.ts';

export const PROOF_MAX_AGE_US = 20_000_000;
const COST_RATIO = 100;
const CANARY_TRIES = 3;

/** A run that has succeeded before does not any more. */
export class InstanceUnsound extends Error {}

export class Proof {
  readonly #lastRunUs: () => number;
  readonly #canaryRun: () => void;
  readonly #now: () => number;
  #provenUs: number;
  #costUs = 0;

  /**
   * @param lastRunUs when a batch succeeded last, µs on the clock.
   * @param canaryRun throws what a run throws; the one before the first batch has succeeded.
   */
  constructor(lastRunUs: () => number, canaryRun: () => void, now: () => number = nowUs) {
    this.#lastRunUs = lastRunUs;
    this.#canaryRun = canaryRun;
    this.#now = now;
    this.#provenUs = now();
  }

  /** To be called between batches. Blocks for the runs it makes. @throws InstanceUnsound; what `canaryRun` throws that is not a run's own failure */
  renew(): void {
    const startedUs = this.#now();
    const ageUs = startedUs - Math.max(this.#provenUs, this.#lastRunUs());
    if (ageUs < Math.max(PROOF_MAX_AGE_US, COST_RATIO * this.#costUs)) return;
    for (let left = CANARY_TRIES; left > 0; left--) {
      const failure = this.#failure();
      if (failure === undefined) break;
      if (left === 1) throw new InstanceUnsound(`its canary run, which it has made before, fails: ${failure}`);
    }
    this.#provenUs = this.#now();
    this.#costUs = this.#provenUs - startedUs;
  }

  #failure(): string | undefined {
    try {
      this.#canaryRun();
    } catch (error) {
      if (!isRunFailure(error)) throw error;
      // Says nothing about the device, and batches know what to do about it.
      if (!isOutOfMemory(error)) return error.message;
    }
    return undefined;
  }
}
