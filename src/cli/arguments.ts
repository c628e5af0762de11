/**
 * Checks of an argument list before yargs parses it: names and values of options, number of positionals.
 *
 * Yargs would find most of this too, but tells it less well, stops at what a mistyped option leaves missing, and has no
 * suggestions for options. Here node's tokenizer does the reading; it and yargs agree on what is an option and what its value.
 */
import { parseArgs } from 'node:util';
import type { Options } from 'yargs';
import { ExitError } from '../config/exit-codes.ts';
import { nearestName } from '../config/nearest.ts';
import { type Command, firstUsage, optionsOf } from './command.ts';
import { printable } from './terminal.ts';

type Token = NonNullable<ReturnType<typeof parseArgs>['tokens']>[number];
type OptionToken = Extract<Token, { kind: 'option' }>;

const helpOptions = ['help', 'h', 'version'];

/**
 * @param commands all of them; the first is meant where none is named
 * @throws ExitError USAGE for the first thing that is wrong
 */
export function checkArguments(args: readonly string[], commands: readonly Command[]): void {
  const tokens = tokenize(args, commands);
  const words = tokens.flatMap((token) => (token.kind === 'positional' ? [token.value] : []));
  const named = commands.find(({ name }) => name === words[0]);
  const command = named ?? commands[0]!;
  const options = optionsOf(command);
  const given = tokens.filter((token) => token.kind === 'option');
  for (const token of given) checkOption(token, options);
  if (given.some(({ name }) => helpOptions.includes(name))) return;
  checkPositionals(named === undefined ? words : words.slice(1), command);
}

function tokenize(args: readonly string[], commands: readonly Command[]): Token[] {
  // Which command it is shows only after reading, so the options of all are known to the tokenizer.
  const all: Record<string, Options> = Object.assign({}, ...commands.map(optionsOf));
  const types: Record<string, { type: 'boolean' | 'string'; short?: string }> = {};
  for (const [name, { type, alias }] of Object.entries(all)) {
    types[name] = { type: type === 'boolean' ? 'boolean' : 'string' };
    if (typeof alias === 'string') types[name].short = alias;
  }
  types.help = { type: 'boolean', short: 'h' };
  return parseArgs({ args: [...args], options: types, strict: false, tokens: true }).tokens;
}

function checkOption({ name, rawName, value, inlineValue }: OptionToken, options: Record<string, Options>): void {
  if (helpOptions.includes(name)) return;
  const option = options[name];
  if (option === undefined) {
    const positive = options[name.replace(/^no-/, '')];
    if (positive?.type !== 'boolean') throw unknownOption(name, rawName, options);
    return;
  }
  if (option.type === 'boolean') {
    // In any other value yargs would see false.
    if (value === undefined || value === 'true' || value === 'false') return;
    throw new ExitError('USAGE', `${rawName}: ${JSON.stringify(value)} is not true or false`);
  }
  const isOption = inlineValue !== true && /^--?[a-z]/i.test(value ?? '');
  if (value === undefined || isOption) throw new ExitError('USAGE', `${rawName} needs a value`);
  if (option.choices !== undefined && !option.choices.includes(value)) {
    const choices = option.choices.join(', ');
    throw new ExitError('USAGE', `${rawName}: ${JSON.stringify(value)} is not one of ${choices}`);
  }
}

function unknownOption(name: string, rawName: string, options: Record<string, Options>): ExitError {
  const meant = nearestName(name, [...Object.keys(options), 'help', 'version']);
  const message = `unknown option ${printable(rawName)}`;
  return new ExitError('USAGE', meant === undefined ? message : `${message}; did you mean --${meant}?`);
}

function checkPositionals(words: readonly string[], command: Command): void {
  const usage = firstUsage(command);
  const names = [...usage.matchAll(/[<[]([a-z]+)[\]>]/g)].map(([, name]) => name!);
  const missing = names[words.length];
  if (missing !== undefined && usage.includes(`<${missing}>`)) {
    const hint = `usage: ${usage}; ${command.name} --help has examples`;
    throw new ExitError('USAGE', `${command.name} needs a ${missing}`, { hint });
  }
  const extra = words[names.length];
  if (extra !== undefined) {
    const hint = command.name === 'run' ? 'to serve several models: --model-repository DIR' : undefined;
    throw new ExitError('USAGE', `unexpected argument ${JSON.stringify(extra)}`, { hint });
  }
}
