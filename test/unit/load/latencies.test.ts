import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Latencies, PERCENTILES } from '../../../src/load/latencies.ts';
import { seedFromEnv } from '../../support/random.ts';

test('percentiles are within a thousandth of those of the sorted list; mean and maximum are exact', () => {
  const random = seedFromEnv();
  const latencies = new Latencies(3);
  const all = Array.from({ length: 50_000 }, () => Math.round(1000 * Math.exp(12 * random.float() - 4)) / 1000);
  for (const ms of all) latencies.add(ms);
  const sorted = all.toSorted((a, b) => a - b);
  const { count, meanMs, maxMs, percentilesMs } = latencies.summary();
  assert.equal(count, all.length);
  assert(Math.abs(meanMs - all.reduce((sum, ms) => sum + ms, 0) / all.length) < 1e-6);
  assert.equal(maxMs, sorted.at(-1));
  for (const percentile of PERCENTILES) {
    // A hair less, for what 99.9 / 100 gives in binary.
    const exact = sorted[Math.ceil((percentile / 100) * all.length - 1e-6) - 1]!;
    const told = percentilesMs.get(percentile)!;
    assert(Math.abs(told - exact) <= exact / 1000 + 0.001, `p${percentile}: ${told} instead of ${exact}`);
  }
});

test('a percentile is told only with enough values beyond it', () => {
  const latencies = new Latencies(3);
  const known = () => PERCENTILES.filter((percentile) => latencies.percentileMs(percentile) !== undefined);
  assert.deepEqual(known(), []);
  for (const [count, percentiles] of [
    [2, [50]],
    [10, [50, 90]],
    [99, [50, 90, 95]],
    [100, [50, 90, 95, 99]],
    [1000, [50, 90, 95, 99, 99.9]],
    [9999, [50, 90, 95, 99, 99.9]],
    [10_000, [...PERCENTILES]],
  ] as const) {
    while (latencies.count < count) latencies.add(1);
    assert.deepEqual(known(), percentiles, `${count} values`);
  }
});

test('times outside its range count at its ends', () => {
  const latencies = new Latencies(2);
  latencies.add(-5);
  latencies.add(0.0001);
  latencies.add(1e12);
  const { count, maxMs } = latencies.summary();
  assert.deepEqual([count, maxMs], [3, 3_600_000]);
});
