/**
 * What a command knows of the world it was started in: where its output goes, its environment and its directory.
 *
 * Results go to `out`, everything about the work to `err`. Invariant: names, reasons and texts that a server, a model or
 * a file brought are printed through `printable`, so that they cannot steer the terminal.
 */

export interface Terminal {
  readonly out: (text: string) => void;
  readonly err: (text: string) => void;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Absolute; relative paths of arguments start here. */
  readonly cwd: string;
  /** Width to fit output to; undefined when it is not a terminal and nothing is to be cut. */
  readonly columns: number | undefined;
  /** Width of the terminal that `err` goes to; undefined when it is none, and nothing is to be written over. */
  readonly errColumns: number | undefined;
  /** Absolute path of the program as it was called. */
  readonly programPath: string;
}

/** The process's own. */
export function processTerminal(programPath: string): Terminal {
  return {
    out: (text) => void process.stdout.write(text),
    err: (text) => void process.stderr.write(text),
    env: process.env,
    cwd: process.cwd(),
    columns: process.stdout.isTTY ? process.stdout.columns : undefined,
    errColumns: process.stderr.isTTY ? process.stderr.columns : undefined,
    programPath,
  };
}

/** The text with control characters and line separators shown as escapes. */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (character) => {
    const code = character.codePointAt(0)!;
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`;
  });
}
