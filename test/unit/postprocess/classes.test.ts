/** Texts of classes, held against a full sort. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { classTextBytes, classTexts } from '../../../src/postprocess/classes.ts';
import { numbersOf, type Tensor } from '../../../src/postprocess/numbers.ts';
import { readLines, type TextLines } from '../../../src/postprocess/text-lines.ts';
import { decodeBytesTensor } from '../../../src/tensor/bytes-tensor.ts';
import { DATATYPES, type Datatype, datatypeInfo } from '../../../src/tensor/datatype.ts';
import { elementCount } from '../../../src/tensor/shape.ts';
import { seedFromEnv } from '../../support/random.ts';
import { randomTensor, wireBytes } from '../../support/tensor.ts';

const NUMERIC = (Object.keys(DATATYPES) as Datatype[]).filter((datatype) => datatype !== 'BYTES');

function textsOf({ datatype, shape, data }: Tensor): string[] {
  assert.equal(datatype, 'BYTES');
  const elements = decodeBytesTensor(data, elementCount(shape)!);
  assert.ok(elements !== undefined, 'the texts are not one serialised tensor');
  return elements.map((element) => Buffer.from(element).toString());
}

function labelsOf(text: string): TextLines {
  const lines = readLines(Buffer.from(text));
  assert.ok(!('problem' in lines));
  return lines;
}

function floats(shape: readonly number[], ...values: number[]): Tensor {
  return { datatype: 'FP32', shape, data: new Uint8Array(Float32Array.from(values).buffer) };
}

/** NaN last, the lower index first among equals. */
function compare(a: number | bigint, b: number | bigint): number {
  if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return a === b ? 0 : a > b ? -1 : 1;
}

test('the classes of every datatype are those of a stable sort, however many are asked for', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 400; round++) {
    const datatype = random.pick(NUMERIC);
    const [rows, classes] = [random.int(0, 4), random.int(0, 40)];
    const wire = wireBytes(randomTensor(random, datatype, [rows, classes]));
    const { elementBytes } = datatypeInfo(datatype);
    // Equal values, and at any alignment.
    if (wire.length > 0 && random.chance(0.5)) wire.copyWithin(elementBytes, 0, elementBytes * 3);
    const data = new Uint8Array(wire.length + 1).subarray(1);
    data.set(wire);
    const asked = random.int(1, 50);
    const labels = random.chance(0.5) ? labelsOf('zero\none\n\nthrée') : undefined;
    const names = labels === undefined ? [] : [':zero', ':one', '', ':thrée'];
    const answer = classTexts({ datatype, shape: [rows, classes], data }, 1, asked, labels);
    const count = Math.min(asked, classes);
    assert.deepEqual(answer.shape, [rows, count]);
    const numbers = numbersOf(datatype, data);
    const values32 = numbers instanceof Float32Array;
    const values = Array.from(numbers as ArrayLike<number | bigint>);
    const expected: string[] = [];
    // As the datatype has it when it is read back.
    const read = (text: string) => (values32 ? Math.fround(Number(text)) : Number(text));
    const actual = textsOf(answer).map((text) => {
      const [value, index, ...label] = text.split(':');
      return `${read(value!)} ${index} ${label.map((part) => `:${part}`).join('')}`;
    });
    for (let row = 0; row < rows; row++) {
      const list = values.slice(row * classes, (row + 1) * classes).map((value, index) => ({ value, index }));
      list.sort((a, b) => compare(a.value, b.value));
      for (const { value, index } of list.slice(0, count))
        expected.push(`${Number(value)} ${index} ${names[index] ?? ''}`);
    }
    assert.deepEqual(actual, expected, `${datatype} [${rows},${classes}], ${asked} asked for`);
    assert.ok(answer.data.length <= rows * classTextBytes(asked, classes, labels));
  }
});

test('of equal values the lower index goes first, and NaN goes behind every number', () => {
  const tensor = floats([7], Number.NaN, 1, Number.POSITIVE_INFINITY, 1, Number.NEGATIVE_INFINITY, Number.NaN, -0);
  assert.deepEqual(textsOf(classTexts(tensor, 0, 7, undefined)), [
    'Infinity:2',
    '1:1',
    '1:3',
    '-0.0:6',
    '-Infinity:4',
    'NaN:0',
    'NaN:5',
  ]);
  assert.deepEqual(textsOf(classTexts(tensor, 0, 2, undefined)), ['Infinity:2', '1:1']);
});

test('integers of 64 bits are compared and written exactly', () => {
  const values = BigInt64Array.of(2n ** 62n, 2n ** 62n + 1n, -(2n ** 63n));
  const tensor: Tensor = { datatype: 'INT64', shape: [1, 3], data: new Uint8Array(values.buffer) };
  assert.deepEqual(textsOf(classTexts(tensor, 1, 3, undefined)), [
    '4611686018427387905:1',
    '4611686018427387904:0',
    '-9223372036854775808:2',
  ]);
});

test('every dimension behind the rows counts as classes; without rows the whole tensor is one list', () => {
  const tensor = floats([2, 2, 2], 1, 2, 3, 4, 8, 7, 6, 5);
  assert.deepEqual(classTexts(tensor, 1, 2, undefined).shape, [2, 2]);
  assert.deepEqual(textsOf(classTexts(tensor, 1, 1, undefined)), ['4:3', '8:0']);
  assert.deepEqual(classTexts(tensor, 0, 1, undefined).shape, [1]);
  assert.deepEqual(textsOf(classTexts(tensor, 0, 1, undefined)), ['8:4']);
});

test('rows without classes, and no rows, give no texts', () => {
  for (const shape of [[3, 0], [0, 5], [0]]) {
    const { shape: answered, data } = classTexts(floats(shape), 1, 4, undefined);
    assert.deepEqual(answered, [shape[0], shape.length === 1 ? 1 : Math.min(4, shape[1]!)]);
    assert.equal(data.length, 0);
  }
});

test('a label is what its line says, colons and all; a class without a line, or with an empty one, has none', () => {
  const tensor = floats([1, 4], 4, 3, 2, 1);
  assert.deepEqual(textsOf(classTexts(tensor, 1, 4, labelsOf('a:b\r\n\r\n猫'))), ['4:0:a:b', '3:1', '2:2:猫', '1:3']);
});
