/**
 * How many instances of a model should run on a device so that each has `target_rows` rows, waiting or running: the rule of Knative's Pod Autoscaler.
 *
 * The rows are averaged over a stable window and over a panic window of a tenth of it. The stable average divided by the target says how many there should be. When the panic
 * average asks for twice as many as there are, the load has jumped: from then on, and for a stable window after the last such look, the number follows the panic average upwards and
 * never falls. Downwards it goes by half at most at a time, and only with a margin. So a spike is met at once, and a load that comes and goes keeps what its peaks need.
 *
 * Source: knative.dev/docs/serving/autoscaling/kpa-specific. Pure: states are values, the clock (any monotonic milliseconds) is passed in. Bounds: min and max; BUCKETS numbers kept.
 */
const STABLE_MS = 60_000;
const PANIC_MS = 6_000;
const PANIC_RATIO = 2;
const DOWN_RATIO = 2;
const DOWN_MARGIN = 1.1;
const BUCKET_MS = 500;
const BUCKETS = STABLE_MS / BUCKET_MS;
/** Looks further apart than this do not follow one another. */
const PAUSE_MS = 5_000;

interface Bucket {
  /** Number of its span of time. */
  readonly at: number;
  readonly sum: number;
  readonly looks: number;
}

export interface ConcurrencyState {
  /** How many should run; 0 before the first look. */
  readonly target: number;
  readonly lookedAtMs: number;
  /** When the load last jumped; undefined when that is over. */
  readonly panicAtMs: number | undefined;
  /** The oldest first. */
  readonly buckets: readonly Bucket[];
}

export interface ConcurrencyLook {
  readonly nowMs: number;
  /** Rows that wait or run. */
  readonly rows: number;
  readonly min: number;
  readonly max: number;
  /** Rows that one instance is meant for, at least 1. */
  readonly targetRows: number;
}

export interface ConcurrencyDecision {
  readonly state: ConcurrencyState;
  readonly target: number;
  /** Why the target has changed; `steady` when it has not. */
  readonly reason: 'steady' | 'more rows' | 'rows have jumped' | 'fewer rows' | 'bounds';
}

export function initialConcurrency(): ConcurrencyState {
  return { target: 0, lookedAtMs: Number.NEGATIVE_INFINITY, panicAtMs: undefined, buckets: [] };
}

/** One look, to be taken at even intervals of about 100 ms. @throws Error when min is above max: that is a bug of the caller. */
export function decideByRows(before: ConcurrencyState, look: ConcurrencyLook): ConcurrencyDecision {
  const { nowMs, min, max, targetRows } = look;
  if (!(min >= 0 && min <= max)) throw new Error(`This is a bug: instances from ${min} to ${max}`);
  const state = seen(before, look);
  const within = (instances: number) => Math.min(max, Math.max(min, instances));
  const bounded = within(state.target);
  if (bounded !== state.target) return { state: { ...state, target: bounded }, target: bounded, reason: 'bounds' };
  const rows = average(state.buckets, nowMs - STABLE_MS);
  const wanted = within(Math.ceil(rows / targetRows));
  const urgent = within(Math.ceil(average(state.buckets, nowMs - PANIC_MS) / targetRows));
  const jumped = urgent >= PANIC_RATIO * state.target && urgent > state.target;
  const panicAtMs = jumped ? nowMs : state.panicAtMs;
  if (panicAtMs !== undefined && nowMs - panicAtMs < STABLE_MS) {
    const target = Math.max(state.target, urgent);
    // As long as the load needs what the jump has brought, the panic goes on.
    const still = target > min && urgent >= target ? nowMs : panicAtMs;
    return decision({ ...state, panicAtMs: still }, target, 'rows have jumped');
  }
  // Fewer only where they would do with a margin: a load at the edge between two numbers must not change it at every look.
  const fewer = Math.min(state.target, Math.ceil((rows * DOWN_MARGIN) / targetRows));
  const target = wanted > state.target ? wanted : Math.max(fewer, Math.floor(state.target / DOWN_RATIO));
  return decision(
    { ...state, panicAtMs: undefined },
    within(target),
    target > state.target ? 'more rows' : 'fewer rows',
  );
}

function seen(state: ConcurrencyState, { nowMs, rows }: ConcurrencyLook): ConcurrencyState {
  const sinceMs = nowMs - state.lookedAtMs;
  const known = sinceMs >= 0 && sinceMs <= PAUSE_MS ? state.buckets : [];
  const at = Math.floor(nowMs / BUCKET_MS);
  const last = known.at(-1);
  const buckets =
    last?.at === at
      ? [...known.slice(0, -1), { at, sum: last.sum + rows, looks: last.looks + 1 }]
      : [...known, { at, sum: rows, looks: 1 }];
  return { ...state, lookedAtMs: nowMs, buckets: buckets.slice(-BUCKETS) };
}

/** Average of the looks since then. */
function average(buckets: readonly Bucket[], sinceMs: number): number {
  let sum = 0;
  let count = 0;
  for (const bucket of buckets) {
    if (bucket.at * BUCKET_MS < sinceMs) continue;
    sum += bucket.sum / bucket.looks;
    count++;
  }
  return count === 0 ? 0 : sum / count;
}

function decision(
  state: ConcurrencyState,
  target: number,
  reason: Exclude<ConcurrencyDecision['reason'], 'steady' | 'bounds'>,
): ConcurrencyDecision {
  return { state: { ...state, target }, target, reason: target === state.target ? 'steady' : reason };
}
