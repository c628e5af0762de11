/** How long servers ask to be left alone, in every form that they have for it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { askedWaitS, exhaustedForS } from '../../../src/weights/asked-wait.ts';

const NOW = Date.parse('Tue, 15 Nov 1994 08:00:00 GMT');

for (const [headers, seconds] of [
  [{ 'retry-after': '120' }, 120],
  [{ 'retry-after': '0' }, 0],
  [{ 'retry-after': ['3', '7'] }, 7],
  [{ 'retry-after': 'Tue, 15 Nov 1994 08:00:30 GMT' }, 30],
  [{ 'retry-after': 'Tuesday, 15-Nov-94 08:00:30 GMT' }, 30],
  [{ 'retry-after': 'Tue Nov 15 08:00:30 1994' }, 30],
  [{ 'retry-after': 'Tue, 15 Nov 1994 07:00:00 GMT' }, 0],
  [{ ratelimit: '"default";r=0;t=30' }, 30],
  [{ ratelimit: '"hourly";r=0;t=1200, "burst";r=5;t=10' }, 1200],
  [{ ratelimit: ['"a";r=0;t=5', 'b;r=0;t=9;pk=:c2Vj:'] }, 9],
  [{ ratelimit: '"a, b;r=0;t=99";r=0 ; t=4' }, 4],
  [{ ratelimit: '"say \\"hi\\"";r=0;t=6' }, 6],
  [{ 'ratelimit-limit': '100', 'ratelimit-remaining': '0', 'ratelimit-reset': '17' }, 17],
] as const) {
  test(`${JSON.stringify(headers)} asks for ${seconds} s`, () => {
    assert.equal(askedWaitS(headers, NOW), seconds);
  });
}

for (const headers of [
  {},
  { 'retry-after': 'soon' },
  { 'retry-after': '-5' },
  { 'retry-after': '1.5' },
  { 'retry-after': '9999999999999999' },
  { 'retry-after': '2026-01-01' },
  { ratelimit: '"default";r=50;t=30' },
  { ratelimit: '"default";r=0' },
  { ratelimit: '"unfinished;r=0;t=5' },
  { ratelimit: '' },
  { 'ratelimit-remaining': '0' },
  { 'ratelimit-remaining': '3', 'ratelimit-reset': '17' },
]) {
  test(`${JSON.stringify(headers)} asks for nothing`, () => {
    assert.equal(askedWaitS(headers, NOW), undefined);
  });
}

test("a date is taken against the server's own clock where it tells it", () => {
  const headers = { 'retry-after': 'Tue, 15 Nov 1994 10:00:10 GMT', date: 'Tue, 15 Nov 1994 10:00:00 GMT' };
  assert.equal(askedWaitS(headers, NOW), 10);
});

test('Retry-After goes before RateLimit, and only RateLimit tells that a good answer was the last', () => {
  const headers = { 'retry-after': '5', ratelimit: '"default";r=0;t=60' };
  assert.equal(askedWaitS(headers, NOW), 5);
  assert.equal(exhaustedForS(headers), 60);
  assert.equal(exhaustedForS({ 'retry-after': '5' }), undefined);
});
