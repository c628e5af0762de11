/**
 * A request is held against the model's signature: every input once, of its datatype and shape, nothing else; outputs the model has. What does not fit is
 * refused by name before anything runs. Names are only ever names, also `__proto__`.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import type { ErrorCode } from '../../src/config/errors.ts';
import {
  type Answer,
  assertRefused,
  assertUnharmed,
  binaryRequest,
  get,
  infer,
  json,
  jsonBody,
  jsonRequest,
  outputsOf,
} from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { fixture } from '../support/models.ts';
import { Random } from '../support/random.ts';
import { Oracle } from '../support/reference.ts';
import { type ModelEntry, makeRepository } from '../support/repository.ts';
import { launchServer, PROJECT_DIR } from '../support/server.ts';
import { assertSameTensor, assertSameTensors, type TestTensor, tensor } from '../support/tensor.ts';

/** Properties of every object, which a plain object used as a table would find. */
const TRAP_NAMES = ['__proto__', 'constructor', 'toString'];
const ABSENT_NAMES = ['hasOwnProperty', 'valueOf', '__defineGetter__', 'prototype', 'nothing'];

const config = { queue: { max_bytes: '4MiB' } };
const served = [
  'simple',
  'odd_names',
  'proto_output',
  'idB',
  'id_fp32',
  'id_int64',
  'dynamic',
  'empty_output',
  'empty_rows',
  'scalar',
  'recurrent',
  'zipmap',
  'add_with_initializer',
];
const repository = makeRepository(
  { after },
  new Map<string, ModelEntry>([
    ...served.map((name): [string, ModelEntry] => [name, { config }]),
    ...TRAP_NAMES.map((name): [string, ModelEntry] => [name, { fixture: 'rows', config }]),
  ]),
);
fs.cpSync(path.join(PROJECT_DIR, 'config/demo/silero_vad'), repository.path('silero_vad'), {
  recursive: true,
  dereference: true,
});
repository.writeConfig('silero_vad', { queue: { max_bytes: '4MiB' }, runtime: { intra_op_threads: 1 } });
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const SIXTEEN = Array.from({ length: 16 }, (_, i) => i).join();

/** The JSON of an input of the model `simple`; members may be replaced, or left out with undefined. */
function input(name: string, members: Readonly<Record<string, string | undefined>> = {}): string {
  const all = { name: JSON.stringify(name), shape: '[1,16]', datatype: '"INT32"', data: `[${SIXTEEN}]`, ...members };
  return `{${Object.entries(all)
    .filter(([, text]) => text !== undefined)
    .map(([key, text]) => `"${key}":${text}`)
    .join()}}`;
}

/** Sends the text of a JSON body. */
const ask = (model: string, text: string): Promise<Answer> => infer(server.url, model, jsonBody(text));
const askSimple = (...inputs: string[]) => ask('simple', `{"inputs":[${inputs.join()}]}`);
const withOutputs = (outputs: string) =>
  ask('simple', `{"inputs":[${input('INPUT0')},${input('INPUT1')}],"outputs":${outputs}}`);

