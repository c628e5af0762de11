/**
 * The policies together against simulated traffic, in simulated time: costs learnt from noisy runs, batches formed as producers form them, admission by predicted
 * finish, late rows left out. Offered load from below to far above what the model can do.
 *
 * The rules at each step are those of src/ingress/outlook.ts and src/device/batch-runner.ts; only queue and clock are simulated.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { place, RUN_RATIO, SafetyMargin, startsInUs } from '../../../src/scheduler/admission.ts';
import { batchRows } from '../../../src/scheduler/batch-choice.ts';
import { CostCurve, costUs } from '../../../src/scheduler/cost-curve.ts';
import { Random, seedFromEnv } from '../../support/random.ts';

const seed = seedFromEnv().seed;
const SLO_US = 100_000;
const ROWS_MAX = 64;

interface Traffic {
  /** True time of a run, µs, before noise. */
  readonly truth: (rows: number, nowUs: number) => number;
  readonly noise: number;
  readonly ratePerS: number;
  readonly seconds: number;
  /** Whether requests are refused at all. */
  readonly admission?: boolean;
}

interface Outcome {
  readonly offered: number;
  readonly rejected: number;
  /** Answered inside the objective, per second. */
  readonly goodputPerS: number;
  readonly p99Us: number;
  readonly late: number;
}

interface Slab {
  readonly capacity: number;
  readonly arrivals: { readonly atUs: number; readonly predictedUs: number }[];
}

function simulate(random: Random, { truth, noise, ratePerS, seconds, admission = true }: Traffic): Outcome {
  const curve = new CostCurve();
  const margin = new SafetyMargin();
  for (const rows of [1, 2, 4, 8]) for (let n = 0; n < 4; n++) curve.note(rows, truth(rows, 0), n);
  const slabs: Slab[] = [];
  let freeUs = 0;
  /** When the run that goes on was expected to end. */
  let expectedUs = 0;
  const latencies: number[] = [];
  let offered = 0;
  let rejected = 0;
  let late = 0;

  const run = (): void => {
    const { arrivals } = slabs.shift()!;
    const startUs = Math.max(freeUs, arrivals[0]!.atUs);
    let wanted = arrivals.filter(({ atUs }) => !admission || atUs + SLO_US > startUs);
    while (admission && wanted.length > 0 && wanted[0]!.atUs + SLO_US < startUs + costUs(curve.us, wanted.length)) {
      wanted = wanted.slice(1);
    }
    late += arrivals.length - wanted.length;
    for (const { atUs } of arrivals) {
      if (!wanted.some((one) => one.atUs === atUs)) margin.note(Number.POSITIVE_INFINITY, SLO_US, startUs);
    }
    if (wanted.length === 0) return;
    const us = truth(wanted.length, startUs) * (1 + noise * random.float() * (random.chance(0.05) ? 10 : 1));
    expectedUs = startUs + costUs(curve.us, wanted.length);
    freeUs = startUs + us;
    curve.note(wanted.length, us, freeUs);
    for (const { atUs, predictedUs } of wanted) {
      const inTime = freeUs - atUs <= SLO_US;
      margin.note(inTime ? freeUs - predictedUs : Number.POSITIVE_INFINITY, SLO_US, freeUs);
      if (inTime) latencies.push(freeUs - atUs);
      else late++;
    }
  };

  for (let nowUs = 0; ; ) {
    nowUs += (-Math.log(1 - random.float()) / ratePerS) * 1e6;
    if (nowUs > seconds * 1e6) break;
    while (slabs.length > 0 && freeUs <= nowUs) run();
    offered++;
    const aheadUs = slabs.reduce((sum, { arrivals }) => sum + costUs(curve.us, arrivals.length), 0);
    const runningUs = freeUs > nowUs ? Math.max(0.1 * (freeUs - nowUs), expectedUs - nowUs) : 0;
    const idle = freeUs <= nowUs && slabs.length === 0;
    const capacity = batchRows(curve.us, ROWS_MAX, RUN_RATIO * SLO_US);
    const startsIn = (ahead: number) => startsInUs({ instances: 1, runningUs, firstFreeUs: runningUs }, ahead);
    const last = slabs.at(-1);
    const room = last !== undefined && last.arrivals.length < last.capacity;
    const rows = last?.arrivals.length ?? 0;
    const places = {
      ownStartUs: startsIn(aheadUs),
      ownRunUs: costUs(curve.us, 1),
      fullRunUs: costUs(curve.us, capacity),
      sharedFinishUs: room
        ? startsIn(aheadUs - costUs(curve.us, rows)) + costUs(curve.us, rows + 1)
        : Number.POSITIVE_INFINITY,
      sharedLeftUs: room ? last.arrivals[0]!.atUs + SLO_US - nowUs : Number.POSITIVE_INFINITY,
    };
    const decision = !admission ? (room ? 'share' : 'own') : idle ? 'own' : place(places, SLO_US, margin.us(SLO_US));
    if (decision === 'refuse') {
      rejected++;
      continue;
    }
    const finishUs = decision === 'share' ? places.sharedFinishUs : places.ownStartUs + places.ownRunUs;
    const arrival = { atUs: nowUs, predictedUs: nowUs + finishUs };
    if (decision === 'share') last!.arrivals.push(arrival);
    else slabs.push({ capacity, arrivals: [arrival] });
    if (idle) run();
  }
  latencies.sort((a, b) => a - b);
  return {
    offered,
    rejected,
    late,
    goodputPerS: latencies.length / seconds,
    p99Us: latencies[Math.floor(latencies.length * 0.99)] ?? 0,
  };
}

