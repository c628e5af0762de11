/**
 * The results of `bench` for people, the same as JSON, and the line that tells how a run is getting on.
 *
 * Times are in ms with three significant digits; a percentile that too few answers stand behind is left out.
 */
import { type LatencySummary, PERCENTILES, type Percentile } from '../load/latencies.ts';
import type { RunProgress, RunResult } from '../load/run.ts';
import type { BenchOptions, Load } from './bench-options.ts';
import { printable } from './terminal.ts';
import { type Column, cutLine, renderTable } from './text-table.ts';

/** Beyond these the generator is a part of what it measures. */
const LATE_MS_MAX = 1;
const BUSY_MAX = 0.9;
const SAMPLE_LENGTH_MAX = 70;

export interface FinishedRun {
  readonly load: Load;
  readonly result: RunResult;
}

/** What is the same in all runs. */
export interface BenchFacts {
  readonly model: string;
  readonly modelVersion: string | undefined;
  readonly url: string;
  readonly server: { readonly name: string; readonly version: string };
  readonly rows: number;
  readonly bodyBytes: number;
  readonly inputs: readonly { readonly name: string; readonly datatype: string; readonly shape: readonly number[] }[];
  readonly options: BenchOptions;
}

export function headingText({ model, url, server, rows, bodyBytes, options }: BenchFacts): string {
  const { loadText, limits, request } = options;
  const { warmUpMs, durationMs, requests } = limits;
  const bounds = [
    ...(Number.isFinite(durationMs) ? [`${durationMs / 1000} s`] : []),
    ...(Number.isFinite(requests) ? [`${requests} requests`] : []),
  ];
  const parts = [
    `${rows} ${rows === 1 ? 'row' : 'rows'} and ${bodyBytes} bytes of ${request.binary ? 'binary' : 'JSON'} a request`,
    loadText,
    ...(bounds.length === 0 ? [] : [`${bounds.join(' or ')} a run`]),
    ...(warmUpMs > 0 ? [`after ${warmUpMs / 1000} s of warm-up`] : []),
  ];
  const who = server.name === '' ? '' : ` (${server.name} ${server.version})`;
  return `${printable(`${model} at ${url}${who}`)}\n${printable(parts.join(', '))}\n`;
}

/** Tables of all runs, each with a line end; latencies are from the intended time of sending. */
export function resultText(runs: readonly FinishedRun[], facts: BenchFacts, widthMax: number | undefined): string {
  return [latencyTable(runs, facts, widthMax), otherTable(runs, widthMax), generatorTable(runs, widthMax)]
    .filter((text) => text !== '')
    .join('\n');
}

function latencyTable(
  runs: readonly FinishedRun[],
  { rows, options }: BenchFacts,
  widthMax: number | undefined,
): string {
  const hasSlo = options.limits.sloMs !== undefined;
  const columns = [
    loadTitle(runs),
    'OK/S',
    ...(hasSlo ? ['GOOD/S'] : []),
    ...(rows > 1 ? ['ROWS/S'] : []),
    'MEAN',
    ...PERCENTILES.map((percentile) => `P${percentile}`),
    'MAX',
    'OK',
    'NOT OK',
  ];
  const cells = runs.map(({ load, result }) => {
    const { ok, okPerS, goodPerS, requests } = result;
    return [
      loadValue(load),
      rateText(okPerS),
      ...(goodPerS === undefined ? [] : [rateText(goodPerS)]),
      ...(rows > 1 ? [rateText(okPerS * rows)] : []),
      ...distribution(ok),
      String(ok.count),
      String(requests - ok.count),
    ];
  });
  const slo = hasSlo ? `, GOOD/S: within ${options.limits.sloMs} ms` : '';
  return `${renderTable(numeric(columns), cells, widthMax)}${cutLine(`ms from the intended time of sending${slo}`, widthMax)}\n`;
}

function otherTable(runs: readonly FinishedRun[], widthMax: number | undefined): string {
  const rows = runs.flatMap(({ load, result }) =>
    result.otherOutcomes.map(({ name, count, latency, sample }) => [
      loadValue(load),
      name,
      String(count),
      msText(latency.percentilesMs.get(50)),
      msText(latency.percentilesMs.get(99)),
      msText(latency.maxMs),
      shortened(sample),
    ]),
  );
  if (rows.length === 0) return '';
  const columns = [
    ...numeric([loadTitle(runs), 'NOT OK', 'COUNT', 'P50', 'P99', 'MAX']),
    { title: 'THE FIRST ONE SAID' },
  ];
  return renderTable(columns, rows, widthMax);
}

function generatorTable(runs: readonly FinishedRun[], widthMax: number | undefined): string {
  const isOpen = runs.some(({ load }) => 'plan' in load);
  const columns = [loadTitle(runs), ...(isOpen ? ['SENT LATE P50', 'P99', 'MAX'] : []), 'CPU US/REQUEST', 'BUSY'];
  const rows = runs.map(({ load, result: { lateness, generator } }) => [
    loadValue(load),
    ...(isOpen
      ? [msText(lateness.percentilesMs.get(50)), msText(lateness.percentilesMs.get(99)), msText(lateness.maxMs)]
      : []),
    String(Math.round(generator.cpuUsPerRequest)),
    `${Math.round(generator.busy * 100)} %`,
  ]);
  const warnings = runs.flatMap(({ load, result }) => generatorWarnings(load, result));
  return `${cutLine("the load generator's own part", widthMax)}\n${renderTable(numeric(columns), rows, widthMax)}${warnings
    .map((warning) => `warning: ${warning}\n`)
    .join('')}`;
}

