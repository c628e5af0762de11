/**
 * What `bench` was asked for: the loads of its runs, their limits, and the request. Nothing here asks the server.
 */
import { resolve } from 'node:path';
import { ExitError } from '../config/exit-codes.ts';
import type { ArrivalPlan, Burst } from '../load/arrivals.ts';
import { type FailCondition, FIGURE_NAMES, parseFailCondition } from '../load/fail-condition.ts';
import type { Contents } from '../load/made-up-inputs.ts';
import type { RunLimits } from '../load/run.ts';
import { readTrace } from '../load/trace-file.ts';
import { allTexts, type CommandArguments, lastText } from './command.ts';
import { decimal, wholeNumber } from './number-option.ts';

const CONCURRENCY_MAX = 10_000;
const CONNECTIONS_DEFAULT = 2000;
const RATE_MAX = 1_000_000;
const REQUESTS_MAX = 1_000_000_000;
const SECONDS_MAX = 86_400;
const DURATION_S_DEFAULT = 10;
const WARM_UP_S_DEFAULT = 1;
const TIMEOUT_MS_DEFAULT = 10_000;
const TIMEOUT_MS_MAX = 86_400_000;
const ROWS_MAX = 1_000_000;
const SEED_MAX = 2 ** 32 - 1;
const FACTOR_MAX = 10_000;

/** One run: so many clients, or these arrivals. */
export type Load =
  | { readonly concurrency: number }
  | { readonly plan: ArrivalPlan; readonly ratePerS: number; readonly connectionsMax: number };

export interface BenchOptions {
  /** At least one, all of the same kind. */
  readonly loads: readonly Load[];
  /** `closed loop`, or how arrivals are made. */
  readonly loadText: string;
  readonly limits: RunLimits;
  readonly request: RequestOptions;
  readonly failConditions: readonly FailCondition[];
  readonly seed: number;
}

export interface RequestOptions {
  /** Of made-up inputs; undefined where it was not given. */
  readonly rows: number | undefined;
  readonly shapes: readonly string[];
  readonly inputs: readonly string[];
  readonly contents: Contents;
  readonly binary: boolean;
  readonly deadlineMs: number | undefined;
  readonly headers: readonly (readonly [string, string])[];
}

/** @throws ExitError USAGE for values and combinations that make no sense */
export function readBenchOptions(args: CommandArguments, cwd: string): BenchOptions {
  const seed = wholeNumber(lastText(args.seed), '--seed', SEED_MAX) ?? 1;
  const sloMs = optionalDecimal(args['slo-ms'], '--slo-ms', TIMEOUT_MS_MAX);
  const { loads, loadText } = readLoads(args, seed, cwd);
  const failConditions = allTexts(args['fail-if']).map(readCondition);
  if (sloMs === undefined && failConditions.some(({ figure }) => figure === 'goodput')) {
    throw new ExitError('USAGE', '--fail-if goodput needs --slo-ms');
  }
  return {
    loads,
    loadText,
    limits: { ...readLimits(args), sloMs },
    request: readRequest(args),
    failConditions,
    seed,
  };
}

function readLoads(args: CommandArguments, seed: number, cwd: string): Pick<BenchOptions, 'loads' | 'loadText'> {
  const [concurrency, rate, trace] = [lastText(args.concurrency), lastText(args.rate), lastText(args.trace)];
  const isOpen = rate !== undefined || trace !== undefined;
  if (concurrency !== undefined && isOpen) {
    throw new ExitError('USAGE', '--concurrency is a closed loop, --rate and --trace are open ones; choose one');
  }
  for (const option of ['arrivals', 'burst', 'connections']) {
    if (args[option] !== undefined && !isOpen) throw new ExitError('USAGE', `--${option} needs --rate or --trace`);
  }
  for (const option of ['arrivals', 'burst']) {
    if (args[option] !== undefined && trace !== undefined) {
      throw new ExitError('USAGE', `--${option} and --trace exclude each other`);
    }
  }
  if (!isOpen) {
    const clients = list(concurrency ?? '1').map((text) => wholeNumber(text, '--concurrency', CONCURRENCY_MAX)!);
    return { loads: clients.map((count) => ({ concurrency: count })), loadText: 'closed loop' };
  }
  const connectionsMax = wholeNumber(lastText(args.connections), '--connections', 65_535) ?? CONNECTIONS_DEFAULT;
  const rates =
    rate === undefined ? [] : list(rate).map((text) => decimal(text, '--rate', { above: 0, max: RATE_MAX }));
  if (trace !== undefined) return tracedLoads(trace, rates, connectionsMax, cwd);
  const kind = lastText(args.arrivals) === 'constant' ? 'constant' : 'poisson';
  const burst = readBurst(lastText(args.burst));
  const loads = rates.map((ratePerS) => ({ plan: { kind, ratePerS, seed, burst }, ratePerS, connectionsMax }) as const);
  const bursts =
    burst === undefined
      ? ''
      : `, ${burst.factor} times as many for ${burst.onMs / 1000} s of ${burst.everyMs / 1000} s`;
  return { loads, loadText: `open loop, ${kind} arrivals${bursts}` };
}

