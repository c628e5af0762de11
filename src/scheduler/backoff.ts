/**
 * Delay before the next restart of something that keeps failing: exponential backoff with full jitter.
 *
 * A delay is drawn evenly from [floorMs, ceiling), where the ceiling doubles from baseMs with every failure in a row up to capMs
 * (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; the floor is added here, so that no draw can
 * restart at once). Failures stop being "in a row" once the thing was ready for healthyMs: time spent starting is not health,
 * so a model that takes a minute to load and then dies still backs off.
 *
 * Pure: states are values, the clock (any monotonic milliseconds) and the random number are passed in.
 */

export interface BackoffPolicy {
  /** Least delay; 0 ≤ floorMs ≤ baseMs. */
  readonly floorMs: number;
  /** Ceiling of the first delay. */
  readonly baseMs: number;
  /** Ceiling that is never passed; baseMs ≤ capMs. */
  readonly capMs: number;
  /** Ready for this long, the next failure counts as the first. */
  readonly healthyMs: number;
}

export interface BackoffState {
  readonly policy: BackoffPolicy;
  /** Failures in a row. */
  readonly failures: number;
  /** When it became ready after the last failure; undefined while it has not. */
  readonly readySinceMs: number | undefined;
}

/** @throws Error when the policy contradicts itself: that is a bug of the caller. */
export function initialBackoff(policy: BackoffPolicy): BackoffState {
  const { floorMs, baseMs, capMs, healthyMs } = policy;
  const ordered = 0 <= floorMs && floorMs <= baseMs && 0 < baseMs && baseMs <= capMs && 0 <= healthyMs;
  if (!ordered || !Number.isFinite(capMs + healthyMs)) {
    throw new Error(`This is a bug: a backoff policy out of order: ${JSON.stringify(policy)}`);
  }
  return { policy, failures: 0, readySinceMs: undefined };
}

/** It is ready since now; further calls before the next failure change nothing. */
export function noteReady(state: BackoffState, nowMs: number): BackoffState {
  return state.readySinceMs === undefined ? { ...state, readySinceMs: nowMs } : state;
}

/**
 * It failed now (it died, or never became ready): how long to wait before the next attempt.
 *
 * @param random one draw from [0, 1)
 * @param ceilingMaxMs for this delay only: a lower cap than the policy's
 */
export function nextDelay(
  state: BackoffState,
  nowMs: number,
  random: number,
  ceilingMaxMs = Number.POSITIVE_INFINITY,
): { readonly state: BackoffState; readonly delayMs: number } {
  if (!(random >= 0 && random < 1)) {
    throw new Error(`This is a bug: a random number outside [0, 1): ${random}`);
  }
  const { policy, readySinceMs } = state;
  const wasHealthy = readySinceMs !== undefined && nowMs - readySinceMs >= policy.healthyMs;
  const failuresBefore = wasHealthy ? 0 : state.failures;
  // 2 ** 1024 is Infinity, which the cap turns into a number again.
  const grownMs = Math.min(policy.capMs, policy.baseMs * 2 ** failuresBefore);
  const ceilingMs = Math.max(policy.floorMs, Math.min(grownMs, ceilingMaxMs));
  const delayMs = policy.floorMs + random * (ceilingMs - policy.floorMs);
  return { state: { policy, failures: failuresBefore + 1, readySinceMs: undefined }, delayMs };
}
