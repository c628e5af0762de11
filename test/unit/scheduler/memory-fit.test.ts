import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  bytesOf,
  fitFor,
  fitOf,
  KEYS_MAX,
  type KeyPoints,
  largestPeak,
  type MemoryPoint,
  POINTS_MAX,
  rowsWithin,
  withMeasured,
  withPoint,
} from '../../../src/scheduler/memory-fit.ts';
import { seedFromEnv } from '../../support/random.ts';

const MIB = 2 ** 20;

test('a line is found again from a few of its points', () => {
  const points = [1, 2, 4, 8].map((rows) => ({ rows, bytes: 3 * MIB + 16 * MIB * rows }));
  const fit = fitOf(points);
  assert.deepEqual(fit, { baseBytes: 3 * MIB, rowBytes: 16 * MIB, measuredRows: 8 });
  assert.equal(rowsWithin(fit, 3 * MIB + 8 * 16 * MIB), 8);
  assert.equal(rowsWithin(fit, 3 * MIB + 8 * 16 * MIB - 1), 7);
});

test('a budget that holds twenty rows and a half is known to hold twenty after measuring eight', () => {
  const fit = fitOf([1, 2, 4, 8].map((rows) => ({ rows, bytes: 16 * MIB * rows })));
  assert.equal(rowsWithin(fit, 20.8 * 16 * MIB), 20);
});

test('one point alone is taken as rows that each cost their part', () => {
  assert.deepEqual(fitOf([{ rows: 2, bytes: 10 }]), { baseBytes: 0, rowBytes: 5, measuredRows: 2 });
});

test('memory that does not grow with the rows holds any number of them, or none', () => {
  const fit = fitOf([{ rows: 1, bytes: 100 }, { rows: 4, bytes: 90 }]); // biome-ignore format: two points
  assert.equal(fit.rowBytes, 0);
  assert.equal(rowsWithin(fit, 100), Number.POSITIVE_INFINITY);
  assert.equal(rowsWithin(fit, 99), 0);
});

test('no measured point lies above its fit, and what fits is what the fit says fits', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 2000; round++) {
    let points: readonly MemoryPoint[] = [];
    for (let n = random.int(1, 20); n > 0; n--) {
      points = withPoint(points, { rows: random.int(1, 64), bytes: random.int(0, 1000) * random.int(1, 1000) });
    }
    assert(points.length <= POINTS_MAX);
    const fit = fitOf(points);
    for (const { rows, bytes } of points) assert(bytesOf(fit, rows) >= bytes - 1e-3, `${rows} rows of ${bytes} bytes`);
    const room = random.int(0, 2_000_000);
    const rows = rowsWithin(fit, room);
    if (rows === Number.POSITIVE_INFINITY) continue;
    if (rows > 0) assert(bytesOf(fit, rows) <= room + 1e-3);
    assert(bytesOf(fit, rows + 1) > room - 1e-3);
  }
});

test('the largest figure of a number of rows stays, and so do the smallest and largest number of rows', () => {
  let points: readonly MemoryPoint[] = [];
  for (let rows = 1; rows <= 64; rows++) points = withPoint(points, { rows, bytes: rows });
  assert.equal(points.length, POINTS_MAX);
  assert.deepEqual([points[0]!.rows, points.at(-1)!.rows], [1, 64]);
  assert.equal(withPoint(points, { rows: 64, bytes: 3 }), points);
  assert.equal(withPoint(points, { rows: 64, bytes: 100 }).at(-1)!.bytes, 100);
});

test('a shape nobody has measured is guessed from the one that takes most, in proportion to its elements', () => {
  const keys: KeyPoints[] = [
    { key: '32', elements: 32, points: [{ rows: 1, bytes: 100 }, { rows: 2, bytes: 200 }] }, // biome-ignore format: one line a key
    { key: '64', elements: 64, points: [{ rows: 1, bytes: 150 }, { rows: 2, bytes: 250 }] }, // biome-ignore format: one line a key
  ];
  assert.deepEqual(fitFor(keys, '64', 64), { baseBytes: 50, rowBytes: 100, measuredRows: 2 });
  assert.deepEqual(fitFor(keys, '128', 128), { baseBytes: 50, rowBytes: 400, measuredRows: 0 });
  assert.deepEqual(fitFor(keys, '8', 8), { baseBytes: 50, rowBytes: 100, measuredRows: 0 });
  assert.equal(fitFor([], '8', 8), undefined);
  assert.equal(largestPeak(keys, 2), 250);
  assert.equal(largestPeak([], 2), undefined);
});

test('of too many shapes the one measured longest ago is forgotten', () => {
  let keys: readonly KeyPoints[] = [];
  for (let n = 0; n < KEYS_MAX + 5; n++) {
    keys = withMeasured(keys, { key: String(n), elements: n, point: { rows: 1, bytes: n } });
    keys = withMeasured(keys, { key: '0', elements: 0, point: { rows: 1, bytes: n + 1 } });
  }
  assert.equal(keys.length, KEYS_MAX);
  assert.equal(keys.at(-1)!.key, '0');
  assert(!keys.some(({ key }) => key === '1'));
  const same = withMeasured(keys, { key: '0', elements: 0, point: { rows: 1, bytes: 1 } });
  assert.equal(same, keys);
});
