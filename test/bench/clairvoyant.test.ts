import assert from 'node:assert/strict';
import { test } from 'node:test';
import { answerable } from './clairvoyant.ts';

/** Runs that take 10 ms whatever they hold, and 1 ms for each row. */
const US = Float64Array.from({ length: 13 }, (_, n) => 10_000 + 1000 * 2 ** n);

test('a schedule that knows the future answers all where there is time, and what it can where there is not', () => {
  assert.equal(answerable(US, [0, 100, 200], 20, 0), 3);
  assert.equal(answerable(US, [0, 0, 0], 12, 0), 2);
  assert.equal(answerable(US, [0, 0, 0], 5, 0), 0);
  // Rows of the warm-up take time and do not count.
  assert.equal(answerable(US, [0, 1, 50], 20, 40), 1);
});
