import assert from 'node:assert/strict';
import { test } from 'node:test';
import { metBy, parseFailCondition } from '../../../src/load/fail-condition.ts';
import { Tally } from '../../../src/load/tally.ts';

/** 200 answers of 1 to 200 ms and 5 refusals within one second. */
function result() {
  const tally = new Tally(0, 1000, 100);
  for (let ms = 1; ms <= 200; ms++) {
    tally.sent(0, 0);
    tally.succeeded(0, ms);
  }
  for (let n = 0; n < 5; n++) {
    tally.sent(0, 0);
    tally.failed(0, 1, '429', '');
  }
  return { ...tally.result(1000), generator: { cpuUsPerRequest: 0, busy: 0 }, interrupted: false };
}

test('a condition compares a figure of the result with a number', () => {
  for (const [text, reason] of [
    ['p99>197', 'p99 is 198'],
    ['p99>200', undefined],
    ['p50 < 101', 'p50 is 100'],
    ['max>199.5', 'max is 200'],
    ['mean<1', undefined],
    ['rate<201', 'rate is 200'],
    ['goodput<101', 'goodput is 100'],
    ['goodput<100', undefined],
    ['not-ok>4', 'not-ok is 5'],
    ['not-ok>5', undefined],
    // 200 answers cannot tell it.
    ['p99.9>1000', 'p99.9 is not known: too few answers'],
  ] as const) {
    assert.equal(metBy(parseFailCondition(text)!, result()), reason, text);
  }
});

test('what is no condition is told from one', () => {
  for (const text of ['', 'p99', 'p99>', 'p98>1', 'p99>=1', 'p99>-1', 'p99>1ms', '>1', 'toString>1', 'p99>1>2']) {
    assert.equal(parseFailCondition(text), undefined, text);
  }
});
