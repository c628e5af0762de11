/** What a request says besides its tensors: inputs and outputs by name, shapes and rows, id and parameters. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { BoundRequest } from '../../../src/protocol/bound-request.ts';
import { RequestDecoder } from '../../../src/protocol/request-decoder.ts';
import { assertRefused, decodeText, identity, LIMITS, model, SIMPLE, tensor } from './fixtures.ts';

const ZEROS = new Array(16).fill(0);
const INPUT0 = { name: 'INPUT0', shape: [1, 16], datatype: 'INT32', data: ZEROS };
const INPUT1 = { ...INPUT0, name: 'INPUT1' };

function decodeSimple(request: unknown): BoundRequest {
  return decodeText(SIMPLE, typeof request === 'string' ? request : JSON.stringify(request));
}

function withInput(change: Record<string, unknown>): unknown {
  return { inputs: [{ ...INPUT0, ...change }, INPUT1] };
}

test('a request is bound in the order of the signature, whatever its own order', () => {
  const ones = { ...INPUT1, data: new Array(16).fill(1) };
  const request = decodeSimple({ inputs: [ones, INPUT0] });
  assert.equal(request.inputs[0]?.[0], 0);
  assert.equal(request.inputs[1]?.[0], 1);
  assert.deepEqual(request.template, {
    rows: 1,
    whole: false,
    shapes: [[16], [16]],
    inputBytes: [64, 64],
    outputs: [
      { index: 0, binary: false, classes: 0 },
      { index: 1, binary: false, classes: 0 },
    ],
    classesKey: '',
    shapeKey: request.template.shapeKey,
  });
  assert.equal(request.id, undefined);
  assert.equal(request.timeoutUs, undefined);
  assert.equal(request.priority, undefined);
});

test('inputs that are missing, unknown, repeated or malformed are refused by name', () => {
  const cases: [unknown, 'BAD_REQUEST' | 'BAD_TENSOR', ...string[]][] = [
    [{ inputs: [] }, 'BAD_TENSOR', 'expected 2 inputs but got 0', "'INPUT0', 'INPUT1'"],
    [{}, 'BAD_TENSOR', 'expected 2 inputs but got 0', "'INPUT0', 'INPUT1'"],
    [{ inputs: [INPUT0] }, 'BAD_TENSOR', 'expected 2 inputs but got 1', "missing 'INPUT1'"],
    [{ inputs: [INPUT0, INPUT0] }, 'BAD_TENSOR', "'INPUT0' already exists"],
    [
      { inputs: [INPUT0, INPUT1, { ...INPUT0, name: 'FOO' }] },
      'BAD_TENSOR',
      "unexpected inference input 'FOO' for model 'simple'",
    ],
    [{ inputs: {} }, 'BAD_REQUEST', "'inputs' must be an array"],
    [{ inputs: null }, 'BAD_REQUEST', "'inputs' must be an array", 'null'],
    [{ inputs: 'x' }, 'BAD_REQUEST', "'inputs' must be an array"],
    [{ inputs: [null] }, 'BAD_REQUEST', 'inputs[0] must be an object', 'null'],
    [{ inputs: [INPUT0, 5] }, 'BAD_REQUEST', 'inputs[1] must be an object', '5'],
    [withInput({ name: 5 }), 'BAD_REQUEST', "'name' of inputs[0] must be a string", '5'],
    [withInput({ name: undefined }), 'BAD_REQUEST', "inputs[0] has no 'name'"],
    [withInput({ shape: undefined }), 'BAD_REQUEST', "input 'INPUT0' has no 'shape'"],
    [withInput({ datatype: undefined }), 'BAD_REQUEST', "input 'INPUT0' has no 'datatype'"],
    [withInput({ data: undefined }), 'BAD_REQUEST', "'INPUT0'", "'data'", "'binary_data_size'", 'neither'],
    [withInput({ parameters: { binary_data_size: 64 } }), 'BAD_REQUEST', "'data'", "'binary_data_size'", 'both'],
    [withInput({ name: 'x'.repeat(5000) }), 'BAD_TENSOR', 'unexpected inference input', '…'],
  ];
  for (const [request, code, ...fragments] of cases) assertRefused(() => decodeSimple(request), code, ...fragments);
});

test('a body that is no JSON object is refused', () => {
  for (const text of ['', ' ', '[]', 'null', '5', '"x"', '{"inputs":[]', '{"inputs":[]} x', '{"inputs":[]}{}']) {
    assertRefused(() => decodeSimple(text), 'BAD_REQUEST');
  }
});

test('a key that is read must not come twice', () => {
  const input = JSON.stringify(INPUT0);
  const cases: [string, string][] = [
    [`{"inputs":[],"inputs":[]}`, "'inputs' twice"],
    [`{"id":"a","id":"b"}`, "'id' twice"],
    [`{"inputs":[${input.replace('{', '{"name":"INPUT0",')}]}`, "'name' twice"],
    [`{"inputs":[${input.replace('{', '{"data":[],')}]}`, "'data' twice"],
    [`{"outputs":[{"name":"OUTPUT0","name":"OUTPUT0"}]}`, "'name' twice"],
    [`{"parameters":{"timeout":1,"timeout":1}}`, "'timeout' of the request is given twice"],
    [`{"inputs":[{"name":"INPUT0","n\\u0061me":"INPUT1"}]}`, "'name' twice"],
  ];
  for (const [text, fragment] of cases) assertRefused(() => decodeSimple(text), 'BAD_REQUEST', fragment);
});

test('keys that the protocol does not have are skipped, and checked as JSON', () => {
  const unknown = {
    extra: [{ a: [1, 'x', null] }],
    inputs: [{ ...INPUT0, note: {} }, INPUT1],
    outputs: [{ name: 'OUTPUT0', shape: [1] }],
  };
  assert.equal(decodeSimple(unknown).template.rows, 1);
  assertRefused(() => decodeSimple('{"extra":[1,}'), 'BAD_REQUEST', 'not valid JSON');
});

test('null counts as absent where a field is optional', () => {
  const request = decodeSimple({
    id: null,
    parameters: null,
    outputs: null,
    inputs: [{ ...INPUT0, parameters: null }, INPUT1],
  });
  assert.equal(request.id, undefined);
  assert.equal(request.template.outputs.length, 2);
});

test('a datatype other than the model’s is refused with both', () => {
  for (const datatype of ['INT64', 'FP32', 'int32', '', 'constructor']) {
    assertRefused(
      () => decodeSimple(withInput({ datatype })),
      'BAD_TENSOR',
      "'INPUT0'",
      `'${datatype}'`,
      "expects type 'INT32'",
    );
  }
  assertRefused(
    () => decodeSimple(withInput({ datatype: 5 })),
    'BAD_REQUEST',
    "'datatype' of input 'INPUT0' must be a string",
  );
});

test('a shape that does not fit is refused with both, hinting at a forgotten batch dimension', () => {
  for (const shape of [[1, 16, 1], [1, 15], [16, 1], []]) {
    assertRefused(
      () => decodeSimple(withInput({ shape })),
      'BAD_TENSOR',
      "unexpected shape for input 'INPUT0'",
      'Expected [-1,16]',
      `got [${shape}]`,
    );
  }
  assertRefused(
    () => decodeSimple(withInput({ shape: [16] })),
    'BAD_TENSOR',
    'Expected [-1,16], got [16]',
    'batch',
    '[1,16]',
  );
  assert.throws(
    () => decodeSimple(withInput({ shape: [1, 15] })),
    (error: Error) => !error.message.includes('the first dimension is the batch'),
  );
});

test('dimensions are integers of 0 or more that a double holds', () => {
  for (const dims of [
    '-1,16',
    '1,-16',
    '1.5,16',
    '1,16.0',
    '1e0,16',
    '"1",16',
    'null,16',
    'true,16',
    '[1],16',
    '9007199254740993,16',
    `${'9'.repeat(400)},16`,
  ]) {
    const text = JSON.stringify(withInput({})).replace('[1,16]', `[${dims}]`);
    assertRefused(() => decodeSimple(text), 'BAD_REQUEST', "invalid shape for input 'INPUT0'");
  }
  assertRefused(() => decodeSimple(withInput({ shape: 'x' })), 'BAD_REQUEST', 'invalid shape', 'array');
  assertRefused(
    () => decodeSimple(withInput({ shape: new Array(1000).fill(1) })),
    'BAD_REQUEST',
    'invalid shape',
    '64',
  );
  const huge = identity('INT8', [-1, -1, -1]);
  assertRefused(
    () =>
      decodeText(
        huge,
        '{"inputs":[{"name":"x","shape":[4503599627370496,4503599627370496,2],"datatype":"INT8","data":[]}]}',
      ),
    'BAD_TENSOR',
    'invalid shape for input',
  );
});

test('rows are the first dimension, the same for all inputs, and at most the model’s limit', () => {
  const rows = (first: number, second: number): unknown => ({
    inputs: [
      { ...INPUT0, shape: [first, 16], data: new Array(16 * first).fill(0) },
      { ...INPUT1, shape: [second, 16], data: new Array(16 * second).fill(0) },
    ],
  });
  const { template } = decodeSimple(rows(8, 8));
  assert.equal(template.rows, 8);
  assert.deepEqual(template.inputBytes, [512, 512]);
  assert.deepEqual(template.shapes, [[16], [16]]);
  assertRefused(() => decodeSimple(rows(9, 9)), 'BAD_TENSOR', 'batch-size must be <= 8', "'simple'", 'got 9');
  assertRefused(() => decodeSimple(rows(1, 2)), 'BAD_TENSOR', "'INPUT1' has 2 rows", "'INPUT0' has 1");
});

test('a request of no rows runs whole, and is never in a batch with others', () => {
  const empty = decodeSimple({
    inputs: [
      { ...INPUT0, shape: [0, 16], data: [] },
      { ...INPUT1, shape: [0, 16], data: [] },
    ],
  });
  assert.deepEqual(
    [empty.template.rows, empty.template.whole, empty.template.shapes, empty.template.inputBytes],
    [
      1,
      true,
      [
        [0, 16],
        [0, 16],
      ],
      [0, 0],
    ],
  );
  assert.notEqual(empty.template.shapeKey, decodeSimple({ inputs: [INPUT0, INPUT1] }).template.shapeKey);
  assertRefused(() => decodeSimple(withInput({ shape: [0, 16], data: [] })), 'BAD_TENSOR', 'rows');
});

test('a model without a batch dimension takes its full shape, and a scalar as [] or [1]', () => {
  const vad = model(
    'vad',
    [tensor('input', 'FP32', [-1, -1]), tensor('state', 'FP32', [2, -1, 1]), tensor('sr', 'INT64', [])],
    [tensor('output', 'FP32', [-1, 1])],
  );
  const request = (sr: number[]): string =>
    JSON.stringify({
      inputs: [
        { name: 'input', shape: [1, 3], datatype: 'FP32', data: [1, 2, 3] },
        { name: 'state', shape: [2, 1, 1], datatype: 'FP32', data: [0, 0] },
        { name: 'sr', shape: sr, datatype: 'INT64', data: [16000] },
      ],
    });
  const scalar = decodeText(vad, request([]));
  assert.equal(scalar.template.whole, true);
  assert.equal(scalar.template.rows, 1);
  assert.deepEqual(scalar.template.shapes, [[1, 3], [2, 1, 1], []]);
  assert.deepEqual(decodeText(vad, request([1])).template, scalar.template);
  assertRefused(() => decodeText(vad, request([2])), 'BAD_TENSOR', "'sr'", 'Expected [], got [2]');
  assertRefused(() => decodeText(vad, request([1, 1])), 'BAD_TENSOR', 'Expected [], got [1,1]');
});

test('the shape key tells what may share a batch: shapes and set of outputs, not rows, order or form', () => {
  const target = model('m', [tensor('x', 'FP32', [-1, -1])], [tensor('a', 'FP32', [-1]), tensor('b', 'FP32', [-1])], {
    maxBatchSize: 4,
  });
  const key = (rows: number, width: number, outputs?: unknown[], parameters?: unknown): string =>
    decodeText(
      target,
      JSON.stringify({
        inputs: [{ name: 'x', shape: [rows, width], datatype: 'FP32', data: new Array(rows * width).fill(0) }],
        outputs,
        parameters,
      }),
    ).template.shapeKey;
  const base = key(1, 3);
  assert.equal(key(2, 3), base);
  assert.equal(key(1, 3, [{ name: 'b' }, { name: 'a' }]), base);
  assert.equal(key(1, 3, [{ name: 'b', parameters: { binary_data: true } }, { name: 'a' }]), base);
  assert.equal(key(1, 3, undefined, { binary_data_output: true }), base);
  assert.equal(key(1, 3, []), base);
  assert.notEqual(key(1, 4), base);
  assert.notEqual(key(1, 3, [{ name: 'a' }]), base);
  assert.notEqual(key(0, 3), base);
});

test('requests that differ in payload and id only share one template', () => {
  const decoder = new RequestDecoder(SIMPLE, LIMITS);
  const decode = (request: unknown): BoundRequest => decoder.decode(Buffer.from(JSON.stringify(request)), undefined);
  const first = decode({ id: 'a', inputs: [INPUT0, INPUT1] });
  const other = decode({ inputs: [INPUT0, INPUT1], outputs: [{ name: 'OUTPUT1' }] });
  const second = decode({ id: 'b', inputs: [INPUT1, { ...INPUT0, data: new Array(16).fill(7) }] });
  assert.equal(first.template, second.template);
  assert.notEqual(first.template, other.template);
});

test('templates stay bounded when every request is different', () => {
  const decoder = new RequestDecoder(identity('INT8'), LIMITS);
  const decode = (n: number): BoundRequest =>
    decoder.decode(
      Buffer.from(
        JSON.stringify({ inputs: [{ name: 'x', shape: [n], datatype: 'INT8', data: new Array(n).fill(0) }] }),
      ),
      undefined,
    );
  const first = decode(0).template;
  assert.equal(decode(0).template, first);
  for (let n = 1; n <= 256; n++) decode(n);
  const again = decode(0).template;
  assert.notEqual(again, first);
  assert.deepEqual(again, first);
});

test('outputs are listed as asked for, all of them when none is named', () => {
  const outputs = (wanted: unknown, parameters?: unknown): unknown =>
    decodeSimple({ inputs: [INPUT0, INPUT1], outputs: wanted, parameters }).template.outputs;
  const all = (binary: boolean): unknown => [0, 1].map((index) => ({ index, binary, classes: 0 }));
  assert.deepEqual(outputs(undefined), all(false));
  assert.deepEqual(outputs([]), all(false));
  assert.deepEqual(outputs(undefined, { binary_data_output: true }), all(true));
  assert.deepEqual(outputs([{ name: 'OUTPUT1' }]), [{ index: 1, binary: false, classes: 0 }]);
  assert.deepEqual(outputs([{ name: 'OUTPUT1', parameters: { binary_data: true } }, { name: 'OUTPUT0' }]), [
    { index: 1, binary: true, classes: 0 },
    { index: 0, binary: false, classes: 0 },
  ]);
  assert.deepEqual(
    outputs([{ parameters: { binary_data: false }, name: 'OUTPUT1' }, { name: 'OUTPUT0' }], {
      binary_data_output: true,
    }),
    [
      { index: 1, binary: false, classes: 0 },
      { index: 0, binary: true, classes: 0 },
    ],
  );
});

test('the form of the outputs may be given before or after their list', () => {
  const inputs = JSON.stringify([INPUT0, INPUT1]);
  const request = decodeSimple(
    `{"outputs":[{"name":"OUTPUT0"}],"inputs":${inputs},"parameters":{"binary_data_output":true}}`,
  );
  assert.deepEqual(request.template.outputs, [{ index: 0, binary: true, classes: 0 }]);
});

test('outputs that are unknown, repeated, malformed or no tensors are refused', () => {
  const ask =
    (outputs: unknown): (() => unknown) =>
    () =>
      decodeSimple({ inputs: [INPUT0, INPUT1], outputs });
  assertRefused(
    ask([{ name: 'NOPE' }]),
    'BAD_TENSOR',
    "unexpected inference output 'NOPE' for model 'simple'",
    "'OUTPUT0', 'OUTPUT1'",
  );
  assertRefused(ask([{ name: 'OUTPUT0' }, { name: 'OUTPUT0' }]), 'BAD_TENSOR', "'OUTPUT0' is requested twice");
  assertRefused(ask({}), 'BAD_REQUEST', "'outputs' must be an array");
  assertRefused(ask([5]), 'BAD_REQUEST', 'outputs[0] must be an object');
  assertRefused(ask([{}]), 'BAD_REQUEST', "outputs[0] has no 'name'");
  assertRefused(ask([{ name: null }]), 'BAD_REQUEST', "'name' of outputs[0] must be a string");
  assertRefused(
    ask([{ name: 'OUTPUT0', parameters: { binary_data: 1 } }]),
    'BAD_REQUEST',
    "'binary_data' of output 'OUTPUT0' must be true or false",
  );
  const forest = model('forest', [tensor('X', 'FP32', [-1, 4])], [tensor('label', 'INT64', [-1])], {
    skippedOutputs: [{ name: 'probability', reason: 'it is a sequence of maps, which the protocol cannot carry' }],
  });
  const request = (outputs?: unknown): string =>
    JSON.stringify({ inputs: [{ name: 'X', shape: [1, 4], datatype: 'FP32', data: [5.1, 3.5, 1.4, 0.2] }], outputs });
  assert.deepEqual(decodeText(forest, request()).template.outputs, [{ index: 0, binary: false, classes: 0 }]);
  assertRefused(
    () => decodeText(forest, request([{ name: 'probability' }])),
    'BAD_TENSOR',
    "'probability'",
    'sequence of maps',
  );
});

test('an output without a JSON form must be asked for in binary', () => {
  for (const datatype of ['FP16', 'BF16'] as const) {
    const target = model('half', [tensor('x', 'INT8', [-1])], [tensor('y', datatype, [-1])]);
    const request = (outputs?: unknown, parameters?: unknown): string =>
      JSON.stringify({ inputs: [{ name: 'x', shape: [1], datatype: 'INT8', data: [1] }], outputs, parameters });
    assertRefused(() => decodeText(target, request()), 'BAD_TENSOR', "'y'", datatype, 'binary_data');
    assertRefused(
      () =>
        decodeText(target, request([{ name: 'y', parameters: { binary_data: false } }], { binary_data_output: true })),
      'BAD_TENSOR',
      datatype,
    );
    assert.equal(
      decodeText(target, request(undefined, { binary_data_output: true })).template.outputs[0]?.binary,
      true,
    );
  }
});

test('an id is echoed exactly when it is a string, and refused otherwise', () => {
  const inputs = JSON.stringify([INPUT0, INPUT1]);
  const cases: [string, string][] = [
    ['"ü-\\"1"', 'ü-"1'],
    ['""', ''],
    ['"9007199254740993"', '9007199254740993'],
    ['"a\\u0000b"', 'a\0b'],
    ['"\\ud83d\\ude00"', '😀'],
  ];
  for (const [text, id] of cases) assert.equal(decodeSimple(`{"id":${text},"inputs":${inputs}}`).id, id);
  for (const text of ['5', 'true', '{}', '[]', '1.5', '9007199254740993']) {
    assertRefused(
      () => decodeSimple(`{"id":${text},"inputs":${inputs}}`),
      'BAD_REQUEST',
      "'id' must be a string",
      text[0]!,
    );
  }
});

test('timeout and priority are integers of 0 or more, and 0 asks for the default', () => {
  const inputs = JSON.stringify([INPUT0, INPUT1]);
  const decode = (parameters: string): BoundRequest => decodeSimple(`{"parameters":${parameters},"inputs":${inputs}}`);
  const request = decode('{"timeout":200000,"priority":1}');
  assert.deepEqual([request.timeoutUs, request.priority], [200000, 1]);
  assert.deepEqual(
    [decode('{"timeout":0,"priority":0}').timeoutUs, decode('{"priority":0}').priority],
    [undefined, undefined],
  );
  assert.equal(decode('{"timeout":9007199254740993}').timeoutUs, Number.MAX_SAFE_INTEGER);
  for (const name of ['timeout', 'priority']) {
    for (const value of ['-1', '1.5', '"x"', '1e3', 'true', 'null', '[]', '{}', '-9007199254740993']) {
      assertRefused(
        () => decode(`{"${name}":${value}}`),
        'BAD_REQUEST',
        `'${name}' of the request`,
        'integer of 0 or more',
      );
    }
  }
});

test('other parameters are strings, numbers or booleans, and are ignored', () => {
  const decode = (parameters: string): BoundRequest =>
    decodeSimple(`{"parameters":${parameters},"inputs":${JSON.stringify([INPUT0, INPUT1])}}`);
  for (const parameters of [
    '{}',
    '{"a":"x","b":9007199254740993,"c":0.5,"d":true}',
    '{"sequence_id":9007199254740993,"sequence_start":true}',
    '{"":1}',
    '{"constructor":1,"toString":"x"}',
  ]) {
    assert.equal(decode(parameters).template.rows, 1);
  }
  for (const value of ['{"x":1}', '[1]', 'null']) {
    assertRefused(() => decode(`{"a":${value}}`), 'BAD_REQUEST', 'strings, numbers or booleans');
    assertRefused(() => decode(`{"__proto__":${value}}`), 'BAD_REQUEST', 'strings, numbers or booleans');
  }
  for (const parameters of ['5', '"x"', '[]', 'true']) {
    assertRefused(() => decode(parameters), 'BAD_REQUEST', "'parameters' of the request must be an object");
  }
  assertRefused(() => decode('{"triton_x":1}'), 'BAD_REQUEST', "starting with 'triton_' are reserved");
  // What clients of streams send with every request, and which asks for nothing here.
  decode('{"triton_enable_empty_final_response":true}');
  assertRefused(
    () => decode('{"binary_data_output":1}'),
    'BAD_REQUEST',
    "'binary_data_output' of the request must be true or false",
  );
});

test('a classification belongs to an output, and not to an input or the request', () => {
  const message = "parameter 'classification' is one of outputs";
  assertRefused(() => decodeSimple(withInput({ parameters: { classification: 3 } })), 'BAD_REQUEST', message, 'INPUT0');
  assertRefused(
    () => decodeSimple({ inputs: [INPUT0, INPUT1], parameters: { classification: 3 } }),
    'BAD_REQUEST',
    message,
    'the request has it',
  );
});

test('a tensor in shared memory has a region and a size there, and nothing in the request', () => {
  const place = { shared_memory_region: 'r', shared_memory_byte_size: 64 };
  const onInput = (parameters: object) => () => decodeSimple(withInput({ parameters }));
  const onOutput = (parameters: object) => () =>
    decodeSimple({ inputs: [INPUT0, INPUT1], outputs: [{ name: 'OUTPUT0', parameters }] });
  for (const [parameters, reason] of [
    [{ shared_memory_region: 'r' }, "no parameter 'shared_memory_byte_size'"],
    [{ shared_memory_byte_size: 64 }, "no parameter 'shared_memory_region'"],
    [{ shared_memory_offset: 0 }, "no parameter 'shared_memory_region'"],
    [{ ...place, shared_memory_region: 1 }, "'shared_memory_region' of "],
    [{ ...place, shared_memory_byte_size: '64' }, 'must be an integer of 0 or more'],
    [{ ...place, shared_memory_offset: -1 }, 'must be an integer of 0 or more'],
  ] as const) {
    for (const on of [onInput, onOutput]) assertRefused(on(parameters), 'BAD_REQUEST', reason);
  }
  assertRefused(onInput(place), 'BAD_REQUEST', "must have neither 'data' nor the parameter 'binary_data_size'");
  assertRefused(onOutput(place), 'BAD_REQUEST', 'start it with --system-shared-memory');
  const { data: _, ...bare } = INPUT0;
  const inputs = [{ ...bare, parameters: place }, INPUT1];
  assertRefused(() => decodeSimple({ inputs }), 'BAD_REQUEST', 'start it with --system-shared-memory');
  assertRefused(
    () => decodeSimple({ inputs: [INPUT0, INPUT1], parameters: { shared_memory_region: 'r' } }),
    'BAD_REQUEST',
    'belongs to an input or an output',
  );
});

test('names that every JavaScript object has are ordinary names', () => {
  const names = ['__proto__', 'constructor', 'toString', 'hasOwnProperty'];
  const target = model(
    'odd',
    names.map((name) => tensor(name, 'INT8', [-1])),
    names.map((name) => tensor(name, 'INT8', [-1])),
  );
  const inputs = names.map((name, i) => ({ name, shape: [1], datatype: 'INT8', data: [i] }));
  const request = decodeText(target, JSON.stringify({ inputs, outputs: names.map((name) => ({ name })) }));
  assert.deepEqual(
    request.inputs.map((data) => data[0]),
    [0, 1, 2, 3],
  );
  assert.deepEqual(
    request.template.outputs.map((output) => output.index),
    [0, 1, 2, 3],
  );
  for (const name of names) {
    assertRefused(() => decodeSimple(withInput({ name })), 'BAD_TENSOR', `unexpected inference input '${name}'`);
    assertRefused(
      () => decodeSimple({ inputs: [INPUT0, INPUT1], outputs: [{ name }] }),
      'BAD_TENSOR',
      `unexpected inference output '${name}'`,
    );
  }
  const inputsText = JSON.stringify([INPUT0, INPUT1]);
  assertRefused(
    () => decodeSimple(`{"__proto__":{"inputs":${inputsText}}}`),
    'BAD_TENSOR',
    'expected 2 inputs but got 0',
  );
  assert.equal(Object.hasOwn(Object.prototype, 'inputs'), false);
});

test('binary_data_size without the header that ends the JSON is refused', () => {
  const inputs = [{ ...INPUT0, data: undefined, parameters: { binary_data_size: 64 } }, INPUT1];
  assertRefused(
    () => decodeSimple({ inputs }),
    'BAD_REQUEST',
    "'INPUT0'",
    'binary_data_size',
    'Inference-Header-Content-Length',
  );
});
