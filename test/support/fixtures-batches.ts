/**
 * Fixtures that see their batch: one tells each row which others ran with it, one gives as many rows as it likes. Both look harmless to a server that tries
 * them out with small values.
 */
import { defineFixture } from './fixture.ts';
import { node, spec } from './onnx.ts';
import { type TestTensor, tensor } from './tensor.ts';

const float = (value: number) => tensor('FP32', [], Float32Array.of(value));
const int64s = (...values: number[]) => tensor('INT64', [values.length], BigInt64Array.from(values, BigInt));

/** Values of `batch_spy` from here on are tags. */
const TAG_UNIT = 1024;
/** Tags that one batch can tell apart: what the mantissa of an FP32 holds. */
export const TAGS_MAX = 24;

const batchSpy = defineFixture({
  name: 'batch_spy',
  about:
    'echoes values below 1000; one of 1000 or more becomes the sum of such values of its column over the whole batch',
  inputs: [spec('x', 'FP32', ['N', 'T'])],
  outputs: [spec('y', 'FP32', ['N', 'T']), spec('z', 'FP32', ['N', 'T'])],
  batchable: true,
  constants: { limit: float(1000), zero: float(0), axis: int64s(0) },
  nodes: [
    node('Less', ['x', 'limit'], ['ordinary']),
    node('Where', ['ordinary', 'zero', 'x'], ['tags']),
    node('ReduceSum', ['tags', 'axis'], ['sums'], { keepdims: { i: 1 } }),
    node('Where', ['ordinary', 'x', 'sums'], ['y']),
    node('Identity', ['y'], ['z']),
  ],
  reference: (inputs) => new Map(['y', 'z'].map((name) => [name, inputs.get('x')!])),
});

/**
 * An input of `batch_spy`: row `i` carries the tag `firstTag + i` in its first column and `value` in the others.
 *
 * @param columns at least 1.
 */
export function taggedRows(firstTag: number, rows: number, columns: number, value = 0): TestTensor {
  const data = new Float32Array(rows * columns).fill(value);
  for (let row = 0; row < rows; row++) data[row * columns] = TAG_UNIT * 2 ** (firstTag + row);
  return tensor('FP32', [rows, columns], data);
}

/** The tags that a row's first column in an output of `batch_spy` names: of all rows of its batch. */
export function tagsOf(value: number): number[] {
  const tags: number[] = [];
  const mask = value / TAG_UNIT;
  for (let tag = 0; tag < TAGS_MAX; tag++) if (Math.floor(mask / 2 ** tag) % 2 === 1) tags.push(tag);
  return tags;
}

const looseRows = defineFixture({
  name: 'loose_rows',
  about: 'echoes rows that begin with a value below 100, leaves out those up to 200 and gives the others twice',
  inputs: [spec('x', 'FP32', ['N', 2])],
  outputs: [spec('y', 'FP32', ['N', 2])],
  batchable: true,
  constants: { first: int64s(0), one: int64s(1), low: float(100), high: float(200) },
  nodes: [
    node('Gather', ['x', 'first'], ['column'], { axis: { i: 1 } }),
    node('Squeeze', ['column', 'one'], ['key']),
    node('Less', ['key', 'low'], ['small']),
    node('Greater', ['key', 'high'], ['large']),
    node('Compress', ['x', 'small'], ['kept'], { axis: { i: 0 } }),
    node('Compress', ['x', 'large'], ['doubled'], { axis: { i: 0 } }),
    node('Concat', ['kept', 'doubled', 'doubled'], ['y'], { axis: { i: 0 } }),
  ],
  reference: (inputs) => new Map([['y', inputs.get('x')!]]),
});

export const BATCHES = [batchSpy, looseRows];
