/**
 * The command line: finds the command, checks the options, runs it and turns whatever it throws into one or two lines on
 * stderr and an exit code of the table.
 */
import { basename } from 'node:path';
import yargs, { type Argv } from 'yargs';
import { BatchportError } from '../config/errors.ts';
import { EXIT, ExitError } from '../config/exit-codes.ts';
import { LOG_LEVELS } from '../config/settings.ts';
import { PACKAGE_VERSION } from '../config/version.ts';
import { checkArguments } from './arguments.ts';
import { benchCommand } from './bench.ts';
import { checkConfigCommand } from './check-config.ts';
import { type Command, type CommandArguments, optionsOf } from './command.ts';
import { COMPLETION_REQUEST, completionCommand, completionRequest } from './completion.ts';
import { inferCommand } from './infer.ts';
import { inspectCommand } from './inspect.ts';
import { installServiceCommand } from './install-service.ts';
import { pullCommand } from './pull.ts';
import { runCommand } from './run.ts';
import { statusCommand } from './status.ts';
import { processTerminal, type Terminal } from './terminal.ts';
import { tuneCommand } from './tune.ts';

const HELP_WIDTH_MAX = 110;

const otherCommands = [
  inferCommand,
  benchCommand,
  tuneCommand,
  inspectCommand,
  pullCommand,
  statusCommand,
  checkConfigCommand,
  installServiceCommand,
  completionCommand,
];
/** The first is the default. */
const commands: readonly Command[] = [runCommand(otherCommands.map(({ name }) => name)), ...otherCommands];

/** Runs one command to its end. @returns the exit code; never throws for a fault that has one. */
export async function main(args: readonly string[], terminal: Terminal): Promise<number> {
  try {
    if (args[0] === COMPLETION_REQUEST) {
      const request = completionRequest(args, commands);
      return request === undefined ? EXIT.OK.code : await dispatch(request, terminal);
    }
    checkArguments(args, commands);
    return await dispatch(args, terminal);
  } catch (error) {
    return report(error, args, terminal);
  }
}

/** Runs the command of this process and ends it with the command's exit code. */
export async function runProcess(): Promise<never> {
  const exitCode = await main(process.argv.slice(2), processTerminal(process.argv[1] ?? 'bin/serve'));
  // What was written goes out first, where stdout is not synchronous.
  await new Promise((resolve) => process.stdout.write('', resolve));
  process.exit(exitCode);
}

async function dispatch(args: readonly string[], terminal: Terminal): Promise<number> {
  let exitCode: number = EXIT.OK.code;
  const program = basename(terminal.programPath) === 'batchport' ? 'batchport' : 'bin/serve';
  const parser = yargs([...args], terminal.cwd)
    .scriptName(program)
    .locale('en')
    .wrap(Math.min(HELP_WIDTH_MAX, terminal.columns ?? HELP_WIDTH_MAX))
    .parserConfiguration({
      'camel-case-expansion': false,
      'dot-notation': false,
      'parse-numbers': false,
      'parse-positional-numbers': false,
    })
    .usage('$0 [command] [options]\n\nServes ONNX models over the Open Inference Protocol v2.')
    .version(PACKAGE_VERSION)
    .alias('help', 'h')
    .strict()
    .exitProcess(false)
    .fail((message, error) => {
      throw error ?? new ExitError('USAGE', message.replaceAll(/\s+/g, ' '));
    });
  for (const command of commands) {
    addCommand(parser, command, program, async (argv) => {
      exitCode = await command.run(argv, terminal);
    });
  }
  await parser.parseAsync();
  return exitCode;
}

function addCommand(
  parser: Argv,
  command: Command,
  program: string,
  handler: (argv: CommandArguments) => Promise<void>,
): void {
  parser.command(
    command.usage,
    command.describe,
    (own) => {
      for (const [name, positional] of Object.entries(command.positionals)) own.positional(name, positional);
      own.options(optionsOf(command)).epilogue(exitCodesHelp());
      for (const [example, what] of command.examples) own.example(`${program} ${example}`, what);
      return own;
    },
    handler,
  );
}

function report(error: unknown, args: readonly string[], terminal: Terminal): number {
  const { message, hint, exitCode } = explain(error);
  terminal.err(`error: ${message.replaceAll('\n', '\n       ')}\n`);
  if (hint !== undefined) terminal.err(`       ${hint}\n`);
  if (wantsStack(args, terminal.env) && error instanceof Error) {
    for (let cause: unknown = error; cause instanceof Error; cause = cause.cause) terminal.err(`${cause.stack}\n`);
  }
  return exitCode;
}

function explain(error: unknown): { message: string; hint: string | undefined; exitCode: number } {
  if (error instanceof ExitError) {
    return { message: error.message, hint: error.hint, exitCode: error.exitCode };
  }
  if (error instanceof BatchportError) {
    return { message: error.message, hint: undefined, exitCode: EXIT.FAILURE.code };
  }
  const text = error instanceof Error ? error.message : String(error);
  return { message: text, hint: 'unexpected; add --log-level debug to see where', exitCode: EXIT.FAILURE.code };
}

function wantsStack(args: readonly string[], env: Terminal['env']): boolean {
  const at = args.lastIndexOf('--log-level');
  const joined = args.findLast((arg) => arg.startsWith('--log-level='));
  const level = at >= 0 ? args[at + 1] : (joined?.slice('--log-level='.length) ?? env.BATCHPORT_LOG_LEVEL);
  return LOG_LEVELS.indexOf((level ?? 'info') as (typeof LOG_LEVELS)[number]) >= LOG_LEVELS.indexOf('debug');
}

function exitCodesHelp(): string {
  const lines = Object.values(EXIT).map(({ code, meaning }) => `  ${code}  ${meaning}`);
  return `Exit codes:\n${lines.join('\n')}`;
}
