/**
 * The watch over one living process from outside: whether it is stopped, silent, late to start, or stuck in a run. Pure: each look gets what was seen, and the
 * clock.
 *
 * What counts is time that was watched: between two looks at most `lookMaxMs` of it, so that a watcher that was itself stopped for a while blames nobody for
 * what it did not see. Runs are measured by their own clock, but their grace after the cancellation is watched time again.
 *
 * Bound: one entry per run that is over its limit.
 */

export interface VigilPolicy {
  /** Longest time in the state "stopped" (by a signal). */
  readonly stoppedMaxMs: number;
  /** Longest time without any message; suspect after half of it. */
  readonly silentMaxMs: number;
  /** Longest time until the process takes orders. */
  readonly startMaxMs: number;
  /** How long a cancelled run may go on. */
  readonly cancelGraceMs: number;
  readonly lookMaxMs: number;
}

/** A run that is going on. */
export interface RunSeen {
  /** Another one for every run. */
  readonly id: string;
  /** What runs, for people. */
  readonly what: string;
  readonly forMs: number;
  readonly limitMs: number;
}

export interface VigilLook<Run extends RunSeen = RunSeen> {
  readonly nowMs: number;
  /** It does not take orders yet. */
  readonly starting: boolean;
  readonly stopped: boolean;
  /** Whether it said anything since the last look. */
  readonly heard: boolean;
  readonly runs: readonly Run[];
}

export interface VigilState {
  readonly policy: VigilPolicy;
  readonly lookMs: number | undefined;
  /** Watched times. */
  readonly stoppedForMs: number;
  readonly silentForMs: number;
  readonly startingForMs: number;
  /** Cancelled runs that still go on, and for how long they have been watched since. */
  readonly cancelled: ReadonlyMap<string, number>;
}

export type Verdict =
  | { readonly is: 'sound' }
  | { readonly is: 'suspect'; readonly reason: string }
  /** `kind` is one of few, for metrics. */
  | { readonly is: 'condemned'; readonly kind: CondemnedKind; readonly reason: string };

export type CondemnedKind = 'stopped' | 'silent' | 'start too long' | 'run too long';

export function initialVigil(policy: VigilPolicy): VigilState {
  return {
    policy,
    lookMs: undefined,
    stoppedForMs: 0,
    silentForMs: 0,
    startingForMs: 0,
    cancelled: new Map(),
  };
}

/** @returns the verdict, and the runs that have to be cancelled now. */
export function look<Run extends RunSeen>(
  before: VigilState,
  seen: VigilLook<Run>,
): { readonly state: VigilState; readonly verdict: Verdict; readonly cancel: readonly Run[] } {
  const { policy } = before;
  const passedMs =
    before.lookMs === undefined ? 0 : Math.min(policy.lookMaxMs, Math.max(0, seen.nowMs - before.lookMs));
  const overdue = seen.runs.filter(({ forMs, limitMs }) => forMs > limitMs);
  const cancel = overdue.filter(({ id }) => !before.cancelled.has(id));
  const state: VigilState = {
    policy,
    lookMs: seen.nowMs,
    stoppedForMs: seen.stopped ? before.stoppedForMs + passedMs : 0,
    // A process that starts has nothing to say yet.
    silentForMs: seen.heard || seen.starting ? 0 : before.silentForMs + passedMs,
    startingForMs: seen.starting ? before.startingForMs + passedMs : 0,
    cancelled: new Map(
      overdue.map(({ id }) => {
        const watchedMs = before.cancelled.get(id);
        return [id, watchedMs === undefined ? 0 : watchedMs + passedMs];
      }),
    ),
  };
  return { state, verdict: judge(state, seen, overdue), cancel };
}

function judge(state: VigilState, { stopped, starting }: VigilLook, overdue: readonly RunSeen[]): Verdict {
  const { policy, stoppedForMs, silentForMs, startingForMs, cancelled } = state;
  if (stoppedForMs >= policy.stoppedMaxMs && stopped) {
    return condemned('stopped', `it was stopped by a signal for ${seconds(policy.stoppedMaxMs)}`);
  }
  if (silentForMs >= policy.silentMaxMs) {
    return condemned('silent', `its event loop did not turn for ${seconds(policy.silentMaxMs)}`);
  }
  if (starting && startingForMs >= policy.startMaxMs) {
    return condemned('start too long', `it did not take orders within ${seconds(policy.startMaxMs)} of its start`);
  }
  const stuck = overdue.find(({ id }) => cancelled.get(id)! >= policy.cancelGraceMs);
  if (stuck !== undefined) {
    const grace = seconds(policy.cancelGraceMs);
    return condemned('run too long', `${overLimit(stuck)} and went on for ${grace} after it was cancelled`);
  }
  if (stopped) return { is: 'suspect', reason: 'it is stopped by a signal' };
  if (overdue.length > 0) return { is: 'suspect', reason: `${overLimit(overdue[0]!)} and was cancelled` };
  if (silentForMs >= policy.silentMaxMs / 2) {
    return { is: 'suspect', reason: `its event loop has not turned for ${seconds(policy.silentMaxMs / 2)}` };
  }
  return { is: 'sound' };
}

function condemned(kind: CondemnedKind, reason: string): Verdict {
  return { is: 'condemned', kind, reason };
}

function overLimit({ what, limitMs }: RunSeen): string {
  return `a run of ${what} passed its limit of ${seconds(limitMs)}`;
}

function seconds(ms: number): string {
  return `${Math.round(ms / 100) / 10} s`;
}
