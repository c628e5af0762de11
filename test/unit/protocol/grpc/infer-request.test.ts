/** ModelInferRequest, written by @grpc/proto-loader or by hand, to what the queue takes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError, type ErrorCode } from '../../../../src/config/errors.ts';
import type { BoundRequest } from '../../../../src/protocol/bound-request.ts';
import { readInferMessage } from '../../../../src/protocol/grpc/infer-message.ts';
import { type ModelInterface, RequestDecoder } from '../../../../src/protocol/request-decoder.ts';
import { DATATYPES, type Datatype, datatypeInfo } from '../../../../src/tensor/datatype.ts';
import { INFERENCE, type Message, rawRequest, typedRequest } from '../../../support/grpc.ts';
import { seedFromEnv } from '../../../support/random.ts';
import { randomTensor, tensor, wireBytes } from '../../../support/tensor.ts';
import { identity, LIMITS, model, SIMPLE, tensor as spec } from '../fixtures.ts';

const TYPES = Object.keys(DATATYPES) as Datatype[];
const random = seedFromEnv();

function write(message: Message): Buffer {
  return INFERENCE.ModelInfer!.requestSerialize(message);
}

function bindBytes(target: ModelInterface, bytes: Buffer): BoundRequest {
  return new RequestDecoder(target, LIMITS).bindMessage(readInferMessage(bytes));
}

function bind(target: ModelInterface, message: Message): BoundRequest {
  return bindBytes(target, write(message));
}

function assertRefused(action: () => unknown, code: ErrorCode, message: RegExp): void {
  assert.throws(action, (error: unknown) => {
    assert(error instanceof BatchportError, String(error));
    assert.equal(error.code, code);
    assert.match(error.message, message);
    return true;
  });
}

/** One input `x` with these contents. */
function typed(datatype: Datatype, shape: readonly number[], contents: Message | null): Message {
  return { model_name: 'm', inputs: [{ name: 'x', datatype, shape, contents }] };
}

const X32 = new Map([['x', tensor('INT32', [2], Int32Array.of(1, 2))]]);

test('raw and typed contents of every datatype are the bytes of the tensor', () => {
  for (const datatype of TYPES) {
    for (const shape of [[], [0], [1], [3], [2, 5]]) {
      const value = randomTensor(random, datatype, shape);
      const target = identity(datatype, shape);
      const inputs = new Map([['x', value]]);
      assert.deepEqual(Buffer.from(bind(target, rawRequest('m', inputs)).inputs[0]!), Buffer.from(wireBytes(value)));
      if (!datatypeInfo(datatype).json) continue;
      const { inputs: bound, template } = bind(target, typedRequest('m', inputs));
      assert.deepEqual(Buffer.from(bound[0]!), Buffer.from(wireBytes(value)), `${datatype} ${shape}`);
      assert.deepEqual(template.shapes, [shape]);
    }
  }
});

// Story: 64-bit fields of a protobuf library came out as doubles (grpc-int64-fields, 70).
test('64-bit contents keep every bit', () => {
  const values = ['9007199254740993', '-9223372036854775808', '9223372036854775807', '-1', '0', '127', '128'];
  const { inputs } = bind(identity('INT64'), typed('INT64', [7], { int64_contents: values }));
  assert.deepEqual(Buffer.from(inputs[0]!), Buffer.from(BigInt64Array.from(values, BigInt).buffer));
  const largest = bind(identity('UINT64'), typed('UINT64', [1], { uint64_contents: ['18446744073709551615'] }));
  assert.equal(Buffer.from(largest.inputs[0]!).readBigUInt64LE(), 2n ** 64n - 1n);
});

// Story: 256 for a UINT8 was taken and became 0 (int-json-out-of-range, 2).
test('an integer that its datatype does not hold is refused with its value', () => {
  const cases: [Datatype, string, number][] = [
    ['INT8', 'int_contents', 128],
    ['INT8', 'int_contents', -129],
    ['INT16', 'int_contents', 32768],
    ['UINT8', 'uint_contents', 256],
    ['UINT16', 'uint_contents', 65536],
  ];
  for (const [datatype, field, value] of cases) {
    const message = typed(datatype, [2], { [field]: [1, value] });
    assertRefused(
      () => bind(identity(datatype), message),
      'BAD_TENSOR',
      new RegExp(`'x': element 1 is ${value}, .*${datatype}`),
    );
  }
  for (const [datatype, value] of [
    ['INT8', -128],
    ['INT16', -32768],
    ['INT32', -(2 ** 31)],
  ] as const) {
    const { inputs } = bind(identity(datatype), typed(datatype, [1], { int_contents: [value] }));
    assert.equal(Buffer.from(inputs[0]!).readIntLE(0, inputs[0]!.length), value);
  }
});

