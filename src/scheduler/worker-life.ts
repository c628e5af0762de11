/**
 * The life of one worker process, as one transition table. Pure: the clock and the random number are passed in, and what has to be done is handed back.
 *
 *     stopped ──start──▶ spawning ──up──▶ loading ◀──▶ warming ──ready──▶ ready        draining ◀── stop, from any state with a process
 *                           ▲  └─────────────┴── suspected │ ▲ cleared ─────┘             │
 *                     timer │                              ▼ │                            │ exited
 *                  (retry)  │                             suspect ──condemned──▶ killing  │
 *                           │                                  └──────┬─────────────┘     ▼
 *                        backoff, broken ◀──── reclaimed ───────── exited ──── reclaimed ──▶ stopped
 *
 * Invariants: at most one process (one is spawned only where there is none); after a death, what the process held is taken back (`reclaim`) before the next
 * start; no start before the delay that was drawn, but for the command `retry`; told to stop, it ends in `stopped`.
 *
 * Deaths in a row are counted while lives are fruitless: over before they were ready, or within a moment of it, and without a batch finished. A few of
 * them that are the worker's own doing open the breaker (`broken`): the next try comes on a slow schedule. Deaths of a worker that was at work are
 * held against the work, which has limits of its own (a batch is taken over so many times, a load tried so many times), so the breaker waits longer for
 * them; deaths by somebody else's hand are not held against anybody.
 */
import { type BackoffPolicy, type BackoffState, initialBackoff, nextDelay, noteReady } from './backoff.ts';

export const WORKER_STATES = [
  'spawning',
  'loading',
  'warming',
  'ready',
  'suspect',
  'killing',
  'exited',
  'backoff',
  'broken',
  'draining',
  'stopped',
] as const;
export type WorkerState = (typeof WORKER_STATES)[number];

/** States in which the process is believed to do what it should. */
export type SoundState = 'spawning' | 'loading' | 'warming' | 'ready';

export interface Death {
  /** In words. */
  readonly how: string;
  /** Whose doing it was, as far as that can be told: the worker's own, the work's that it had in hand, or somebody else's. */
  readonly blame: 'worker' | 'work' | 'outside';
  /** Whether it finished a batch (an ingress: a request) in this life. */
  readonly worked: boolean;
}

export type WorkerEvent =
  | { readonly type: 'start' }
  /** It runs and takes orders. */
  | { readonly type: 'up' }
  | { readonly type: 'loading' }
  | { readonly type: 'warming' }
  /** It has nothing left to prepare. */
  | { readonly type: 'ready' }
  | { readonly type: 'suspected'; readonly reason: string }
  | { readonly type: 'cleared' }
  /** It has to go. */
  | { readonly type: 'condemned'; readonly reason: string }
  /** The process is gone and has been reaped. */
  | { readonly type: 'exited'; readonly death: Death }
  /** What it held has been taken back. */
  | { readonly type: 'reclaimed' }
  /** The time of the last `wait` is over. */
  | { readonly type: 'timer' }
  /** A command: try again now, if it has been given up. */
  | { readonly type: 'retry' }
  | { readonly type: 'stop' };

export type WorkerAction =
  | { readonly do: 'spawn' }
  | { readonly do: 'kill' }
  | { readonly do: 'reclaim' }
  /** Sets the one timer. */
  | { readonly do: 'wait'; readonly ms: number }
  | { readonly do: 'cancel-wait' };

export interface LifePolicy {
  readonly restart: BackoffPolicy;
  /** Of the tries of a broken worker. */
  readonly slow: BackoffPolicy;
  /** A life that was ready for less than this and finished nothing is fruitless. */
  readonly shortLifeMs: number;
  /** Fruitless lives in a row that open the breaker: those ended by the worker itself, and all but those ended from outside. */
  readonly ownDeathsMax: number;
  readonly deathsMax: number;
  /** Ceiling of the delay after a death at work: whoever tries to find the guilty request does not want to wait long. */
  readonly delayAtWorkMaxMs: number;
}

