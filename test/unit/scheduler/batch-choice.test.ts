/** How large batches should become. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { COST_POINTS } from '../../../src/queue/geometry.ts';
import { batchRows } from '../../../src/scheduler/batch-choice.ts';
import { costUs } from '../../../src/scheduler/cost-curve.ts';
import { seedFromEnv } from '../../support/random.ts';

const random = seedFromEnv();
const NO_LIMIT = Number.POSITIVE_INFINITY;

function line(baseUs: number, rowUs: number): Float64Array {
  return Float64Array.from({ length: COST_POINTS }, (_, n) => baseUs + rowUs * 2 ** n);
}

test('where time is all proportional to rows, small batches are as good and answer sooner', () => {
  assert.ok(batchRows(line(0, 3000), 64, NO_LIMIT) <= 3);
});

test('where a run costs the same whatever its rows, batches are as large as they may be', () => {
  assert.equal(batchRows(line(5000, 1), 64, NO_LIMIT), 64);
  assert.equal(batchRows(line(20, 0.1), 64, NO_LIMIT), 64);
});

test('a batch takes no longer than it may, but for a single row', () => {
  assert.equal(batchRows(line(5000, 500), 64, 9000), 8);
  assert.equal(batchRows(line(5000, 500), 64, 100), 1);
});

test('a step in the costs is not stepped over where that brings less per second', () => {
  // 1 to 8 rows take 10 ms, every further 8 rows as much again: 8 rows are as good as any multiple.
  const us = Float64Array.from({ length: COST_POINTS }, (_, n) => 10_000 * Math.ceil(2 ** n / 8));
  assert.equal(batchRows(us, 64, NO_LIMIT), 8);
});

test('whatever the curve, next to no throughput is given up, and the limit holds', () => {
  for (let round = 0; round < 500; round++) {
    const us = line(random.float() * 10_000, random.float() * 3000);
    for (let n = 1; n < COST_POINTS; n++) us[n] = Math.max(us[n - 1]!, us[n]! * (0.8 + 0.4 * random.float()));
    const rowsMax = random.int(1, 512);
    const chosen = batchRows(us, rowsMax, NO_LIMIT);
    assert.ok(chosen >= 1 && chosen <= rowsMax);
    const rate = (rows: number) => rows / (costUs(us, rows) + 150);
    for (let rows = 1; rows <= rowsMax; rows *= 2) {
      assert.ok(rate(chosen) >= 0.96 * rate(rows), `${chosen} against ${rows} of ${rowsMax} (seed ${random.seed})`);
    }
    const limitUs = random.float() * 50_000;
    const limited = batchRows(us, rowsMax, limitUs);
    assert.ok(limited === 1 || costUs(us, limited) <= limitUs, `seed ${random.seed}`);
  }
});

test('a batch that is told to wait for rows collects as many as may be, inside its limit', () => {
  assert.equal(batchRows(line(0, 3000), 64, NO_LIMIT, true), 64);
  assert.equal(batchRows(line(5000, 500), 64, 9000, true), 8);
});
