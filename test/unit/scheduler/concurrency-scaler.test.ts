/** Scaling by rows: the rule by itself, and simulated loads that must be met and must not make it swing. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { decideByRows, initialConcurrency } from '../../../src/scheduler/concurrency-scaler.ts';
import { seedFromEnv } from '../../support/random.ts';

const LOOK_MS = 100;
const TARGET_ROWS = 4;

/** Targets of a minute and more of looks at so many rows. */
class Scaled {
  state = initialConcurrency();
  nowMs = 12_345;
  readonly targets: number[] = [];
  readonly reasons: string[] = [];
  readonly min: number;
  readonly max: number;

  constructor(min = 1, max = 16) {
    this.min = min;
    this.max = max;
  }

  look(rows: number): number {
    this.nowMs += LOOK_MS;
    const { min, max, nowMs } = this;
    const { state, target, reason } = decideByRows(this.state, { nowMs, rows, min, max, targetRows: TARGET_ROWS });
    assert(target >= min && target <= max, `${target} instances of ${min} to ${max}`);
    assert.equal(state.target, target);
    assert.equal(reason === 'steady', target === (this.targets.at(-1) ?? 0), reason);
    this.state = state;
    this.targets.push(target);
    this.reasons.push(reason);
    return target;
  }

  lasting(seconds: number, rows: (atS: number) => number): this {
    for (let ms = 0; ms < seconds * 1000; ms += LOOK_MS) this.look(rows(ms / 1000));
    return this;
  }

  /** Times that the number turned from growing to falling or back, in the last so many seconds. */
  turns(seconds: number): number {
    const recent = this.targets.slice((-seconds * 1000) / LOOK_MS);
    const steps = recent.slice(1).map((target, n) => Math.sign(target - recent[n]!));
    const moves = steps.filter((step) => step !== 0);
    return moves.slice(1).filter((move, n) => move !== moves[n]).length;
  }
}

test('the first look wants the minimum, and bounds that change are kept', () => {
  const scaled = new Scaled(2, 4);
  assert.equal(scaled.look(0), 2);
  assert.equal(scaled.reasons.at(-1), 'bounds');
});

test('a load that jumps is met within a panic window', () => {
  const scaled = new Scaled().lasting(120, () => 2);
  assert.equal(scaled.targets.at(-1), 1);
  // The average of the panic window has to rise to twice what there is.
  scaled.lasting(2, () => 10 * TARGET_ROWS);
  assert(scaled.targets.at(-1)! >= 3, String(scaled.targets.at(-1)));
  scaled.lasting(6, () => 10 * TARGET_ROWS);
  assert.equal(scaled.targets.at(-1), 10);
  assert(scaled.reasons.includes('rows have jumped'));
});

test('a load that is over is given up after a stable window, by half at a time', () => {
  const scaled = new Scaled().lasting(30, () => 16 * TARGET_ROWS);
  assert.equal(scaled.targets.at(-1), 16);
  scaled.lasting(55, () => 0);
  assert.equal(scaled.targets.at(-1), 16);
  scaled.lasting(30, () => 0);
  assert.equal(scaled.targets.at(-1), 1);
  const falling = scaled.targets.filter((target, n, all) => n > 0 && target < all[n - 1]!);
  for (const target of falling) assert([8, 4, 2, 1].includes(target), String(target));
});

test('a pause of the looks is no evidence', () => {
  const scaled = new Scaled().lasting(30, () => 8 * TARGET_ROWS);
  scaled.nowMs += 3_600_000;
  assert.equal(scaled.look(0), 4);
});

describe('no load makes it swing', () => {
  const random = seedFromEnv();
  const noisy = (rows: number) => Math.max(0, rows * (0.8 + 0.4 * random.float()));
  const HIGH = 8 * TARGET_ROWS;

  test('a steady one', () => {
    const scaled = new Scaled().lasting(600, () => noisy(HIGH));
    assert(scaled.turns(480) <= 2, String(scaled.turns(480)));
    assert(Math.abs(scaled.targets.at(-1)! - 8) <= 2);
  });

  for (const periodS of [10, 30, 60]) {
    test(`a square of ${periodS} s`, () => {
      const scaled = new Scaled().lasting(900, (atS) => noisy(atS % periodS < periodS / 2 ? HIGH : TARGET_ROWS));
      assert(scaled.turns(600) <= 4, String(scaled.turns(600)));
    });
  }

  test('a ramp', () => {
    const scaled = new Scaled().lasting(300, (atS) => noisy((HIGH * atS) / 300));
    assert(scaled.turns(300) <= 4, String(scaled.turns(300)));
    assert(scaled.targets.at(-1)! >= 7);
  });

  test('a spike', () => {
    const scaled = new Scaled().lasting(300, (atS) => noisy(atS >= 120 && atS < 130 ? 2 * HIGH : TARGET_ROWS));
    assert(scaled.turns(300) <= 2, String(scaled.turns(300)));
    assert(Math.max(...scaled.targets) >= 14);
    assert(scaled.targets.at(-1)! <= 2);
  });

  test('a day in half an hour', () => {
    const day = 1800;
    const scaled = new Scaled().lasting(2 * day, (atS) =>
      noisy(HIGH * (1 - Math.cos((2 * Math.PI * atS) / day)) * 0.5),
    );
    assert(scaled.turns(2 * day) <= 24, String(scaled.turns(2 * day)));
  });
});

test('whatever comes, it stays inside its bounds, and more rows never want fewer instances', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 50; round++) {
    const min = random.int(1, 3);
    const [fewer, more] = [new Scaled(min, min + random.int(0, 20)), new Scaled(min, 0)];
    Object.assign(more, { max: fewer.max });
    for (let n = 0; n < 400; n++) {
      const rows = random.int(0, 200);
      const less = fewer.look(rows);
      assert(more.look(2 * rows) >= less, `round ${round}, look ${n}, ${random}`);
    }
  }
});