// The last of two inputs wins, one too many is ignored, one too few gives a native trace (case 34).
test('each input of the model must be there once, and no other', async () => {
  const cases: [string[], ErrorCode, RegExp][] = [
    [[], 'BAD_TENSOR', /expected 2 inputs but got 0 .*missing 'INPUT0', 'INPUT1'/],
    [[input('INPUT0')], 'BAD_TENSOR', /expected 2 inputs but got 1 .*missing 'INPUT1'/],
    [[input('INPUT1')], 'BAD_TENSOR', /expected 2 inputs but got 1 .*missing 'INPUT0'/],
    [[input('INPUT0'), input('INPUT0')], 'BAD_TENSOR', /'INPUT0' already exists/],
    [[input('INPUT0'), input('INPUT1'), input('INPUT0')], 'BAD_TENSOR', /'INPUT0' already exists/],
    [
      [input('INPUT0'), input('INPUT1'), input('FOO')],
      'BAD_TENSOR',
      /unexpected inference input 'FOO' .*'INPUT0', 'INPUT1'/,
    ],
    [[input('input0'), input('INPUT1')], 'BAD_TENSOR', /unexpected inference input 'input0'/],
    [[input('INPUT0 '), input('INPUT1')], 'BAD_TENSOR', /unexpected inference input 'INPUT0 '/],
    [[input(''), input('INPUT1')], 'BAD_TENSOR', /unexpected inference input ''/],
    [[input('__proto__'), input('INPUT1')], 'BAD_TENSOR', /unexpected inference input '__proto__'/],
    [[input('OUTPUT0'), input('INPUT1')], 'BAD_TENSOR', /unexpected inference input 'OUTPUT0'/],
    [['null', input('INPUT1')], 'BAD_REQUEST', /inputs\[0\] must be an object, got null/],
    [['5', input('INPUT1')], 'BAD_REQUEST', /inputs\[0\] must be an object, got 5/],
    [[`[${input('INPUT0')}]`], 'BAD_REQUEST', /inputs\[0\] must be an object/],
    [['{}', input('INPUT1')], 'BAD_REQUEST', /inputs\[0\] must have either|inputs\[0\] has no 'name'/],
    [[input('INPUT0', { name: undefined }), input('INPUT1')], 'BAD_REQUEST', /inputs\[0\] has no 'name'/],
    [[input('INPUT0', { name: '5' }), input('INPUT1')], 'BAD_REQUEST', /'name' of inputs\[0\] must be a string, got 5/],
    [
      [input('INPUT0', { name: 'null' }), input('INPUT1')],
      'BAD_REQUEST',
      /'name' of inputs\[0\] must be a string, got null/,
    ],
    [[input('INPUT0', { shape: undefined }), input('INPUT1')], 'BAD_REQUEST', /'INPUT0' has no 'shape'/],
    [[input('INPUT0', { datatype: undefined }), input('INPUT1')], 'BAD_REQUEST', /'INPUT0' has no 'datatype'/],
    [[input('INPUT0', { data: undefined }), input('INPUT1')], 'BAD_REQUEST', /'INPUT0' must have either .* neither/],
    [
      [input('INPUT0', { data: 'null' }), input('INPUT1')],
      'BAD_REQUEST',
      /'data' of input 'INPUT0' must be an array, got null/,
    ],
    [[input('INPUT0', { data: '{}' }), input('INPUT1')], 'BAD_REQUEST', /'data' of input 'INPUT0' must be an array/],
    [
      [input('INPUT0', { data: '"AAAA"' }), input('INPUT1')],
      'BAD_REQUEST',
      /'data' of input 'INPUT0' must be an array/,
    ],
    [[`{"name":"INPUT0",${input('INPUT0').slice(1)}`, input('INPUT1')], 'BAD_REQUEST', /has 'name' twice/],
  ];
  for (const [inputs, code, message] of cases) assertRefused(await askSimple(...inputs), code, message);
  const bodies: [string, ErrorCode, RegExp][] = [
    ['{"inputs":{}}', 'BAD_REQUEST', /'inputs' must be an array/],
    ['{"inputs":null}', 'BAD_REQUEST', /'inputs' must be an array, got null/],
    ['{"inputs":"INPUT0"}', 'BAD_REQUEST', /'inputs' must be an array/],
    ['{}', 'BAD_TENSOR', /expected 2 inputs but got 0/],
    ['[]', 'BAD_REQUEST', /must be a JSON object/],
    ['null', 'BAD_REQUEST', /must be a JSON object/],
    [`{"inputs":[${input('INPUT0')}],"inputs":[${input('INPUT1')}]}`, 'BAD_REQUEST', /'inputs' twice/],
    [`{"inputs":[${input('INPUT0')},${input('INPUT1')},]}`, 'BAD_REQUEST', /not valid JSON/],
    [`{"inputs":[${input('INPUT0')},${input('INPUT1')}]`, 'BAD_REQUEST', /not valid JSON/],
    [`{"inputs":[${input('INPUT0')},${input('INPUT1')}]}{}`, 'BAD_REQUEST', /not valid JSON/],
  ];
  for (const [body, code, message] of bodies) assertRefused(await ask('simple', body), code, message);
  assert.equal((await askSimple(input('INPUT1'), input('INPUT0'))).status, 200, 'any order');
});

