/**
 * `bin/serve bench` as a load generator: a run in a process of its own, told as numbers.
 */
import { execFile } from 'node:child_process';
import path from 'node:path';
import { promisify } from 'node:util';
import { COST_POINTS } from '../../src/queue/geometry.ts';
import { PROJECT_DIR, type TestServer } from '../support/server.ts';

/** Latency objective of the models under load. */
export const SLO_MS = 100;
const OUTPUT_MAX_BYTES = 2 ** 20;

interface Distribution {
  readonly count: number;
  readonly p99: number | null;
  readonly max: number;
}

/** A run, as `bin/serve bench --json` tells it. */
export interface Run {
  readonly requests: number;
  readonly ok: number;
  readonly ok_per_s: number;
  readonly goodput_per_s: number | null;
  readonly latency_ms: Distribution;
  readonly not_ok: readonly { readonly outcome: string; readonly count: number; readonly latency_ms: Distribution }[];
}

const run = promisify(execFile);

/** One run against a model; warmed up for up to a second. @param args further options of the command, such as `--rate 100` */
export async function openLoad(
  server: TestServer,
  model: string,
  seconds: number,
  ...args: readonly string[]
): Promise<Run> {
  const all = [path.join(PROJECT_DIR, 'bin/serve'), 'bench', model, '--url', server.url, '--json', '--data', 'zeros'];
  all.push(
    '--duration-s',
    String(seconds),
    '--warm-up-s',
    String(Math.min(1, seconds)),
    '--slo-ms',
    String(SLO_MS),
    ...args,
  );
  const { stdout } = await run(process.execPath, all, { maxBuffer: OUTPUT_MAX_BYTES });
  return (JSON.parse(stdout) as { runs: Run[] }).runs[0]!;
}

export const p99 = ({ p99: value, max }: Distribution): number => value ?? max;

export function countOf({ not_ok }: Run, ...outcomes: readonly string[]): number {
  return not_ok.reduce((sum, { outcome, count }) => sum + (outcomes.includes(outcome) ? count : 0), 0);
}

/** What the server says that runs of its most frequent shape take, µs by rows 1, 2, 4 … */
export async function runCosts(server: TestServer, model: string): Promise<Float64Array> {
  type Device = { run_costs: { runs: number; us_by_rows: Record<string, number> }[] };
  const { models } = (await server.status()) as unknown as { models: { name: string; devices: Device[] }[] };
  const costs = models.find(({ name }) => name === model)!.devices[0]!.run_costs;
  const known = Object.entries(costs.reduce((a, b) => (b.runs > a.runs ? b : a)).us_by_rows);
  const us = Float64Array.from({ length: COST_POINTS }, (_, n) =>
    Number(known.find(([rows]) => rows === String(2 ** n))?.[1] ?? 0),
  );
  for (let n = 1; n < us.length; n++) if (us[n] === 0) us[n] = 2 * us[n - 1]!;
  return us;
}
