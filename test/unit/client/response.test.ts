import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ConnectionError, InferenceError } from '../../../src/client/errors.ts';
import { encodeRequest } from '../../../src/client/request.ts';
import { decodeResponse } from '../../../src/client/response.ts';
import type { HttpAnswer } from '../../../src/client/transport.ts';

const request = encodeRequest({ inputs: [], id: 'one' }, true);

/** An answer in the binary form; `change` replaces header fields. */
function binary(
  json: object | string,
  bytes: string | Uint8Array = '',
  change: HttpAnswer['headers'] = {},
): HttpAnswer {
  const header = Buffer.from(typeof json === 'string' ? json : JSON.stringify(json));
  const tail = typeof bytes === 'string' ? Buffer.from(bytes, 'hex') : bytes;
  return {
    status: 200,
    headers: { 'inference-header-content-length': String(header.length), ...change },
    body: Buffer.concat([header, tail]),
  };
}

function text(body: string, status = 200, headers: HttpAnswer['headers'] = {}): HttpAnswer {
  return { status, headers, body: Buffer.from(body) };
}

const model = { model_name: 'm', model_version: '3' };
const output = (size: number, change: object = {}) => ({
  name: 'y',
  datatype: 'FP32',
  shape: [2],
  parameters: { binary_data_size: size },
  ...change,
});
const jsonOutput = (datatype: string, shape: number[], data: string) =>
  text(`{"model_name":"m","outputs":[{"name":"y","datatype":"${datatype}","shape":[${shape}],"data":${data}}]}`);

const bad = (answer: HttpAnswer, message: RegExp, outputs?: string[]) => {
  const encoded = outputs === undefined ? request : encodeRequest({ inputs: [], outputs }, true);
  assert.throws(
    () => decodeResponse(answer, encoded),
    (error: unknown) => {
      assert(error instanceof ConnectionError);
      assert.equal(error.code, 'BAD_RESPONSE');
      assert.equal(error.sent, true);
      assert.match(error.message, message);
      return true;
    },
  );
};

test('a binary answer gives typed data, the version, the id and the parameters', () => {
  const answer = binary(
    {
      ...model,
      id: 'one',
      parameters: { a: 1 },
      outputs: [
        output(8, { parameters: { binary_data_size: 8, note: 'x' } }),
        { name: 's', datatype: 'BYTES', shape: [1, 2], parameters: { binary_data_size: 11 } },
        { name: 'j', datatype: 'INT32', shape: [], data: [7] },
      ],
    },
    '0000803f000000c0' + '02000000c3a9' + '01000000ff',
  );
  const result = decodeResponse(answer, request);
  assert.equal(result.modelName, 'm');
  assert.equal(result.modelVersion, '3');
  assert.equal(result.id, 'one');
  assert.deepEqual({ ...result.parameters }, { a: 1 });
  assert.deepEqual(result.output('y', 'FP32').data, Float32Array.of(1, -2));
  assert.deepEqual({ ...result.output('y').parameters }, { note: 'x' });
  assert.deepEqual(result.output('s', 'BYTES').data, [Uint8Array.of(0xc3, 0xa9), Uint8Array.of(0xff)]);
  assert.deepEqual(result.output('j').data, Int32Array.of(7));
  assert.throws(() => result.output('s').text(), /element 1 of output "s" is not UTF-8/);
  assert.throws(() => result.output('y').text(), TypeError);
  assert.throws(() => result.output('nope'), /no output named "nope"; there are: y, s, j/);
  assert.throws(() => result.output('y', 'INT32'), /is FP32, not INT32/);
});

test('data of an answer has a buffer of its own', () => {
  const answer = binary({ ...model, outputs: [output(8)] }, '0000803f000000c0');
  const { data } = decodeResponse(answer, request).output('y', 'FP32');
  assert.equal(data.buffer.byteLength, 8);
  answer.body.fill(0);
  assert.deepEqual(data, Float32Array.of(1, -2));
});