test('an input that has a default is not asked for and cannot be sent', async () => {
  const { inputs } = json(await get(server.url, '/v2/models/add_with_initializer')) as { inputs: { name: string }[] };
  assert.deepEqual(
    inputs.map(({ name }) => name),
    ['INPUT'],
  );
  const sample = sampleInputs(fixture('add_with_initializer'), new Random(1), 1);
  const answer = await infer(server.url, 'add_with_initializer', jsonRequest(sample));
  assertSameTensors(outputsOf(answer), fixture('add_with_initializer').reference!(sample));
  const both = new Map([...sample, ['INITIALIZER', sample.get('INPUT')!]]);
  assertRefused(
    await infer(server.url, 'add_with_initializer', jsonRequest(both)),
    'BAD_TENSOR',
    /unexpected inference input 'INITIALIZER'/,
  );
});

test('outputs are those of the model, each at most once; none named means all', async () => {
  for (const all of ['[]', 'null', '[{"name":"OUTPUT0"},{"name":"OUTPUT1"}]']) {
    assert.deepEqual([...outputsOf(await withOutputs(all)).keys()], ['OUTPUT0', 'OUTPUT1'], all);
  }
  assert.deepEqual([...outputsOf(await withOutputs('[{"name":"OUTPUT1"}]')).keys()], ['OUTPUT1']);
  assert.deepEqual(
    [...outputsOf(await withOutputs('[{"name":"OUTPUT1"},{"name":"OUTPUT0"}]')).keys()],
    ['OUTPUT1', 'OUTPUT0'],
  );
  const cases: [string, ErrorCode, RegExp][] = [
    ['[{"name":"OUTPUT2"}]', 'BAD_TENSOR', /unexpected inference output 'OUTPUT2' .*'OUTPUT0', 'OUTPUT1'/],
    ['[{"name":"INPUT0"}]', 'BAD_TENSOR', /unexpected inference output 'INPUT0'/],
    ['[{"name":"__proto__"}]', 'BAD_TENSOR', /unexpected inference output '__proto__'/],
    ['[{"name":"OUTPUT0"},{"name":"OUTPUT0"}]', 'BAD_TENSOR', /'OUTPUT0' is requested twice/],
    ['[{}]', 'BAD_REQUEST', /outputs\[0\] has no 'name'/],
    ['[{"name":5}]', 'BAD_REQUEST', /'name' of outputs\[0\] must be a string/],
    ['["OUTPUT0"]', 'BAD_REQUEST', /outputs\[0\] must be an object/],
    ['{}', 'BAD_REQUEST', /'outputs' must be an array/],
    ['"OUTPUT0"', 'BAD_REQUEST', /'outputs' must be an array/],
  ];
  for (const [outputs, code, message] of cases) assertRefused(await withOutputs(outputs), code, message);
});

// What the server does not check, the runtime answers with a native message and status 500 (case 74).
test('another datatype than the model has is refused with both', async () => {
  for (const datatype of [
    'INT64',
    'UINT32',
    'FP32',
    'BYTES',
    'BOOL',
    'int32',
    'TYPE_INT32',
    'INT32 ',
    '',
    '__proto__',
  ]) {
    const message = new RegExp(`'INPUT0' has data-type '${datatype}', but model 'simple' expects type 'INT32'`);
    assertRefused(
      await askSimple(input('INPUT0', { datatype: `"${datatype}"` }), input('INPUT1')),
      'BAD_TENSOR',
      message,
    );
    const binary = infer(server.url, 'simple', {
      headers: [['Inference-Header-Content-Length', String(Buffer.byteLength(binaryText(datatype)))]],
      body: Buffer.concat([Buffer.from(binaryText(datatype)), Buffer.alloc(128)]),
    });
    assertRefused(await binary, 'BAD_TENSOR', message);
  }
  for (const datatype of ['5', 'null', '["INT32"]', '{}', 'true']) {
    const answer = await askSimple(input('INPUT0', { datatype }), input('INPUT1'));
    assertRefused(answer, 'BAD_REQUEST', /'datatype' of input 'INPUT0' must be a string/);
  }
});

function binaryText(datatype: string): string {
  const members = { datatype: JSON.stringify(datatype), data: undefined, parameters: '{"binary_data_size":64}' };
  return `{"inputs":[${input('INPUT0', members)},${input('INPUT1', { ...members, datatype: '"INT32"' })}]}`;
}