test('contents may come packed, one by one and in pieces', () => {
  const contents = (fields: number[]) => [(5 << 3) | 2, fields.length, ...fields];
  const input = (...parts: number[][]) => {
    const bytes = [0x0a, 1, 0x78, 0x12, 5, ...Buffer.from('INT32'), 0x1a, 1, 4, ...parts.flat()];
    return Buffer.from([(5 << 3) | 2, bytes.length, ...bytes]);
  };
  const expected = Buffer.from(Int32Array.of(1, 2, 3, 4).buffer);
  const layouts = [
    input(contents([0x12, 4, 1, 2, 3, 4])),
    input(contents([0x10, 1, 0x10, 2, 0x10, 3, 0x10, 4])),
    input(contents([0x12, 2, 1, 2, 0x10, 3]), contents([0x12, 1, 4])),
    // A varint may be longer than it has to be.
    input(contents([0x12, 5, 0x81, 0x00, 2, 3, 4])),
    // An empty packed field of another datatype is nothing.
    input(contents([0x1a, 0, 0x12, 4, 1, 2, 3, 4])),
  ];
  for (const bytes of layouts) {
    assert.deepEqual(Buffer.from(bindBytes(identity('INT32'), bytes).inputs[0]!), expected, bytes.toString('hex'));
  }
});

test('contents of another datatype, of another count, or of none that has them are refused', () => {
  const cases: [Datatype, number[], Message | null, RegExp][] = [
    ['INT32', [1], { fp32_contents: [1] }, /INT32 and takes int_contents, but has fp32_contents/],
    ['INT64', [1], { int_contents: [1] }, /takes int64_contents, but has int_contents/],
    ['FP32', [2], { fp32_contents: [1] }, /1 elements in fp32_contents, but its shape calls for 2/],
    ['INT32', [2], null, /0 elements in int_contents/],
    ['BYTES', [1], { bytes_contents: [] }, /0 elements in bytes_contents/],
    ['INT32', [0], { bytes_contents: [Buffer.alloc(0)] }, /takes int_contents, but has bytes_contents/],
    ['FP16', [1], { fp32_contents: [1] }, /FP16, which has no typed contents; send it in raw_input_contents/],
    ['BF16', [1], null, /BF16, which has no typed contents/],
  ];
  for (const [datatype, shape, contents, message] of cases) {
    assertRefused(() => bind(identity(datatype), typed(datatype, shape, contents)), 'BAD_TENSOR', message);
  }
});

test('raw contents are all or nothing, one per input in their order', () => {
  const value = tensor(
    'INT32',
    [1, 16],
    Int32Array.from({ length: 16 }, (_, n) => n),
  );
  const other = tensor('INT32', [1, 16], new Int32Array(16).fill(7));
  const swapped = bind(
    SIMPLE,
    rawRequest(
      'simple',
      new Map([
        ['INPUT1', other],
        ['INPUT0', value],
      ]),
    ),
  );
  assert.deepEqual(
    swapped.inputs.map((bytes) => bytes[4]),
    [1, 7],
  );
  const both = rawRequest(
    'simple',
    new Map([
      ['INPUT0', value],
      ['INPUT1', other],
    ]),
  );
  const cases: [Message, RegExp][] = [
    [{ ...both, raw_input_contents: both.raw_input_contents.slice(1) }, /1 tensors for 2 inputs/],
    [{ ...both, raw_input_contents: [...both.raw_input_contents, Buffer.alloc(64)] }, /3 tensors for 2 inputs/],
    [{ ...both, raw_input_contents: [Buffer.alloc(60), Buffer.alloc(64)] }, /expected 64 bytes, got 60/],
    [
      { ...both, inputs: [{ ...both.inputs[0], contents: { int_contents: [1] } }, both.inputs[1]] },
      /'INPUT0' has contents/,
    ],
    [{ ...both, inputs: [both.inputs[0], both.inputs[0]] }, /'INPUT0' already exists/],
    [
      { ...both, inputs: both.inputs.slice(1), raw_input_contents: [Buffer.alloc(64)] },
      /expected 2 inputs but got 1 .* missing 'INPUT0'/,
    ],
    [
      { ...both, inputs: [...both.inputs, { name: 'FOO' }], raw_input_contents: Array(3).fill(Buffer.alloc(64)) },
      /unexpected inference input 'FOO'/,
    ],
    [{ ...both, outputs: [{ name: 'OUTPUT0' }, { name: 'OUTPUT0' }] }, /requested twice/],
    [{ ...both, outputs: [{ name: 'OUTPUT9' }] }, /unexpected inference output 'OUTPUT9'/],
  ];
  for (const [message, fault] of cases) assertRefused(() => bind(SIMPLE, message), 'BAD_TENSOR', fault);
  assertRefused(() => bind(SIMPLE, { model_name: 'simple' }), 'BAD_TENSOR', /expected 2 inputs but got 0/);
});