export interface WorkerLife {
  readonly policy: LifePolicy;
  readonly state: WorkerState;
  /** Number of the current or last life, from 1; 0 before the first. */
  readonly epoch: number;
  /** Why it is suspect, killed, waiting or broken; '' otherwise. */
  readonly reason: string;
  /** What a suspect was, and will be again if it is cleared. */
  readonly sound: SoundState;
  readonly startedMs: number;
  /** When it was ready for the first time in this life. */
  readonly readyMs: number | undefined;
  readonly diedMs: number;
  readonly death: Death | undefined;
  readonly stopping: boolean;
  /** Fruitless lives in a row, and how many of them ended by the worker's own doing. */
  readonly deaths: number;
  readonly ownDeaths: number;
  readonly restart: BackoffState;
  readonly slow: BackoffState;
}

export interface Step {
  readonly life: WorkerLife;
  readonly actions: readonly WorkerAction[];
}

interface Moment {
  readonly nowMs: number;
  /** From [0, 1). */
  readonly random: number;
}

type EventType = WorkerEvent['type'];
type Rule = (life: WorkerLife, moment: Moment, event: WorkerEvent) => Step;

/** What a living process may meet in any sound state. */
const ALIVE = { suspected: suspect, condemned: condemn, exited: die, stop: drain } as const;

/** What happens on which event in which state. What is not here changes nothing, or is a bug: see BUGS. */
const TABLE: Readonly<Record<WorkerState, Readonly<Partial<Record<EventType, Rule>>>>> = {
  stopped: { start: spawn },
  spawning: { ...ALIVE, up: move('loading'), ready: becomeReady },
  loading: { ...ALIVE, warming: move('warming'), ready: becomeReady },
  warming: { ...ALIVE, loading: move('loading'), ready: becomeReady },
  ready: { ...ALIVE, loading: move('loading'), warming: move('warming') },
  suspect: {
    up: prepare('loading'),
    loading: prepare('loading'),
    warming: prepare('warming'),
    ready: becomeReady,
    cleared: clear,
    condemned: condemn,
    exited: die,
    stop: drain,
  },
  killing: { exited: die, stop: drain },
  exited: { reclaimed: decide, stop: willStop },
  backoff: { timer: spawn, stop: halt },
  broken: { timer: spawn, retry: retryNow, stop: halt },
  draining: { condemned: hurry, exited: die },
};

/** Events that come from the caller itself: where they do not fit, it has lost count. Those of the process may come late and are then passed over. */
const BUGS: ReadonlySet<EventType> = new Set(['start', 'exited', 'reclaimed', 'timer']);

export function initialLife(policy: LifePolicy): WorkerLife {
  return {
    policy,
    state: 'stopped',
    epoch: 0,
    reason: '',
    sound: 'spawning',
    startedMs: 0,
    readyMs: undefined,
    diedMs: 0,
    death: undefined,
    stopping: false,
    deaths: 0,
    ownDeaths: 0,
    restart: initialBackoff(policy.restart),
    slow: initialBackoff(policy.slow),
  };
}

/**
 * The life after an event, and what has to be done now.
 *
 * @param nowMs any monotonic clock.
 * @param random one draw from [0, 1).
 * @throws Error for an event that cannot happen: that is a bug of the caller.
 */
export function step(life: WorkerLife, event: WorkerEvent, nowMs: number, random: number): Step {
  const rule = TABLE[life.state][event.type];
  if (rule !== undefined) return rule(life, { nowMs, random }, event);
  if (BUGS.has(event.type)) throw new Error(`This is a bug: ${event.type} of a worker that is ${life.state}`);
  return { life, actions: [] };
}

/** Whether there is a process, dying ones included. */
export function hasProcess(state: WorkerState): boolean {
  return TABLE[state].exited !== undefined;
}

/** Whether the process may have work: it is there, and nobody wants it gone. */
export function mayWork(state: WorkerState): boolean {
  return TABLE[state].suspected !== undefined || state === 'suspect';
}

function only(life: WorkerLife): Step {
  return { life, actions: [] };
}

function spawn(life: WorkerLife, { nowMs }: Moment): Step {
  const fresh = { state: 'spawning', sound: 'spawning', reason: '', readyMs: undefined, death: undefined } as const;
  const next = { ...life, ...fresh, epoch: life.epoch + 1, startedMs: nowMs, stopping: false };
  return { life: next, actions: [{ do: 'spawn' }] };
}

function move(state: SoundState): Rule {
  return (life) => only({ ...life, state, sound: state });
}

/** A suspect goes on with its preparations, but stays suspect. */
function prepare(sound: SoundState): Rule {
  return (life) => only({ ...life, sound });
}

