/**
 * `completion`: a script that lets the user's shell ask this program what may come next. Script and answers are yargs' own;
 * `completionRequest` keeps it from answering where the shell should offer files.
 */
import yargs from 'yargs';
import { EXIT } from '../config/exit-codes.ts';
import { type Command, optionsOf } from './command.ts';

/** How a completion script asks; the words of the line follow, the last one being typed. */
export const COMPLETION_REQUEST = '--get-yargs-completions';

export const completionCommand: Command = {
  name: 'completion',
  usage: 'completion',
  describe: 'Print a completion script for the shell in $SHELL: bash, zsh or fish',
  positionals: {},
  options: {},
  examples: [
    ['completion >> ~/.bashrc', 'Complete commands and options in every new shell'],
    ['completion > /tmp/complete && . /tmp/complete', 'Only in this one'],
  ],
  run: async (_, terminal) => {
    // The script calls the program by this name, from whatever directory.
    yargs([], terminal.cwd).scriptName(terminal.programPath).showCompletionScript();
    return EXIT.OK.code;
  },
};

/**
 * What to ask yargs for a request of a completion script.
 *
 * @param commands the first is meant where none is named
 * @returns undefined where there is nothing to offer but files, which the shell does itself
 */
export function completionRequest(args: readonly string[], commands: readonly Command[]): string[] | undefined {
  const words = args.slice(1);
  const current = words.at(-1) ?? '';
  const named = commands.find(({ name }) => words.slice(1, -1).includes(name));
  const previous = optionsOf(named ?? commands[0]!)[(words.at(-2) ?? '').replace(/^--/, '')];
  // Yargs completes the default command's options only where it is named.
  const explicit = named === undefined ? [args[0]!, words[0]!, commands[0]!.name, ...words.slice(1)] : [...args];
  const isValue = previous !== undefined && previous.type !== 'boolean';
  if (isValue) return previous.choices === undefined ? undefined : explicit;
  if (current.startsWith('-')) return explicit;
  return named === undefined ? [...args] : undefined;
}
