/** What a command of `bin/serve` consists of; `main.ts` makes yargs commands of them. */
import type { Options, PositionalOptions } from 'yargs';
import { LOG_LEVELS } from '../config/settings.ts';
import type { Terminal } from './terminal.ts';

/** Options and positionals as typed: text, a list of texts where one was repeated, booleans for flags. */
export type CommandArguments = Readonly<Record<string, unknown>>;

export interface Command {
  readonly name: string;
  /** As yargs wants it: `infer <model>`; several where the command has other names, `$0` for the default command. */
  readonly usage: string | readonly string[];
  readonly describe: string;
  readonly positionals: Readonly<Record<string, PositionalOptions>>;
  readonly options: Readonly<Record<string, Options>>;
  /** Arguments after the program's name, and what they do. */
  readonly examples: readonly (readonly [string, string])[];
  /** @returns the exit code. @throws ExitError */
  readonly run: (args: CommandArguments, terminal: Terminal) => Promise<number>;
}

/** An option that takes one value and may be repeated; values stay text, and whoever uses them checks them. */
export function valueOption(description: string, more: Options = {}): Options {
  return { description, nargs: 1, ...more };
}

/** Text of an option or positional that counts once: the last, where it was repeated. */
export function lastText(value: unknown): string | undefined {
  const last = Array.isArray(value) ? value.at(-1) : value;
  return last === undefined ? undefined : String(last);
}

/** All texts of an option that may be repeated. */
export function allTexts(value: unknown): string[] {
  if (value === undefined) return [];
  return Array.isArray(value) ? value.map(String) : [String(value)];
}

/** The usage under the command's own name. */
export function firstUsage({ usage }: Command): string {
  return typeof usage === 'string' ? usage : usage[0]!;
}

/** The command's own options and those that every command has. */
export function optionsOf({ options }: Command): Record<string, Options> {
  const level = valueOption('From debug on, an error carries its stack', { choices: LOG_LEVELS });
  return Object.hasOwn(options, 'log-level') ? { ...options } : { ...options, 'log-level': level };
}
