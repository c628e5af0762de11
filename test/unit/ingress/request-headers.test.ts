import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readHeaders } from '../../../src/ingress/request-headers.ts';

const deadline = (...values: string[]) => readHeaders(values.flatMap((value) => ['Batchport-Deadline-Ms', value]));

test('a deadline is milliseconds in decimal digits, and of several the soonest counts', () => {
  assert.equal(deadline('50').deadlineUs, 50_000);
  assert.equal(deadline('0.5').deadlineUs, 500);
  assert.equal(deadline('5000', '7', '60').deadlineUs, 7000);
});

test('anything else is a fault that says what may stand there, its bounds included', () => {
  for (const value of ['-1', '1e99', 'NaN', '0', '', '+5', '5, 6', '0.0001', '1000000000']) {
    const { deadlineUs, fault } = deadline(value);
    assert.deepEqual([deadlineUs, fault?.code], [0, 'BAD_REQUEST'], value);
    assert.match(fault!.message, /above 0 and below 1000000000/);
  }
});
