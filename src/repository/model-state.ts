/**
 * The state of one served version of a model, as the repository index, readiness and the metrics tell it.
 *
 *                  load            loaded
 *   UNAVAILABLE ─────────▶ LOADING ────────▶ READY
 *      ▲ ▲ ▲                │   │             │ │
 *      │ │ └─ load_failed, ─┘   │ unload      │ │
 *      │ │    lost              ▼             │ │
 *      │ └─ unloaded, ─── UNLOADING ◀─ unload ┘ │
 *      │    lost                                │
 *      └──────────────── lost ──────────────────┘
 *
 * `lost`: the last process that had it is gone. An answer to a load that was overtaken by an unload (`loaded`, `load_failed`)
 * leaves UNLOADING as it is: `unloaded` is still to come.
 *
 * Records are values, owned by the supervisor, and change only through `transition`; the index, readiness and the gauges are all
 * derived from the same records, so they cannot drift apart. A reason says why a version is not READY: never empty there, empty
 * in READY. Bound: REASON_LENGTH_MAX characters, one line.
 */

export const MODEL_STATES = ['UNAVAILABLE', 'LOADING', 'READY', 'UNLOADING'] as const;
export type ModelState = (typeof MODEL_STATES)[number];

export type ModelEvent = 'load' | 'loaded' | 'load_failed' | 'lost' | 'unload' | 'unloaded';

export interface ModelStateRecord {
  readonly state: ModelState;
  readonly reason: string;
  /** When it entered this state, on the clock of the caller. */
  readonly sinceMs: number;
}

const REASON_LENGTH_MAX = 2000;

const NEXT_STATE: Readonly<Record<ModelState, Readonly<Partial<Record<ModelEvent, ModelState>>>>> = {
  UNAVAILABLE: { load: 'LOADING' },
  LOADING: { loaded: 'READY', load_failed: 'UNAVAILABLE', lost: 'UNAVAILABLE', unload: 'UNLOADING' },
  READY: { unload: 'UNLOADING', lost: 'UNAVAILABLE' },
  UNLOADING: { unloaded: 'UNAVAILABLE', lost: 'UNAVAILABLE', loaded: 'UNLOADING', load_failed: 'UNLOADING' },
};

/** Reasons of the states that explain themselves; any other event has to bring its own. */
const REASON_OF_EVENT: Readonly<Partial<Record<ModelEvent, string>>> = {
  load: 'loading',
  loaded: '',
  unload: 'unloading',
  unloaded: 'unloaded',
};

/** A version that nothing has been tried with; `reason` where it cannot be, such as a file that is no model. */
export function initialModelState(nowMs: number, reason = 'not loaded yet'): ModelStateRecord {
  return record('UNAVAILABLE', reason, nowMs);
}

/** Whether `event` may happen in `state`. */
export function canHappen(state: ModelState, event: ModelEvent): boolean {
  return NEXT_STATE[state][event] !== undefined;
}

/**
 * The record after `event`; where the state stays the same, so does the record.
 *
 * @param reason needed with `load_failed` and `lost`; with other events it replaces the usual words. READY has none.
 * @throws Error when the event cannot happen in this state: that is a bug of the caller.
 */
export function transition(
  current: ModelStateRecord,
  event: ModelEvent,
  nowMs: number,
  reason?: string,
): ModelStateRecord {
  const state = NEXT_STATE[current.state][event];
  if (state === undefined) {
    throw new Error(`This is a bug: ${event} of a model version that is ${current.state}`);
  }
  if (state === current.state) {
    return current;
  }
  return record(state, state === 'READY' ? '' : (reason ?? REASON_OF_EVENT[event] ?? ''), nowMs);
}

/** How many of the records are in each state: the gauge of the metrics. */
export function countModelStates(records: Iterable<ModelStateRecord>): Readonly<Record<ModelState, number>> {
  const counts = { UNAVAILABLE: 0, LOADING: 0, READY: 0, UNLOADING: 0 };
  for (const { state } of records) {
    counts[state]++;
  }
  return counts;
}

function record(state: ModelState, reason: string, sinceMs: number): ModelStateRecord {
  const line = reason.trim().replaceAll(/\s+/g, ' ');
  if ((line === '') !== (state === 'READY')) {
    throw new Error(`This is a bug: a model version became ${state} with the reason ${JSON.stringify(reason)}`);
  }
  const short = line.length <= REASON_LENGTH_MAX ? line : `${line.slice(0, REASON_LENGTH_MAX - 1)}…`;
  return Object.freeze({ state, reason: short, sinceMs });
}
