/**
 * `bench`: load on a model of any server of the protocol, one run after another, and what came of it.
 *
 * The request is made by the server's own metadata and is sent once before the first run: what is wrong with it shows there. From Ctrl-C on no run is begun,
 * and what has been measured is printed; a second Ctrl-C ends the command at once.
 */
import { EXIT, ExitError } from '../config/exit-codes.ts';
import type { Target } from '../load/connection.ts';
import { metBy } from '../load/fail-condition.ts';
import { type RunHooks, type RunResult, runClosedLoop, runOpenLoop } from '../load/run.ts';
import { makeTarget, sendOne } from '../load/target.ts';
import { type BenchOptions, type Load, readBenchOptions } from './bench-options.ts';
import {
  type BenchFacts,
  type FinishedRun,
  headingText,
  loadValue,
  progressText,
  resultJson,
  resultText,
} from './bench-report.ts';
import { makeRequest } from './bench-request.ts';
import { specsOf, withClient } from './client-call.ts';
import { type Command, lastText, valueOption } from './command.ts';
import { serverUrl } from './server-url.ts';
import { printable, type Terminal } from './terminal.ts';

const PROGRESS_EVERY_MS = 250;
/** Answers that say that the request itself is wrong: no load will change them. */
const WRONG_REQUEST = new Set([400, 401, 403, 404, 405, 411, 413, 415, 422, 501]);

export const benchCommand: Command = {
  name: 'bench',
  usage: 'bench <model>',
  describe: 'Measure a model under load, on any server of the Open Inference Protocol',
  positionals: { model: { describe: 'Name of the model on the server' } },
  options: {
    url: valueOption('Address of the server', {
      defaultDescription: 'the server that runs here, else http://127.0.0.1:8000',
    }),
    'model-version': valueOption('Version of the model', { defaultDescription: 'chosen by the server' }),
    concurrency: valueOption('Closed loop: clients that send when they have their answer; N,N,… for a run each', {
      alias: 'c',
      defaultDescription: '1',
    }),
    rate: valueOption('Open loop: requests a second, whatever the server does; R,R,… for a run each', { alias: 'r' }),
    arrivals: valueOption('Arrivals of the open loop', {
      choices: ['poisson', 'constant'],
      defaultDescription: 'poisson',
    }),
    burst: valueOption('FACTOR:SECONDS:EVERY: FACTOR times the rate in the last SECONDS of EVERY seconds'),
    trace: valueOption('File with a time in seconds on each line, to send at those times; --rate changes the tempo'),
    'duration-s': valueOption('Measured time of a run', { defaultDescription: '10' }),
    requests: valueOption('Measured requests of a run at most'),
    'warm-up-s': valueOption('Time before it that does not count', {
      defaultDescription: '1, or 0 with --requests or --trace',
    }),
    rows: valueOption('Rows of a request', { defaultDescription: '1' }),
    shape: valueOption('NAME:DIM,DIM,… of a made-up input with open dimensions; may be repeated'),
    input: valueOption('[NAME=]FILE.npy, FILE.json or JSON to send, as for infer; the others are made up', {
      alias: 'i',
    }),
    data: valueOption('What made-up inputs hold', { choices: ['random', 'zeros'], defaultDescription: 'random' }),
    format: valueOption('How tensors travel', { choices: ['binary', 'json'], defaultDescription: 'binary' }),
    header: valueOption('Further header, NAME: VALUE; may be repeated'),
    'deadline-ms': valueOption('Deadline that the server is told, as the timeout parameter of the protocol'),
    'timeout-ms': valueOption('Give a request up after this time', { defaultDescription: '10000' }),
    'slo-ms': valueOption('Objective: answers within this time are good'),
    'fail-if': valueOption(`Exit with ${EXIT.OBJECTIVE.code} if a run comes out so, such as "p99>50"; may be repeated`),
    connections: valueOption('Open loop: connections at most', { defaultDescription: '2000' }),
    seed: valueOption('Seed of arrivals and made-up inputs', { defaultDescription: '1' }),
    json: { description: 'Print the results as JSON', type: 'boolean' },
  },
  examples: [
    ['bench mnist -c 1,4,16,64', 'One to 64 clients, each waiting for its answers'],
    ['bench mnist --rate 200,400,800 --slo-ms 100', 'Poisson arrivals; how many are answered within 100 ms'],
    ['bench mnist --rate 100 --burst 10:1:10', 'Ten times the rate for one second out of ten'],
    ['bench mnist --trace arrivals.txt --url http://triton:8000', 'Recorded arrivals, another server'],
    ['bench ocr --shape x:1,3,48,320 --rate 50 --fail-if "p99>100"', 'A model of any width; a test for scripts'],
  ],
  run: async (args, terminal) => {
    const options = readBenchOptions(args, terminal.cwd);
    const model = lastText(args.model)!;
    const version = lastText(args['model-version']);
    const url = serverUrl(lastText(args.url), 'http', terminal);
    const { target, facts } = await prepare(model, version, url, options, terminal);

    const runs = await runAll(target, options, facts, terminal);
    const asText = () => `${headingText(facts)}\n${resultText(runs, facts, terminal.columns)}`;
    terminal.out(args.json === true ? resultJson(runs, facts) : asText());
    return judge(runs, options, terminal);
  },
};

