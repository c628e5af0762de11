import assert from 'node:assert/strict';
import { test } from 'node:test';
import { encodeRequest, type InferInput, type InferRequest, requestBody } from '../../../src/client/request.ts';

const text = (bytes: Uint8Array) => Buffer.from(bytes).toString('utf8');

/** Header and bytes of a request in the binary form. */
function binary(request: InferRequest, leftMs = Number.POSITIVE_INFINITY): { header: string; bytes: Buffer } {
  const { headers, body } = requestBody(encodeRequest(request, true), leftMs);
  const length = Number(headers['inference-header-content-length']);
  return { header: text(body.subarray(0, length)), bytes: Buffer.from(body.subarray(length)) };
}

function json(request: InferRequest): string {
  const { headers, body } = requestBody(encodeRequest(request, false), Number.POSITIVE_INFINITY);
  assert.deepEqual(headers, { 'content-type': 'application/json' });
  return text(body);
}

const one = (input: InferInput): InferRequest => ({ inputs: [input] });
const dataOf = (body: string) => /"data":(\[.*\])\}\]\}$/s.exec(body)?.[1];

test('the binary form is a header and the tensors in the order of the inputs', () => {
  const { header, bytes } = binary({
    id: 'ü-"1',
    parameters: { priority: 1, sequence_id: 9007199254740993n, flag: true, name: 'x', ratio: 0.5 },
    inputs: [
      { name: 'a', datatype: 'INT32', shape: [1, 2], data: Int32Array.of(1, -1) },
      { name: 'b', datatype: 'BYTES', shape: [3], data: ['é', Uint8Array.of(0, 0xff), ''], parameters: { k: 1 } },
      { name: 'c', datatype: 'FP16', shape: [], data: Uint16Array.of(0x3c00) },
    ],
    outputs: ['y', { name: 'z', binary: false, parameters: { classification: 3 } }],
  });
  assert.equal(
    header,
    '{"id":"ü-\\"1","parameters":{"priority":1,"sequence_id":9007199254740993,"flag":true,"name":"x","ratio":0.5},"inputs":[' +
      '{"name":"a","shape":[1,2],"datatype":"INT32","parameters":{"binary_data_size":8}},' +
      '{"name":"b","shape":[3],"datatype":"BYTES","parameters":{"k":1,"binary_data_size":16}},' +
      '{"name":"c","shape":[],"datatype":"FP16","parameters":{"binary_data_size":2}}],' +
      '"outputs":[{"name":"y","parameters":{"binary_data":true}},' +
      '{"name":"z","parameters":{"classification":3,"binary_data":false}}]}',
  );
  assert.equal(bytes.toString('hex'), '01000000ffffffff02000000c3a90200000000ff00000000003c');
});

test('without a list of outputs, all of them are asked for in the form of the request', () => {
  const input: InferInput = { name: 'x', datatype: 'FP32', shape: [0], data: [] };
  assert.match(binary(one(input)).header, /^\{"parameters":\{"binary_data_output":true\},/);
  assert.equal(json(one(input)), '{"parameters":{},"inputs":[{"name":"x","shape":[0],"datatype":"FP32","data":[]}]}');
});

test('the server is told the time left, unless the caller has a timeout of its own', () => {
  const input: InferInput = { name: 'x', datatype: 'FP32', shape: [0], data: [] };
  assert.match(binary(one(input), 1.5).header, /"timeout":1500\}/);
  assert.match(binary(one(input), 0.0001).header, /"timeout":1\}/);
  assert.doesNotMatch(binary(one(input)).header, /timeout/);
  assert.match(binary({ ...one(input), parameters: { timeout: 7 } }, 1.5).header, /"timeout":7[,}]/);
});

test('a view into a larger buffer sends its own elements only', () => {
  const whole = Float32Array.of(1, 2, 3, 4);
  const { bytes } = binary(one({ name: 'x', datatype: 'FP32', shape: [2], data: whole.subarray(1, 3) }));
  assert.equal(bytes.toString('hex'), '0000004000004040');
});

test('JSON keeps every digit of 64-bit integers', () => {
  const int64 = BigInt64Array.of(9007199254740993n, -(2n ** 63n), 2n ** 63n - 1n, -1n);
  const body = json(one({ name: 'x', datatype: 'INT64', shape: [4], data: int64 }));
  assert.equal(dataOf(body), '[9007199254740993,-9223372036854775808,9223372036854775807,-1]');
  const uint64 = json(one({ name: 'x', datatype: 'UINT64', shape: [2], data: [2n ** 64n - 1n, 5] }));
  assert.equal(dataOf(uint64), '[18446744073709551615,5]');
});

test('JSON keeps the value of every float, negative zero included', () => {
  const fp32 = json(one({ name: 'x', datatype: 'FP32', shape: [4], data: Float32Array.of(-0, 0.1, 1e-45, 3.4e38) }));
  assert.deepEqual(new Float32Array(JSON.parse(dataOf(fp32)!)), Float32Array.of(-0, 0.1, 1e-45, 3.4e38));
  const fp64 = json(one({ name: 'x', datatype: 'FP64', shape: [2], data: [0.1, 5e-324] }));
  assert.equal(dataOf(fp64), '[0.1,5e-324]');
});

