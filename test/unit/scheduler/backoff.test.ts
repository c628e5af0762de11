/** Backoff between restarts: bounds and spread of the delays, growth to the cap, and when failures are forgotten. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type BackoffPolicy,
  type BackoffState,
  initialBackoff,
  nextDelay,
  noteReady,
} from '../../../src/scheduler/backoff.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';

const POLICY: BackoffPolicy = { floorMs: 100, baseMs: 1000, capMs: 30_000, healthyMs: 60_000 };
const ALMOST_ONE = 1 - 2 ** -32;

/** Ceilings of the next delays when it fails again and again without ever becoming ready. */
function ceilingsOf(state: BackoffState, count: number): number[] {
  const ceilings: number[] = [];
  let current = state;
  for (let i = 0; i < count; i++) {
    const next = nextDelay(current, i, ALMOST_ONE);
    ceilings.push(Math.round(next.delayMs));
    current = next.state;
  }
  return ceilings;
}

test('the ceiling doubles with every failure in a row and stays at the cap', () => {
  assert.deepEqual(ceilingsOf(initialBackoff(POLICY), 8), [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
});

test('after thousands of failures the delay is still a number under the cap', () => {
  const ceilings = ceilingsOf(initialBackoff(POLICY), 3000);
  assert.ok(ceilings.slice(5).every((ceiling) => ceiling === 30_000));
});

test('the smallest draw waits for the floor, never less', () => {
  assert.equal(nextDelay(initialBackoff(POLICY), 0, 0).delayMs, 100);
  assert.equal(nextDelay(initialBackoff({ ...POLICY, floorMs: 0 }), 0, 0).delayMs, 0);
});

test('delays spread evenly between floor and ceiling', () => {
  const random = seedFromEnv();
  const state = nextDelay(initialBackoff(POLICY), 0, 0.5).state;
  const quarters = [0, 0, 0, 0];
  for (let i = 0; i < 40_000; i++) {
    const { delayMs } = nextDelay(state, 0, random.float());
    assert.ok(delayMs >= 100 && delayMs < 2000);
    quarters[Math.floor(((delayMs - 100) / 1900) * 4)]! += 1;
  }
  // 10,000 each with a standard deviation of 87: six of them make a false alarm a matter of one run in 10^8.
  assert.ok(
    quarters.every((count) => Math.abs(count - 10_000) < 520),
    `quarters ${quarters}`,
  );
});

test('failures are forgotten after a healthy period, and not a millisecond earlier', () => {
  const failed = afterFailures(3);
  const ready = noteReady(failed, 5000);
  assert.equal(nextDelay(ready, 64_999, ALMOST_ONE).state.failures, 4);
  const fresh = nextDelay(ready, 65_000, ALMOST_ONE);
  assert.equal(fresh.state.failures, 1);
  assert.equal(Math.round(fresh.delayMs), 1000);
});

test('time spent starting is not health: without becoming ready nothing is forgotten', () => {
  assert.equal(nextDelay(afterFailures(3), 1e9, 0.5).state.failures, 4);
});

test('health is counted from the first notice of readiness and ends with the failure', () => {
  const ready = noteReady(noteReady(afterFailures(2), 1000), 50_000);
  assert.equal(ready.readySinceMs, 1000);
  assert.equal(nextDelay(ready, 61_000, 0.5).state.readySinceMs, undefined);
});

test('a clock that steps back forgets nothing', () => {
  assert.equal(nextDelay(noteReady(afterFailures(2), 100_000), 0, 0.5).state.failures, 3);
});

test('a state handed in is never changed', () => {
  const state = Object.freeze(afterFailures(2));
  noteReady(state, 1);
  nextDelay(state, 2, 0.5);
  assert.deepEqual(state, afterFailures(2));
});

test('in any history the delay stays within its bounds and failures count the unhealthy run', () => {
  const random = seedFromEnv();
  for (let history = 0; history < 500; history++) {
    checkHistory(random);
  }
});

for (const wrong of [
  { ...POLICY, floorMs: -1 },
  { ...POLICY, floorMs: 2000 },
  { ...POLICY, baseMs: 0, floorMs: 0 },
  { ...POLICY, capMs: 999 },
  { ...POLICY, capMs: Number.POSITIVE_INFINITY },
  { ...POLICY, healthyMs: Number.NaN },
]) {
  test(`the policy ${JSON.stringify(wrong)} is a bug`, () => {
    assert.throws(() => initialBackoff(wrong), /This is a bug/);
  });
}

test('a random number outside [0, 1) is a bug', () => {
  for (const random of [-0.1, 1, Number.NaN]) {
    assert.throws(() => nextDelay(initialBackoff(POLICY), 0, random), /This is a bug/);
  }
});

function afterFailures(count: number): BackoffState {
  let state = initialBackoff(POLICY);
  for (let i = 0; i < count; i++) {
    state = nextDelay(state, 0, 0.5).state;
  }
  return state;
}

/** Failures and moments of readiness at random times, beside a count kept the plain way. */
function checkHistory(random: Random): void {
  let state = initialBackoff(POLICY);
  let nowMs = 0;
  let readyAt: number | undefined;
  let inARow = 0;
  for (let step = 0; step < 40; step++) {
    nowMs += random.int(0, 50_000);
    if (random.chance(0.5)) {
      state = noteReady(state, nowMs);
      readyAt ??= nowMs;
      continue;
    }
    inARow = readyAt !== undefined && nowMs - readyAt >= POLICY.healthyMs ? 1 : inARow + 1;
    readyAt = undefined;
    const next = nextDelay(state, nowMs, random.float());
    state = next.state;
    assert.equal(state.failures, inARow);
    assert.ok(next.delayMs >= POLICY.floorMs);
    assert.ok(next.delayMs < Math.min(POLICY.capMs, POLICY.baseMs * 2 ** (inARow - 1)));
  }
}
