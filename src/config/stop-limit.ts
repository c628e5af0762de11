/**
 * How long a server takes to stop, whatever happens: the one place from which the supervisor, what it tells the service manager, and the unit file take it.
 *
 *     drain timeout │ ingress processes: STOP_GRACE_MS │ device processes: STOP_GRACE_MS │ reaping and clean-up: STOP_MARGIN_S
 */

/** How long children have to end after they were asked, before they are killed. */
export const STOP_GRACE_MS = 5000;

const STOP_MARGIN_S = 5;

/** Whole seconds after which a server that was told to stop is certain to have ended by itself. */
export function stopLimitS(drainTimeoutS: number): number {
  return Math.ceil(drainTimeoutS + (2 * STOP_GRACE_MS) / 1000) + STOP_MARGIN_S;
}
