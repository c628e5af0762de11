/**
 * The deadline of one request: where it comes from, whether it can be kept, what happens when it passes.
 *
 *     head ─▶ counted as coming ─▶ body: the sooner of head, request and model counts ─▶ foreseen ─▶ armed ─▶ kept: how exact the prediction was
 *                                                                                       └ refused        └ passed: 504
 *
 * Owner: the request's Inference. Requests without a deadline have none of these.
 */
import { BatchportError } from '../config/errors.ts';
import type { SlabLayout } from '../queue/layout.ts';
import { nowUs } from '../system/clock.ts';
import type { Outlook } from './outlook.ts';

/** setTimeout takes no more; a deadline beyond it never comes. */
const TIMER_MAX_MS = 2 ** 31 - 1;
/** Share of the margin that has to be left when the body of a request that was let in is there: what was read is not thrown away for a little. */
const HEADED_MARGIN_RATIO = 0.5;
const OVERLOADED_MESSAGE = 'Too many requests wait for this one to be answered inside its deadline. Retry later.';

export class Deadline {
  readonly #outlook: Outlook;
  readonly #startedUs: number;
  /** From the arrival of the head. */
  #timeoutUs: number;
  /** Rows counted as coming, until the body is there. */
  #expectedRows = 0;
  /** When the answer was predicted for; 0 where nothing was. */
  #predictedUs = 0;
  #timer: NodeJS.Timeout | undefined;

  /** @param timeoutUs above 0. */
  constructor(outlook: Outlook, startedUs: number, timeoutUs: number) {
    this.#outlook = outlook;
    this.#startedUs = startedUs;
    this.#timeoutUs = timeoutUs;
  }

  /** For a request whose head has been let in, and told of the deadline. */
  expectBody(bodyBytes: number): void {
    this.#expectedRows = this.#outlook.headRows(bodyBytes);
    this.#outlook.expect(this.#expectedRows, this.#startedUs);
  }

  /** Absolute, µs. */
  get atUs(): number {
    return this.#startedUs + this.#timeoutUs;
  }

  /**
   * The body is there: whether the request can be answered in time.
   *
   * @param ownTimeoutUs what the request itself asks for; undefined for nothing.
   * @throws OVERLOADED
   */
  foresee(ownTimeoutUs: number | undefined, layout: SlabLayout, rows: number, bodyBytes: number): void {
    let marginRatio = this.#expectedRows > 0 ? HEADED_MARGIN_RATIO : 1;
    this.#unexpect();
    if (this.hasten(ownTimeoutUs)) marginRatio = 1;
    const outlook = this.#outlook;
    outlook.noteBody(layout, rows, bodyBytes);
    const now = nowUs();
    const marginUs = outlook.marginUs(this.#timeoutUs) * marginRatio;
    const { decision, finishUs } = outlook.decide(layout, rows, this.atUs - now, marginUs, now);
    if (decision === 'refuse') throw overloaded(outlook.drainUs(now));
    if (finishUs > 0) this.#predictedUs = now + finishUs;
  }

  /** What the request itself asks for counts where it is sooner. @returns whether it is */
  hasten(ownTimeoutUs: number | undefined): boolean {
    if (ownTimeoutUs === undefined || ownTimeoutUs >= this.#timeoutUs) return false;
    this.#timeoutUs = ownTimeoutUs;
    return true;
  }

  /** @param onPassed is told unless close() comes first. A second call takes the place of the first. */
  arm(onPassed: () => void): void {
    clearTimeout(this.#timer);
    const ms = Math.min(TIMER_MAX_MS, Math.max(0, (this.atUs - nowUs()) / 1000));
    this.#timer = setTimeout(() => {
      this.missed();
      onPassed();
    }, ms);
  }

  /** The answer has gone out. */
  kept(sentUs: number): void {
    if (this.#predictedUs > 0) {
      this.#outlook.noteLateness(sentUs - this.#predictedUs, this.#timeoutUs, sentUs);
    }
  }

  /** There will be no answer in time. */
  missed(): void {
    if (this.#predictedUs > 0) this.#outlook.noteLateness(Number.POSITIVE_INFINITY, this.#timeoutUs, nowUs());
  }

  /** The request is finished, in whatever way. */
  close(): void {
    this.#unexpect();
    if (this.#timer !== undefined) clearTimeout(this.#timer);
  }

  #unexpect(): void {
    if (this.#expectedRows === 0) return;
    this.#outlook.unexpect(this.#expectedRows, nowUs());
    this.#expectedRows = 0;
  }
}

/** The smaller of two times of which 0 says that there is none. */
export function sooner(a: number, b: number): number {
  return a === 0 ? b : b === 0 ? a : Math.min(a, b);
}

/** Why a request cannot be answered in time, as far as its head tells; undefined when it can. */
export function headRefusal(
  outlook: Outlook,
  bodyBytes: number,
  timeoutUs: number,
  startedUs: number,
): BatchportError | undefined {
  if (outlook.decideHead(bodyBytes, timeoutUs, startedUs).decision !== 'refuse') return undefined;
  return overloaded(outlook.drainUs(startedUs));
}

/** Come again once what waits has run. */
function overloaded(drainUs: number): BatchportError {
  return new BatchportError('OVERLOADED', OVERLOADED_MESSAGE, { retryAfterS: Math.max(1, Math.ceil(drainUs / 1e6)) });
}
