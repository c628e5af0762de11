/** Responses: the JSON and the bytes that a client reads back, value by value. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { BoundRequest, OutputRequest } from '../../../src/protocol/bound-request.ts';
import { type EncodedResponse, type OutputTensor, ResponseEncoder } from '../../../src/protocol/response-encoder.ts';
import { encodeBytesTensor } from '../../../src/tensor/bytes-tensor.ts';
import type { Datatype } from '../../../src/tensor/datatype.ts';
import { assertRefused, model, tensor } from './fixtures.ts';

function request(outputs: readonly OutputRequest[], id?: string): BoundRequest {
  const template = { rows: 1, whole: true, shapes: [], inputBytes: [], outputs, classesKey: '', shapeKey: '' };
  return { template, id, inputs: [], timeoutUs: undefined, priority: undefined };
}

const JSON_OUTPUT = [{ index: 0, binary: false, classes: 0 }];
const BINARY_OUTPUT = [{ index: 0, binary: true, classes: 0 }];

function encoderFor(datatype: Datatype): ResponseEncoder {
  return new ResponseEncoder(model('m', [], [tensor('y', datatype, [-1])]));
}

/** Text of the `data` that an output of one dimension has in JSON. */
function dataText(datatype: Datatype, data: Uint8Array, count: number): string {
  const { body, headerLength } = encoderFor(datatype).encode(request(JSON_OUTPUT), [{ shape: [count], data }]);
  assert.equal(headerLength, undefined);
  const text = body.toString();
  JSON.parse(text);
  return /"data":\[(.*)\]\}\]\}$/s.exec(text)![1]!;
}

const bytes = (view: ArrayBufferView): Uint8Array => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

test('a JSON response has the fields of the protocol and the id it was given', () => {
  const encoder = new ResponseEncoder(model('m"x', [], [tensor('a\n', 'INT32', [-1, 2]), tensor('b', 'FP32', [-1])]));
  const outputs: OutputTensor[] = [
    { shape: [1], data: bytes(Float32Array.of(0.5)) },
    { shape: [2, 2], data: bytes(Int32Array.of(1, -2, 3, -4)) },
  ];
  const wanted = [
    { index: 1, binary: false, classes: 0 },
    { index: 0, binary: false, classes: 0 },
  ];
  for (const id of [undefined, '', 'ü-"1', '9007199254740993', 'a\0b😀']) {
    const { body, headerLength } = encoder.encode(request(wanted, id), outputs);
    assert.equal(headerLength, undefined);
    assert.deepEqual(JSON.parse(body.toString()), {
      model_name: 'm"x',
      model_version: '1',
      ...(id === undefined ? {} : { id }),
      outputs: [
        { name: 'b', datatype: 'FP32', shape: [1], data: [0.5] },
        { name: 'a\n', datatype: 'INT32', shape: [2, 2], data: [1, -2, 3, -4] },
      ],
    });
  }
});

test('a binary response is its JSON and then the bytes of each output', () => {
  const encoder = new ResponseEncoder(model('m', [], [tensor('a', 'INT8', [-1]), tensor('b', 'FP16', [-1])]));
  const outputs: OutputTensor[] = [
    { shape: [3], data: Uint8Array.of(1, 2, 3) },
    { shape: [1], data: Uint8Array.of(0, 0x7e) },
  ];
  const wanted = [
    { index: 0, binary: true, classes: 0 },
    { index: 1, binary: true, classes: 0 },
  ];
  const bound = request(wanted);
  for (const id of [undefined, 'ü-"1', undefined, 'x', '']) {
    const { body, headerLength } = encoder.encode({ ...bound, id }, outputs);
    assert.deepEqual([...body.subarray(headerLength)], [1, 2, 3, 0, 0x7e]);
    assert.deepEqual(JSON.parse(body.toString('utf8', 0, headerLength)), {
      model_name: 'm',
      model_version: '1',
      ...(id === undefined ? {} : { id }),
      outputs: [
        { name: 'a', datatype: 'INT8', shape: [3], parameters: { binary_data_size: 3 } },
        { name: 'b', datatype: 'FP16', shape: [1], parameters: { binary_data_size: 2 } },
      ],
    });
  }
});

test('JSON and binary outputs mix in one response', () => {
  const encoder = new ResponseEncoder(model('m', [], [tensor('a', 'INT8', [-1]), tensor('b', 'INT8', [-1])]));
  const outputs = [
    { shape: [2], data: Uint8Array.of(1, 255) },
    { shape: [2], data: Uint8Array.of(7, 8) },
  ];
  const wanted = [
    { index: 0, binary: false, classes: 0 },
    { index: 1, binary: true, classes: 0 },
  ];
  const { body, headerLength } = encoder.encode(request(wanted, 'i'), outputs);
  const header = JSON.parse(body.toString('utf8', 0, headerLength));
  assert.deepEqual(header.outputs[0].data, [1, -1]);
  assert.equal(header.outputs[1].parameters.binary_data_size, 2);
  assert.equal(header.id, 'i');
  assert.deepEqual([...body.subarray(headerLength)], [7, 8]);
});

