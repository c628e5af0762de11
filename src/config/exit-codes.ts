/**
 * Exit codes of `bin/serve`, in one table: the help's epilogue and the README are written from it.
 *
 * An `ExitError` is a fault that ends the command: what happened, what to do about it, and with which code. Anyone below
 * the command line may throw it (the supervisor for a port in use, say); only the command line prints it.
 */

export interface ExitKind {
  readonly code: number;
  /** One line for the help and the README. */
  readonly meaning: string;
}

export const EXIT = {
  OK: {
    code: 0,
    meaning: 'Success; for run: stopped as asked, every request answered.',
  },
  FAILURE: { code: 1, meaning: 'A failure that has no code of its own.' },
  USAGE: {
    code: 2,
    meaning: 'Unknown command or option, or a bad value on the command line.',
  },
  CONFIG: {
    code: 3,
    meaning: 'An environment variable, configuration file or model repository is not valid.',
  },
  MODEL: { code: 4, meaning: 'A model file is missing or cannot be loaded.' },
  ADDRESS: {
    code: 5,
    meaning: 'An address cannot be listened on: port in use, not permitted, no such host.',
  },
  DEVICE: {
    code: 6,
    meaning: 'A device is unknown or not available on this machine.',
  },
  UNAVAILABLE: {
    code: 7,
    meaning: 'No server answers at the address, or it is not ready.',
  },
  REFUSED: {
    code: 8,
    meaning: 'The server answered the request with an error.',
  },
  DRAIN_CUT: {
    code: 9,
    meaning: 'run: the drain timeout passed and requests in flight were cut off.',
  },
  OBJECTIVE: {
    code: 10,
    meaning: 'bench: a condition given with --fail-if is met; tune: no settings meet the objective.',
  },
  WEIGHTS: { code: 11, meaning: 'pull: weights could not be fetched.' },
} as const satisfies Record<string, ExitKind>;

export type ExitName = keyof typeof EXIT;

/** The number to exit with. */
export function exitCode(name: ExitName): number {
  return EXIT[name].code;
}

export class ExitError extends Error {
  readonly exit: ExitName;
  /** A second line that says what to do; absent where the message already does. */
  readonly hint: string | undefined;

  constructor(exit: ExitName, message: string, options?: { hint?: string | undefined; cause?: unknown }) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'ExitError';
    this.exit = exit;
    this.hint = options?.hint;
  }

  get exitCode(): number {
    return EXIT[this.exit].code;
  }
}

/** Markdown table of the exit codes, for the README. */
export function exitCodesTable(): string {
  const rows = Object.values(EXIT).map(({ code, meaning }) => `| ${code} | ${meaning} |`);
  return ['| Exit code | Meaning |', '|---|---|', ...rows].join('\n');
}
