import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ConnectionError, InferenceError } from '../../../src/client/errors.ts';
import { DEFAULT_RETRY, parseRetryAfterMs, retryDelayMs } from '../../../src/client/retry.ts';

const refused = new ConnectionError('CONNECT_FAILED', 'refused', { sent: false });
const lost = new ConnectionError('CONNECTION_LOST', 'lost', { sent: true });
const answer = (status: number, retryAfterMs?: number) => new InferenceError('no', { status, code: 'X', retryAfterMs });
const policy = { attempts: 4, totalMs: 10_000, baseMs: 100, maxMs: 250, afterSend: false };

test('a connection that could not be made is tried again, with delays that double up to a bound', () => {
  const longest = [1, 2, 3].map((attempt) => retryDelayMs(refused, attempt, 0, policy, 1));
  assert.deepEqual(longest, [100, 200, 250]);
  assert.equal(retryDelayMs(refused, 1, 0, policy, 0), 0);
  assert.equal(retryDelayMs(refused, 1, 0, policy, 0.25), 25);
});

test('tries and time are bounded', () => {
  assert.equal(retryDelayMs(refused, 4, 0, policy, 0), undefined);
  assert.equal(retryDelayMs(refused, 1, 9_900, policy, 1), 100);
  assert.equal(retryDelayMs(refused, 1, 9_901, policy, 1), undefined);
  assert.equal(retryDelayMs(refused, 1, 0, { ...policy, attempts: 1 }, 0), undefined);
});

test('429 and 503 are tried again after the time the server asks for, and only if it asks', () => {
  for (const status of [429, 503]) {
    assert.equal(retryDelayMs(answer(status, 2_000), 1, 0, policy, 0), 2_000);
    assert.equal(retryDelayMs(answer(status, 2_000), 1, 0, policy, 1), 2_100);
    assert.equal(retryDelayMs(answer(status), 1, 0, policy, 0), undefined);
    assert.equal(retryDelayMs(answer(status, 60_000), 1, 0, policy, 0), undefined);
  }
});

test('no other answer is tried again', () => {
  for (const status of [301, 400, 404, 408, 413, 500, 501, 502, 504]) {
    assert.equal(retryDelayMs(answer(status, 1), 1, 0, policy, 0), undefined, String(status));
  }
  assert.equal(retryDelayMs(new Error('bug'), 1, 0, policy, 0), undefined);
});

test('a request that was sent is sent again only when the caller allows it, and never after a timeout or a bad answer', () => {
  assert.equal(retryDelayMs(lost, 1, 0, policy, 0), undefined);
  assert.equal(retryDelayMs(lost, 1, 0, { ...policy, afterSend: true }, 0), 0);
  for (const code of ['TIMEOUT', 'BAD_RESPONSE', 'TOO_MANY_PENDING', 'CLIENT_CLOSED'] as const) {
    const error = new ConnectionError(code, 'x', { sent: true });
    assert.equal(retryDelayMs(error, 1, 0, { ...policy, afterSend: true }, 0), undefined, code);
  }
  assert.equal(DEFAULT_RETRY.afterSend, false);
});

test('Retry-After is a number of seconds or a date', () => {
  const now = Date.parse('2026-01-01T00:00:00Z');
  assert.equal(parseRetryAfterMs('0', now), 0);
  assert.equal(parseRetryAfterMs('3', now), 3_000);
  assert.equal(parseRetryAfterMs('Thu, 01 Jan 2026 00:00:05 GMT', now), 5_000);
  assert.equal(parseRetryAfterMs('Wed, 31 Dec 2025 00:00:00 GMT', now), 0);
  for (const header of [undefined, '', '-1', '1.5', 'soon', '99999999999'])
    assert.equal(parseRetryAfterMs(header, now), undefined);
});