test('a JSON answer may be flat or nested as its shape says', () => {
  const data = (shape: number[], json: string) =>
    decodeResponse(jsonOutput('INT32', shape, json), request).output('y').data;
  assert.deepEqual(data([2, 2], '[1,2,3,4]'), Int32Array.of(1, 2, 3, 4));
  assert.deepEqual(data([2, 2], '[[1,2],[3,4]]'), Int32Array.of(1, 2, 3, 4));
  assert.deepEqual(data([2, 0], '[[],[]]'), new Int32Array(0));
  assert.deepEqual(data([0, 16], '[]'), new Int32Array(0));
  for (const wrong of [
    '[[1,2,3],[4]]',
    '[[1,2,3,4]]',
    '[[[1],[2]],[[3],[4]]]',
    '[1,[2],3,4]',
    '[[1,2],3,4]',
    '[1,2,3]',
    '[]',
    '{}',
    'null',
  ]) {
    bad(jsonOutput('INT32', [2, 2], wrong), /data/);
  }
});

test('JSON keeps 64-bit integers, booleans, strings and non-finite floats', () => {
  const read = (datatype: string, shape: number[], json: string) =>
    decodeResponse(jsonOutput(datatype, shape, json), request).output('y');
  assert.deepEqual(
    read('INT64', [3], '[9007199254740993,-9223372036854775808,1e3]').data,
    BigInt64Array.of(9007199254740993n, -9223372036854775808n, 1000n),
  );
  assert.deepEqual(read('UINT64', [1], '[18446744073709551615]').data, BigUint64Array.of(18446744073709551615n));
  assert.deepEqual(read('BOOL', [3], '[true,false,1]').data, Uint8Array.of(1, 0, 1));
  assert.deepEqual(read('BYTES', [2], '["a\\u0000b","é"]').text(), ['a\0b', 'é']);
  assert.deepEqual(
    read('FP32', [3], '[NaN,-Infinity,-0]').data,
    Float32Array.of(Number.NaN, Number.NEGATIVE_INFINITY, -0),
  );
  assert.deepEqual(read('FP64', [1], '[123456789012345678901234567890]').data, Float64Array.of(1.2345678901234568e29));
});

test('JSON values that do not fit the datatype make a bad answer', () => {
  const cases: readonly (readonly [string, string])[] = [
    ['UINT8', '[256]'],
    ['INT32', '[1.5]'],
    ['INT32', '["1"]'],
    ['INT64', '[9223372036854775808]'],
    ['INT64', '[1e20]'],
    ['UINT64', '[-1]'],
    ['FP32', '[null]'],
    ['FP32', '[1e39]'],
    ['FP32', '["NaN"]'],
    ['BOOL', '["true"]'],
    ['BYTES', '[1]'],
    ['FP16', '[1]'],
    ['BF16', '[1]'],
  ];
  for (const [datatype, json] of cases) bad(jsonOutput(datatype, [1], json), /output "y"/);
});

test('a header length that is malformed, repeated or beyond the body makes a bad answer', () => {
  for (const value of ['99999', '-1', 'abc', '12abc', '0x10', '1e2', '1.5', '', ' 10', '99999999999999999999']) {
    const answer = binary({ ...model, outputs: [] }, '', { 'inference-header-content-length': value });
    bad(answer, /Inference-Header-Content-Length/);
  }
  const length = String(JSON.stringify({ ...model, outputs: [] }).length);
  bad(
    binary({ ...model, outputs: [] }, '', { 'inference-header-content-length': [length, length] }),
    /Inference-Header/,
  );
  bad(binary({ ...model, outputs: [] }, '', { 'inference-header-content-length': '0' }), /not JSON/);
});

test('sizes that do not account for every byte make a bad answer', () => {
  const eight = '0000803f000000c0';
  bad(binary({ ...model, outputs: [output(4)] }, eight.slice(8)), /needs 8 bytes and has 4/);
  bad(binary({ ...model, outputs: [output(8)] }, eight.slice(2)), /of the body 7 bytes are left/);
  bad(binary({ ...model, outputs: [output(8)] }, `${eight}00`), /1 bytes after the last tensor/);
  for (const size of [-1, 1.5, 2 ** 60, '8', null, true]) {
    bad(
      binary({ ...model, outputs: [output(0, { parameters: { binary_data_size: size } })] }, eight),
      /binary_data_size|scalar/,
    );
  }
  bad(binary({ ...model, outputs: [output(8, { data: [1, 2] })] }, eight), /both data and binary_data_size/);
  bad(binary({ ...model, outputs: [output(8, { parameters: {} })] }, eight), /neither/);
  // Without the header field, the whole body would have to be JSON.
  bad({ ...binary({ ...model, outputs: [output(8)] }, eight), headers: {} }, /not JSON/);
});