function generatorWarnings(load: Load, { lateness, generator }: RunResult): string[] {
  const at = `at ${loadValue(load)}`;
  const lateMs = lateness.percentilesMs.get(99) ?? lateness.maxMs;
  const late = 'plan' in load && lateMs > LATE_MS_MAX;
  const busy = generator.busy > BUSY_MAX;
  return [
    ...(late ? [`${at} requests were sent up to ${msText(lateMs)} ms late, which is part of their latency`] : []),
    ...(busy
      ? [`${at} this generator was busy ${Math.round(generator.busy * 100)} % of the time; the server may be faster`]
      : []),
  ];
}

function distribution({ count, meanMs, maxMs, percentilesMs }: LatencySummary): string[] {
  if (count === 0) return ['-', ...PERCENTILES.map(() => '-'), '-'];
  return [msText(meanMs), ...PERCENTILES.map((percentile) => msText(percentilesMs.get(percentile))), msText(maxMs)];
}

function loadTitle([first]: readonly FinishedRun[]): string {
  return first !== undefined && 'plan' in first.load ? 'RATE' : 'CLIENTS';
}

export function loadValue(load: Load): string {
  return 'plan' in load ? String(Number(load.ratePerS.toPrecision(6))) : String(load.concurrency);
}

function numeric(titles: readonly string[]): Column[] {
  return titles.map((title) => ({ title, align: 'right' }));
}

/** Three significant digits, no more decimals than microseconds. */
export function msText(ms: number | undefined): string {
  if (ms === undefined) return '-';
  if (ms >= 100) return ms.toFixed(0);
  return ms.toFixed(ms >= 10 ? 1 : ms >= 1 ? 2 : 3);
}

function rateText(perS: number): string {
  return perS.toFixed(perS >= 1000 ? 0 : perS >= 10 ? 1 : 2);
}

function shortened(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ').trim();
  return line.length <= SAMPLE_LENGTH_MAX ? line : `${line.slice(0, SAMPLE_LENGTH_MAX - 1)}…`;
}

/** One line, no longer than the terminal is wide. */
export function progressText(
  load: Load,
  { elapsedMs, tally, inFlight }: RunProgress,
  { limits }: BenchOptions,
  columns: number,
): string {
  const { warmUpMs, durationMs } = limits;
  const elapsedS = Math.max(0, (elapsedMs - warmUpMs) / 1000);
  const of = Number.isFinite(durationMs) ? ` of ${durationMs / 1000} s` : ' s';
  const name = 'plan' in load ? `rate ${loadValue(load)}` : `${loadValue(load)} clients`;
  const parts = [
    name,
    elapsedMs < warmUpMs ? 'warm-up' : `${elapsedS.toFixed(0)}${of}`,
    `${tally.ok.count} ok`,
    `${tally.otherCount} not`,
    `p50 ${msText(tally.ok.percentileMs(50))} ms`,
    `p99 ${msText(tally.ok.percentileMs(99))} ms`,
    `${inFlight} under way`,
  ];
  return cutLine(parts.join('  '), Math.max(1, columns - 1));
}

/** Everything, for scripts: keys in snake case as in the protocol, null for what is not known. */
export function resultJson(runs: readonly FinishedRun[], facts: BenchFacts): string {
  const { options } = facts;
  const { limits, request } = options;
  const json = {
    model: facts.model,
    model_version: facts.modelVersion ?? null,
    url: facts.url,
    server: facts.server,
    request: {
      rows: facts.rows,
      body_bytes: facts.bodyBytes,
      format: request.binary ? 'binary' : 'json',
      deadline_ms: request.deadlineMs ?? null,
      inputs: facts.inputs.map(({ name, datatype, shape }) => ({ name, datatype, shape })),
    },
    load: options.loadText,
    seed: options.seed,
    warm_up_s: limits.warmUpMs / 1000,
    timeout_ms: limits.timeoutMs,
    slo_ms: limits.sloMs ?? null,
    runs: runs.map(({ load, result }) => runJson(load, result)),
  };
  return `${JSON.stringify(json, undefined, 2)}\n`;
}

function runJson(load: Load, result: RunResult) {
  return {
    ...('plan' in load ? { rate: load.ratePerS } : { concurrency: load.concurrency }),
    measured_s: result.measuredMs / 1000,
    requests: result.requests,
    ok: result.ok.count,
    ok_per_s: result.okPerS,
    good: result.goodCount ?? null,
    goodput_per_s: result.goodPerS ?? null,
    latency_ms: summaryJson(result.ok),
    not_ok: result.otherOutcomes.map(({ name, count, latency, sample }) => ({
      outcome: name,
      count,
      latency_ms: summaryJson(latency),
      sample,
    })),
    generator: {
      sent_late_ms: summaryJson(result.lateness),
      cpu_us_per_request: result.generator.cpuUsPerRequest,
      busy: result.generator.busy,
    },
    interrupted: result.interrupted,
  };
}

function summaryJson({ count, meanMs, maxMs, percentilesMs }: LatencySummary) {
  const named = [...percentilesMs].map(([percentile, ms]: readonly [Percentile, number | undefined]) => [
    `p${percentile}`,
    ms ?? null,
  ]);
  return { count, mean: count === 0 ? null : meanMs, ...Object.fromEntries(named), max: count === 0 ? null : maxMs };
}
