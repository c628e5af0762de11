/**
 * `tune`: measures what runs of a served model cost, simulates the traffic it is to take, and tells the settings that keep its latency at the least cost.
 *
 * The server is one of batchport that runs already, and serves nobody else meanwhile; nothing of it is changed. See src/tune for what is measured and simulated.
 */
import type { ModelMetadata } from '../client/metadata.ts';
import { EXIT, ExitError } from '../config/exit-codes.ts';
import { makeTarget } from '../load/target.ts';
import { advise, capacityPerS, sweep } from '../tune/advisor.ts';
import { MeasurementFault, measureCosts } from '../tune/measure.ts';
import { type RunCounters, readRunCounters } from '../tune/run-counters.ts';
import { type BenchOptions, type Load, readBenchOptions } from './bench-options.ts';
import { makeRequest } from './bench-request.ts';
import { specsOf, withClient } from './client-call.ts';
import { type Command, lastText, valueOption } from './command.ts';
import { decimal } from './number-option.ts';
import { serverUrl } from './server-url.ts';
import { printable, type Terminal } from './terminal.ts';
import { tuneJson, tuneText } from './tune-report.ts';

const SCRAPE_LIMIT_MS = 10_000;
const MEASURE_S_MAX = 3600;
const REQUESTS = 30_000;
const REQUESTS_MAX = 300_000;
/** Simulated time, so that slow rates and rare bursts are seen often enough. */
const BURSTS = 10;
const RATE_FACTORS = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3] as const;
/** A larger batch than runs for this share of the objective could not wait for another one. */
const RUN_RATIO = 0.5;

export const tuneCommand: Command = {
  name: 'tune',
  usage: 'tune <model>',
  describe: 'Find settings of a served model that meet an objective, by measuring and simulating it',
  positionals: { model: { describe: 'Name of the model on a running server of batchport' } },
  options: {
    'slo-ms': valueOption('Objective: time in which requests are to be answered, all but one in 1000 (needed)'),
    rate: valueOption('Requests a second to be served (needed, but for --trace)', { alias: 'r' }),
    arrivals: valueOption('How they come', { choices: ['poisson', 'constant'], defaultDescription: 'poisson' }),
    burst: valueOption('FACTOR:SECONDS:EVERY: FACTOR times the rate in the last SECONDS of EVERY seconds'),
    trace: valueOption('File with a time in seconds on each line: recorded arrivals; --rate changes the tempo'),
    rows: valueOption('Rows of a request', { defaultDescription: '1' }),
    shape: valueOption('NAME:DIM,DIM,… of a made-up input with open dimensions; may be repeated'),
    input: valueOption('[NAME=]FILE.npy, FILE.json or JSON of an input without rows; may be repeated', { alias: 'i' }),
    url: valueOption('Address of the server', {
      defaultDescription: 'the server that runs here, else http://127.0.0.1:8000',
    }),
    'metrics-url': valueOption('Address of its metrics, with --url'),
    'model-version': valueOption('Version of the model', { defaultDescription: 'the highest' }),
    'measure-s': valueOption('Time to measure each size of a batch for', { defaultDescription: '1' }),
    seed: valueOption('Seed of arrivals and made-up inputs', { defaultDescription: '1' }),
    json: { description: 'Print the results as JSON', type: 'boolean' },
  },
  examples: [
    ['tune mnist --rate 500 --slo-ms 50', 'Settings for 500 requests a second within 50 ms'],
    ['tune mnist --rate 100 --burst 10:1:10 --slo-ms 100', 'With ten times as many for one second out of ten'],
    ['tune ocr --shape x:1,3,48,320 --trace arrivals.txt --slo-ms 200', 'Recorded arrivals'],
  ],
  run: async (args, terminal) => {
    const options = readBenchOptions(args, terminal.cwd);
    const load = onlyLoad(options);
    const { sloMs } = options.limits;
    if (sloMs === undefined) throw new ExitError('USAGE', 'tune needs --slo-ms');
    const sizeMs = 1000 * decimal(lastText(args['measure-s']) ?? '1', '--measure-s', { above: 0, max: MEASURE_S_MAX });
    const { url, metricsUrl } = addresses(lastText(args.url), lastText(args['metrics-url']), terminal);
    const model = lastText(args.model)!;
    const metadata = await askMetadata(url, model, lastText(args['model-version']));
    const version = lastText(args['model-version']) ?? highest(metadata.versions);
    const rowsPerRequest = options.request.rows ?? 1;

    const counters = () => scrape(metricsUrl, model, version);
    const costs = await measured(terminal, (progress) =>
      measureCosts({
        target: (rows) => targetOf(url, model, version, metadata, rows, options, terminal),
        counters,
        sizeMs,
        runMsMax: sloMs * RUN_RATIO,
        rowsPerRequest,
        progress,
      }),
    );
    const { maxBatchSize } = await counters();
    if (rowsPerRequest > Math.max(1, maxBatchSize)) {
      throw new ExitError('USAGE', `--rows: the model takes ${Math.max(1, maxBatchSize)} at most`);
    }
    const objective = {
      sloMs,
      plan: load.plan,
      rowsPerRequest,
      instancesMax: costs.slowdown.length,
      maxBatchSize: Math.min(maxBatchSize, costs.rowsMax),
      endMs: simulatedMs(load),
      requestsMax: REQUESTS_MAX,
      seed: options.seed,
    };
    const advice = advise(costs, objective);
    const rates = sweep(costs, objective, advice.best.settings, load.ratePerS, RATE_FACTORS);
    const facts = {
      model,
      version,
      url,
      loadText: options.loadText,
      ratePerS: load.ratePerS,
      objective,
      costs,
      advice,
      rates,
      capacityPerS: capacityPerS(costs, advice.best.settings),
    };
    terminal.out(args.json === true ? tuneJson(facts) : tuneText(facts, terminal.columns));
    return advice.best.meets ? EXIT.OK.code : EXIT.OBJECTIVE.code;
  },
};