function becomeReady(life: WorkerLife, { nowMs }: Moment): Step {
  const ready = { sound: 'ready', readyMs: life.readyMs ?? nowMs, restart: noteReady(life.restart, nowMs) } as const;
  return only({ ...life, ...ready, state: life.state === 'suspect' ? 'suspect' : 'ready' });
}

function suspect(life: WorkerLife, _moment: Moment, event: WorkerEvent): Step {
  return only({ ...life, state: 'suspect', reason: reasonOf(event) });
}

function clear(life: WorkerLife): Step {
  return only({ ...life, state: life.sound, reason: '' });
}

function condemn(life: WorkerLife, _moment: Moment, event: WorkerEvent): Step {
  return { life: { ...life, state: 'killing', reason: reasonOf(event) }, actions: [{ do: 'kill' }] };
}

function drain(life: WorkerLife): Step {
  return only({ ...life, state: 'draining', reason: '', stopping: true });
}

function hurry(life: WorkerLife, _moment: Moment, event: WorkerEvent): Step {
  return { life: { ...life, reason: reasonOf(event) }, actions: [{ do: 'kill' }] };
}

function die(life: WorkerLife, { nowMs }: Moment, event: WorkerEvent): Step {
  if (event.type !== 'exited') throw new Error(`This is a bug: a death by ${event.type}`);
  const { death } = event;
  return {
    life: { ...life, state: 'exited', reason: death.how, death, diedMs: nowMs },
    actions: [{ do: 'reclaim' }],
  };
}

function willStop(life: WorkerLife): Step {
  return only({ ...life, stopping: true });
}

function halt(life: WorkerLife): Step {
  return { life: { ...life, state: 'stopped', reason: '', stopping: true }, actions: [{ do: 'cancel-wait' }] };
}

/** Forgets all failures: whoever commands it has mended something. */
function retryNow(life: WorkerLife, moment: Moment): Step {
  const { policy } = life;
  const forgiven = {
    deaths: 0,
    ownDeaths: 0,
    restart: initialBackoff(policy.restart),
    slow: initialBackoff(policy.slow),
  };
  const { life: next, actions } = spawn({ ...life, ...forgiven }, moment);
  return { life: next, actions: [{ do: 'cancel-wait' }, ...actions] };
}

/** After a death: stop, start again soon, or give up for now. */
function decide(before: WorkerLife, { nowMs, random }: Moment): Step {
  if (before.stopping) return only({ ...before, state: 'stopped', reason: '' });
  const { policy } = before;
  const life = counted(before);
  if (life.ownDeaths >= policy.ownDeathsMax || life.deaths >= policy.deathsMax) {
    const { state: slow, delayMs } = nextDelay(life.slow, nowMs, random);
    const count = Math.max(life.ownDeaths, life.deaths);
    const reason = `it died ${count} times in a row before it had finished anything, at last: ${life.death!.how}`;
    return { life: { ...life, state: 'broken', slow, reason }, actions: [{ do: 'wait', ms: delayMs }] };
  }
  const capMs = life.death!.blame === 'work' ? policy.delayAtWorkMaxMs : Number.POSITIVE_INFINITY;
  const { state: restart, delayMs } = nextDelay(life.restart, life.diedMs, random, capMs);
  return { life: { ...life, state: 'backoff', restart }, actions: [{ do: 'wait', ms: delayMs }] };
}

/** The life with its death held against whoever is to blame. */
function counted(life: WorkerLife): WorkerLife {
  const { policy, readyMs, startedMs, diedMs } = life;
  const { worked, blame } = life.death!;
  const readyForMs = readyMs === undefined ? 0 : diedMs - readyMs;
  if (!worked && readyForMs < policy.shortLifeMs) {
    if (blame === 'outside') return life;
    return { ...life, deaths: life.deaths + 1, ownDeaths: life.ownDeaths + (blame === 'worker' ? 1 : 0) };
  }
  // It was worth its start if it worked for longer than that took: then the next one is not put off for it.
  const paid = worked && readyMs !== undefined && readyForMs >= readyMs - startedMs;
  const restart = paid ? initialBackoff(policy.restart) : life.restart;
  return { ...life, deaths: 0, ownDeaths: 0, restart, slow: initialBackoff(policy.slow) };
}

function reasonOf(event: WorkerEvent): string {
  if ('reason' in event) return event.reason;
  throw new Error(`This is a bug: ${event.type} has no reason`);
}
