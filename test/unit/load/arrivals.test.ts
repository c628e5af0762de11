import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ArrivalPlan, arrivalsOf } from '../../../src/load/arrivals.ts';

/** The first `count` times of a plan, or all there are. */
function times(plan: ArrivalPlan, count: number): number[] {
  const arrivals = arrivalsOf(plan);
  const found: number[] = [];
  while (found.length < count) {
    const next = arrivals.next();
    if (next === Number.POSITIVE_INFINITY) break;
    found.push(next);
  }
  return found;
}

const within = (all: readonly number[], fromMs: number, toMs: number) =>
  all.filter((timeMs) => timeMs > fromMs && timeMs <= toMs).length;

test('constant arrivals are evenly spaced', () => {
  assert.deepEqual(times({ kind: 'constant', ratePerS: 250, seed: 1 }, 4), [4, 8, 12, 16]);
});

test('poisson arrivals have the rate, and gaps that spread like an exponential distribution', () => {
  const all = times({ kind: 'poisson', ratePerS: 500, seed: 7 }, 50_000);
  const gaps = all.map((timeMs, index) => timeMs - (all[index - 1] ?? 0));
  const mean = all.at(-1)! / all.length;
  const deviation = Math.sqrt(gaps.reduce((sum, gap) => sum + (gap - mean) ** 2, 0) / gaps.length);
  assert(Math.abs(mean - 2) < 0.04, `the mean gap is ${mean} ms`);
  assert(Math.abs(deviation / mean - 1) < 0.02, `the deviation is ${deviation} ms`);
  // A third (1 / e) of the gaps is longer than the mean.
  const longer = gaps.filter((gap) => gap > 2).length / gaps.length;
  assert(Math.abs(longer - Math.exp(-1)) < 0.01, `${longer} of the gaps are longer than the mean`);
});

test('a seed gives the same times again, another one others', () => {
  const plan = (seed: number) => ({ kind: 'poisson', ratePerS: 100, seed }) as const;
  assert.deepEqual(times(plan(3), 1000), times(plan(3), 1000));
  assert.notDeepEqual(times(plan(3), 10), times(plan(4), 10));
});

test('a burst multiplies the rate at the end of each period, for constant and poisson arrivals', () => {
  const burst = { factor: 10, onMs: 1000, everyMs: 10_000 };
  const constant = times({ kind: 'constant', ratePerS: 20, seed: 1, burst }, 1000);
  for (const periodMs of [0, 10_000]) {
    // A time on the border may fall on either side by a rounding error.
    assert(Math.abs(within(constant, periodMs, periodMs + 9000) - 180) <= 1);
    assert(Math.abs(within(constant, periodMs + 9000, periodMs + 10_000) - 200) <= 1);
  }
  const poisson = times({ kind: 'poisson', ratePerS: 200, seed: 5, burst }, 20_000);
  const [quiet, loud] = [within(poisson, 0, 9000) / 9, within(poisson, 9000, 10_000)];
  assert(Math.abs(quiet - 200) < 25 && Math.abs(loud - 2000) < 200, `${quiet}/s and ${loud}/s`);
});

test('times never go back, over many changes of the rate', () => {
  const burst = { factor: 0.001, onMs: 7, everyMs: 11 };
  const all = times({ kind: 'poisson', ratePerS: 300, seed: 11, burst }, 20_000);
  assert.equal(all.length, 20_000);
  assert(all.every((timeMs, index) => timeMs >= (all[index - 1] ?? 0)));
});

test('a trace is replayed at its tempo or another, and ends', () => {
  const timesMs = Float64Array.of(0, 5, 5, 100);
  assert.deepEqual(times({ kind: 'trace', timesMs, stretch: 1 }, 10), [0, 5, 5, 100]);
  assert.deepEqual(times({ kind: 'trace', timesMs, stretch: 0.5 }, 10), [0, 2.5, 2.5, 50]);
  const arrivals = arrivalsOf({ kind: 'trace', timesMs: Float64Array.of(0), stretch: 1 });
  assert.deepEqual([arrivals.next(), arrivals.next(), arrivals.next()], [0, Infinity, Infinity]);
});