/** Models whose time is all in the rows, all in the run, and in between, and what they can do, rows/s, inside the objective. */
const MODELS = [
  { name: 'proportional', truth: (rows: number) => 200 + 3000 * rows },
  { name: 'in between', truth: (rows: number) => 8000 + 700 * rows },
  { name: 'almost constant', truth: (rows: number) => 20_000 + 50 * rows },
] as const;

/** Mean of what `noise: NOISE` makes longer. */
const NOISE = 0.05;
const NOISE_FACTOR = 1 + NOISE * 0.5 * (0.95 + 0.05 * 10);

/** Rows a second with the batches that are chosen. */
function capacityPerS(truth: (rows: number) => number): number {
  const us = new CostCurve();
  for (const rows of [1, 2, 4, 8, 16, 32, 64]) for (let n = 0; n < 4; n++) us.note(rows, truth(rows), n);
  const rows = batchRows(us.us, ROWS_MAX, RUN_RATIO * SLO_US);
  return (rows / truth(rows) / NOISE_FACTOR) * 1e6;
}

for (const { name, truth } of MODELS) {
  test(`${name}: from 1.5 to 10 times the capacity, what is answered inside the objective stays at capacity`, () => {
    const capacity = capacityPerS(truth);
    for (const factor of [1.5, 2, 3, 10]) {
      const random = new Random(seed + factor * 10);
      const outcome = simulate(random, { truth, noise: NOISE, ratePerS: factor * capacity, seconds: 20 });
      const about = `${factor} times ${capacity.toFixed(0)}/s: ${JSON.stringify(outcome)} (seed ${seed})`;
      assert.ok(outcome.goodputPerS >= 0.95 * capacity, about);
      assert.ok(outcome.p99Us <= SLO_US, about);
      assert.ok(outcome.late <= 0.03 * (outcome.offered - outcome.rejected), about);
    }
  });

  test(`${name}: at 0.8 times the capacity nothing is refused`, () => {
    const outcome = simulate(new Random(seed), {
      truth,
      noise: NOISE,
      ratePerS: 0.8 * capacityPerS(truth),
      seconds: 20,
    });
    assert.ok(outcome.rejected <= 0.001 * outcome.offered, `${JSON.stringify(outcome)} (seed ${seed})`);
  });
}

test('without admission the same load collapses: the simulation can tell', () => {
  const { truth } = MODELS[0];
  const capacity = capacityPerS(truth);
  const outcome = simulate(new Random(seed), {
    truth,
    noise: NOISE,
    ratePerS: 2 * capacity,
    seconds: 20,
    admission: false,
  });
  assert.ok(outcome.goodputPerS < 0.2 * capacity, JSON.stringify(outcome));
});

test('a neighbour that takes half of the machine for seconds at a time costs its share and no more', () => {
  const calm = (rows: number) => 200 + 3000 * rows;
  const truth = (rows: number, nowUs: number) => calm(rows) * (Math.floor(nowUs / 2e6) % 2 === 0 ? 1 : 2);
  const capacity = capacityPerS(calm) * 0.75;
  const outcome = simulate(new Random(seed), { truth, noise: 0.1, ratePerS: 3 * capacity, seconds: 20 });
  assert.ok(outcome.goodputPerS >= 0.85 * capacity, `${JSON.stringify(outcome)}, capacity ${capacity} (seed ${seed})`);
  assert.ok(outcome.late <= 0.04 * (outcome.offered - outcome.rejected), `${JSON.stringify(outcome)} (seed ${seed})`);
});
