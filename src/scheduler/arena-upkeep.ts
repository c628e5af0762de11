/**
 * When an arena is told to give back what it holds and does not use.
 *
 * An arena keeps what it has once taken: after a peak that is memory which others on the device miss. But giving back is not free (the next run takes it again,
 * page by page), so it happens only where the account says that it lies idle: the arena has held clearly more than any run of the last one to two windows needed. If
 * it is soon taken again all the same, the account was wrong about the runs, and the next try comes twice as late.
 *
 * Pure: states are values, the clock is passed in.
 */

export interface ArenaUpkeep {
  /** Most that a run needed in this window and in the one before. */
  readonly neededBytes: number;
  readonly neededBeforeBytes: number;
  readonly windowSinceMs: number;
  /** Whether there has been a whole window at all. */
  readonly settled: boolean;
  /** After giving back: when, what was held before, and what was left. */
  readonly gaveBackAtMs: number | undefined;
  readonly heldBeforeBytes: number;
  readonly leftBytes: number | undefined;
  readonly pauseMs: number;
}

export interface ArenaLook {
  readonly nowMs: number;
  /** Taken from the system and not by weights. */
  readonly heldBytes: number;
  /** Most that a run since the last look needed; undefined where that is not known. */
  readonly neededBytes: number | undefined;
}

export const WINDOW_MS = 5000;
const PAUSE_MAX_MS = 128 * WINDOW_MS;
/** Less is not worth it. */
const IDLE_MIN_BYTES = 16 * 2 ** 20;
/** Part of what the runs need that may lie idle beside it. */
const IDLE_PART = 0.5;
/** Part of what was given back that, taken again, shows that it was needed. */
const TAKEN_AGAIN_PART = 0.5;

export function initialUpkeep(nowMs: number): ArenaUpkeep {
  return {
    neededBytes: 0,
    neededBeforeBytes: 0,
    windowSinceMs: nowMs,
    settled: false,
    gaveBackAtMs: undefined,
    heldBeforeBytes: 0,
    leftBytes: undefined,
    pauseMs: WINDOW_MS,
  };
}

/** The state after a look at the arena, and whether it is to give back what it does not use. */
export function look(
  before: ArenaUpkeep,
  { nowMs, heldBytes, neededBytes }: ArenaLook,
): { readonly state: ArenaUpkeep; readonly giveBack: boolean } {
  let state = judged(before, nowMs, heldBytes);
  // Of a run that nobody can tell the need of it has to be assumed that it needed all.
  state = { ...state, neededBytes: Math.max(state.neededBytes, neededBytes ?? heldBytes) };
  const needed = Math.max(state.neededBytes, state.neededBeforeBytes);
  const idle = heldBytes - needed;
  const due = state.settled && (state.gaveBackAtMs === undefined || nowMs - state.gaveBackAtMs >= state.pauseMs);
  const giveBack = due && idle > Math.max(IDLE_MIN_BYTES, needed * IDLE_PART);
  if (nowMs - state.windowSinceMs >= WINDOW_MS) {
    state = { ...state, neededBeforeBytes: state.neededBytes, neededBytes: 0, windowSinceMs: nowMs, settled: true };
  }
  if (!giveBack) return { state, giveBack };
  return { state: { ...state, gaveBackAtMs: nowMs, heldBeforeBytes: heldBytes, leftBytes: undefined }, giveBack };
}

/** What became of what was given back: known one window later. */
function judged(state: ArenaUpkeep, nowMs: number, heldBytes: number): ArenaUpkeep {
  const { gaveBackAtMs, heldBeforeBytes, leftBytes, pauseMs } = state;
  if (gaveBackAtMs === undefined || heldBeforeBytes === 0) return state;
  if (leftBytes === undefined) return { ...state, leftBytes: Math.min(heldBytes, heldBeforeBytes) };
  if (nowMs - gaveBackAtMs < WINDOW_MS) return state;
  const given = heldBeforeBytes - leftBytes;
  const vain = heldBytes - leftBytes >= given * TAKEN_AGAIN_PART;
  return { ...state, heldBeforeBytes: 0, pauseMs: vain ? Math.min(PAUSE_MAX_MS, pauseMs * 2) : WINDOW_MS };
}
