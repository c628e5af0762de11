/**
 * Whether and when a failed call is tried again: a pure function of the error, the number of tries and the time passed.
 *
 * Tried again are calls that never reached a server, and those that a server turned away with 429 or 503 and a Retry-After. Once a request has been
 * sent, a lost connection is not a reason to send it again unless the caller says so (`afterSend`): inference changes nothing on the server, but a
 * request that kills a worker should not be handed to the next one by itself.
 *
 * Delays are spread at random ("full jitter", AWS Architecture Blog, "Exponential Backoff And Jitter") so that clients do not return all at once.
 */
import { ConnectionError, InferenceError } from './errors.ts';

export interface RetryPolicy {
  /** Tries in all, the first included; 1 turns retries off. */
  readonly attempts: number;
  /** No try starts later than this after the call began. */
  readonly totalMs: number;
  /** The longest delay before the second try; it doubles with each further one. */
  readonly baseMs: number;
  /** Bound of that doubling. */
  readonly maxMs: number;
  /** Also try again when the connection was lost after the request had been sent. */
  readonly afterSend: boolean;
}

export const DEFAULT_RETRY: RetryPolicy = { attempts: 4, totalMs: 10_000, baseMs: 100, maxMs: 2_000, afterSend: false };

/**
 * Milliseconds to wait before the next try, or undefined when there is none.
 *
 * @param attempt Number of tries made, from 1.
 * @param elapsedMs Time since the call began.
 * @param random In [0, 1).
 */
export function retryDelayMs(
  error: unknown,
  attempt: number,
  elapsedMs: number,
  policy: RetryPolicy,
  random: number,
): number | undefined {
  if (attempt >= policy.attempts) return undefined;
  const spreadMs = random * Math.min(policy.maxMs, policy.baseMs * 2 ** (attempt - 1));
  const delayMs = floorMs(error, policy, spreadMs);
  return delayMs !== undefined && elapsedMs + delayMs <= policy.totalMs ? delayMs : undefined;
}

/** The delay by the kind of error: the server's wish comes first, the spread on top of it. */
function floorMs(error: unknown, policy: RetryPolicy, spreadMs: number): number | undefined {
  if (error instanceof InferenceError) {
    const turnedAway = error.status === 429 || error.status === 503;
    return turnedAway && error.retryAfterMs !== undefined ? error.retryAfterMs + spreadMs : undefined;
  }
  if (!(error instanceof ConnectionError)) return undefined;
  if (error.code === 'CONNECT_FAILED') return spreadMs;
  return error.code === 'CONNECTION_LOST' && policy.afterSend ? spreadMs : undefined;
}

/**
 * Milliseconds that a Retry-After header asks for: a number of seconds or a date; undefined when it is neither.
 *
 * @param nowMs Milliseconds since 1970, for a date.
 */
export function parseRetryAfterMs(header: string | undefined, nowMs: number): number | undefined {
  if (header === undefined) return undefined;
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1000;
  const dateMs = /[a-z]/i.test(header) ? Date.parse(header) : Number.NaN;
  return Number.isNaN(dateMs) ? undefined : Math.max(0, dateMs - nowMs);
}
