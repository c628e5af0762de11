/**
 * Runs code with something happening between its atomic steps: a death, or the work of others while the code stands still.
 *
 * Everything that one process can see of another in the queue goes through Atomics or follows such a step (a byte in a pipe, a futex call), so a hook
 * before and after each of those calls reaches every state that a kill or a stop of the process at any instant can leave behind. All in one thread: a
 * step number names one interleaving and repeats it.
 */

/** Thrown into code that "dies"; all its later atomic steps throw it as well, so that no `finally` tidies up. */
export class Killed extends Error {}

const PATCHED = ['load', 'store', 'add', 'exchange', 'compareExchange'] as const;
type Operation = (...args: never[]) => unknown;

/**
 * Calls `hook` with 1, 2, 3 … before and after each atomic step of `run`: an odd number before, an even one after. What `hook` itself does is not counted.
 */
export function withSteps(hook: (step: number) => void, run: () => void): void {
  const table = Atomics as unknown as Record<string, Operation>;
  const originals = PATCHED.map((name) => table[name]!);
  let steps = 0;
  let inside = false;
  const call = () => {
    inside = true;
    try {
      hook(++steps);
    } finally {
      inside = false;
    }
  };
  PATCHED.forEach((name, n) => {
    table[name] = (...args: never[]) => {
      if (inside) return originals[n]!.apply(Atomics, args);
      call();
      const result = originals[n]!.apply(Atomics, args);
      call();
      return result;
    };
  });
  try {
    run();
  } finally {
    PATCHED.forEach((name, n) => {
      table[name] = originals[n]!;
    });
  }
}

/**
 * Runs code that dies at step number `fatal`.
 *
 * @returns whether it died; false when it has fewer steps and came to its end.
 */
export function killAt(fatal: number, run: () => void): boolean {
  return killWhen((step) => step >= fatal, run);
}

/** As killAt(), but at the first step at which `fatal` holds. */
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

/** Runs code that is stopped at step number `at` while `others` run. Returns whether it got that far. */
export function stopAt(at: number, run: () => void, others: () => void): boolean {
  return stopWhen((step) => step === at, run, others);
}

/** As stopAt(), but at the first step at which `when` holds. */
export function stopWhen(when: (step: number) => boolean, run: () => void, others: () => void): boolean {
  let stopped = false;
  withSteps((step) => {
    if (stopped || !when(step)) return;
    stopped = true;
    others();
  }, run);
  return stopped;
}
