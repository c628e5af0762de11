import assert from 'node:assert/strict';
import { test } from 'node:test';
import { encodeRequest } from '../../../src/client/request.ts';
import { madeUpInput } from '../../../src/load/made-up-inputs.ts';
import { DATATYPES, type Datatype } from '../../../src/tensor/datatype.ts';

test('every datatype can be made up and sent, with the same values for the same seed', () => {
  for (const datatype of Object.keys(DATATYPES) as Datatype[]) {
    for (const contents of ['random', 'zeros'] as const) {
      const one = madeUpInput('x', datatype, [3, 50], contents, 5);
      assert.deepEqual(one, madeUpInput('x', datatype, [3, 50], contents, 5));
      assert.equal(one.data.length, 150);
      encodeRequest({ inputs: [one] }, true);
      const values = new Set(Array.from(one.data as ArrayLike<unknown>, String));
      if (contents === 'zeros') assert.equal(values.size, 1, datatype);
      else assert(values.size > 1, datatype);
    }
    const others = madeUpInput('x', datatype, [3, 50], 'random', 6);
    assert.notDeepEqual(others, madeUpInput('x', datatype, [3, 50], 'random', 5), datatype);
  }
});

test('random values suit most models: floats below 1, bytes of any value, wider integers 0 or 1', () => {
  const values = (datatype: 'FP32' | 'INT64' | 'UINT8' | 'INT8') =>
    Array.from(madeUpInput('x', datatype, [5000], 'random', 1).data as ArrayLike<number | bigint>, Number);
  const range = (all: readonly number[]) => [Math.min(...all), Math.max(...all)];
  const [least, most] = range(values('FP32'));
  assert(least! >= 0 && most! < 1 && most! > 0.99);
  assert.deepEqual(range(values('INT64')), [0, 1]);
  assert.deepEqual(range(values('UINT8')), [0, 255]);
  assert.deepEqual(range(values('INT8')), [-128, 127]);
});

test('a shape too large to count is refused', () => {
  assert.throws(() => madeUpInput('x', 'FP32', [2 ** 40, 2 ** 40], 'zeros', 1), RangeError);
});
