/** Admission's parts: when work starts, the margin that is learnt, rows on their way. The whole is in overload-simulation.test.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Expected, SafetyMargin, startsInUs } from '../../../src/scheduler/admission.ts';
import { seedFromEnv } from '../../support/random.ts';

const random = seedFromEnv();
const TIMEOUT_US = 100_000;

test('work starts when what is ahead of it is done, shared by the instances, and not before one is free', () => {
  assert.equal(startsInUs({ instances: 1, runningUs: 3000, firstFreeUs: 3000 }, 5000), 8000);
  assert.equal(startsInUs({ instances: 2, runningUs: 3000, firstFreeUs: 1000 }, 5000), 4000);
  assert.equal(startsInUs({ instances: 4, runningUs: 8000, firstFreeUs: 2000 }, 0), 2000);
  assert.equal(startsInUs({ instances: 1, runningUs: 0, firstFreeUs: 0 }, 0), 0);
});

test('the margin becomes as large as lateness is, and few outcomes are later', () => {
  for (const spreadUs of [1000, 10_000]) {
    const margin = new SafetyMargin();
    let late = 0;
    for (let n = 0; n < 30_000; n++) {
      const lateUs = (random.float() + random.float() + random.float() - 1) * spreadUs;
      if (n > 10_000 && lateUs > margin.us(TIMEOUT_US)) late++;
      margin.note(lateUs, TIMEOUT_US, n * 10_000);
    }
    assert.ok(late / 20_000 <= 0.02, `${late} late with a spread of ${spreadUs} (seed ${random.seed})`);
    assert.ok(margin.us(TIMEOUT_US) <= Math.max(0.05 * TIMEOUT_US, 2 * spreadUs));
  }
});

test('the margin never takes more than half of a deadline, and falls again once outcomes are on time', () => {
  const margin = new SafetyMargin();
  for (let n = 0; n < 1000; n++) margin.note(10 * TIMEOUT_US, TIMEOUT_US, n * 10_000);
  assert.equal(margin.us(TIMEOUT_US), TIMEOUT_US / 2);
  for (let n = 0; n < 20_000; n++) margin.note(-1000, TIMEOUT_US, 1e9 + n * 10_000);
  assert.ok(margin.us(TIMEOUT_US) <= 0.05 * TIMEOUT_US);
});

test('the outcomes of one batch raise the margin once', () => {
  const margin = new SafetyMargin();
  for (let n = 0; n < 64; n++) margin.note(Number.POSITIVE_INFINITY, TIMEOUT_US, 1_000_000 + n);
  assert.equal(margin.us(TIMEOUT_US), 0.05 * TIMEOUT_US);
  for (let n = 0; n < 4; n++) margin.note(Number.POSITIVE_INFINITY, TIMEOUT_US, 2_000_000 + n * 10_000);
  assert.ok(Math.abs(margin.us(TIMEOUT_US) - 0.1 * TIMEOUT_US) < 1);
});

test('rows on their way are counted until they have come, and forgotten when they do not', () => {
  const expected = new Expected(10_000);
  expected.add(3, 1_000_000);
  expected.add(2, 1_004_000);
  assert.equal(expected.rows(1_005_000), 5);
  expected.remove(2, 1_006_000);
  assert.equal(expected.rows(1_009_000), 3);
  expected.add(4, 1_012_000);
  assert.equal(expected.rows(1_013_000), 7);
  assert.equal(expected.rows(1_023_000), 4, 'those of the first span are forgotten');
  assert.equal(expected.rows(1_050_000), 0);
  expected.remove(4, 1_051_000);
  assert.equal(expected.rows(1_051_000), 0, 'what is forgotten is not taken off again');
});
