/**
 * How many rows may run at once without running out of memory: learnt from runs that failed for want of it and runs that did not.
 *
 *     unknown ── out of memory at n ─▶ below n: between the largest size that worked and the smallest that failed
 *
 * After a failure at n rows the cap is the largest size that has worked below n, or half of n where none has. Then it is raised slowly, one step after
 * RAISE_AFTER good runs at the cap, but not to the size that failed before FORGET_MS have passed: memory may be free again by then (another model
 * is gone, a peak is over), and one failed run in that time costs little, as its rows are run again in halves.
 *
 * Pure: states are values, the clock is passed in.
 */

export interface BatchCap {
  /** Rows that may run at once; Infinity while nothing has failed. */
  readonly rows: number;
  /** Largest size that has worked since, and smallest that has failed with the time of that. */
  readonly worked: number;
  readonly failed: number;
  readonly failedAtMs: number;
  /** Runs at the cap since it was last changed. */
  readonly goodRuns: number;
}

export const NO_CAP: BatchCap = {
  rows: Number.POSITIVE_INFINITY,
  worked: 0,
  failed: Number.POSITIVE_INFINITY,
  failedAtMs: 0,
  goodRuns: 0,
};

const RAISE_AFTER = 8;
const FORGET_MS = 60_000;

/** A run of `rows` rows found no memory. A single row cannot be made smaller and changes nothing. */
export function noteOutOfMemory(cap: BatchCap, rows: number, nowMs: number): BatchCap {
  if (rows <= 1) return cap;
  const failed = nowMs - cap.failedAtMs < FORGET_MS ? Math.min(cap.failed, rows) : rows;
  // What worked once above the size that fails now tells nothing any more.
  const worked = cap.worked < failed ? cap.worked : 0;
  return { rows: worked > 0 ? worked : Math.max(1, failed >> 1), worked, failed, failedAtMs: nowMs, goodRuns: 0 };
}

/** A run of `rows` rows went well. */
export function noteRun(cap: BatchCap, rows: number, nowMs: number): BatchCap {
  if (cap.rows === Number.POSITIVE_INFINITY) return rows > cap.worked ? { ...cap, worked: rows } : cap;
  if (rows < cap.rows) return cap;
  const worked = Math.max(cap.worked, rows);
  const goodRuns = cap.goodRuns + 1;
  const next = cap.rows + Math.max(1, cap.rows >> 3);
  const ceiling = nowMs - cap.failedAtMs < FORGET_MS ? cap.failed - 1 : Number.POSITIVE_INFINITY;
  const raised = Math.min(next, ceiling);
  if (goodRuns < RAISE_AFTER || raised <= cap.rows) return { ...cap, worked, goodRuns };
  return { ...cap, rows: raised, worked, goodRuns: 0 };
}
