/**
 * Whether and when a transfer is tried again. Pure: the random number is passed in.
 *
 *     limited (429, 503) ─▶ what the server asked for, to the second, and then up to a spread more, which doubles each time: others were told the same
 *                           nothing asked for: exponential backoff from LIMITED_POLICY, never at once
 *     broken             ─▶ exponential backoff with full jitter; it begins anew with every attempt that got on
 *
 * Bounds: LIMITED_MAX and BROKEN_MAX attempts in a row that brought nothing, and WAIT_MAX_S for what a server may ask for. An attempt gets on when it brings
 * PROGRESS_BYTES, so there are at most that many as the file has such pieces.
 */
import { type BackoffState, initialBackoff, nextDelay } from '../scheduler/backoff.ts';

export const LIMITED_MAX = 20;
export const BROKEN_MAX = 8;
/** Who asks for more is left alone, and the model is tried again when the server tries again what has failed. */
export const WAIT_MAX_S = 15 * 60;
export const PROGRESS_BYTES = 64 * 1024;

const BROKEN_POLICY = { floorMs: 100, baseMs: 500, capMs: 30_000, healthyMs: 0 };
const LIMITED_POLICY = { floorMs: 1000, baseMs: 2000, capMs: 60_000, healthyMs: 0 };
/** Of what is added to the time that the server asked for. */
const SPREAD_POLICY = { floorMs: 0, baseMs: 500, capMs: 30_000, healthyMs: 0 };

export interface Attempts {
  readonly limited: BackoffState;
  readonly spread: BackoffState;
  readonly broken: BackoffState;
}

export type AttemptEnd =
  /** `askedS`: what the server asked for, undefined where it did not. */
  | { readonly kind: 'limited'; readonly askedS: number | undefined }
  | { readonly kind: 'broken'; readonly receivedBytes: number };

export type Verdict =
  | { readonly kind: 'again'; readonly state: Attempts; readonly waitMs: number }
  /** Asked to stay away for longer than WAIT_MAX_S. */
  | { readonly kind: 'asked too much' }
  | { readonly kind: 'too many'; readonly attempts: number };

export function firstAttempt(): Attempts {
  return {
    limited: initialBackoff(LIMITED_POLICY),
    spread: initialBackoff(SPREAD_POLICY),
    broken: initialBackoff(BROKEN_POLICY),
  };
}

/** @param random one draw from [0, 1) */
export function afterAttempt(state: Attempts, end: AttemptEnd, random: number): Verdict {
  if (end.kind === 'broken') {
    const before = end.receivedBytes >= PROGRESS_BYTES ? initialBackoff(BROKEN_POLICY) : state.broken;
    const { state: broken, delayMs } = nextDelay(before, 0, random);
    if (broken.failures >= BROKEN_MAX) return { kind: 'too many', attempts: broken.failures };
    // A server that breaks off but gets on is not one that refuses.
    const { limited, spread } = end.receivedBytes > 0 ? firstAttempt() : state;
    return { kind: 'again', state: { limited, spread, broken }, waitMs: delayMs };
  }
  const { askedS } = end;
  if (askedS !== undefined && askedS > WAIT_MAX_S) return { kind: 'asked too much' };
  const limited = nextDelay(state.limited, 0, random);
  const spread = nextDelay(state.spread, 0, random);
  if (limited.state.failures >= LIMITED_MAX) return { kind: 'too many', attempts: limited.state.failures };
  const waitMs = askedS === undefined ? limited.delayMs : askedS * 1000 + spread.delayMs;
  return { kind: 'again', state: { ...state, limited: limited.state, spread: spread.state }, waitMs };
}
