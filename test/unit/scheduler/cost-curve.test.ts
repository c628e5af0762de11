/** What is learnt about the time of a run: from noisy runs of known cost the curve is found again. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { COST_POINTS } from '../../../src/queue/geometry.ts';
import { CostCurve, costLine, costUs } from '../../../src/scheduler/cost-curve.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';

const random = seedFromEnv();
const STEP_US = 2000;

/** Of so many runs in a row less than half are interrupted: more than that nobody could tell from a slower machine. */
const SPEED_RUNS = 9;
const interrupted: boolean[] = [];

/** Most runs a little slower than the true cost, one in ten by up to a hundred times: another process had the core. */
function noisy(us: number, source: Random): number {
  const slowed = us * (1 + 0.04 * source.float());
  const before = interrupted.slice(1 - SPEED_RUNS).filter((was) => was).length;
  const is = source.chance(0.1) && before + 1 < SPEED_RUNS / 2;
  interrupted.push(is);
  return is ? slowed * (1 + 1 / (0.01 + source.float())) : slowed;
}

/** From 1 to 64 rows, small sizes as often as large ones. */
function anySize(): number {
  return Math.round(2 ** (random.float() * 6));
}

function learn(
  curve: CostCurve,
  truth: (rows: number) => number,
  runs: number,
  rowsOf: () => number,
  fromUs = 0,
): number {
  let nowUs = fromUs;
  for (let n = 0; n < runs; n++) {
    const rows = rowsOf();
    const us = noisy(truth(rows), random);
    nowUs += us + STEP_US;
    curve.note(rows, us, nowUs);
  }
  return nowUs;
}

/** Within a tenth of the true cost in the mean over all sizes, and nowhere beyond three tenths. */
function assertClose(curve: CostCurve, truth: (rows: number) => number, rowsMax: number): void {
  let sum = 0;
  for (let rows = 1; rows <= rowsMax; rows++) {
    const ratio = costUs(curve.us, rows) / truth(rows);
    sum += Math.abs(ratio - 1);
    assert.ok(Math.abs(ratio - 1) <= 0.3, `${rows} rows: ${ratio} of the true cost (seed ${random.seed})`);
  }
  assert.ok(sum / rowsMax <= 0.1, `off by ${sum / rowsMax} in the mean (seed ${random.seed})`);
}

function assertRises(curve: CostCurve): void {
  for (let n = 1; n < COST_POINTS; n++) {
    assert.ok(curve.us[n]! >= curve.us[n - 1]!, `${curve.us} (seed ${random.seed})`);
  }
}

test('straight costs of any slope are found again under noise with a heavy tail', () => {
  for (const [baseUs, rowUs] of [
    [0, 3000],
    [5000, 10],
    [40, 0.5],
    [2000, 2000],
    [random.int(1, 10_000), random.int(1, 10_000)],
  ] as const) {
    const truth = (rows: number) => baseUs + rowUs * rows;
    const curve = new CostCurve();
    learn(curve, truth, 2000, anySize);
    assertClose(curve, truth, 64);
    assertRises(curve);
    assert.ok(curve.figures.errorRatio > 0);
  }
});

test('a cost that rises in steps is followed at the sizes that are kept', () => {
  const truth = (rows: number) => 1000 * Math.ceil(rows / 8);
  const curve = new CostCurve();
  learn(curve, truth, 3000, () => 2 ** random.int(0, 6));
  for (let rows = 1; rows <= 64; rows *= 2) {
    const ratio = costUs(curve.us, rows) / truth(rows);
    assert.ok(Math.abs(ratio - 1) <= 0.2, `${rows} rows: ${ratio} (seed ${random.seed})`);
  }
  assertRises(curve);
});

test('sizes never seen are read off the line through the others', () => {
  const truth = (rows: number) => 2000 + 3000 * rows;
  const curve = new CostCurve();
  learn(curve, truth, 200, () => random.pick([1, 2, 4]));
  for (const rows of [8, 16, 64, 512]) {
    const ratio = costUs(curve.us, rows) / truth(rows);
    assert.ok(Math.abs(ratio - 1) <= 0.3, `${rows} rows: ${ratio} (seed ${random.seed})`);
  }
});

