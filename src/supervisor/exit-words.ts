/**
 * How a child process ended, in words, and whose doing it was. Pure.
 *
 * `label` is one of few, for the metrics; `how` is for people. The kernel tells a code or a signal; that it was the supervisor, or the kernel for want of
 * memory, is known from elsewhere and passed in.
 */
import { childExitMeaning } from '../protocol/child-exit.ts';
import type { CondemnedKind } from '../scheduler/vigil.ts';
import type { Death } from '../scheduler/worker-life.ts';

/** Why the supervisor killed it. */
export type KillKind = CondemnedKind | 'refused its device' | 'did not end in time' | 'server stopped';

export interface Ending {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly killedFor: { readonly kind: KillKind; readonly reason: string } | undefined;
  /** The kernel's out-of-memory killer was at work around the death. */
  readonly outOfMemory: boolean;
  /** Why there never was a process, where that is known. */
  readonly notStartedFor?: string | undefined;
}

export interface EndingWords {
  readonly label: string;
  readonly how: string;
  /** Whose doing it was, if it had nothing in hand. */
  readonly blame: Exclude<Death['blame'], 'work'>;
}

/** Signals that the processor or the process itself raises. */
const CRASHES: Readonly<Partial<Record<NodeJS.Signals, string>>> = {
  SIGSEGV: 'segmentation fault: it used memory that is not its own',
  SIGABRT: 'aborted by itself, as C and C++ code does when it finds itself broken',
  SIGFPE: 'arithmetic error, such as a division by zero',
  SIGBUS: 'bus error: it used memory that cannot be had',
  SIGILL: 'illegal instruction: its code is for another processor, or damaged',
  SIGTRAP: 'trap: V8 ends itself so when it has no memory left',
  SIGSYS: 'a system call that is forbidden here',
};

export function describeEnding({ code, signal, killedFor, outOfMemory, notStartedFor }: Ending): EndingWords {
  if (signal === 'SIGKILL') {
    if (killedFor !== undefined) {
      const { kind, reason } = killedFor;
      return {
        label: `killed by the supervisor (${kind})`,
        how: `killed by the supervisor: ${reason}`,
        blame: kind === 'stopped' ? 'outside' : 'worker',
      };
    }
    if (outOfMemory) {
      return both(
        'signal SIGKILL (out of memory)',
        'killed by the kernel for want of memory (signal SIGKILL)',
        'worker',
      );
    }
    return both('signal SIGKILL (from outside)', 'killed from outside (signal SIGKILL)', 'outside');
  }
  if (signal !== null) {
    const crash = CRASHES[signal];
    if (crash !== undefined) return both(`signal ${signal}`, `crashed with signal ${signal} (${crash})`, 'worker');
    return both(`signal ${signal}`, `ended from outside by signal ${signal}`, 'outside');
  }
  if (code === null) {
    const why = notStartedFor === undefined ? '' : `: ${notStartedFor}`;
    return both('could not be started', `could not be started${why}`, 'worker');
  }
  const meaning = childExitMeaning(code);
  return both(`exit code ${code}`, `exit code ${code}${meaning === undefined ? '' : ` (${meaning})`}`, 'worker');
}

function both(label: string, how: string, blame: EndingWords['blame']): EndingWords {
  return { label, how, blame };
}