test('another shape than the model has is refused with both, and a hint where only the batch is missing', async () => {
  const cases: [string, RegExp][] = [
    ['[16]', /Expected \[-1,16\], got \[16\]; the first dimension is the batch: send \[1,16\]/],
    ['[1,16,1]', /Expected \[-1,16\], got \[1,16,1\]$/],
    ['[1,15]', /Expected \[-1,16\], got \[1,15\]$/],
    ['[1,17]', /Expected \[-1,16\], got \[1,17\]$/],
    ['[16,1]', /Expected \[-1,16\], got \[16,1\]$/],
    ['[1,1,16]', /Expected \[-1,16\], got \[1,1,16\]$/],
    ['[]', /Expected \[-1,16\], got \[\]$/],
    ['[0]', /Expected \[-1,16\], got \[0\]$/],
    ['[1,4294967312]', /Expected \[-1,16\], got \[1,4294967312\]$/],
  ];
  for (const [shape, message] of cases) {
    for (const data of [`[${SIXTEEN}]`, `[[${SIXTEEN}]]`]) {
      assertRefused(await askSimple(input('INPUT0', { shape, data }), input('INPUT1')), 'BAD_TENSOR', message);
    }
  }
});

// Dimensions are 64-bit in the protocol: read as doubles, 2^53 + 1 is 2^53 (case 70).
test('dimensions are plain integers from 0 that are counted exactly', async () => {
  const invalid = [
    '-1',
    '-16',
    '1.5',
    '"1"',
    'null',
    'true',
    '[1]',
    '{}',
    '1e0',
    '9007199254740993',
    '18446744073709551617',
    '1e400',
  ];
  for (const dim of invalid) {
    const answer = await askSimple(input('INPUT0', { shape: `[${dim},16]` }), input('INPUT1'));
    assertRefused(answer, 'BAD_REQUEST', /invalid shape for input 'INPUT0': dimension 0 is .*integers of 0 or more/);
  }
  for (const shape of ['16', '"[1,16]"', 'null', '{"0":1}']) {
    const answer = await askSimple(input('INPUT0', { shape }), input('INPUT1'));
    assertRefused(answer, 'BAD_REQUEST', /invalid shape for input 'INPUT0': expected an array of integers/);
  }
  const many = `[${new Array(1000).fill(1).join()}]`;
  assertRefused(
    await askSimple(input('INPUT0', { shape: many }), input('INPUT1')),
    'BAD_REQUEST',
    /invalid shape .*more than 64 dimensions/,
  );
});

test('a shape that promises more elements than there are costs nothing and is refused', async () => {
  const dynamic = (shape: string) =>
    ask('dynamic', `{"inputs":[{"name":"x","shape":${shape},"datatype":"FP32","data":[1,2]}]}`);
  const uncountable = ['[4294967296,4294967296]', '[9007199254740991,9007199254740991]'];
  for (const shape of uncountable)
    assertRefused(await dynamic(shape), 'BAD_TENSOR', /more elements than can be counted/);
  for (const shape of ['[1,9007199254740991]', '[1,1099511627776]']) {
    assertRefused(await dynamic(shape), 'BAD_TENSOR', /takes at most \d+ in one tensor/);
  }
  assertRefused(
    await dynamic('[1,1000000]'),
    'BAD_TENSOR',
    /expected 1000000 elements .*more than the request's JSON can hold/,
  );
});

test('data is flat, or nested in any regular way with the right count; anything ragged is refused', async () => {
  const two = { shape: '[2,16]' };
  const good = [
    `[${SIXTEEN},${SIXTEEN}]`,
    `[[${SIXTEEN}],[${SIXTEEN}]]`,
    `[[${SIXTEEN},${SIXTEEN}]]`,
    `[[[${SIXTEEN}]],[[${SIXTEEN}]]]`,
  ];
  for (const data of good)
    assert.equal((await askSimple(input('INPUT0', { ...two, data }), input('INPUT1', { ...two, data }))).status, 200);
  const short = SIXTEEN.slice(0, SIXTEEN.lastIndexOf(','));
  const bad = [
    `[[${short}],[${SIXTEEN},15]]`,
    `[[${SIXTEEN},0],[${short}]]`,
    `[[[${SIXTEEN}]],[${SIXTEEN}]]`,
    `[[${SIXTEEN}],${SIXTEEN}]`,
    `[${SIXTEEN},[${SIXTEEN}]]`,
    `[[${SIXTEEN}]]`,
    `[[${SIXTEEN}],[]]`,
    `[[${SIXTEEN}],[${SIXTEEN}],[]]`,
    `[[${SIXTEEN}],null]`,
    `[${SIXTEEN}]`,
    `[${SIXTEEN},${SIXTEEN},0]`,
    '[]',
    '[[],[]]',
    `[[0,0,0],${new Array(15).fill('[0,0]').join()}]`,
  ];
  for (const data of bad) {
    assertRefused(
      await askSimple(input('INPUT0', { ...two, data }), input('INPUT1', two)),
      'BAD_TENSOR',
      /^input 'INPUT0': /,
    );
  }
});

