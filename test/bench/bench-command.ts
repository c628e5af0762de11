/**
 * `bin/serve bench` as a load generator: a run in a process of its own, told as numbers.
 */
import { execFile } from 'node:child_process';
import path from 'node:path';
import { promisify } from 'node:util';
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