function tracedLoads(
  file: string,
  rates: readonly number[],
  connectionsMax: number,
  cwd: string,
): Pick<BenchOptions, 'loads' | 'loadText'> {
  const timesMs = traceTimes(file, cwd);
  const recordedPerS = ((timesMs.length - 1) / timesMs.at(-1)!) * 1000;
  if (rates.length > 0 && !Number.isFinite(recordedPerS)) {
    throw new ExitError(
      'USAGE',
      `--rate: the times in ${file} do not differ, so they have no rate that could be changed`,
    );
  }
  const wanted = rates.length > 0 ? rates : [recordedPerS];
  const loads = wanted.map((ratePerS) => ({
    plan: { kind: 'trace', timesMs, stretch: rates.length > 0 ? recordedPerS / ratePerS : 1 } as const,
    ratePerS,
    connectionsMax,
  }));
  return { loads, loadText: `open loop, arrivals of ${file}` };
}

function traceTimes(file: string, cwd: string): Float64Array {
  try {
    return readTrace(resolve(cwd, file));
  } catch (error) {
    throw new ExitError('USAGE', `--trace ${file}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function readBurst(text: string | undefined): Burst | undefined {
  if (text === undefined) return undefined;
  const [factor, onS, everyS, ...rest] = text.split(':');
  if (everyS === undefined || rest.length > 0) {
    throw new ExitError('USAGE', `--burst: ${JSON.stringify(text)} is not FACTOR:SECONDS:EVERY, such as 10:1:10`);
  }
  const seconds = { above: 0, max: SECONDS_MAX };
  const burst = {
    factor: decimal(factor!, '--burst FACTOR', { above: 0, max: FACTOR_MAX }),
    onMs: 1000 * decimal(onS!, '--burst SECONDS', seconds),
    everyMs: 1000 * decimal(everyS, '--burst EVERY', seconds),
  };
  if (burst.onMs >= burst.everyMs) throw new ExitError('USAGE', '--burst: a burst must be shorter than its period');
  return burst;
}

function readLimits(args: CommandArguments): Omit<RunLimits, 'sloMs'> {
  const requests = wholeNumber(lastText(args.requests), '--requests', REQUESTS_MAX);
  const durationS = optionalDecimal(args['duration-s'], '--duration-s', SECONDS_MAX);
  const isTrace = args.trace !== undefined;
  const endsOtherwise = requests !== undefined || isTrace;
  const warmUp = lastText(args['warm-up-s']);
  // Whoever counts requests, or replays recorded ones, expects no others.
  const warmUpS =
    warmUp === undefined
      ? endsOtherwise
        ? 0
        : WARM_UP_S_DEFAULT
      : warmUp === '0'
        ? 0
        : decimal(warmUp, '--warm-up-s', { above: 0, max: SECONDS_MAX });
  const durationMs = durationS === undefined ? undefined : 1000 * durationS;
  return {
    warmUpMs: 1000 * warmUpS,
    durationMs: durationMs ?? (endsOtherwise ? Number.POSITIVE_INFINITY : 1000 * DURATION_S_DEFAULT),
    requests: requests ?? Number.POSITIVE_INFINITY,
    timeoutMs: wholeNumber(lastText(args['timeout-ms']), '--timeout-ms', TIMEOUT_MS_MAX) ?? TIMEOUT_MS_DEFAULT,
  };
}

function readRequest(args: CommandArguments): RequestOptions {
  return {
    rows: wholeNumber(lastText(args.rows), '--rows', ROWS_MAX),
    shapes: allTexts(args.shape),
    inputs: allTexts(args.input),
    contents: lastText(args.data) === 'zeros' ? 'zeros' : 'random',
    binary: lastText(args.format) !== 'json',
    deadlineMs: optionalDecimal(args['deadline-ms'], '--deadline-ms', TIMEOUT_MS_MAX),
    headers: allTexts(args.header).map(readHeader),
  };
}

function readHeader(text: string): readonly [string, string] {
  const match = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)$/.exec(text);
  if (match === null) throw new ExitError('USAGE', `--header: ${JSON.stringify(text)} is not NAME: VALUE`);
  const [, name, value] = match;
  if (
    /^(host|content-length|content-type|transfer-encoding|connection|inference-header-content-length)$/i.test(name!)
  ) {
    throw new ExitError('USAGE', `--header: ${name} is made by this command itself`);
  }
  return [name!, value!];
}

function readCondition(text: string): FailCondition {
  const condition = parseFailCondition(text);
  if (condition !== undefined) return condition;
  throw new ExitError('USAGE', `--fail-if: ${JSON.stringify(text)} is no condition such as "p99>50"`, {
    hint: `a figure, > or <, a number; figures: ${FIGURE_NAMES.join(', ')}`,
  });
}

function optionalDecimal(value: unknown, option: string, max: number): number | undefined {
  const text = lastText(value);
  return text === undefined ? undefined : decimal(text, option, { above: 0, max });
}

function list(text: string): string[] {
  return text.split(',').map((part) => part.trim());
}
