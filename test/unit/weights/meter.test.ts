/** Rate and remaining time of a transfer. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Meter } from '../../../src/weights/meter.ts';

test('the rate is that of the last seconds, and the remaining time goes by it', () => {
  const meter = new Meter();
  for (let ms = 0; ms <= 20_000; ms += 50) meter.note(ms <= 10_000 ? ms * 10 : 100_000 + (ms - 10_000) * 100, ms);
  assert.equal(meter.rate(20_000), 100_000);
  assert.equal(meter.remainingS(1_600_000, 20_000), 5);
});

test('a transfer that stands still slows down to nothing, and one that begins anew has no rate yet', () => {
  const meter = new Meter();
  meter.note(0, 0);
  meter.note(1000, 1000);
  assert.equal(meter.rate(1000), 1000);
  assert.equal(meter.rate(4000), 250);
  assert.equal(meter.rate(9000), undefined);
  assert.equal(meter.remainingS(2000, 9000), undefined);
  meter.note(10, 10_000);
  assert.equal(meter.rate(10_000), undefined);
});

test('nothing can be told of a transfer of which nothing has come, or whose size nobody knows', () => {
  const meter = new Meter();
  assert.equal(meter.rate(0), undefined);
  meter.note(0, 0);
  meter.note(500, 1000);
  assert.equal(meter.remainingS(undefined, 1000), undefined);
});
