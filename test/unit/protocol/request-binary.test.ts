/** Binary tensors behind the JSON: sizes that must agree three ways, views instead of copies, and headers remembered without mixing up requests. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { BoundRequest } from '../../../src/protocol/bound-request.ts';
import { RequestDecoder } from '../../../src/protocol/request-decoder.ts';
import type { Datatype } from '../../../src/tensor/datatype.ts';
import { assertRefused, binaryBody, identity, LIMITS, model, SIMPLE, tensor } from './fixtures.ts';

const A = Buffer.from(Int32Array.from({ length: 16 }, (_, i) => i).buffer);
const B = Buffer.from(Int32Array.from({ length: 16 }, (_, i) => 100 + i).buffer);

function input(name: string, size: unknown = 64, shape: readonly number[] = [1, 16]): Record<string, unknown> {
  return { name, shape, datatype: 'INT32', parameters: { binary_data_size: size } };
}

function decode(header: unknown, ...tensors: Uint8Array[]): BoundRequest {
  const { body, headerLength } = binaryBody(header, ...tensors);
  return new RequestDecoder(SIMPLE, LIMITS).decode(body, headerLength);
}

const BOTH = { inputs: [input('INPUT0'), input('INPUT1')] };

test('binary inputs are views into the body, in the order of the request', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  for (const [order, tensors] of [
    [
      ['INPUT0', 'INPUT1'],
      [A, B],
    ],
    [
      ['INPUT1', 'INPUT0'],
      [B, A],
    ],
  ] as const) {
    const { body, headerLength } = binaryBody({ inputs: order.map((name) => input(name)) }, ...tensors);
    for (const request of [decoder.decode(body, headerLength), decoder.decode(body, headerLength)]) {
      assert.deepEqual(
        request.inputs.map((data) => Buffer.from(data)),
        [A, B],
      );
      for (const data of request.inputs) assert.equal(data.buffer, body.buffer);
    }
  }
});

test('JSON and binary inputs mix in one request', () => {
  const json = {
    name: 'INPUT0',
    shape: [1, 16],
    datatype: 'INT32',
    data: [...new Int32Array(A.buffer, A.byteOffset, 16)],
  };
  for (const inputs of [
    [json, input('INPUT1')],
    [input('INPUT1'), json],
  ]) {
    const request = decode({ inputs }, B);
    assert.deepEqual(
      request.inputs.map((data) => Buffer.from(data)),
      [A, B],
    );
  }
});

test('a body of JSON alone may have the header too', () => {
  const data = new Array(16).fill(1);
  const inputs = ['INPUT0', 'INPUT1'].map((name) => ({ name, shape: [1, 16], datatype: 'INT32', data }));
  assert.equal(decode({ inputs }).inputs[0]?.[0], 1);
  assertRefused(() => decode({ inputs }, Buffer.alloc(1)), 'BAD_TENSOR', 'unexpected additional input data');
});

test('a declared size other than the shape’s is refused with both numbers', () => {
  for (const [size, bytes] of [
    [60, 60],
    [68, 68],
    [0, 0],
    [128, 128],
  ] as const) {
    assertRefused(
      () => decode({ inputs: [input('INPUT0', size), input('INPUT1')] }, Buffer.alloc(bytes), B),
      'BAD_TENSOR',
      "input byte size mismatch for input 'INPUT0' for model 'simple'",
      `expected 64 bytes, got ${size}`,
    );
  }
  assertRefused(
    () => decode({ inputs: [input('INPUT0', 40), input('INPUT1')] }, Buffer.alloc(40), B),
    'BAD_TENSOR',
    'expected 64 bytes, got 40',
  );
});

test('bytes missing behind the JSON are refused, the right sizes declared', () => {
  assertRefused(
    () => decode(BOTH, A, B.subarray(0, 60)),
    'BAD_TENSOR',
    "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'simple'",
  );
  assertRefused(() => decode(BOTH, A.subarray(0, 40)), 'BAD_TENSOR', "'INPUT0'", 'expecting 24 additional bytes');
  assertRefused(() => decode(BOTH), 'BAD_TENSOR', 'expecting 64 additional bytes');
});

test('bytes left over behind the last tensor are refused', () => {
  assertRefused(
    () => decode(BOTH, A, B, Buffer.alloc(1)),
    'BAD_TENSOR',
    "unexpected additional input data for model 'simple'",
    'got 129',
  );
});

test('a binary_data_size that is no size is refused', () => {
  for (const size of [-1, 1.5, '64', true, null, [64], {}]) {
    assertRefused(
      () => decode({ inputs: [input('INPUT0', size), input('INPUT1')] }, A, B),
      'BAD_REQUEST',
      "'binary_data_size' of input 'INPUT0'",
    );
  }
  const huge = JSON.stringify(BOTH).replace('64', '18446744073709551616');
  assertRefused(() => decode(huge, A, B), 'BAD_TENSOR', 'expected 64 bytes');
});

test('a size too short or too long is refused for a header that was seen before too', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  const { body, headerLength } = binaryBody(BOTH, A, B);
  const before = decoder.decode(body, headerLength);
  assertRefused(
    () => decoder.decode(Buffer.concat([body, Buffer.alloc(1)]), headerLength),
    'BAD_TENSOR',
    'unexpected additional input data',
  );
  assertRefused(
    () => decoder.decode(body.subarray(0, -1), headerLength),
    'BAD_TENSOR',
    'unexpected size for',
    'expecting 1 additional bytes',
  );
  assertRefused(
    () => decoder.decode(body.subarray(0, headerLength), headerLength),
    'BAD_TENSOR',
    'expecting 128 additional bytes',
  );
  assert.equal(decoder.decode(body, headerLength).template, before.template);
});

test('equal headers give the same template, and each request its own id, timeout and bytes', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  const make = (head: string, fill: number): { body: Buffer; headerLength: number } =>
    binaryBody(`{${head}"inputs":${JSON.stringify(BOTH.inputs)}}`, Buffer.alloc(128, fill));
  const heads = [
    '',
    '"id":"a",',
    '"id":"bb",',
    '"id": "c" ,',
    '"id":"",',
    '"id":"é",',
    '"id":"q\\"q",',
    '"parameters":{"timeout":5},',
    '"id":"d","parameters":{"timeout":5},',
    '"parameters":{},"id":"e",',
  ];
  const ids = [undefined, 'a', 'bb', 'c', '', 'é', 'q"q', undefined, 'd', 'e'];
  const timeouts = heads.map((head) => (head.includes('timeout') ? 5 : undefined));
  const template = decoder.decode(make('', 0).body, make('', 0).headerLength).template;
  for (let round = 0; round < 3; round++) {
    for (const [i, head] of heads.entries()) {
      const { body, headerLength } = make(head, 10 * round + i);
      const request = decoder.decode(body, headerLength);
      assert.deepEqual([request.id, request.timeoutUs, request.inputs[1]?.[0]], [ids[i], timeouts[i], 10 * round + i]);
      assert.equal(request.template, template);
    }
  }
});

test('a second id behind a leading one is refused each time, whatever was seen before', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  const rest = `"inputs":${JSON.stringify(BOTH.inputs)}`;
  for (const head of ['{"id":"a",', '{"id":"b",']) {
    const good = binaryBody(`${head}${rest}}`, A, B);
    decoder.decode(good.body, good.headerLength);
    const bad = binaryBody(`${head}${rest},"id":"z"}`, A, B);
    assertRefused(() => decoder.decode(bad.body, bad.headerLength), 'BAD_REQUEST', "'id' twice");
  }
});

test('what follows an id is not taken for a whole header, nor one header for another of its length', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  const inputs = JSON.stringify(BOTH.inputs);
  const withId = binaryBody(`{"id":"a","inputs":${inputs}}`, A, B);
  decoder.decode(withId.body, withId.headerLength);
  const tail = binaryBody(`,"inputs":${inputs}}`, A, B);
  assertRefused(() => decoder.decode(tail.body, tail.headerLength), 'BAD_REQUEST');
  const unclosed = binaryBody(`{"id":"a,"inputs":${inputs}}`, A, B);
  assertRefused(() => decoder.decode(unclosed.body, unclosed.headerLength), 'BAD_REQUEST');
  const other = binaryBody(`{"id":"a","inputs":${inputs.replaceAll('INPUT1', 'INPUT2')}}`, A, B);
  assertRefused(
    () => decoder.decode(other.body, other.headerLength),
    'BAD_TENSOR',
    "unexpected inference input 'INPUT2'",
  );
  assert.equal(decoder.decode(withId.body, withId.headerLength).id, 'a');
});

test('many headers in turn are each answered from their own meaning', () => {
  const decoder = new RequestDecoder(identity('UINT8'), LIMITS);
  for (let round = 0; round < 2; round++) {
    for (let n = 0; n < 1000; n++) {
      const header = { inputs: [{ name: 'x', shape: [n], datatype: 'UINT8', parameters: { binary_data_size: n } }] };
      const { body, headerLength } = binaryBody(header, Buffer.alloc(n, n));
      const { template, inputs } = decoder.decode(body, headerLength);
      assert.deepEqual(
        [template.shapes[0]?.[0], inputs[0]?.length, inputs[0]?.[n - 1] ?? 0],
        [n, n, n === 0 ? 0 : n & 255],
      );
    }
  }
});

test('a remembered header does not alias the body it came from', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  const { body, headerLength } = binaryBody(BOTH, A, B);
  decoder.decode(body, headerLength);
  const copy = Buffer.from(body);
  body.fill(0x20);
  assert.deepEqual(Buffer.from(decoder.decode(copy, headerLength).inputs[1]!), B);
  assertRefused(() => decoder.decode(body, headerLength), 'BAD_REQUEST');
});

test('a header longer than the memo keeps is parsed each time', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  const { body, headerLength } = binaryBody({ ...BOTH, padding: 'x'.repeat(10_000) }, A, B);
  for (let i = 0; i < 2; i++) assert.deepEqual(Buffer.from(decoder.decode(body, headerLength).inputs[0]!), A);
});

test('every datatype passes its bytes through untouched', () => {
  const cases: [Datatype, string][] = [
    ['FP16', '003c007c007e0100'],
    ['BF16', '803f807fc07f0100'],
    ['FP32', '0000c07f0000807f000080ff0000008001000000ffffffff'],
    ['FP64', '000000000000f87f0000000000000080'],
    ['INT64', 'ffffffffffffffff0000000000000080'],
    ['UINT8', '00ff'],
    ['BOOL', '000101'],
  ];
  const sizes: Partial<Record<Datatype, number>> = { FP16: 2, BF16: 2, FP32: 4, FP64: 8, INT64: 8 };
  for (const [datatype, hex] of cases) {
    const data = Buffer.from(hex, 'hex');
    const parameters = { binary_data_size: data.length };
    const header = {
      inputs: [{ name: 'x', shape: [data.length / (sizes[datatype] ?? 1)], datatype, parameters }],
      parameters: { binary_data_output: true },
    };
    const { body, headerLength } = binaryBody(header, data);
    const decoder = new RequestDecoder(identity(datatype), LIMITS);
    for (let i = 0; i < 2; i++)
      assert.deepEqual(Buffer.from(decoder.decode(body, headerLength).inputs[0]!), data, datatype);
  }
});

test('a BOOL that is neither 0 nor 1 is refused, on the first request and on later ones', () => {
  const decoder = new RequestDecoder(identity('BOOL'), LIMITS);
  const header = { inputs: [{ name: 'x', shape: [3], datatype: 'BOOL', parameters: { binary_data_size: 3 } }] };
  const request = (...values: number[]): (() => BoundRequest) => {
    const { body, headerLength } = binaryBody(header, Buffer.from(values));
    return () => decoder.decode(body, headerLength);
  };
  assertRefused(request(0, 1, 2), 'BAD_TENSOR', "input 'x': element 2 is the byte 2");
  request(0, 1, 1)();
  assertRefused(request(255, 1, 1), 'BAD_TENSOR', "input 'x': element 0 is the byte 255");
});

test('BYTES keeps zero bytes and bytes that are not UTF-8, and its lengths must add up each time', () => {
  const decoder = new RequestDecoder(identity('BYTES'), LIMITS);
  const request = (shape: number[], hex: string): (() => BoundRequest) => {
    const data = Buffer.from(hex.replaceAll(' ', ''), 'hex');
    const parameters = { binary_data_size: data.length };
    const { body, headerLength } = binaryBody({ inputs: [{ name: 'x', shape, datatype: 'BYTES', parameters }] }, data);
    return () => decoder.decode(body, headerLength);
  };
  const bound = request([2], '07000000 61626300646566 03000000 fffe41')();
  assert.deepEqual(bound.template.inputBytes, [-1]);
  assert.equal(Buffer.from(bound.inputs[0]!).toString('hex'), '07000000616263006465660' + '3000000fffe41');
  assertRefused(
    request([2], '07000000 61626300646566 04000000 fffe41'),
    'BAD_TENSOR',
    "input 'x'",
    'element 1 says it has 4 bytes, but 3 are left',
  );
  assertRefused(request([2], '07000000 61626300646566 02000000 fffe41'), 'BAD_TENSOR', '1 bytes are left over');
  assertRefused(request([1], 'ffffffff 61'), 'BAD_TENSOR', 'element 0 says it has 4294967295 bytes');
  assertRefused(request([3], '00000000 00000000'), 'BAD_TENSOR', 'expected 3 elements, got 2');
  assert.equal(request([0], '')().inputs[0]?.length, 0);
});

test('tensors without elements have a binary form of no bytes', () => {
  const empty = { inputs: [input('INPUT0', 0, [0, 16]), input('INPUT1', 0, [0, 16])] };
  const request = decode(empty);
  assert.deepEqual([request.template.whole, request.inputs.map((data) => data.length)], [true, [0, 0]]);
});

test('the limits hold for binary tensors as well', () => {
  const decoder = new RequestDecoder(identity('BYTES'), { maxElements: 10, maxTensorBytes: 20 });
  const attempt = (shape: number[], data: Buffer): (() => BoundRequest) => {
    const { body, headerLength } = binaryBody(
      { inputs: [{ name: 'x', shape, datatype: 'BYTES', parameters: { binary_data_size: data.length } }] },
      data,
    );
    return () => decoder.decode(body, headerLength);
  };
  const long = Buffer.alloc(24);
  long.writeUInt32LE(20);
  assertRefused(attempt([1], long), 'BAD_TENSOR', '24 bytes', 'at most 20');
  assertRefused(attempt([11], Buffer.alloc(44)), 'BAD_TENSOR', '11 elements', 'at most 10');
  assertRefused(attempt([6], Buffer.alloc(24)), 'BAD_TENSOR', '24 bytes');
});

test('rows of several requests of a batching model have a template each', () => {
  const target = model('mlp', [tensor('x', 'FP32', [-1, 4])], [tensor('y', 'FP32', [-1, 2])], { maxBatchSize: 4 });
  const decoder = new RequestDecoder(target, LIMITS);
  const keys = new Set<string>();
  for (const rows of [1, 2, 4, 1]) {
    const header = {
      inputs: [{ name: 'x', shape: [rows, 4], datatype: 'FP32', parameters: { binary_data_size: 16 * rows } }],
    };
    const { body, headerLength } = binaryBody(header, Buffer.alloc(16 * rows));
    const { template } = decoder.decode(body, headerLength);
    assert.deepEqual([template.rows, template.inputBytes, template.shapes], [rows, [16 * rows], [[4]]]);
    keys.add(template.shapeKey);
  }
  assert.equal(keys.size, 1);
});
