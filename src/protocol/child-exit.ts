/**
 * Exit codes of child processes, in one table: the children end with them, the supervisor puts them into words.
 *
 * Codes of `bin/serve` itself are another table (config/exit-codes.ts); these are never seen by users but in logs, /status and metrics.
 */
import { PARENT_GONE_EXIT_CODE } from '../system/process.ts';

export const CHILD_EXIT = {
  /** Node's own, for an error that nobody handled. */
  UNCAUGHT: { code: 1, meaning: 'an error that nobody handled' },
  BUG: { code: 70, meaning: 'a bug in an instance' },
  PARENT_GONE: { code: PARENT_GONE_EXIT_CODE, meaning: 'its supervisor was gone' },
  ARENA_POISONED: { code: 73, meaning: 'its memory arena was of no use any more, so it was started afresh' },
  UNSOUND: { code: 74, meaning: 'its canary runs failed, so it was started afresh' },
  TRIAL_STUCK: { code: 72, meaning: 'a trial run while loading could not be ended' },
} as const satisfies Record<string, { code: number; meaning: string }>;

/** The meaning of an exit code, or undefined for one that is not of the table. */
export function childExitMeaning(code: number): string | undefined {
  return Object.values(CHILD_EXIT).find((exit) => exit.code === code)?.meaning;
}