test('the same template with other shapes or sizes gets its own JSON', () => {
  const numbers = encoderFor('INT8');
  const strings = encoderFor('BYTES');
  const bound = request(BINARY_OUTPUT);
  const sizes = (encoder: ResponseEncoder, output: OutputTensor): unknown => {
    const { body, headerLength } = encoder.encode(bound, [output]);
    const { shape, parameters } = JSON.parse(body.toString('utf8', 0, headerLength)).outputs[0];
    assert.equal(body.length - headerLength!, parameters.binary_data_size);
    return [shape, parameters.binary_data_size];
  };
  for (const shape of [[2], [3], [3, 1], [2]]) {
    const size = shape.reduce((product, dim) => product * dim, 1);
    assert.deepEqual(sizes(numbers, { shape, data: new Uint8Array(size) }), [shape, size]);
  }
  for (const text of ['a', 'abc', 'x']) {
    assert.deepEqual(sizes(strings, { shape: [1], data: encodeBytesTensor([Buffer.from(text)]) }), [
      [1],
      4 + text.length,
    ]);
  }
});

test('an output without elements keeps its size of 0 and makes no binary response by itself', () => {
  const encoder = encoderFor('FP32');
  const empty = { shape: [2, 0, 8], data: new Uint8Array(0) };
  const binary = encoder.encode(request(BINARY_OUTPUT), [empty]);
  assert.equal(binary.headerLength, undefined);
  assert.deepEqual(JSON.parse(binary.body.toString()).outputs, [
    { name: 'y', datatype: 'FP32', shape: [2, 0, 8], parameters: { binary_data_size: 0 } },
  ]);
  assert.deepEqual(JSON.parse(encoder.encode(request(JSON_OUTPUT), [empty]).body.toString()).outputs[0].data, []);
});

test('the body is the response’s own: neither the output nor the next response changes it', () => {
  const encoder = encoderFor('INT8');
  const data = Uint8Array.of(1, 2);
  const bodies: EncodedResponse[] = [JSON_OUTPUT, BINARY_OUTPUT].map((wanted) =>
    encoder.encode(request(wanted), [{ shape: [2], data }]),
  );
  const before = bodies.map(({ body }) => Buffer.from(body));
  data.fill(9);
  encoder.encode(request(JSON_OUTPUT), [{ shape: [2], data }]);
  encoder.encode(request(BINARY_OUTPUT), [{ shape: [2], data }]);
  assert.deepEqual(
    bodies.map(({ body }) => body),
    before,
  );
});

test('integers of 64 bits are printed in full', () => {
  assert.equal(
    dataText('INT64', bytes(BigInt64Array.of(9007199254740993n, -(2n ** 63n), 2n ** 63n - 1n, -1n, 0n)), 5),
    '9007199254740993,-9223372036854775808,9223372036854775807,-1,0',
  );
  assert.equal(dataText('UINT64', bytes(BigUint64Array.of(2n ** 64n - 1n, 7n)), 2), '18446744073709551615,7');
});

test('every integer type prints the ends of its range', () => {
  const cases: [Datatype, ArrayBufferView, string][] = [
    ['INT8', Int8Array.of(-128, 127), '-128,127'],
    ['UINT8', Uint8Array.of(0, 255), '0,255'],
    ['INT16', Int16Array.of(-32768, 32767), '-32768,32767'],
    ['UINT16', Uint16Array.of(0, 65535), '0,65535'],
    ['INT32', Int32Array.of(-(2 ** 31), 2 ** 31 - 1), '-2147483648,2147483647'],
    ['UINT32', Uint32Array.of(0, 2 ** 32 - 1), '0,4294967295'],
    ['BOOL', Uint8Array.of(0, 1), 'false,true'],
  ];
  for (const [datatype, view, text] of cases) assert.equal(dataText(datatype, bytes(view), 2), text);
});

test('floats are printed as short as they read back, with the sign of zero', () => {
  assert.equal(
    dataText('FP32', bytes(Float32Array.of(0.1, -0, 0, 1e-45, 3, 1 / 3)), 6),
    '0.1,-0.0,0,1e-45,3,0.33333334',
  );
  assert.equal(
    dataText('FP64', bytes(Float64Array.of(0.1, -0, 0, 5e-324, 1 / 3)), 5),
    '0.1,-0.0,0,5e-324,0.3333333333333333',
  );
  const doubles = Float64Array.from({ length: 1000 }, (_, i) => Math.sin(i) * 10 ** ((i % 40) - 20));
  assert.deepEqual(JSON.parse(`[${dataText('FP64', bytes(doubles), 1000)}]`), [...doubles]);
  const singles = Float32Array.from(doubles);
  assert.deepEqual(Float32Array.from(JSON.parse(`[${dataText('FP32', bytes(singles), 1000)}]`)), singles);
});

