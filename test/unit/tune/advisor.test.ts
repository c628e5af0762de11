import assert from 'node:assert/strict';
import { test } from 'node:test';
import { advise, capacityPerS, type Objective, sweep } from '../../../src/tune/advisor.ts';
import { type CostModel, curveThrough, slowdownOf, spreadOf } from '../../../src/tune/cost-model.ts';

const model = (runUs: (rows: number) => number, slowdown: readonly number[] = [1]): CostModel => ({
  curveUs: curveThrough([1, 2, 4, 8, 16, 32].map(runUs)),
  rowsMax: 32,
  slowdown,
  spreads: [[0.9, 1, 1.1]],
  aroundUs: 200,
});

function objective(ratePerS: number, sloMs: number, more: Partial<Objective> = {}): Objective {
  return {
    sloMs,
    plan: { kind: 'poisson', ratePerS, seed: 1 },
    rowsPerRequest: 1,
    instancesMax: 1,
    maxBatchSize: 32,
    endMs: Number.POSITIVE_INFINITY,
    requestsMax: 5000,
    seed: 1,
    ...more,
  };
}

test('instances are added only where one does not do', () => {
  const costs = model((rows) => 3000 * rows, [1, 1.1]);
  for (const [ratePerS, instances] of [
    [100, 1],
    [450, 2],
  ] as const) {
    const { best } = advise(costs, objective(ratePerS, 50, { instancesMax: 2 }));
    assert.deepEqual([best.meets, best.settings.instances], [true, instances], `${ratePerS}/s`);
  }
});

test('batches are as large as the traffic needs where runs of more rows cost less', () => {
  const costs = model((rows) => 10_000 + 100 * rows);
  const { best, candidates } = advise(costs, objective(800, 60));
  assert.equal(best.meets, true);
  assert(best.settings.maxBatchSize >= 8, String(best.settings.maxBatchSize));
  const alone = candidates.find(({ settings }) => settings.maxBatchSize === 1)!;
  assert.equal(alone.meets, false);
});

test('an idle instance is not made to wait where that saves nothing', () => {
  const { best } = advise(
    model((rows) => 40 + rows),
    objective(500, 20),
  );
  assert.deepEqual([best.meets, best.settings.maxQueueDelayUs], [true, 0]);
  // Here it halves the time that the instance is busy.
  const saving = advise(
    model(() => 5000),
    objective(150, 200),
  ).best;
  assert(saving.meets && saving.settings.maxQueueDelayUs > 0, JSON.stringify(saving.settings));
});

test('an objective that nothing meets is said to be missed, with the settings that serve most', () => {
  const { best, candidates } = advise(
    model((rows) => 3000 * rows),
    objective(1000, 50),
  );
  assert.equal(best.meets, false);
  assert(candidates.every(({ meets, result }) => !meets && result.goodPerS <= best.result.goodPerS));
});

test('no batch is smaller than a request, and a model without batches gets none', () => {
  const large = advise(
    model((rows) => 100 * rows),
    objective(50, 50, { rowsPerRequest: 5 }),
  );
  assert(large.candidates.every(({ settings }) => settings.maxBatchSize >= 5));
  const none = advise(
    model((rows) => 100 * rows),
    objective(50, 50, { maxBatchSize: 0 }),
  );
  assert(none.candidates.every(({ settings }) => settings.maxBatchSize === 0));
});

test('the queue holds what may wait, and no more than can be run in time', () => {
  const costs = model((rows) => 3000 * rows);
  const { settings } = advise(costs, objective(1000, 50, { maxBatchSize: 1 })).best;
  // 333 rows/s for 50 ms.
  assert.equal(settings.queueMaxRows, 17);
  assert.equal(Math.round(capacityPerS(costs, settings)), 333);
});

test('a sweep shows other rates, also of a trace', () => {
  const costs = model((rows) => 3000 * rows);
  const { best } = advise(costs, objective(100, 50));
  const rates = sweep(costs, objective(100, 50), best.settings, 100, [0.5, 4]);
  assert.deepEqual(
    rates.map(({ ratePerS }) => ratePerS),
    [50, 400],
  );
  assert(rates[0]!.result.refused === 0 && rates[1]!.result.refused > 0);
  const timesMs = Float64Array.from({ length: 200 }, (_, n) => 10 * n);
  const plan = { kind: 'trace', timesMs, stretch: 1 } as const;
  const replayed = sweep(costs, objective(100, 50, { plan }), best.settings, 100, [1, 10]);
  assert(replayed[0]!.result.refused === 0 && replayed[1]!.result.refused > 0);
});

test('a curve goes through its points, never falls, and goes on straight beyond them', () => {
  assert.deepEqual([...curveThrough([10, 20, 30, 50])].slice(0, 6), [10, 20, 30, 50, 90, 170]);
  assert.deepEqual([...curveThrough([10, 8, 12])].slice(0, 4), [10, 10, 12, 16]);
  assert.deepEqual([...curveThrough([10])].slice(0, 3), [10, 20, 40]);
});

test('slowdown and spread beyond what was measured are those of the last, scaled', () => {
  const costs = { ...model((rows) => rows, [1, 1.5]), spreads: [[1], [2, 3]] };
  assert.deepEqual(
    [1, 2, 4].map((instances) => slowdownOf(costs, instances)),
    [1, 1.5, 3],
  );
  assert.deepEqual([spreadOf(costs, 1, 0.9), spreadOf(costs, 3, 0), spreadOf(costs, 30, 0.99)], [1, 2, 3]);
});
