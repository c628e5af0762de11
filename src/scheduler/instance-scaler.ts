/**
 * How many instances of a model should run on a device: up fast, down slowly.
 *
 * Up: at two looks in a row all instances were busy and rows waited. Then one more at each look, as long as more rows wait than the one just added takes
 * at once; with fewer, after two more such looks.
 * Down: for the hold time, the busy instances (averaged over AVERAGE_MS) would have fitted into one fewer, with a margin of their square root, the
 * spread of a random load (Halfin and Whitt, "Heavy-Traffic Limits for Queues with Many Exponential Servers", 1981).
 * Against swinging: when a removal is regretted (one is added within REGRET_MS), the hold time doubles, so that the changes of a load that comes and goes
 * die out. The first change after a removal that stayed unregretted sets the hold time back.
 *
 * Pure: states are values, the clock (any monotonic milliseconds) is passed in. Bounds: min and max; one removal in HOLD_MIN_MS.
 */
const HOLD_MIN_MS = 30_000;
const HOLD_MAX_MS = 32 * HOLD_MIN_MS;
const REGRET_MS = 600_000;
const AVERAGE_MS = 5000;
/** Looks further apart than this do not follow one another: what was seen before them is no evidence. */
const PAUSE_MS = 2000;
const WAITING_LOOKS = 2;

export interface ScalerState {
  /** How many should run; 0 before the first look. */
  readonly target: number;
  readonly lookedAtMs: number;
  /** Looks in a row at which all were busy and rows waited. */
  readonly waitingLooks: number;
  /** Average number of busy instances. */
  readonly busy: number;
  /** Since when one fewer would do; undefined when it would not. */
  readonly spareSinceMs: number | undefined;
  readonly removedAtMs: number | undefined;
  readonly holdMs: number;
}

export interface ScalerLook {
  readonly nowMs: number;
  /** Instances that run now; fewer or more than the last target while they start or stop. */
  readonly running: number;
  readonly queuedRows: number;
  /** Of the running ones, those that run a batch. */
  readonly busyInstances: number;
  readonly min: number;
  readonly max: number;
  /** Rows that an instance takes at once, at least 1. */
  readonly maxBatchRows: number;
}

export interface Decision {
  readonly state: ScalerState;
  readonly target: number;
  /** Why the target has changed; `steady` when it has not. */
  readonly reason: 'steady' | 'bounds' | 'rows wait' | 'one too many';
}

export function initialScaler(): ScalerState {
  return {
    target: 0,
    lookedAtMs: Number.NEGATIVE_INFINITY,
    waitingLooks: 0,
    busy: 0,
    spareSinceMs: undefined,
    removedAtMs: undefined,
    holdMs: HOLD_MIN_MS,
  };
}

/** One look, to be taken at even intervals of about 100 ms. @throws Error when min is above max: that is a bug of the caller. */
export function decide(before: ScalerState, look: ScalerLook): Decision {
  const { min, max } = look;
  if (!(min >= 0 && min <= max)) throw new Error(`This is a bug: instances from ${min} to ${max}`);
  const state = seen(before, look);
  const { target, waitingLooks, spareSinceMs = Number.POSITIVE_INFINITY, holdMs } = state;
  const wanted = Math.min(max, Math.max(min, target));
  if (wanted !== target) return decision(anew({ ...state, target: wanted }), 'bounds');
  if (waitingLooks >= WAITING_LOOKS && target < max) return decision(added(state, look), 'rows wait');
  if (look.nowMs - spareSinceMs >= holdMs && target > min) return decision(removed(state, look), 'one too many');
  return decision(state, 'steady');
}

/** What a look adds to the evidence. */
function seen(state: ScalerState, { nowMs, running, busyInstances, queuedRows }: ScalerLook): ScalerState {
  const { target, lookedAtMs } = state;
  const sinceMs = nowMs - lookedAtMs;
  if (!(sinceMs >= 0 && sinceMs <= PAUSE_MS)) return { ...anew(state), lookedAtMs: nowMs, busy: busyInstances };
  const busy = busyInstances + (state.busy - busyInstances) * Math.exp(-sinceMs / AVERAGE_MS);
  const waiting = busyInstances >= running && queuedRows > 0;
  // While some still start, that rows wait tells nothing new.
  const waitingLooks = state.waitingLooks + (running >= target ? 1 : 0);
  const spare = !waiting && busy + Math.sqrt(busy) <= Math.min(running, target) - 1;
  return {
    ...state,
    lookedAtMs: nowMs,
    busy,
    waitingLooks: waiting ? waitingLooks : 0,
    spareSinceMs: spare ? (state.spareSinceMs ?? nowMs) : undefined,
  };
}

function added(state: ScalerState, { nowMs, queuedRows, maxBatchRows }: ScalerLook): ScalerState {
  const waitingLooks = queuedRows > maxBatchRows ? WAITING_LOOKS - 1 : 0;
  const holdMs = holdAfter(state, nowMs, 2);
  return { ...anew(state), target: state.target + 1, waitingLooks, removedAtMs: undefined, holdMs };
}

function removed(state: ScalerState, { nowMs }: ScalerLook): ScalerState {
  return { ...anew(state), target: state.target - 1, removedAtMs: nowMs, holdMs: holdAfter(state, nowMs, 1) };
}

/** The hold time after a change; `factor`: what it grows by when the last removal was recent. */
function holdAfter({ removedAtMs, holdMs }: ScalerState, nowMs: number, factor: number): number {
  if (removedAtMs === undefined) return holdMs;
  return nowMs - removedAtMs < REGRET_MS ? Math.min(HOLD_MAX_MS, factor * holdMs) : HOLD_MIN_MS;
}

/** Evidence starts anew. */
function anew(state: ScalerState): ScalerState {
  return { ...state, waitingLooks: 0, spareSinceMs: undefined };
}

function decision(state: ScalerState, reason: Decision['reason']): Decision {
  return { state, target: state.target, reason };
}
