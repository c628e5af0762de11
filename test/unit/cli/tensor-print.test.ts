/** Outputs as text: tables for people, exact JSON for programs. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { jsonText, type TensorData, tableText } from '../../../src/cli/element-text.ts';
import { formatOutput, largest, type OutputTensor } from '../../../src/cli/tensor-print.ts';

const plain = { top: undefined, labels: undefined, columns: undefined };

function fp32(shape: number[], values: number[], name = 'y'): OutputTensor {
  return { name, datatype: 'FP32', shape, data: Float32Array.from(values) };
}

test('an output shows its name, datatype, shape and one line for each row of the last axis', () => {
  assert.equal(formatOutput(fp32([2, 2], [1, 2.5, -3, 0.1]), plain), 'y  FP32 [2,2]\n  [0]   1  2.5\n  [1]  -3  0.1\n');
  assert.equal(formatOutput(fp32([1, 2], [1, 2]), plain), 'y  FP32 [1,2]\n  1  2\n');
  assert.equal(formatOutput(fp32([], [7]), plain), 'y  FP32 []\n  7\n');
  assert.equal(formatOutput(fp32([0, 3], []), plain), 'y  FP32 [0,3]\n  no elements\n');
});

test('long rows and many rows are cut, and say how much is left out', () => {
  const text = formatOutput(fp32([20, 30], Array<number>(600).fill(1)), plain);
  assert.match(text, /… 20 more\n/);
  assert.match(text, / {2}… 12 more rows\n$/);
  assert.equal(text.split('\n').length, 1 + 8 + 1 + 1);
  const top = formatOutput(fp32([70, 1], Array<number>(70).fill(1)), { ...plain, top: 5 });
  assert.equal(top.split('\n').length, 1 + 1 + 64 + 1 + 1);
});

test('rows of more axes are named by their position', () => {
  const values = Array.from({ length: 12 }, (_, i) => i);
  assert.match(formatOutput(fp32([2, 3, 2], values), plain), /^ {2}\[1,2\] {2}10 {2}11$/m);
});

test('the K largest come with index and label, the largest first', () => {
  const options = { top: 2, labels: ['cat', 'dog', 'cow'], columns: undefined };
  assert.equal(
    formatOutput(fp32([1, 3], [0.25, 0.5, 0.125]), options),
    'y  FP32 [1,3]\n  INDEX  VALUE  LABEL\n      1    0.5  dog\n      0   0.25  cat\n',
  );
  const two = formatOutput(fp32([2, 2], [1, 2, 4, 3]), { ...options, top: 1, labels: undefined });
  assert.equal(two, 'y  FP32 [2,2]\n  ROW  INDEX  VALUE\n  [0]      1      2\n  [1]      0      4\n');
});

test('of equal values the first comes first, and NaN is never among the largest', () => {
  const of = (values: number[]) => largest({ datatype: 'FP64', data: Float64Array.from(values) }, 0, values.length, 3);
  assert.deepEqual(of([1, 1, 1, 1]), [0, 1, 2]);
  assert.deepEqual(of([Number.NaN, 1, Number.NaN, 2]), [3, 1, 0]);
  assert.deepEqual(of([0, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]), [1, 0, 2]);
  const integers: TensorData = { datatype: 'INT64', data: BigInt64Array.of(1n, 9007199254740993n, 9007199254740992n) };
  assert.deepEqual(largest(integers, 0, 3, 2), [1, 2]);
});

test('every datatype has a short and an exact form', () => {
  const cases: [TensorData, string, string][] = [
    [{ datatype: 'BOOL', data: Uint8Array.of(1) }, 'true', 'true'],
    [{ datatype: 'UINT8', data: Uint8Array.of(255) }, '255', '255'],
    [{ datatype: 'INT64', data: BigInt64Array.of(-9007199254740993n) }, '-9007199254740993', '-9007199254740993'],
    [{ datatype: 'FP16', data: Uint16Array.of(0x3555) }, '0.333252', '0.333251953125'],
    [{ datatype: 'BF16', data: Uint16Array.of(0x3f80) }, '1', '1'],
    [{ datatype: 'FP32', data: Float32Array.of(0.1) }, '0.1', '0.1'],
    [{ datatype: 'FP32', data: Float32Array.of(16777217) }, '16777216', '16777216'],
    [{ datatype: 'FP32', data: Float32Array.of(3.4028234663852886e38) }, '3.40282e+38', '3.4028235e+38'],
    [{ datatype: 'FP64', data: Float64Array.of(1 / 3) }, '0.333333', '0.3333333333333333'],
    [{ datatype: 'FP64', data: Float64Array.of(-0) }, '-0', '-0'],
    [{ datatype: 'FP64', data: Float64Array.of(Number.NaN) }, 'NaN', '"NaN"'],
    [{ datatype: 'FP32', data: Float32Array.of(Number.NEGATIVE_INFINITY) }, '-Infinity', '"-Infinity"'],
    [{ datatype: 'BYTES', data: [Buffer.from('a"ä')] }, '"a\\"ä"', '"a\\"ä"'],
    [{ datatype: 'BYTES', data: [Uint8Array.of(0xff, 0)] }, '0xff00', '{"base64":"/wA="}'],
  ];
  for (const [tensor, short, exact] of cases) {
    assert.deepEqual([tableText(tensor, 0), jsonText(tensor, 0)], [short, exact], tensor.datatype);
  }
});

test('texts and names of a model cannot steer the terminal', () => {
  const output: OutputTensor = {
    name: 'y\x1b[2J',
    datatype: 'BYTES',
    shape: [1],
    data: [Buffer.from('\x1b[31m\u202ered\x7f')],
  };
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
  assert.doesNotMatch(formatOutput(output, plain), /[\x00-\x09\x0b-\x1f\x7f\u202e]/);
});

test('a line is cut to the width of the terminal', () => {
  const text = formatOutput(fp32([1, 10], Array<number>(10).fill(0.123456)), { ...plain, columns: 40 });
  for (const line of text.split('\n')) assert.ok(line.length <= 40, line);
  assert.match(text, /…$/m);
});
