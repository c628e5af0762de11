/**
 * How well `tune` foretells: the 99th percentile that the simulation gives for measured costs, against that of the server under the very same arrivals.
 *
 * Costs are measured anew in each round, right before its load: what else the machine does harms both alike only if it lasts.
 */
import { encodeRequest, requestBody } from '../../src/client/request.ts';
import { type ArrivalPlan, arrivalsOf } from '../../src/load/arrivals.ts';
import { runOpenLoop } from '../../src/load/run.ts';
import { makeTarget } from '../../src/load/target.ts';
import { capacityPerS } from '../../src/tune/advisor.ts';
import { measureCosts } from '../../src/tune/measure.ts';
import { readRunCounters } from '../../src/tune/run-counters.ts';
import { type Settings, simulate } from '../../src/tune/simulator.ts';
import type { TestServer } from '../support/server.ts';
import type { Bench, Benchmark, Measurement } from './benchmark.ts';
import { serve } from './served.ts';

const MODEL = 'conv';
const COLUMNS = 64;
const BATCH_ROWS = 4;
const SETTINGS: Settings = {
  maxBatchSize: BATCH_ROWS,
  maxQueueDelayUs: 0,
  instances: 1,
  queueMaxRows: 1024,
  sloMs: undefined,
};
/** Of the capacity. */
const LOADS = [0.5, 0.8] as const;
/** Rounds of a load are longer than those of a throughput: a percentile needs many requests. */
const LONGER = 4;
const TIMEOUT_MS = 60_000;
const CONNECTIONS = 1000;

interface Round {
  readonly predictedMs: number;
  readonly measuredMs: number;
}

function targetOf(server: TestServer, rows: number) {
  const data = Float32Array.from({ length: rows * COLUMNS }, (_, n) => Math.sin(n + 1));
  const encoded = encodeRequest({ inputs: [{ name: 'x', datatype: 'FP32', shape: [rows, COLUMNS], data }] }, true);
  const { headers, body } = requestBody(encoded, Number.POSITIVE_INFINITY);
  return makeTarget(server.url, `/v2/models/${MODEL}/infer`, Object.entries(headers), body);
}

async function round({ size }: Bench, server: TestServer, load: number, seed: number): Promise<Round> {
  const costs = await measureCosts({
    target: (rows) => targetOf(server, rows),
    counters: async () => readRunCounters(await server.metrics(), MODEL, '1')!,
    sizeMs: size.quick ? 20 : 1000,
    runMsMax: 1000,
    rowsPerRequest: 1,
    progress: () => {},
  });
  const ratePerS = load * capacityPerS(costs, SETTINGS);
  const plan: ArrivalPlan = { kind: 'poisson', ratePerS, seed };
  const durationMs = Math.max(size.roundS * LONGER * 1000, 5000 / ratePerS);
  const traffic = { arrivals: arrivalsOf(plan), rowsPerRequest: 1, endMs: durationMs, requestsMax: 1e6 };
  const predicted = simulate(costs, SETTINGS, traffic, seed);
  const limits = {
    warmUpMs: 0,
    durationMs,
    requests: Number.POSITIVE_INFINITY,
    timeoutMs: TIMEOUT_MS,
    sloMs: undefined,
  };
  const measured = await runOpenLoop(targetOf(server, 1), limits, plan, CONNECTIONS);
  const [other] = measured.otherOutcomes;
  if (other !== undefined) throw new Error(`${other.count} requests got ${other.name} ${other.sample}`);
  const p99Of = ({ percentilesMs, maxMs }: typeof measured.ok) => percentilesMs.get(99) ?? maxMs;
  return { predictedMs: p99Of(predicted.latency), measuredMs: p99Of(measured.ok) };
}

export const TUNE: Benchmark = {
  name: 'tune',
  about: `${MODEL}, one row a request, Poisson arrivals: the p99 that tune predicts against that of the server`,
  run: async (bench) => {
    const { size, cleanUp } = bench;
    const config = { max_batch_size: BATCH_ROWS, runtime: { intra_op_threads: 1 } };
    const server = await serve(cleanUp, { [MODEL]: { config } });
    const measurements: Measurement[] = [];
    for (const load of LOADS) {
      const rounds: Round[] = [];
      for (let n = 0; n < size.rounds; n++) rounds.push(await round(bench, server, load, n + 1));
      const name = `tune-${MODEL}-${load * 100}`;
      const values = (of: (one: Round) => number) => rounds.map(of);
      measurements.push(
        {
          name: `${name}.p99_error_ratio`,
          values: values(({ predictedMs, measuredMs }) => Math.abs(predictedMs / measuredMs - 1)),
          target: { atMost: 0.2 },
        },
        { name: `${name}.predicted_p99_ms`, values: values(({ predictedMs }) => predictedMs) },
        { name: `${name}.measured_p99_ms`, values: values(({ measuredMs }) => measuredMs) },
      );
    }
    return measurements;
  },
};