/** Asks the server about the model, makes the request, and sends it once. */
async function prepare(
  model: string,
  version: string | undefined,
  url: string,
  options: BenchOptions,
  terminal: Terminal,
): Promise<{ target: Target; facts: BenchFacts }> {
  const { timeoutMs } = options.limits;
  const headers = Object.fromEntries(options.request.headers);
  const asked = await withClient(url, { retry: false, timeoutMs, headers }, async (client) => {
    const metadata = await client.modelMetadata(model, version === undefined ? {} : { version });
    // Only named in the results.
    const server = await client.serverMetadata().catch(() => ({ name: '', version: '' }));
    return { metadata, server, baseUrl: client.url };
  });
  const { metadata, server, baseUrl } = asked;
  const {
    body,
    rows,
    inputs,
    headers: all,
  } = makeRequest(specsOf(metadata.inputs), options.request, options.seed, terminal.cwd);
  const versionPath = version === undefined ? '' : `/versions/${encodeURIComponent(version)}`;
  const target = makeTarget(baseUrl, `/v2/models/${encodeURIComponent(model)}${versionPath}/infer`, all, body);
  const facts = { model, modelVersion: version, url, server, rows, bodyBytes: body.length, inputs, options };
  return { target: { ...target, host: await tryOnce(target, timeoutMs, url) }, facts };
}

/** @returns the server's address, so that no run looks the name up again */
async function tryOnce(target: Target, timeoutMs: number, url: string): Promise<string> {
  const { status, text, address } = await sendOne(target, timeoutMs);
  if (status !== undefined && WRONG_REQUEST.has(status)) {
    throw new ExitError('REFUSED', `the server answered ${status} to the first request: ${printable(text)}`);
  }
  if (address === undefined && status === undefined && /^E[A-Z]+$/.test(text)) {
    throw new ExitError('UNAVAILABLE', `no answer from ${url}: ${text}`);
  }
  return address ?? target.host;
}

async function runAll(
  target: Target,
  options: BenchOptions,
  { model }: BenchFacts,
  terminal: Terminal,
): Promise<FinishedRun[]> {
  const interrupt = new AbortController();
  const onInterrupt = () => interrupt.abort();
  process.once('SIGINT', onInterrupt);
  const runs: FinishedRun[] = [];
  try {
    for (const load of options.loads) {
      if (interrupt.signal.aborted) break;
      const hooks = { signal: interrupt.signal, ...progressOf(load, options, terminal) };
      runs.push({ load, result: await runOne(target, load, options, hooks) });
    }
  } finally {
    process.removeListener('SIGINT', onInterrupt);
  }
  if (interrupt.signal.aborted)
    terminal.err(`interrupted: ${printable(model)} was measured for less time than asked\n`);
  return runs;
}

function runOne(target: Target, load: Load, { limits }: BenchOptions, hooks: RunHooks): Promise<RunResult> {
  if ('plan' in load) return runOpenLoop(target, limits, load.plan, load.connectionsMax, hooks);
  return runClosedLoop(target, limits, load.concurrency, hooks);
}

/** A line that is written over; nothing where stderr is no terminal. */
function progressOf(load: Load, options: BenchOptions, terminal: Terminal): Pick<RunHooks, 'progress'> {
  const columns = terminal.errColumns;
  if (columns === undefined) return {};
  return {
    progress: {
      everyMs: PROGRESS_EVERY_MS,
      show: (progress) => terminal.err(`\r\x1b[K${progressText(load, progress, options, columns)}`),
      end: () => terminal.err('\r\x1b[K'),
    },
  };
}

/** The exit code: whether a condition that was asked about is met. */
function judge(runs: readonly FinishedRun[], { failConditions }: BenchOptions, terminal: Terminal): number {
  const failures = runs.flatMap(({ load, result }) =>
    failConditions.flatMap((condition) => {
      const reason = metBy(condition, result);
      return reason === undefined ? [] : [`${condition.text} at ${loadValue(load)}: ${reason}`];
    }),
  );
  for (const failure of failures) terminal.err(`failed: ${failure}\n`);
  return failures.length > 0 ? EXIT.OBJECTIVE.code : EXIT.OK.code;
}
