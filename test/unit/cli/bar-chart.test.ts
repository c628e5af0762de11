import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bar } from '../../../src/cli/bar-chart.ts';

test('a bar is as long as its value, to an eighth of a character', () => {
  assert.deepEqual(
    [0, 1, 4, 8, 12, 16].map((value) => bar(value, 16, 2)),
    ['', '▏', '▌', '█', '█▌', '██'],
  );
});

test('values beyond the scale are cut, and what is no value has no bar', () => {
  assert.equal(bar(17, 16, 4), '███▶');
  assert.deepEqual([bar(Number.NaN, 1, 4), bar(1, 0, 4), bar(-1, 1, 4)], ['', '', '']);
});
