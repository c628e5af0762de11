/**
 * Runs code with something happening between its atomic steps: a death, or the work of others while the code stands still.
 *
 * Everything that one process can see of another in the queue goes through Atomics, so a hook before each of those calls reaches every state that a kill
 * or a stop of the process at any instant can leave behind. In one thread, so that a step number names one interleaving and repeats it.
 */

/** Thrown into code that "dies"; all its later atomic steps throw it as well, so that no `finally` tidies up. */
export class Killed extends Error {}

const PATCHED = ['load', 'store', 'add', 'exchange', 'compareExchange'] as const;
type Operation = (...args: never[]) => unknown;

/**
 * Calls `before` with 1, 2, 3 … before each atomic step of `run`. Steps that `before` itself takes are not counted.
 *
 * @returns the number of steps taken.
 */
export function withSteps(before: (step: number) => void, run: () => void): number {
  const table = Atomics as unknown as Record<string, Operation>;
  const originals = PATCHED.map((name) => table[name]!);
  let steps = 0;
  let inside = false;
  PATCHED.forEach((name, n) => {
    table[name] = (...args: never[]) => {
      if (!inside) {
        inside = true;
        try {
          before(++steps);
        } finally {
          inside = false;
        }
      }
      return originals[n]!.apply(Atomics, args);
    };
  });
  try {
    run();
  } finally {
    PATCHED.forEach((name, n) => {
      table[name] = originals[n]!;
    });
  }
  return steps;
}

/**
 * Runs code that dies before its atomic step number `fatal`.
 *
 * @returns whether it died; false when it has fewer steps and came to its end.
 */
export function killAt(fatal: number, run: () => void): boolean {
  return killWhen((step) => step >= fatal, run);
}

/** As killAt(), but before the first atomic step at which `fatal` holds. */
export function killWhen(fatal: (step: number) => boolean, run: () => void): boolean {
  let dead = false;
  try {
    withSteps((step) => {
      dead ||= fatal(step);
      if (dead) throw new Killed();
    }, run);
    return false;
  } catch (error) {
    if (!(error instanceof Killed)) throw error;
    return true;
  }
}

/** Runs code that is stopped before its atomic step number `at` while `others` run. Returns whether it got that far. */
export function stopAt(at: number, run: () => void, others: () => void): boolean {
  let stopped = false;
  withSteps((step) => {
    if (step !== at) return;
    stopped = true;
    others();
  }, run);
  return stopped;
}
