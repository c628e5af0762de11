/**
 * Whether a request can be answered inside its deadline: the time until its batch has run is predicted from what is ahead of it, and a margin is kept that is
 * learnt from how late such predictions have been.
 *
 * Pure: the clock is passed in.
 */

/** The instances of a model and what they run. */
export interface Load {
  /** Instances that take batches; at least 1. */
  readonly instances: number;
  /** What is left of the runs going on, summed over the instances, and of the one that ends first, µs. */
  readonly runningUs: number;
  readonly firstFreeUs: number;
}

/** Time from now until work that lies behind `aheadUs` of other work is begun, µs. */
export function startsInUs({ instances, runningUs, firstFreeUs }: Load, aheadUs: number): number {
  return Math.max(firstFreeUs, (runningUs + aheadUs) / instances);
}

/** Where a request could go: into a batch of its own behind all others, or into one that waits and has room. */
export interface Places {
  /** When a batch of its own would be begun, and what it would take alone and grown to its usual size, µs from now and µs. */
  readonly ownStartUs: number;
  readonly ownRunUs: number;
  readonly fullRunUs: number;
  /** When the batch that has room would have run with it, µs from now; Infinity where there is none. */
  readonly sharedFinishUs: number;
  /** Time left to the earliest deadline in that batch, µs; Infinity for none. */
  readonly sharedLeftUs: number;
}

export type Decision = 'share' | 'own' | 'refuse';

/** A run may take this share of a deadline, so that a batch can wait for another one, run, and be answered inside it. */
export const RUN_RATIO = 0.4;
/** A batch that waits and has room is left for one of its own only while that would have run in this share of the time. */
const OWN_RATIO = 0.5;

/**
 * Where a request goes, or that it cannot be answered in time there.
 *
 * Batches that stay small near the limit would take the capacity away. So a batch is begun only when there is time for it to grow; and not merely because another
 * one has become too urgent to grow, unless time is plenty.
 *
 * @param leftUs time to its deadline; Infinity for none.
 * @param marginUs to be left between the predicted finish and the deadlines.
 */
export function place(places: Places, leftUs: number, marginUs: number): Decision {
  const { ownStartUs, ownRunUs, fullRunUs, sharedFinishUs, sharedLeftUs } = places;
  const ownFinishUs = ownStartUs + Math.max(ownRunUs, Math.min(fullRunUs, leftUs * RUN_RATIO));
  if (sharedFinishUs === Number.POSITIVE_INFINITY) return ownFinishUs + marginUs <= leftUs ? 'own' : 'refuse';
  if (sharedFinishUs + marginUs <= Math.min(leftUs, sharedLeftUs)) return 'share';
  return ownFinishUs + marginUs <= leftUs * OWN_RATIO ? 'own' : 'refuse';
}

/**
 * A deadline's worth of time is looked at in SPANS spans. Of these so many may hold an answer later than the margin says; outcomes of one batch come together and
 * tell one thing.
 */
const SPANS = 10;
const LATE_RATIO = 0.01;
/** A span with a late answer raises the margin by this share of the usual deadline; the others lower it so that LATE_RATIO of them are late in the long run. */
const STEP_RATIO = 0.02;
/** Spans without any answer lower it no further than so many with one. */
const SPANS_SILENT_MAX = 10;
/** The margin is never less than this share of a deadline, and never more than that. */
const MARGIN_MIN_RATIO = 0.05;
const MARGIN_MAX_RATIO = 0.5;
const WEIGHT = 1 / 64;

/**
 * How much earlier than its deadline a request has to be predicted to finish.
 *
 * A quantile followed by steps: a late span raises it by as much as 1 / LATE_RATIO others lower it.
 */
export class SafetyMargin {
  #marginUs = 0;
  #usualUs = 0;
  #raisedUs = Number.NEGATIVE_INFINITY;
  #loweredUs = Number.NEGATIVE_INFINITY;

  /** For a request that has `timeoutUs` from its arrival to its deadline. */
  us(timeoutUs: number): number {
    return Math.min(timeoutUs * MARGIN_MAX_RATIO, Math.max(timeoutUs * MARGIN_MIN_RATIO, this.#marginUs));
  }

  /**
   * Takes note of an outcome.
   *
   * @param lateUs how much later than predicted the answer was there; negative when it was earlier; Infinity when it was not there in time.
   *   How late it would have been is not known then.
   */
  note(lateUs: number, timeoutUs: number, nowUs: number): void {
    this.#usualUs += (timeoutUs - this.#usualUs) * (this.#usualUs === 0 ? 1 : WEIGHT);
    const spanUs = this.#usualUs / SPANS;
    const stepUs = this.#usualUs * STEP_RATIO;
    if (lateUs > this.#marginUs) {
      if (nowUs - this.#raisedUs < spanUs) return;
      this.#raisedUs = nowUs;
      this.#loweredUs = nowUs;
      this.#marginUs = Math.min(lateUs, this.#marginUs + stepUs, this.#usualUs * MARGIN_MAX_RATIO);
    } else if (nowUs - this.#loweredUs >= spanUs) {
      const spans = Math.min(SPANS_SILENT_MAX, (nowUs - this.#loweredUs) / spanUs);
      this.#loweredUs = nowUs;
      this.#marginUs = Math.max(0, this.#marginUs - stepUs * LATE_RATIO * spans);
    }
  }
}

/**
 * Rows that have been let in by their heads and whose bodies are on their way: counted for a while, so that many heads at a time do not all take the same place.
 *
 * Forgotten after one to two spans, for a body that comes slowly must not keep others out.
 */
export class Expected {
  readonly #spanUs: number;
  #turnedUs = 0;
  #young = 0;
  #old = 0;

  constructor(spanUs: number) {
    this.#spanUs = spanUs;
  }

  /** Rows on their way. */
  rows(nowUs: number): number {
    this.#turn(nowUs);
    return this.#young + this.#old;
  }

  add(rows: number, nowUs: number): void {
    this.#turn(nowUs);
    this.#young += rows;
  }

  /** They have come, or will not. */
  remove(rows: number, nowUs: number): void {
    this.#turn(nowUs);
    const fromOld = Math.min(rows, this.#old);
    this.#old -= fromOld;
    this.#young = Math.max(0, this.#young - (rows - fromOld));
  }

  #turn(nowUs: number): void {
    const ageUs = nowUs - this.#turnedUs;
    if (ageUs < this.#spanUs) return;
    this.#old = ageUs < 2 * this.#spanUs ? this.#young : 0;
    this.#young = 0;
    this.#turnedUs = nowUs;
  }
}