function onlyLoad({ loads }: BenchOptions): Extract<Load, { plan: unknown }> {
  const [load] = loads;
  if (load === undefined || !('plan' in load)) throw new ExitError('USAGE', 'tune needs --rate or --trace');
  if (loads.length > 1) throw new ExitError('USAGE', '--rate: one rate, for which the settings are to be');
  return load;
}

function addresses(url: string | undefined, metricsUrl: string | undefined, terminal: Terminal) {
  if ((url === undefined) !== (metricsUrl === undefined)) {
    throw new ExitError('USAGE', '--url and --metrics-url belong together: what runs cost is read from the metrics');
  }
  return { url: serverUrl(url, 'http', terminal), metricsUrl: serverUrl(metricsUrl, 'metrics', terminal) };
}

function askMetadata(url: string, model: string, version: string | undefined): Promise<ModelMetadata> {
  const which = version === undefined ? {} : { version };
  return withClient(url, { retry: false }, (client) => client.modelMetadata(model, which));
}

/** Versions are whole numbers; the server answers with the highest where none is named. */
function highest(versions: readonly string[]): string {
  return versions.reduce((one, other) => (Number(other) > Number(one) ? other : one), versions[0] ?? '1');
}

function targetOf(
  url: string,
  model: string,
  version: string,
  { inputs }: ModelMetadata,
  rows: number,
  { request, seed }: BenchOptions,
  { cwd }: Terminal,
) {
  // One row is what a model without rows takes, too.
  const asked = { ...request, rows: rows === 1 ? undefined : rows };
  const { headers, body } = makeRequest(specsOf(inputs), asked, seed, cwd);
  const path = `/v2/models/${encodeURIComponent(model)}/versions/${encodeURIComponent(version)}/infer`;
  return makeTarget(url, path, headers, body);
}

async function scrape(metricsUrl: string, model: string, version: string): Promise<RunCounters> {
  let text: string;
  try {
    const answer = await fetch(`${metricsUrl}/metrics`, { signal: AbortSignal.timeout(SCRAPE_LIMIT_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    text = await answer.text();
  } catch (error) {
    const { cause, message } = error as Error;
    const reason = cause instanceof Error ? cause.message : message;
    throw new ExitError('UNAVAILABLE', `no metrics from ${metricsUrl}: ${printable(reason)}`, { cause: error });
  }
  const counters = readRunCounters(text, model, version);
  if (counters !== undefined) return counters;
  throw new ExitError(
    'UNAVAILABLE',
    `${metricsUrl} tells nothing of ${printable(model)} version ${printable(version)}`,
    {
      hint: 'only servers of batchport can be tuned',
    },
  );
}

/** With a line on the terminal that says what is being measured. */
async function measured<T>(terminal: Terminal, measure: (progress: (text: string) => void) => Promise<T>): Promise<T> {
  const isLive = terminal.errColumns !== undefined;
  const show = (text: string) => {
    if (isLive) terminal.err(`\r\x1b[Kmeasuring ${text}`);
  };
  try {
    return await measure(show);
  } catch (error) {
    if (error instanceof MeasurementFault) throw new ExitError('FAILURE', printable(error.message), { cause: error });
    throw error;
  } finally {
    if (isLive) terminal.err('\r\x1b[K');
  }
}

function simulatedMs({ plan, ratePerS }: Extract<Load, { plan: unknown }>): number {
  if (plan.kind === 'trace') return Number.POSITIVE_INFINITY;
  return Math.max((REQUESTS / ratePerS) * 1000, BURSTS * (plan.burst?.everyMs ?? 0));
}