test('a machine that becomes slower or faster is believed after some dozens of runs, also for sizes it has not been seen with since', () => {
  const truth = (rows: number) => 500 + 200 * rows;
  for (const factor of [3, 1 / 3]) {
    const curve = new CostCurve();
    let nowUs = learn(curve, truth, 1000, anySize);
    // Long enough for the earlier runs of other sizes to count for nothing.
    nowUs += 11_000_000;
    learn(
      curve,
      (rows) => truth(rows) * factor,
      40,
      () => 8,
      nowUs,
    );
    for (const rows of [1, 8, 64]) {
      const ratio = costUs(curve.us, rows) / (truth(rows) * factor);
      assert.ok(Math.abs(ratio - 1) <= 0.25, `factor ${factor}, ${rows} rows: ${ratio} (seed ${random.seed})`);
    }
  }
});

test('a machine whose speed changes all the time does not bend the curve, though some sizes are seldom run', () => {
  const truth = (rows: number) => 2000 + 3200 * rows;
  const curve = new CostCurve();
  let nowUs = learn(curve, truth, 200, () => random.pick([1, 2, 4, 8]));
  for (let phase = 0; phase < 50; phase++) {
    const speed = 0.7 + random.float();
    nowUs = learn(
      curve,
      (rows) => truth(rows) * speed,
      60,
      () => (random.chance(1 / 16) ? 8 : random.int(1, 2)),
      nowUs,
    );
  }
  const shape = costUs(curve.us, 8) / costUs(curve.us, 2) / (truth(8) / truth(2));
  assert.ok(Math.abs(shape - 1) <= 0.2, `${shape} (seed ${random.seed})`);
});

test('a few runs in a row that were interrupted move nothing', () => {
  const curve = new CostCurve();
  for (let n = 0; n < 50; n++) curve.note(4, 1000, n * 30_000);
  const before = costUs(curve.us, 4);
  for (let n = 50; n < 54; n++) curve.note(4, 1e6, n * 30_000);
  assert.equal(costUs(curve.us, 4), before);
});

test('the error tells how far off predictions are', () => {
  const exact = new CostCurve();
  const wild = new CostCurve();
  for (let n = 0; n < 500; n++) {
    exact.note(2, 700, n * 30_000);
    wild.note(2, n % 2 === 0 ? 700 : 2100, n * 30_000);
  }
  assert.ok(exact.figures.errorRatio < 0.001);
  assert.ok(wild.figures.errorRatio > 0.2);
});

test('figures kept from an earlier life are where learning goes on', () => {
  const truth = (rows: number) => 100 + 50 * rows;
  const first = new CostCurve();
  learn(first, truth, 500, anySize);
  const second = new CostCurve(first.figures);
  assert.deepEqual(second.us, first.us);
  second.note(3, truth(3), 1);
  assertClose(second, truth, 64);
});

test('nonsense is not learnt from', () => {
  const curve = new CostCurve();
  for (const [rows, us] of [
    [0, 10],
    [1, 0],
    [1, -5],
    [Number.NaN, 5],
    [1, Number.NaN],
  ] as const) {
    assert.equal(curve.note(rows, us, 1), false);
  }
  assert.equal(curve.known, false);
});

test('the line through a curve gives back base and slope', () => {
  const us = Float64Array.from({ length: COST_POINTS }, (_, n) => 300 + 20 * 2 ** n);
  const { baseUs, rowUs } = costLine({ us, seen: 0b1111 });
  assert.ok(Math.abs(baseUs - 300) < 1e-6 && Math.abs(rowUs - 20) < 1e-6);
  assert.deepEqual(costLine({ us, seen: 0 }), { baseUs: 0, rowUs: 0 });
});

// Story: a model whose time depends on its data ran for 18 s after four runs of 60 µs, and every call with a deadline of a minute was refused.
test('a single run of another length does not decide, however few there have been', () => {
  const curve = new CostCurve();
  for (let n = 0; n < 5; n++) curve.note(1, 60, n * 30_000);
  for (let n = 5; n < 8; n++) curve.note(1, 18e6, n * 20e6);
  assert.ok(costUs(curve.us, 1) < 100);
});