test('a byte of a BOOL that is neither 0 nor 1, and a BYTES tensor that does not add up, are refused', () => {
  const raw = (datatype: Datatype, bytes: number[]) => ({
    inputs: [{ name: 'x', datatype, shape: [1] }],
    raw_input_contents: [Buffer.from(bytes)],
  });
  assertRefused(() => bind(identity('BOOL'), raw('BOOL', [2])), 'BAD_TENSOR', /BOOL takes 0 or 1/);
  assertRefused(() => bind(identity('BYTES'), raw('BYTES', [9, 0, 0, 0, 1])), 'BAD_TENSOR', /says it has 9 bytes/);
});

test('id, timeout and priority are read exactly; an empty id is none', () => {
  const message = { ...rawRequest('m', X32), id: 'ü-"1' };
  const parameters = {
    timeout: { int64_param: '9007199254740993' },
    priority: { uint64_param: '3' },
    other: { double_param: 0.5 },
  };
  const { id, timeoutUs, priority } = bind(identity('INT32'), { ...message, parameters });
  assert.deepEqual([id, timeoutUs, priority], ['ü-"1', Number.MAX_SAFE_INTEGER, 3]);
  assert.equal(bind(identity('INT32'), { ...message, id: '' }).id, undefined);
  const huge = bind(identity('INT32'), {
    ...message,
    parameters: { timeout: { uint64_param: '18446744073709551615' } },
  });
  assert.equal(huge.timeoutUs, Number.MAX_SAFE_INTEGER);
});

test('parameters that ask for what there is not, or are of the wrong kind, are refused', () => {
  const cases: [Message, RegExp][] = [
    [{ timeout: { int64_param: '-1' } }, /'timeout' of the request must be an integer of 0 or more, got -1/],
    [{ timeout: { string_param: '1' } }, /must be an integer of 0 or more, got another kind of value/],
    [{ triton_x: { bool_param: true } }, /keys starting with 'triton_' are reserved/],
    [{ classification: { int64_param: '1' } }, /'classification' is one of outputs; the request has it/],
  ];
  for (const [parameters, message] of cases) {
    assertRefused(() => bind(identity('INT32'), { ...rawRequest('m', X32), parameters }), 'BAD_REQUEST', message);
  }
  const shared = {
    ...rawRequest('m', X32),
    inputs: [{ name: 'x', datatype: 'INT32', shape: [2], parameters: { shared_memory_region: { string_param: 'r' } } }],
  };
  assertRefused(() => bind(identity('INT32'), shared), 'BAD_REQUEST', /no parameter 'shared_memory_byte_size'/);
});