// A dimension of zero is neither an error nor a tensor that is not there (case 31).
test('tensors without elements are tensors', async () => {
  const float = (shape: number[]): Map<string, TestTensor> =>
    new Map([['x', tensor('FP32', shape, new Float32Array(0))]]);
  for (const [model, shape] of [
    ['id_fp32', [0]],
    ['dynamic', [0, 3]],
    ['dynamic', [3, 0]],
    ['dynamic', [0, 0]],
  ] as const) {
    const inputs = float([...shape]);
    for (const form of [jsonRequest(inputs), binaryRequest(inputs)]) {
      assertSameTensor(
        outputsOf(await infer(server.url, model, form)).get('y'),
        inputs.get('x')!,
        `${model} [${shape}]`,
      );
    }
  }
  const strings: Map<string, TestTensor> = new Map([['INPUT0', tensor('BYTES', [0, 2], [])]]);
  for (const shape of [
    [0, 2],
    [2, 0],
    [1, 0],
  ]) {
    const value = tensor('BYTES', shape, []);
    const inputs = new Map([...strings, ['INPUT0', value]]);
    for (const form of [jsonRequest(inputs), binaryRequest(inputs)]) {
      assertSameTensor(outputsOf(await infer(server.url, 'idB', form)).get('OUTPUT0'), value, `idB [${shape}]`);
    }
  }
  const sample = new Random(2);
  for (const [model, rows] of [
    ['empty_output', 1],
    ['empty_rows', 2],
    ['empty_rows', 0],
  ] as const) {
    const inputs = sampleInputs(fixture(model), sample, rows);
    for (const form of [jsonRequest(inputs), binaryRequest(inputs)]) {
      assertSameTensors(outputsOf(await infer(server.url, model, form)), fixture(model).reference!(inputs));
    }
  }
});

test('data for a tensor without elements is empty, nested or not', async () => {
  const dynamic = (shape: string, data: string) =>
    ask('dynamic', `{"inputs":[{"name":"x","shape":${shape},"datatype":"FP32","data":${data}}]}`);
  for (const data of ['[]', '[[],[]]', ' [ [ ] , [ ] ] ']) {
    assert.deepEqual(outputsOf(await dynamic('[2,0]', data)).get('y')?.shape, [2, 0], data);
  }
  for (const data of ['[1]', '[[]]', '[[],[],[]]', '[[],[1]]', '[null]', '[[[]],[[]]]']) {
    assertRefused(await dynamic('[2,0]', data), 'BAD_TENSOR', /^input 'x': /);
  }
  assertRefused(await dynamic('[0,2]', '[1,2]'), 'BAD_TENSOR', /^input 'x': /);
});

/** One window of silence for the voice activity detector; `sr` as the given JSON members. */
function detect(sr: string, samples = 512): Promise<Answer> {
  const zeros = (count: number) => new Array(count).fill(0).join();
  return ask(
    'silero_vad',
    `{"inputs":[{"name":"input","datatype":"FP32","shape":[1,${samples}],"data":[${zeros(samples)}]},` +
      `{"name":"state","datatype":"FP32","shape":[2,1,128],"data":[${zeros(256)}]},` +
      `{"name":"sr","datatype":"INT64",${sr}}]}`,
  );
}

