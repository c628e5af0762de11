/** When a transfer is tried again, and when it is given up. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { seededRandom } from '../../../src/scheduler/random.ts';
import {
  type AttemptEnd,
  type Attempts,
  afterAttempt,
  BROKEN_MAX,
  firstAttempt,
  LIMITED_MAX,
  PROGRESS_BYTES,
  WAIT_MAX_S,
} from '../../../src/weights/attempts.ts';

/** Waits until it gives up, at most 1000. */
function waitsOf(end: AttemptEnd, random: () => number): { waits: number[]; verdict: string } {
  const waits: number[] = [];
  let state: Attempts = firstAttempt();
  for (let n = 0; n < 1000; n++) {
    const verdict = afterAttempt(state, end, random());
    if (verdict.kind !== 'again') return { waits, verdict: verdict.kind };
    waits.push(verdict.waitMs);
    state = verdict.state;
  }
  return { waits, verdict: 'never' };
}

test('what the server asks for is waited for in full, and then up to a spread that grows', () => {
  for (const random of [0, 0.5, 0.999]) {
    const { waits, verdict } = waitsOf({ kind: 'limited', askedS: 5 }, () => random);
    assert.equal(verdict, 'too many');
    assert.equal(waits.length, LIMITED_MAX - 1);
    assert(waits.every((ms) => ms >= 5000 && ms <= 35_000));
    if (random > 0) assert(waits[3]! - 5000 > 7 * (waits[0]! - 5000));
  }
});

test('a limit without a time is never asked again at once', () => {
  const { waits } = waitsOf({ kind: 'limited', askedS: undefined }, seededRandom(1));
  assert(waits.every((ms) => ms >= 1000 && ms <= 60_000));
});

test('whoever asks for more than is waited for is left alone', () => {
  assert.equal(waitsOf({ kind: 'limited', askedS: WAIT_MAX_S + 1 }, () => 0).verdict, 'asked too much');
  assert.equal(waitsOf({ kind: 'limited', askedS: WAIT_MAX_S }, () => 0).verdict, 'too many');
});

test('attempts that bring nothing are given up after a few, those that get on are not', () => {
  const { waits, verdict } = waitsOf({ kind: 'broken', receivedBytes: PROGRESS_BYTES - 1 }, () => 0.999);
  assert.equal(verdict, 'too many');
  assert.equal(waits.length, BROKEN_MAX - 1);
  assert(waits.every((ms, n) => n === 0 || ms >= waits[n - 1]!));
  assert.equal(waitsOf({ kind: 'broken', receivedBytes: PROGRESS_BYTES }, () => 0.5).verdict, 'never');
});

test('a server that got on between two refusals is not counted as refusing all along', () => {
  let state: Attempts = firstAttempt();
  for (let n = 0; n < 3 * LIMITED_MAX; n++) {
    const end: AttemptEnd = n % 10 === 9 ? { kind: 'broken', receivedBytes: 1 } : { kind: 'limited', askedS: 0 };
    const verdict = afterAttempt(state, end, 0);
    assert.equal(verdict.kind, n >= 10 * (BROKEN_MAX - 1) + 9 ? 'too many' : 'again');
    if (verdict.kind === 'again') state = verdict.state;
  }
});