test('tensors in shared memory are taken where there is any, and their parameters read exactly', () => {
  const inShared = (parameters: Message, more: Message = {}) => ({
    inputs: [{ name: 'x', datatype: 'INT32', shape: [2], parameters }],
    ...more,
  });
  const region = { string_param: 'r' };
  const place = { shared_memory_region: region, shared_memory_byte_size: { int64_param: '8' } };
  const bindThem = (message: Message) => () => bind(identity('INT32'), message);
  assertRefused(bindThem(inShared(place)), 'BAD_REQUEST', /does not use; start it with --system-shared-memory/);
  for (const [parameters, message] of [
    [{ ...place, shared_memory_region: { int64_param: '1' } }, /'shared_memory_region' of input 'x' must be a string/],
    [{ ...place, shared_memory_byte_size: { string_param: '8' } }, /'shared_memory_byte_size' .* integer of 0 or more/],
    [{ ...place, shared_memory_offset: { int64_param: '-1' } }, /'shared_memory_offset' .* got -1/],
    [{ shared_memory_byte_size: { int64_param: '8' } }, /no parameter 'shared_memory_region'/],
  ] as const) {
    assertRefused(bindThem(inShared(parameters)), 'BAD_REQUEST', message);
  }
  assertRefused(
    bindThem(inShared({ ...place, shared_memory_byte_size: { uint64_param: '4' } })),
    'BAD_TENSOR',
    /got 4/,
  );
  const onRequest = { ...rawRequest('m', X32), parameters: { shared_memory_region: region } };
  assertRefused(bindThem(onRequest), 'BAD_REQUEST', /belongs to an input or an output, and not to the request/);
  const contents = { inputs: [{ ...inShared(place).inputs[0], contents: { int_contents: [1, 2] } }] };
  assertRefused(bindThem(contents), 'BAD_TENSOR', /must have no contents/);
  const raw = inShared(place, { raw_input_contents: [Buffer.alloc(8)] });
  assertRefused(bindThem(raw), 'BAD_TENSOR', /1 tensors for 0 inputs that are not in shared memory/);
  const output = { ...rawRequest('m', X32), outputs: [{ name: 'y', parameters: place }] };
  assertRefused(bindThem(output), 'BAD_REQUEST', /output 'y' has a tensor in shared memory, which this server/);
});

test('dimensions that are none, and shapes past all bounds, are refused', () => {
  const shaped = (shape: unknown[]) => () =>
    bind(identity('INT32'), { inputs: [{ name: 'x', datatype: 'INT32', shape }] });
  assertRefused(shaped([-1]), 'BAD_REQUEST', /dimension 0 is -1/);
  assertRefused(shaped(['9223372036854775807']), 'BAD_REQUEST', /dimension 0 is 9223372036854775807/);
  assertRefused(shaped(Array(65).fill(1)), 'BAD_REQUEST', /more than 64 dimensions/);
  assertRefused(shaped([2 ** 40]), 'BAD_TENSOR', /at most/);
  assertRefused(shaped([2, 2]), 'BAD_TENSOR', /unexpected shape for input 'x'/);
  assertRefused(
    () => bind(SIMPLE, { inputs: [{ name: 'INPUT0', datatype: 'INT32', shape: [16] }] }),
    'BAD_TENSOR',
    /send \[1,16\] for one row/,
  );
  for (const datatype of ['INT64', 'int32', '']) {
    const message = { inputs: [{ name: 'x', datatype, shape: [1] }] };
    assertRefused(() => bind(identity('INT32'), message), 'BAD_TENSOR', /expects type 'INT32'/);
  }
});

test('what is no protocol buffer is refused in words', () => {
  const cases: [number[], RegExp][] = [
    [[0x0a, 5, 0x61], /ends within a field/],
    [[0x0a], /ends within a field/],
    [[0x40, ...Array(10).fill(0xff), 1], /varint is too long/],
    [[0x0b], /wire type 3/],
    [[0x00], /no valid number/],
    [[0x0a, 2, 0xff, 0xfe], /not UTF-8/],
    [[0x0a, ...Array(9).fill(0xff), 1], /ends within a field/],
    [[0x08, 1], /field 1 has the wire type 0/],
  ];
  for (const [bytes, message] of cases) {
    assertRefused(() => readInferMessage(Buffer.from(bytes)), 'BAD_REQUEST', message);
  }
  assert.equal(readInferMessage(Buffer.from([0xf8, 0x07, 1, 0xfd, 0x07, 0, 0, 0, 0, 0x0a, 1, 0x61])).modelName, 'a');
});

test('a message with more parts than any model has is refused before they cost memory', () => {
  const empty = Buffer.alloc(2 * 100_000, Buffer.from([0x2a, 0]));
  assertRefused(() => readInferMessage(empty), 'BAD_REQUEST', /more than 4096 inputs/);
});

test('requests of one shape share a template with those that ask for binary over HTTP', () => {
  const decoder = new RequestDecoder(model('m', [spec('x', 'INT32', [-1])], [spec('y', 'INT32', [-1])]), LIMITS);
  const header =
    '{"inputs":[{"name":"x","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}],"parameters":{"binary_data_output":true}}';
  const http = decoder.decode(Buffer.concat([Buffer.from(header), Buffer.alloc(8)]), header.length);
  assert.equal(decoder.bindMessage(readInferMessage(write(rawRequest('m', X32)))).template, http.template);
});
