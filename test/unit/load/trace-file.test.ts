import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseTrace } from '../../../src/load/trace-file.ts';

test('a trace is a time in seconds on each line, from any origin, in any order', () => {
  assert.deepEqual([...parseTrace('10.5\n10\r\n\n11e0\n')], [0, 500, 1000]);
  assert.deepEqual([...parseTrace('# recorded on Monday\n1,GET,200\n3;x\n2\tfoo\n')], [0, 1000, 2000]);
  assert.deepEqual([...parseTrace('-1\n+.5')], [0, 1500]);
});

test('what is no time is refused with its line', () => {
  assert.throws(() => parseTrace('1\ntime\n'), /^Error: line 2: "time" is no time$/);
  for (const bad of ['1e400', 'NaN', '0x10', '1.2.3', '12:00']) assert.throws(() => parseTrace(bad), /line 1: /);
  assert.throws(() => parseTrace('# nothing\n\n'), /holds no times/);
});
