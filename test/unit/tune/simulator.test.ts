/** The simulation against what queueing theory says, and against arithmetic. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ArrivalPlan, arrivalsOf } from '../../../src/load/arrivals.ts';
import { type CostModel, curveThrough } from '../../../src/tune/cost-model.ts';
import { type Settings, type SimulationResult, simulate } from '../../../src/tune/simulator.ts';
import { seedFromEnv } from '../../support/random.ts';

const { seed } = seedFromEnv();

/** Runs of `runUs(rows)`, all the same. */
function costs(runUs: (rows: number) => number, more: Partial<CostModel> = {}): CostModel {
  const curveUs = curveThrough([1, 2, 4, 8, 16, 32, 64].map(runUs));
  return { curveUs, rowsMax: 64, slowdown: [1], spreads: [[1]], aroundUs: 0, ...more };
}

const ALONE: Settings = {
  maxBatchSize: 0,
  maxQueueDelayUs: 0,
  instances: 1,
  queueMaxRows: Number.POSITIVE_INFINITY,
  sloMs: undefined,
};

function run(model: CostModel, settings: Settings, plan: ArrivalPlan, requests: number, rows = 1): SimulationResult {
  const arrivals = arrivalsOf(plan);
  const traffic = { arrivals, rowsPerRequest: rows, endMs: Number.POSITIVE_INFINITY, requestsMax: requests };
  return simulate(model, settings, traffic, seed);
}

const poisson = (ratePerS: number) => ({ kind: 'poisson', ratePerS, seed }) as const;
const constant = (ratePerS: number) => ({ kind: 'constant', ratePerS, seed }) as const;

function assertNear(actual: number, expected: number, tolerance: number, what: string): void {
  assert(Math.abs(actual / expected - 1) <= tolerance, `${what}: ${actual} instead of ${expected} (seed ${seed})`);
}

test('requests that never meet take the time of a run and what is around it', () => {
  const { latency, busy, meanBatchRows } = run(
    costs(() => 2000, { aroundUs: 500 }),
    ALONE,
    constant(250),
    1000,
  );
  assert.deepEqual([latency.meanMs, latency.maxMs, meanBatchRows], [2.5, 2.5, 1]);
  assertNear(busy, 0.5, 0.01, 'busy');
});

test('poisson arrivals and equal runs wait as Pollaczek and Khinchine say', () => {
  const utilization = 0.8;
  const { latency } = run(
    costs(() => 1000),
    ALONE,
    poisson(1000 * utilization),
    400_000,
  );
  assertNear(latency.meanMs, 1 + utilization / (2 * (1 - utilization)), 0.06, 'mean of M/D/1');
});

test('poisson arrivals and exponential runs give exponential latencies', () => {
  const spread = Array.from({ length: 1000 }, (_, n) => -Math.log(1 - (n + 0.5) / 1000));
  const utilization = 0.6;
  const { latency } = run(
    costs(() => 1000, { spreads: [spread] }),
    ALONE,
    poisson(1000 * utilization),
    400_000,
  );
  const mean = 1 / (1 - utilization);
  assertNear(latency.meanMs, mean, 0.06, 'mean of M/M/1');
  assertNear(latency.percentilesMs.get(99)!, -Math.log(0.01) * mean, 0.1, 'p99 of M/M/1');
});

test('two instances serve twice as much, less what they hinder each other', () => {
  const two = { ...ALONE, instances: 2, queueMaxRows: 10 };
  for (const [slowdown, perS] of [
    [1, 2000],
    [1.6, 1250],
  ] as const) {
    const { goodPerS, busy } = run(
      costs(() => 1000, { slowdown: [1, slowdown] }),
      two,
      poisson(4000),
      40_000,
    );
    assertNear(goodPerS, perS, 0.03, `with a slowdown of ${slowdown}`);
    assertNear(busy, 1, 0.03, 'busy');
  }
});

test('rows that wait are run together, so that runs of constant time serve any number', () => {
  const settings = { ...ALONE, maxBatchSize: 64 };
  const { latency, meanBatchRows, refused } = run(
    costs(() => 10_000),
    settings,
    constant(2000),
    10_000,
  );
  // While one batch runs for 10 ms, 20 rows collect.
  assertNear(meanBatchRows, 20, 0.03, 'rows a batch');
  assert(latency.maxMs <= 20.001, `${latency.maxMs} ms`);
  assert.equal(refused, 0);
});

test('an idle instance waits for as long as it is asked to, or until the batch is full', () => {
  const settings = { ...ALONE, maxBatchSize: 64, maxQueueDelayUs: 20_000 };
  const waits = run(
    costs(() => 100),
    settings,
    constant(500),
    10_000,
  );
  // 20 ms from the first row on: ten more of them.
  assertNear(waits.meanBatchRows, 11, 0.1, 'rows a batch');
  assertNear(waits.latency.maxMs, 20.1, 0.001, 'latency of the first row');
  const full = run(
    costs(() => 100),
    { ...settings, maxQueueDelayUs: 1e9, maxBatchSize: 4 },
    constant(500),
    10_000,
  );
  assert.equal(full.meanBatchRows, 4);
  assertNear(full.latency.maxMs, 6.1, 0.001, 'latency of the first row of four');
});

test('the queue refuses what goes beyond its bound', () => {
  const result = run(
    costs(() => 1000),
    { ...ALONE, queueMaxRows: 5 },
    poisson(3000),
    30_000,
  );
  assert.equal(result.queueRowsPeak, 5);
  assertNear(result.refused / result.offered, 2 / 3, 0.05, 'share refused');
  assert(result.latency.maxMs <= 6.001, `${result.latency.maxMs} ms`);
});

test('with an objective an overload costs the surplus and nothing else; without one every request is late', () => {
  const model = costs((rows) => 200 + 3000 * rows, { spreads: [[0.9, 0.95, 1, 1.05, 1.1]] });
  const settings = { ...ALONE, maxBatchSize: 64 };
  const capacity = 1e6 / 3100;
  const kept = run(model, { ...settings, sloMs: 100 }, poisson(3 * capacity), 20_000);
  assert(kept.goodPerS >= 0.9 * capacity, `${kept.goodPerS} of ${capacity} (seed ${seed})`);
  assert(kept.latency.percentilesMs.get(99)! <= 100, `p99 ${kept.latency.percentilesMs.get(99)} ms (seed ${seed})`);
  assertNear(kept.refused / kept.offered, 2 / 3, 0.1, 'share refused');
  const lost = run(model, settings, poisson(3 * capacity), 20_000);
  assert(lost.latency.percentilesMs.get(50)! > 1000);
});

test('every request is answered, refused or late, also in bursts and with several rows', () => {
  const plan = { ...poisson(400), burst: { factor: 10, onMs: 200, everyMs: 1000 } };
  const settings = { ...ALONE, maxBatchSize: 8, instances: 2, sloMs: 30, queueMaxRows: 50 };
  const result = run(
    costs((rows) => 1000 + 500 * rows, { slowdown: [1, 1.3] }),
    settings,
    plan,
    20_000,
    3,
  );
  assert.equal(result.offered, 20_000);
  assert.equal(result.latency.count + result.refused + result.late, 20_000);
  assert(result.refused > 0 && result.queueRowsPeak <= 50);
});

test('the same seed gives the same result', () => {
  const model = costs((rows) => 500 * rows, { spreads: [[0.5, 1, 1.5]] });
  const once = () => run(model, { ...ALONE, maxBatchSize: 16, sloMs: 20 }, poisson(1500), 5000);
  assert.deepEqual(once(), once());
});