test('JSON has booleans and strings in their own form', () => {
  const flags = json(one({ name: 'x', datatype: 'BOOL', shape: [3], data: [true, false, true] }));
  assert.equal(dataOf(flags), '[true,false,true]');
  assert.equal(dataOf(json(one({ name: 'x', datatype: 'BOOL', shape: [1], data: Uint8Array.of(1) }))), '[true]');
  const texts = json(one({ name: 'x', datatype: 'BYTES', shape: [2], data: ['a\0"b', Buffer.from('大😀')] }));
  assert.equal(dataOf(texts), '["a\\u0000\\"b","大😀"]');
});

test('what JSON cannot carry is refused with the way out', () => {
  const cases: InferInput[] = [
    { name: 'x', datatype: 'FP16', shape: [1], data: Uint16Array.of(1) },
    { name: 'x', datatype: 'BF16', shape: [1], data: Uint16Array.of(1) },
    { name: 'x', datatype: 'BYTES', shape: [1], data: [Uint8Array.of(0xff)] },
  ];
  for (const input of cases) assert.throws(() => json(one(input)), /input "x": .*send it in binary/);
  for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) {
    assert.throws(() => json(one({ name: 'x', datatype: 'FP32', shape: [1], data: [value] })), /JSON has no form/);
    assert.doesNotThrow(() => binary(one({ name: 'x', datatype: 'FP32', shape: [1], data: [value] })));
  }
});

test('a value that its datatype cannot hold is refused, never narrowed', () => {
  const bad: readonly (readonly [string, readonly unknown[]])[] = [
    ['UINT8', [256, -1, 1.5, '1', true, null, undefined, Number.NaN]],
    ['INT8', [128, -129]],
    ['UINT16', [65_536]],
    ['INT16', [32_768]],
    ['UINT32', [2 ** 32, -1]],
    ['INT32', [2 ** 31, -(2 ** 31) - 1, 2n ** 31n]],
    ['INT64', [2n ** 63n, -(2n ** 63n) - 1n, 2 ** 53, 0.5]],
    ['UINT64', [2n ** 64n, -1n, -1]],
    ['FP32', [1e39, '1', null, 1n]],
    ['FP64', ['1', true]],
    ['BOOL', [2, 'true', null]],
    ['BYTES', [1, null, '\ud800']],
  ];
  for (const [datatype, values] of bad) {
    for (const value of values) {
      const input = { name: 'x', datatype, shape: [1], data: [value] } as unknown as InferInput;
      for (const form of [true, false]) {
        assert.throws(() => encodeRequest(one(input), form), /input "x": /, `${datatype} ${String(value)}`);
      }
    }
  }
});

test('the largest and smallest values pass', () => {
  const good: readonly (readonly [InferInput['datatype'], readonly unknown[], string])[] = [
    ['UINT8', [255, 0], 'ff00'],
    ['INT8', [127, -128], '7f80'],
    ['INT16', [32_767, -32_768], 'ff7f0080'],
    ['UINT32', [2 ** 32 - 1], 'ffffffff'],
    ['INT32', [-(2 ** 31)], '00000080'],
    ['INT64', [-(2n ** 63n), -1], '0000000000000080ffffffffffffffff'],
    ['UINT64', [2n ** 64n - 1n], 'ffffffffffffffff'],
    ['BOOL', [true, false], '0100'],
  ];
  for (const [datatype, data, hex] of good) {
    const input = { name: 'x', datatype, shape: [data.length], data } as unknown as InferInput;
    assert.equal(binary(one(input)).bytes.toString('hex'), hex, datatype);
  }
});

test('an array of another type is refused, since its bytes mean something else', () => {
  const wrong: readonly (readonly [string, unknown])[] = [
    ['FP32', Float64Array.of(1)],
    ['FP64', Float32Array.of(1)],
    ['INT64', Int32Array.of(1)],
    ['UINT8', Int8Array.of(1)],
    ['FP16', [1]],
    ['BF16', Float32Array.of(1)],
    ['BOOL', Uint8Array.of(2)],
    ['BYTES', 'a'],
    ['BYTES', Uint8Array.of(1)],
  ];
  for (const [datatype, data] of wrong) {
    const input = { name: 'x', datatype, shape: [1], data } as unknown as InferInput;
    assert.throws(() => encodeRequest(one(input), true), /input "x": /, datatype);
  }
});

test('shapes, names and parameters are checked', () => {
  const x = (change: object): InferRequest => ({
    inputs: [{ name: 'x', datatype: 'FP32', shape: [1], data: [1], ...change } as InferInput],
  });
  assert.throws(() => encodeRequest(x({ shape: [2] }), true), /input "x": shape \[2\] needs 2 elements, data has 1/);
  assert.throws(() => encodeRequest(x({ shape: [-1] }), true), /\[-1\] is not a shape/);
  assert.throws(() => encodeRequest(x({ shape: [1.5] }), true), /is not a shape/);
  assert.throws(() => encodeRequest(x({ datatype: 'constructor' }), true), /"constructor" is not a datatype/);
  const twice = { inputs: [...x({}).inputs, ...x({}).inputs] };
  assert.throws(() => encodeRequest(twice, true), /input "x" is given twice/);
  assert.throws(() => encodeRequest({ ...x({}), outputs: ['y', 'y'] }, true), /output "y" is given twice/);
  const nested = { ...x({}), parameters: { a: { b: 1 } } } as unknown as InferRequest;
  assert.throws(() => requestBody(encodeRequest(nested, true), 1), /parameter "a" must be a string/);
  assert.throws(
    () => requestBody(encodeRequest({ ...x({}), parameters: { a: Number.NaN } }, true), 1),
    /JSON has no form/,
  );
});