// The product of no dimensions is 1: a scalar whose elements are counted as 0 cannot be sent (case 32).
test('a scalar has the shape [] and one element, and [1] stands for it', async (t) => {
  const oracle = new Oracle(repository.path('silero_vad', '1', 'model.onnx'));
  t.after(() => oracle.release());
  const expected = oracle.run(
    new Map<string, TestTensor>([
      ['input', tensor('FP32', [1, 512], new Float32Array(512))],
      ['state', tensor('FP32', [2, 1, 128], new Float32Array(256))],
      ['sr', tensor('INT64', [], BigInt64Array.of(16_000n))],
    ]),
  );
  assert.deepEqual(expected.get('output')?.shape, [1, 1]);

  const { inputs } = json(await get(server.url, '/v2/models/silero_vad')) as {
    inputs: { name: string; shape: number[] }[];
  };
  assert.deepEqual(inputs.find(({ name }) => name === 'sr')?.shape, []);
  for (const sr of ['"shape":[],"data":[16000]', '"shape":[1],"data":[16000]', '"data":[16000],"shape":[]']) {
    assertSameTensors(outputsOf(await detect(sr)), expected);
  }
  const refused: [string, ErrorCode, RegExp][] = [
    ['"shape":[],"data":[]', 'BAD_TENSOR', /input 'sr': expected .*element/],
    ['"shape":[],"data":[16000,16000]', 'BAD_TENSOR', /input 'sr': expected 1 elements/],
    ['"shape":[],"data":16000', 'BAD_REQUEST', /'data' of input 'sr' must be an array/],
    ['"shape":[],"data":[[16000]]', 'BAD_TENSOR', /input 'sr': element 0 is an array/],
    ['"shape":[2],"data":[16000,16000]', 'BAD_TENSOR', /Expected \[\], got \[2\]/],
    ['"shape":[1,1],"data":[16000]', 'BAD_TENSOR', /Expected \[\], got \[1,1\]/],
    ['"shape":[0],"data":[]', 'BAD_TENSOR', /Expected \[\], got \[0\]/],
  ];
  for (const [sr, code, message] of refused) assertRefused(await detect(sr), code, message);
});

test('a scalar output has the shape [], in both forms', async () => {
  const inputs = sampleInputs(fixture('scalar'), new Random(3), 4);
  const answer = await infer(server.url, 'scalar', jsonRequest(inputs));
  assert.match(answer.body.toString(), /\{"name":"factor_out","datatype":"FP32","shape":\[\],"data":\[[^,\]]+\]\}/);
  assertSameTensors(outputsOf(answer), fixture('scalar').reference!(inputs));
  assertSameTensors(
    outputsOf(await infer(server.url, 'scalar', binaryRequest(inputs))),
    fixture('scalar').reference!(inputs),
  );
});

test('inputs that the signature allows and the model does not take are its own failure, and the next request is answered', async () => {
  for (const [rate, samples] of [
    [44_100, 512],
    [16_000, 1],
  ] as const) {
    assertRefused(await detect(`"shape":[],"data":[${rate}]`, samples), 'MODEL_FAILED', /./);
  }
  assert.equal((await detect('"shape":[],"data":[16000]')).status, 200);
});

// One output that is no tensor must not make the others unreachable (case 66).
test('an output that is no tensor is left out, and says why when it is asked for', async () => {
  const { outputs } = json(await get(server.url, '/v2/models/zipmap')) as { outputs: unknown[] };
  assert.deepEqual(outputs, [{ name: 'output_label', datatype: 'INT64', shape: [-1] }]);
  const x = new Map([['X', tensor('FP32', [2, 4], Float32Array.of(5.1, 3.5, 1.4, 0.2, 0, 1, 2, 3))]]);
  for (const fields of [{}, { outputs: [{ name: 'output_label' }] }]) {
    const answer = outputsOf(await infer(server.url, 'zipmap', jsonRequest(x, fields)));
    assert.deepEqual([...answer.keys()], ['output_label']);
    assertSameTensor(answer.get('output_label'), tensor('INT64', [2], BigInt64Array.of(0n, 2n)));
  }
  const map = { outputs: [{ name: 'output_label' }, { name: 'output_probability' }] };
  assertRefused(
    await infer(server.url, 'zipmap', jsonRequest(x, map)),
    'BAD_TENSOR',
    /output 'output_probability' of model 'zipmap' cannot be returned: .*sequence/,
  );
});

