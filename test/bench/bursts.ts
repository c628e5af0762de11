/**
 * A load that comes in bursts: ten times the rate for one second out of ten, half of the capacity on average. What is answered inside the objective, against what a
 * schedule that knows all arrivals could answer with the same run costs.
 */
import { arrivalsOf } from '../../src/load/arrivals.ts';
import { makeRepository } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import { openLoad, p99, runCosts, SLO_MS } from './bench-command.ts';
import type { Benchmark } from './benchmark.ts';
import { answerable } from './clairvoyant.ts';

const CLIENTS = 8;
const FACTOR = 10;
const ON_S = 1;
const EVERY_S = 10;
const MEAN = 0.5;
/** Two periods; openLoad() warms up with the first second of the plan. */
const SECONDS = 2 * EVERY_S;
const WARM_UP_S = 1;

export const BURSTS: Benchmark = {
  name: 'bursts',
  onlyByName: true,
  about: `${FACTOR} times the rate for ${ON_S} s out of ${EVERY_S}, ${MEAN} of the capacity on average, objective ${SLO_MS} ms: against a schedule that knows the future`,
  run: async ({ size, cleanUp }) => {
    const config = { slo_ms: SLO_MS, max_batch_size: 64, runtime: { intra_op_threads: 1 } };
    const { dir } = makeRepository(cleanUp, { conv: { config } });
    const server = await startServer(cleanUp, { repository: dir, args: ['--log-level', 'warn'] });
    const ratios: number[] = [];
    const latenciesMs: number[] = [];
    const capacities: number[] = [];
    for (let round = 0; round < size.rounds; round++) {
      const { ok_per_s: capacityPerS } = await openLoad(server, 'conv', size.roundS, '-c', String(CLIENTS));
      const ratePerS = (MEAN * capacityPerS) / (1 + ((FACTOR - 1) * ON_S) / EVERY_S);
      const seed = round + 1;
      const args = ['--rate', ratePerS.toFixed(1), '--burst', `${FACTOR}:${ON_S}:${EVERY_S}`, '--seed', String(seed)];
      const run = await openLoad(server, 'conv', SECONDS, ...args);
      const burst = { factor: FACTOR, onMs: ON_S * 1000, everyMs: EVERY_S * 1000 };
      const arrivals = arrivalsOf({ kind: 'poisson', ratePerS: Number(ratePerS.toFixed(1)), seed, burst });
      const times: number[] = [];
      const endMs = (WARM_UP_S + SECONDS) * 1000;
      for (let timeMs = arrivals.next(); timeMs < endMs; timeMs = arrivals.next()) times.push(timeMs);
      const best = answerable(await runCosts(server, 'conv'), times, SLO_MS, WARM_UP_S * 1000);
      ratios.push(((run.goodput_per_s ?? 0) * SECONDS) / best);
      latenciesMs.push(p99(run.latency_ms));
      capacities.push(capacityPerS);
    }
    return [
      { name: 'conv-bursts.goodput_ratio', values: ratios, target: { atLeast: 0.95 } },
      { name: 'conv-bursts.p99_ms', values: latenciesMs, target: { atMost: SLO_MS } },
      { name: 'conv-bursts.capacity_per_s', values: capacities },
    ];
  },
};
