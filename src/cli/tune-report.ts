/** What `tune` found, for people and as JSON: the cost of runs, latency by rate as a chart, and the settings. */
import type { Advice, Objective, Rate } from '../tune/advisor.ts';
import type { CostModel } from '../tune/cost-model.ts';
import type { Settings, SimulationResult } from '../tune/simulator.ts';
import { bar } from './bar-chart.ts';
import { msText } from './bench-report.ts';
import { printable } from './terminal.ts';
import { type Column, renderTable } from './text-table.ts';

const BAR_WIDTH = 40;

export interface TuneFacts {
  readonly model: string;
  readonly version: string;
  readonly url: string;
  readonly loadText: string;
  readonly ratePerS: number;
  readonly objective: Objective;
  readonly costs: CostModel;
  readonly advice: Advice;
  /** The advised settings at other rates. */
  readonly rates: readonly Rate[];
  readonly capacityPerS: number;
}

export function tuneText(facts: TuneFacts, widthMax: number | undefined): string {
  const { model, version, url, loadText, ratePerS, objective, advice } = facts;
  const { best } = advice;
  const rows = objective.rowsPerRequest === 1 ? '1 row' : `${objective.rowsPerRequest} rows`;
  const rate = Number(ratePerS.toPrecision(4));
  const head = printable(
    `${model} version ${version} at ${url}: ${rate} requests/s of ${rows}, ${loadText}, within ${objective.sloMs} ms`,
  );
  const verdict = best.meets
    ? 'settings that meet it at the least cost, for config.json'
    : 'NO SETTINGS MEET IT; those that serve most, for config.json';
  const sections = [
    `${head}\n`,
    costText(facts, widthMax),
    `${verdict}\n${JSON.stringify(configJson(best.settings), undefined, 2)}\n${predictionText(best.result, facts)}`,
    chartText(facts, widthMax),
  ];
  return sections.join('\n');
}

function costText({ costs }: TuneFacts, widthMax: number | undefined): string {
  const sizes = costs.spreads.map((_, n) => 2 ** n);
  const perS = sizes.map((rows, n) => (rows / costs.curveUs[n]!) * 1e6);
  const most = Math.max(...perS);
  const cells = sizes.map((rows, n) => [
    String(rows),
    msText(costs.curveUs[n]! / 1000),
    perS[n]!.toFixed(0),
    bar(perS[n]!, most, BAR_WIDTH),
  ]);
  const columns: Column[] = [...numeric('ROWS', 'MS A RUN', 'ROWS/S'), { title: '' }];
  const several = costs.slowdown
    .slice(1)
    .map((slowdown, index) => `; ${index + 2} instances at a time take ${slowdown.toFixed(2)} times as long`);
  return `${renderTable(columns, cells, widthMax)}beside its run a request takes ${msText(costs.aroundUs / 1000)} ms${several.join('')}\n`;
}

function predictionText(
  { latency, offered, refused, late, busy, meanBatchRows }: SimulationResult,
  { ratePerS, capacityPerS }: TuneFacts,
): string {
  const percentile = (p: 50 | 99) => msText(latency.percentilesMs.get(p) ?? latency.maxMs);
  return [
    `predicted at ${Number(ratePerS.toPrecision(4))}/s: p50 ${percentile(50)} ms, p99 ${percentile(99)} ms`,
    `${share(refused + late, offered)} not served`,
    `${meanBatchRows.toFixed(1)} rows a batch`,
    `instances busy ${Math.round(busy * 100)} %`,
    `at most ${capacityPerS.toFixed(0)} rows/s\n`,
  ].join(', ');
}

function chartText({ rates, objective }: TuneFacts, widthMax: number | undefined): string {
  const scaleMs = 1.25 * objective.sloMs;
  const cells = rates.map(({ ratePerS, result: { latency, offered, refused, late, goodPerS } }) => {
    const p99 = latency.percentilesMs.get(99) ?? latency.maxMs;
    return [
      Number(ratePerS.toPrecision(3)).toString(),
      goodPerS.toFixed(1),
      share(refused + late, offered),
      msText(p99),
      withMark(bar(p99, scaleMs, BAR_WIDTH), Math.round((objective.sloMs / scaleMs) * BAR_WIDTH)),
    ];
  });
  const columns: Column[] = [
    ...numeric('RATE', 'GOOD/S', 'NOT SERVED', 'P99 MS'),
    { title: `│ = ${objective.sloMs} ms` },
  ];
  return `with these settings at other rates\n${renderTable(columns, cells, widthMax)}`;
}

/** The bar with the objective drawn in where it does not reach it. */
function withMark(text: string, at: number): string {
  return text.length > at ? text : `${text.padEnd(at)}│`;
}

/** The keys of a model's config.json. */
export function configJson({ maxBatchSize, maxQueueDelayUs, instances, queueMaxRows, sloMs }: Settings) {
  return {
    max_batch_size: maxBatchSize,
    max_queue_delay_us: maxQueueDelayUs,
    instances: { min: instances, max: instances },
    queue: { max_rows: queueMaxRows },
    slo_ms: sloMs,
  };
}

export function tuneJson(facts: TuneFacts): string {
  const { model, version, url, loadText, ratePerS, objective, costs, advice, rates, capacityPerS } = facts;
  const json = {
    model,
    model_version: version,
    url,
    load: loadText,
    rate: ratePerS,
    rows: objective.rowsPerRequest,
    slo_ms: objective.sloMs,
    costs: {
      run_us_by_rows: Object.fromEntries(costs.spreads.map((_, n) => [2 ** n, costs.curveUs[n]!])),
      around_us: costs.aroundUs,
      slowdown_by_instances: costs.slowdown,
    },
    meets_objective: advice.best.meets,
    config: configJson(advice.best.settings),
    capacity_rows_per_s: capacityPerS,
    predicted: resultJson(advice.best.result),
    by_rate: rates.map(({ ratePerS: rate, result }) => ({ rate, ...resultJson(result) })),
  };
  return `${JSON.stringify(json, undefined, 2)}\n`;
}

function resultJson({ offered, latency, refused, late, goodPerS, busy, meanBatchRows }: SimulationResult) {
  return {
    offered,
    refused,
    late,
    goodput_per_s: goodPerS,
    p50_ms: latency.percentilesMs.get(50) ?? null,
    p99_ms: latency.percentilesMs.get(99) ?? null,
    busy,
    batch_rows: meanBatchRows,
  };
}

function share(part: number, whole: number): string {
  return `${whole === 0 ? 0 : Number(((100 * part) / whole).toPrecision(2))} %`;
}

function numeric(...titles: string[]): Column[] {
  return titles.map((title) => ({ title, align: 'right' }));
}
