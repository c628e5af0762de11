/** The `data` array: flat or nested as the shape, BOOL and BYTES elements, and bounds before allocation. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RequestDecoder } from '../../../src/protocol/request-decoder.ts';
import { assertRefused, decodeData, decodeText, identity } from './fixtures.ts';

const bytesOf = (...values: number[]): Buffer => Buffer.from(new Int32Array(values).buffer);
const ints = (data: string, shape: number[]): Buffer =>
  decodeData(
    'INT32',
    data,
    shape,
    shape.map(() => -1),
  );

test('flat and nested data are the same row-major tensor', () => {
  const flat = bytesOf(1, 2, 3, 4, 5, 6);
  assert.deepEqual(ints('[1,2,3,4,5,6]', [2, 3]), flat);
  assert.deepEqual(ints('[[1,2,3],[4,5,6]]', [2, 3]), flat);
  assert.deepEqual(ints(' [ [ 1 ,\n2,3 ] , [4,\t5,6]\r\n ] ', [2, 3]), flat);
  assert.deepEqual(ints('[[[1],[2]],[[3],[4]],[[5],[6]]]', [3, 2, 1]), flat);
  assert.deepEqual(ints('[1,2,3,4,5,6]', [3, 2, 1]), flat);
});

test('data nested in another regular way is taken by its number of elements', () => {
  const flat = bytesOf(1, 2, 3, 4, 5, 6);
  const cases: [string, number[]][] = [
    ['[[1,2,3,4,5,6]]', [6, 1]],
    ['[[1],[2],[3],[4],[5],[6]]', [6]],
    ['[[1,2],[3,4],[5,6]]', [2, 3]],
    ['[[[1,2,3],[4,5,6]]]', [2, 3]],
    ['[[[1,2,3]],[[4,5,6]]]', [6]],
  ];
  for (const [data, shape] of cases) assert.deepEqual(ints(data, shape), flat, data);
});

test('ragged data is refused, whatever its number of elements', () => {
  const cases: [string, number[]][] = [
    ['[[1,2,3],[4,5],[6]]', [2, 3]],
    ['[[1,2],[3,4],[5]]', [2, 3]],
    ['[[1,2,3,4],[5,6]]', [2, 3]],
    ['[[[1,2],[3,4]],[[5,6]]]', [2, 3]],
    ['[[1,2,3],[4,5,6],[7,8,9]]', [2, 3]],
    ['[[1,2,3]]', [2, 3]],
    ['[[1,2,3],4,5,6]', [2, 3]],
    ['[1,2,3,[4,5,6]]', [2, 3]],
    ['[[1],2]', [2]],
    ['[1,[2]]', [2]],
    ['[[1,2,3],[]]', [2, 3]],
    ['[[1,2,3],{}]', [2, 3]],
  ];
  for (const [data, shape] of cases) assertRefused(() => ints(data, shape), 'BAD_TENSOR', "input 'x'");
});

test('data nested less deeply than the shape is told so, and not that its number is wrong', () => {
  for (const [data, shape] of [
    ['[[1,2],[3]]', [1, 3, 1]],
    ['[[1,2,3],4,5,6]', [2, 3]],
  ] as const) {
    assertRefused(() => ints(data, [...shape]), 'BAD_TENSOR', 'where an array must begin', 'send it flat');
  }
  assertRefused(() => ints('[[1,2],nul]', [2, 2]), 'BAD_REQUEST', 'not valid JSON');
});

test('the number of elements must be the shape’s, and the message has both', () => {
  assertRefused(() => ints('[1,2,3]', [4]), 'BAD_TENSOR', 'expected 4 elements', '[4]', 'got 3');
  assertRefused(() => ints('[1,2,3,4,5]', [4]), 'BAD_TENSOR', 'expected 4 elements', 'got more');
  assertRefused(() => ints('[1]', [0]), 'BAD_TENSOR', 'expected 0 elements', 'got more');
  assertRefused(() => ints('[]', [2]), 'BAD_TENSOR', 'expected 2 elements');
});

test('broken arrays are refused as JSON', () => {
  for (const data of ['[1,2', '[1 2]', '[1,,2]', '[,1]', '[1;2]', '[1,2}']) {
    assertRefused(() => ints(data, [2]), 'BAD_REQUEST', 'not valid JSON');
  }
  assertRefused(() => ints('[1,2,]', [2]), 'BAD_TENSOR', 'got more');
  assertRefused(() => ints('[1,]', [2]), 'BAD_TENSOR', 'got 1');
});

test('data that is no array is refused', () => {
  for (const data of ['1', '"1"', 'null', '{}', 'true']) {
    assertRefused(() => ints(data, [1]), 'BAD_REQUEST', "'data' of input 'x' must be an array");
  }
});

test('tensors without elements and scalars are tensors', () => {
  assert.deepEqual(ints('[]', [0]), Buffer.alloc(0));
  assert.deepEqual(ints('[ ]', [0, 16]), Buffer.alloc(0));
  assert.deepEqual(ints('[]', [2, 0, 8]), Buffer.alloc(0));
  assert.deepEqual(ints('[[],[]]', [2, 0, 8]), Buffer.alloc(0));
  assert.deepEqual(decodeData('INT32', '[7]', [], []), bytesOf(7));
  assert.deepEqual(decodeData('INT32', '[7]', [1], []), bytesOf(7));
  assertRefused(() => ints('[[]]', [0, 16]), 'BAD_TENSOR');
  assertRefused(() => decodeData('INT32', '[]', [], []), 'BAD_TENSOR', 'element');
  assertRefused(() => decodeData('INT32', '[7,8]', [], []), 'BAD_TENSOR', 'expected 1 elements');
});

test('BOOL takes true and false and nothing else', () => {
  assert.deepEqual(decodeData('BOOL', '[true,false, true]', [3]), Buffer.from([1, 0, 1]));
  for (const text of ['2', '0', '1', '"true"', 'null']) {
    assertRefused(() => decodeData('BOOL', `[${text}]`, [1]), 'BAD_TENSOR', `element 0 is ${text}`, 'true or false');
  }
  assertRefused(() => decodeData('BOOL', '[tru]', [1]), 'BAD_REQUEST', 'not valid JSON');
});

test('BYTES takes strings, as their UTF-8 bytes, zero bytes included', () => {
  assert.deepEqual(
    decodeData('BYTES', '["abc\\u0000def","","é大😀"]', [3]),
    Buffer.concat([
      Buffer.from([7, 0, 0, 0]),
      Buffer.from('abc\0def'),
      Buffer.from([0, 0, 0, 0, 9, 0, 0, 0]),
      Buffer.from('é大😀'),
    ]),
  );
  assert.deepEqual(decodeData('BYTES', '[["a"],["\\ud83d\\ude00"]]', [2, 1], [-1, -1]).toString('latin1').length, 13);
  assert.deepEqual(decodeData('BYTES', '[]', [0]), Buffer.alloc(0));
  const long = 'x'.repeat(70_000);
  assert.equal(decodeData('BYTES', `["${long}"]`, [1]).readUInt32LE(), 70_000);
  for (const text of ['1', 'true', 'null']) {
    assertRefused(() => decodeData('BYTES', `[${text}]`, [1]), 'BAD_TENSOR', `element 0 is ${text}`, 'strings');
  }
  assertRefused(() => decodeData('BYTES', '["\\ud800"]', [1]), 'BAD_REQUEST', 'surrogate');
});

test('many short strings fit the space that was set aside for them', () => {
  const count = 5000;
  const data = decodeData('BYTES', `[${'"",'.repeat(count - 1)}""]`, [count]);
  assert.deepEqual(data, Buffer.alloc(4 * count));
});

test('FP16 and BF16 have no JSON form and the message points to the binary one', () => {
  for (const datatype of ['FP16', 'BF16'] as const) {
    assertRefused(() => decodeData(datatype, '[1]', [1]), 'BAD_TENSOR', "input 'x'", datatype, 'binary');
  }
});

test('a shape that the text cannot hold is refused before memory is taken for it', () => {
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < 100; i++) {
    assertRefused(() => ints('[1]', [500_000]), 'BAD_TENSOR', 'more than the request');
  }
  assert.ok(process.memoryUsage().arrayBuffers - before < 1_000_000);
});

test('small numbers that grow in storage are held to the limit on a tensor’s bytes', () => {
  const decoder = new RequestDecoder(identity('INT64'), { maxElements: 1000, maxTensorBytes: 800 });
  const body = (count: number): Buffer =>
    Buffer.from(`{"inputs":[{"name":"x","shape":[${count}],"datatype":"INT64","data":[${'1,'.repeat(count - 1)}1]}]}`);
  assert.equal(decoder.decode(body(100), undefined).inputs[0]?.length, 800);
  assertRefused(() => decoder.decode(body(101), undefined), 'BAD_TENSOR', "input 'x'", '808 bytes', 'at most 800');
  const bytes = new RequestDecoder(identity('INT8'), { maxElements: 100, maxTensorBytes: 1e9 });
  assertRefused(
    () => bytes.decode(Buffer.from(body(101).toString().replace('INT64', 'INT8')), undefined),
    'BAD_TENSOR',
    '101 elements',
    'at most 100',
  );
  const strings = new RequestDecoder(identity('BYTES'), { maxElements: 1000, maxTensorBytes: 64 });
  assertRefused(
    () =>
      strings.decode(
        Buffer.from(`{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["${'x'.repeat(80)}"]}]}`),
        undefined,
      ),
    'BAD_TENSOR',
    '84 bytes',
  );
});

test('data may come before the shape and the datatype that explain it', () => {
  const request = decodeText(
    identity('INT32', [-1, -1]),
    '{"inputs":[{"data":[[1,2],[3,4]],"datatype":"INT32","shape":[2,2],"name":"x"}]}',
  );
  assert.deepEqual(Buffer.from(request.inputs[0]!), bytesOf(1, 2, 3, 4));
  assertRefused(
    () => decodeText(identity('INT32'), '{"inputs":[{"data":[1,"2"],"datatype":"INT32","shape":[2],"name":"x"}]}'),
    'BAD_TENSOR',
    'element 1 is "2"',
  );
});