// A plain object used as a table finds `constructor` in every one of them, and cannot hold `__proto__` (case 24).
test('models may be named like properties of every object; those that are not there are not found', async () => {
  const rows = sampleInputs(fixture('rows'), new Random(4), 2);
  for (const name of TRAP_NAMES) {
    const metadata = json(await get(server.url, `/v2/models/${name}`));
    assert.equal(metadata.name, name);
    assert.equal((await get(server.url, `/v2/models/${name}/ready`)).status, 200);
    assert.equal((await get(server.url, `/v2/models/${name}/versions/1/config`)).status, 200);
    const answer = await infer(server.url, name, jsonRequest(rows));
    assert.equal(json(answer).model_name, name);
    assertSameTensors(outputsOf(answer), fixture('rows').reference!(rows));
  }
  for (const name of ABSENT_NAMES) {
    const message = new RegExp(`unknown model: '${name}'`);
    for (const route of ['', '/ready', '/config', '/versions/1', '/versions/1/ready']) {
      assertRefused(await get(server.url, `/v2/models/${name}${route}`), 'MODEL_NOT_FOUND', message);
    }
    assertRefused(await infer(server.url, name, jsonRequest(rows)), 'MODEL_NOT_FOUND', message);
    assertRefused(await infer(server.url, name, jsonRequest(rows), '1'), 'MODEL_NOT_FOUND', message);
  }
  for (const version of ['__proto__', 'constructor', 'toString']) {
    assertRefused(await get(server.url, `/v2/models/simple/versions/${version}`), 'BAD_URL', /not a model version/);
  }
  for (const route of [
    '__proto__',
    'constructor',
    'health/__proto__',
    'models/simple/__proto__',
    'models/simple/constructor',
  ]) {
    assertRefused(await get(server.url, `/v2/${route}`), 'NOT_FOUND', /Not Found/);
  }
});

test('tensors may be named like properties of every object, with spaces and dots', async () => {
  for (const model of ['odd_names', 'proto_output']) {
    const inputs = sampleInputs(fixture(model), new Random(5), 2);
    for (const form of [jsonRequest(inputs), binaryRequest(inputs)]) {
      assertSameTensors(outputsOf(await infer(server.url, model, form)), fixture(model).reference!(inputs));
    }
  }
  const inputs = sampleInputs(fixture('odd_names'), new Random(6), 1);
  const outputs = [{ name: 'hasOwnProperty' }, { name: 'valueOf' }];
  const answer = outputsOf(await infer(server.url, 'odd_names', jsonRequest(inputs, { outputs })));
  assertSameTensor(answer.get('valueOf'), inputs.get('__proto__')!);
  assertSameTensor(answer.get('hasOwnProperty'), inputs.get('constructor')!);
  const without = new Map([...inputs].filter(([name]) => name !== '__proto__'));
  assertRefused(
    await infer(server.url, 'odd_names', jsonRequest(without)),
    'BAD_TENSOR',
    /got 3 .*missing '__proto__'/,
  );
});

test('a key __proto__ in a request is one that nobody reads, and leaves nothing behind', async () => {
  const good = `"inputs":[${input('INPUT0')},${input('INPUT1')}]`;
  assertRefused(await ask('simple', `{"__proto__":{${good}}}`), 'BAD_TENSOR', /expected 2 inputs but got 0/);
  assertRefused(
    await ask('simple', `{"constructor":{"prototype":{${good}}}}`),
    'BAD_TENSOR',
    /expected 2 inputs but got 0/,
  );
  assertRefused(await askSimple(`{"__proto__":${input('INPUT0')}}`, input('INPUT1')), 'BAD_REQUEST', /inputs\[0\]/);
  assertRefused(
    await ask('simple', `{"parameters":{"__proto__":{"timeout":1}},${good}}`),
    'BAD_REQUEST',
    /parameter .*an object/,
  );
  assert.equal((await ask('simple', `{"parameters":{"__proto__":1,"constructor":"x"},${good}}`)).status, 200);
  assert.equal((await ask('simple', `{"__proto__":{"id":"a","outputs":[]},${good}}`)).status, 200);
  const after = json(await ask('simple', `{${good}}`));
  assert.deepEqual(Object.keys(after), ['model_name', 'model_version', 'outputs']);
});

test('no process of the server died on the way', () => assertUnharmed(server));