test('outputs at any alignment are read', () => {
  const memory = new Uint8Array(33);
  memory.set(bytes(Float64Array.of(1.5, -2.25)), 1);
  assert.equal(dataText('FP64', memory.subarray(1, 17), 2), '1.5,-2.25');
  assert.equal(dataText('INT64', Buffer.from(memory.buffer, 17, 16), 2), '0,0');
  memory.set(bytes(Int16Array.of(-3)), 3);
  assert.equal(dataText('INT16', memory.subarray(3, 5), 1), '-3');
});

test('NaN and the infinities have no JSON: an error names the element and the way out', () => {
  for (const [value, text] of [
    [Number.NaN, 'NaN'],
    [Number.POSITIVE_INFINITY, 'Infinity'],
    [Number.NEGATIVE_INFINITY, '-Infinity'],
  ] as const) {
    assertRefused(
      () => dataText('FP32', bytes(Float32Array.of(0, value)), 2),
      'BAD_REQUEST',
      "output 'y': element 1",
      text,
      '"binary_data": true',
    );
    const far = new Float64Array(400);
    far[300] = value;
    assertRefused(() => dataText('FP64', bytes(far), 400), 'BAD_REQUEST', 'element 300', text, 'binary');
  }
  const special = bytes(Float32Array.of(Number.NaN, Number.POSITIVE_INFINITY, -0, 1e-45));
  const { body, headerLength } = encoderFor('FP32').encode(request(BINARY_OUTPUT), [{ shape: [4], data: special }]);
  assert.deepEqual(new Uint8Array(body.subarray(headerLength)), special);
});

test('an encoder works on after an output that could not be printed', () => {
  const encoder = encoderFor('FP32');
  assertRefused(
    () => encoder.encode(request(JSON_OUTPUT), [{ shape: [1], data: bytes(Float32Array.of(Number.NaN)) }]),
    'BAD_REQUEST',
  );
  const { body } = encoder.encode(request(JSON_OUTPUT), [{ shape: [1], data: bytes(Float32Array.of(2)) }]);
  assert.deepEqual(JSON.parse(body.toString()).outputs[0].data, [2]);
});

test('BYTES come out exactly, escaped in JSON and untouched in binary', () => {
  const elements = ['abc\0def', '', 'é大😀', '"\\/\b\f\n\r\t\u001f\u007f', '\u2028</script>'].map((text) =>
    Buffer.from(text),
  );
  const data = encodeBytesTensor(elements);
  assert.deepEqual(JSON.parse(`[${dataText('BYTES', data, 5)}]`), elements.map(String));
  const { body, headerLength } = encoderFor('BYTES').encode(request(BINARY_OUTPUT), [{ shape: [5], data }]);
  assert.deepEqual(new Uint8Array(body.subarray(headerLength)), data);
});

test('BYTES that are not UTF-8 are no JSON text, and pass in binary', () => {
  const data = encodeBytesTensor([Buffer.from('ok'), Buffer.from('fffe41', 'hex')]);
  assertRefused(() => dataText('BYTES', data, 2), 'BAD_REQUEST', "output 'y': element 1", 'not valid UTF-8', 'binary');
  const { body, headerLength } = encoderFor('BYTES').encode(request(BINARY_OUTPUT), [{ shape: [2], data }]);
  assert.equal(body.toString('hex', headerLength), '020000006f6b03000000fffe41');
});

test('large outputs are printed whole', () => {
  const values = Float32Array.from({ length: 100_000 }, (_, i) => Math.fround(Math.sin(i)));
  assert.deepEqual(Float32Array.from(JSON.parse(`[${dataText('FP32', bytes(values), values.length)}]`)), values);
  const long = 'x'.repeat(500_000);
  assert.equal(dataText('BYTES', encodeBytesTensor([Buffer.from(long)]), 1), `"${long}"`);
});

test('outputs that do not fit what was asked for are a bug, not a response', () => {
  const encoder = encoderFor('INT32');
  assert.throws(() => encoder.encode(request(BINARY_OUTPUT), []), /This is a bug/);
  assert.throws(
    () => encoder.encode(request(BINARY_OUTPUT), [{ shape: [2], data: new Uint8Array(4) }]),
    /This is a bug/,
  );
  assert.throws(
    () => encoder.encode(request(JSON_OUTPUT), [{ shape: [-1], data: new Uint8Array(4) }]),
    /This is a bug/,
  );
  assert.throws(
    () => encoderFor('BYTES').encode(request(JSON_OUTPUT), [{ shape: [1], data: Uint8Array.of(9, 0, 0, 0) }]),
    /This is a bug/,
  );
});