test('BYTES whose lengths do not fill the tensor exactly make a bad answer', () => {
  const bytes = (shape: number[], hex: string) =>
    binary(
      {
        ...model,
        outputs: [{ name: 'y', datatype: 'BYTES', shape, parameters: { binary_data_size: hex.length / 2 } }],
      },
      hex,
    );
  assert.deepEqual(decodeResponse(bytes([0], ''), request).output('y').data, []);
  for (const [shape, hex] of [
    [[1], ''],
    [[1], '010000'],
    [[1], '0200000061'],
    [[1], 'ffffffff61'],
    [[1], '010000006100'],
    [[2], '0100000061'],
    [[0], '00000000'],
    [[1_000_000_000_000], '0000000000000000'],
  ] as const) {
    bad(bytes([...shape], hex), /the bytes of output "y"/);
  }
});

test('an answer that is not an inference response makes a bad answer', () => {
  bad(text('<html><body>login</body></html>'), /not JSON: <html>/);
  bad(text(''), /not JSON: \(nothing\)/);
  bad({ status: 200, headers: {}, body: Buffer.from([0x7b, 0xff, 0x7d]) }, /not JSON/);
  bad(text('[]'), /not a JSON object/);
  bad(text('{}'), /"outputs"/);
  bad(text('{"model_name":"m","outputs":{}}'), /"outputs"/);
  bad(text('{"outputs":[]}'), /"model_name"/);
  bad(text('{"model_name":5,"outputs":[]}'), /"model_name"/);
  bad(text('{"model_name":"m","model_version":1,"outputs":[]}'), /"model_version"/);
  bad(text('{"model_name":"m","id":"other","outputs":[]}'), /id "other", the request "one"/);
  bad(text('{"model_name":"m","parameters":{"a":{}},"outputs":[]}'), /parameter "a"/);
  bad(text('{"model_name":"m","outputs":[]}', 200, { 'content-encoding': 'gzip' }), /Content-Encoding gzip/);
  for (const entry of ['null', '5', '{}', '{"name":"y"}'])
    bad(text(`{"model_name":"m","outputs":[${entry}]}`), /output|name/);
  bad(jsonOutput('FP128', [1], '[1]'), /unknown datatype "FP128"/);
  bad(jsonOutput('toString', [1], '[1]'), /unknown datatype/);
  for (const shape of [[-1], [1.5], [2 ** 53]]) bad(jsonOutput('FP32', shape, '[1]'), /impossible shape/);
  bad(
    text('{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":["1"],"data":[1]}]}'),
    /impossible shape/,
  );
});

test('outputs must be those asked for, once each', () => {
  const y = { name: 'y', datatype: 'FP32', shape: [0], data: [] };
  bad(text(JSON.stringify({ ...model, outputs: [y, y] })), /output "y" twice/);
  bad(text(JSON.stringify({ ...model, outputs: [y] })), /lacks output "z"/, ['y', 'z']);
});

test('an error of the server keeps its status, code, message and wish', () => {
  const refused = (answer: HttpAnswer) => {
    try {
      decodeResponse(answer, request);
    } catch (error) {
      assert(error instanceof InferenceError);
      return { status: error.status, code: error.code, message: error.message, retryAfterMs: error.retryAfterMs };
    }
    return assert.fail('no error');
  };
  assert.deepEqual(refused(text('{"error":"queue is full","code":"QUEUE_FULL"}', 429, { 'retry-after': '2' })), {
    status: 429,
    code: 'QUEUE_FULL',
    message: 'queue is full',
    retryAfterMs: 2_000,
  });
  assert.deepEqual(refused(text('{"error":"bad shape"}', 400)), {
    status: 400,
    code: 'HTTP_400',
    message: 'bad shape',
    retryAfterMs: undefined,
  });
  assert.deepEqual(
    refused(text(`<html>\n  <h1>Bad   gateway</h1>${'x'.repeat(1000)}`, 502)).message.length < 300,
    true,
  );
  assert.match(refused(text('<h1>Bad\ngateway</h1>', 502)).message, /^HTTP status 502: <h1>Bad gateway<\/h1>$/);
  assert.equal(refused(text('', 301)).message, 'HTTP status 301: (nothing)');
  assert.equal(refused(text('{"error":{"deep":1},"code":5}', 500)).code, 'HTTP_500');
});
