/** Transforms: what clients send and get because of them, whose fault what is, and what a bad one costs others. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import {
  type Answer,
  assertRefused,
  binaryRequest,
  get,
  type InferRequest,
  infer,
  inferBytes,
  json,
  jsonRequest,
  outputsOf,
  send,
  sendTogether,
} from '../support/exchange.ts';
import { assertCallRefused, GrpcClients, rawRequest, tensorsOf } from '../support/grpc.ts';
import { assertIdle, eventually } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer, PROJECT_DIR } from '../support/server.ts';
import { assertSameTensors, stringTensor, type TestTensor, tensor } from '../support/tensor.ts';

/** Numbers with commas become a row; some words do something else. */
const MODULE = `
const decoder = new TextDecoder();

export async function before({ inputs, id }, { ClientError }) {
  const rows = [];
  for (const element of inputs.text.data) {
    const text = decoder.decode(element);
    if (text === 'hang') for (;;);
    if (text === 'wait') await new Promise(() => setInterval(() => {}, 1000));
    if (text === 'exit') process.exit(7);
    if (text === 'throw') throw new TypeError('a fault of the transform');
    if (text === 'later') setTimeout(() => { throw new Error('after its call'); }, 1);
    if (text === 'shape') return { x: { datatype: 'FP32', shape: [1, 5], data: new Float32Array(5) } };
    if (text === 'count') return { x: { datatype: 'FP32', shape: [2, 4], data: new Float32Array(4) } };
    if (text === 'array') return { x: { datatype: 'FP32', shape: [1, 4], data: [1, 2, 3, 4] } };
    if (text === 'nothing') return {};
    if (text === 'id') return { x: { datatype: 'FP32', shape: [1, 4], data: new Float32Array(4).fill(Number(id)) } };
    const numbers = text.split(',').map(Number);
    if (numbers.length !== 4 || numbers.some(Number.isNaN)) throw new ClientError('expected four numbers, got ' + text);
    rows.push(...numbers);
  }
  return { x: { datatype: 'FP32', shape: [rows.length / 4, 4], data: Float32Array.from(rows) } };
}

export function after({ y }) {
  const sums = new Float32Array(y.shape[0]);
  y.data.forEach((value, n) => { sums[Math.floor(n / 4)] += value; });
  const texts = Array.from(sums, (sum) => new TextEncoder().encode('= ' + sum));
  return {
    sum: { datatype: 'FP32', shape: [sums.length], data: sums },
    text: { datatype: 'BYTES', shape: [sums.length], data: texts },
  };
}
`;

const inputs = [{ name: 'text', datatype: 'BYTES', shape: [-1] }];
const outputs = [
  { name: 'sum', datatype: 'FP32', shape: [-1] },
  { name: 'text', datatype: 'BYTES', shape: [-1] },
];
const transform = { module: 'transform.mjs', inputs, timeout_ms: 3000 };
const repository = makeRepository(
  { after },
  {
    sums: { fixture: 'rows', config: { max_batch_size: 4, transform: { ...transform, outputs, threads: 2 } } },
    parsed: {
      fixture: 'rows',
      config: {
        max_batch_size: 4,
        transform,
        outputs: [{ name: 'y', postprocess: [{ op: 'normalize' }] }],
      },
    },
    added: { fixture: 'rows', config: { transform: { module: 'transform.mjs', outputs } } },
    short: { fixture: 'rows', config: { transform: { ...transform, timeout_ms: 500 } } },
    changed: { fixture: 'rows', config: { transform: { ...transform, outputs } } },
    rows: {},
    absent: { fixture: 'rows', config: { transform: { module: 'no.mjs', inputs } } },
    faulty: { fixture: 'rows', config: { transform } },
    empty: { fixture: 'rows', config: { transform } },
  },
);
for (const model of ['sums', 'parsed', 'added', 'short', 'changed'])
  repository.writeFile([model, 'transform.mjs'], MODULE);
repository.writeFile(['faulty', 'transform.mjs'], 'import "no-such-package"; export function before() {}');
repository.writeFile(['empty', 'transform.mjs'], 'export function after() {}');
// The example of the README, beside a package that can be imported.
const readme = fs.readFileSync(path.join(PROJECT_DIR, 'README.md'), 'utf8');
const example = (language: string) =>
  new RegExp(`### Transforms[\\s\\S]*?\`\`\`${language}\\n([\\s\\S]*?)\`\`\``).exec(readme)![1]!;
repository.add('example', { fixture: 'rows', config: example('json') });
repository.writeFile(['example', 'transform.mjs'], example('js'));
fs.mkdirSync(repository.path('example', 'node_modules'));
fs.symlinkSync(PROJECT_DIR, repository.path('example', 'node_modules', 'batchport'));
const server = launchServer(
  { after },
  {
    grpc: true,
    repository: repository.dir,
    args: ['--model-control-mode', 'explicit', '--load-model', '*', '--ingress', '1'],
  },
);
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

const words = (...texts: string[]) => new Map<string, TestTensor>([['text', stringTensor([texts.length], texts)]]);
const floats = (shape: readonly number[], ...values: number[]) => tensor('FP32', shape, Float32Array.from(values));
const ask = (model: string, ...texts: string[]) => infer(server.url, model, jsonRequest(words(...texts)));
const raw = (text: string, type: string): InferRequest => ({
  headers: [['Content-Type', type]],
  body: Buffer.from(text),
});

/** Nobody else feels anything of it. */
async function assertOthersServed(model: string): Promise<void> {
  assert.deepEqual(outputsOf(await ask(model, '3,4,0,0')).size > 0, true);
  const x = new Map([['x', floats([1, 4], 1, 2, 3, 4)]]);
  assert.deepEqual(outputsOf(await infer(server.url, 'rows', jsonRequest(x))).get('y'), floats([1, 4], 1, 2, 3, 4));
}

test('metadata and configuration show what clients send and get', async () => {
  const about = json(await get(server.url, '/v2/models/sums'));
  assert.deepEqual([about.inputs, about.outputs], [inputs, outputs]);
  const { transform: shown } = json(await get(server.url, '/v2/models/sums/config'));
  assert.deepEqual(shown, { module: 'transform.mjs', inputs, outputs, timeout_ms: 3000, threads: 2 });
  const parsed = json(await get(server.url, '/v2/models/parsed'));
  assert.deepEqual([parsed.inputs, parsed.outputs], [inputs, [{ name: 'y', datatype: 'FP32', shape: [-1, 4] }]]);
});

test('before and after are called for requests in every form, of one row and of more than a batch', async () => {
  const expected = new Map<string, TestTensor>([
    ['sum', floats([2], 10, -2)],
    ['text', stringTensor([2], ['= 10', '= -2'])],
  ]);
  const request = words('1,2,3,4', '-1,-1,0,0');
  for (const answer of [
    outputsOf(await infer(server.url, 'sums', jsonRequest(request))),
    outputsOf(await infer(server.url, 'sums', binaryRequest(request))),
    tensorsOf(await clients.open().call('ModelInfer', rawRequest('sums', request))),
  ]) {
    assertSameTensors(answer, expected);
  }
  const nine = Array.from({ length: 9 }, (_, n) => `${n},0,0,1`);
  assert.deepEqual(outputsOf(await ask('sums', ...nine)).get('sum'), floats([9], 1, 2, 3, 4, 5, 6, 7, 8, 9));
  const one = { outputs: [{ name: 'text' }] };
  const asked = outputsOf(await infer(server.url, 'sums', jsonRequest(words('1,1,1,1'), one)));
  assertSameTensors(asked, new Map([['text', stringTensor([1], ['= 4'])]]));
});

test('before alone, with steps behind the model and classes; after alone; the id is told', async () => {
  assert.deepEqual(outputsOf(await ask('parsed', '3,4,0,0')).get('y'), floats([1, 4], 0.6, 0.8, 0, 0));
  const fields = { outputs: [{ name: 'y', parameters: { classification: 1 } }] };
  const classes = outputsOf(await infer(server.url, 'parsed', jsonRequest(words('3,4,0,0', '1,0,0,0'), fields)));
  assert.deepEqual(classes.get('y'), stringTensor([2, 1], ['0.8:1', '1:0']));
  const x = new Map([['x', floats([2, 4], 1, 2, 3, 4, 0, 0, 0, 1)]]);
  assert.deepEqual(outputsOf(await infer(server.url, 'added', binaryRequest(x))).get('sum'), floats([2], 10, 1));
  const named = outputsOf(await infer(server.url, 'sums', jsonRequest(words('id'), { id: '5' })));
  assert.deepEqual(named.get('sum'), floats([1], 20));
});

test('a body that is a picture or a sound is the one element of the input, and the answer is JSON', async () => {
  for (const type of ['image/png', 'AUDIO/wav', 'video/mp4; codecs=x']) {
    const answer = await infer(server.url, 'sums', raw('1,2,3,4', type));
    assert.equal(answer.header('content-type'), 'application/json');
    assert.deepEqual(outputsOf(answer).get('text'), stringTensor([1], ['= 10']));
  }
  const payload = { headers: [['Inference-Header-Content-Length', '0']] as const, body: Buffer.from('1,1,1,1') };
  assert.deepEqual(outputsOf(await infer(server.url, 'sums', payload)).get('sum'), floats([1], 4));
  assertRefused(await infer(server.url, 'rows', raw('x', 'image/png')), 'BAD_TENSOR', /input byte size mismatch/);
});

test('the example of the README does what it says', async () => {
  const line = (text: string) =>
    infer(server.url, 'example', jsonRequest(new Map([['line', stringTensor([1], [text])]])));
  assert.deepEqual(outputsOf(await line('1,2,3.5,-1')).get('sum'), floats([1], 5.5));
  assertRefused(await line('1,2'), 'BAD_TENSOR', /^send four numbers with commas between them$/);
});

test('what the client sent is the client’s fault where the transform says so', async () => {
  assertRefused(await ask('sums', '1,2,3'), 'BAD_TENSOR', /^expected four numbers, got 1,2,3$/);
  await assertCallRefused(
    clients.open().call('ModelInfer', rawRequest('sums', words('x'))),
    'BAD_TENSOR',
    /expected four numbers, got x/,
  );
  const classes = { outputs: [{ name: 'sum', parameters: { classification: 1 } }] };
  const refused = await infer(server.url, 'sums', jsonRequest(words('1,2,3,4'), classes));
  assertRefused(refused, 'BAD_TENSOR', /come from its transform and have no classes/);
});

for (const [text, message] of [
  ['throw', /before\(\) of the model's transform threw TypeError: a fault of the transform/],
  ['shape', /returned 'x' with the shape \[1,5\]; it must be \[-1,4\]/],
  ['count', /returned 'x' with 4 elements for \[2,4\]/],
  ['array', /returned 'x' with data that is no Float32Array/],
  ['nothing', /returned no tensor 'x'/],
  ['exit', /before\(\) of the model's transform ended its thread \(worker exited with code: 7\)/],
] as const) {
  test(`a transform that is at fault (${text}) is a 500 that says so, and costs its own request alone`, async () => {
    assertRefused(await ask('sums', text), 'TRANSFORM_FAILED', message);
    await assertOthersServed('sums');
  });
}

test('a transform that hangs, busy or idle, is ended with its thread; those that wait for it are served by another', async () => {
  for (const text of ['hang', 'wait']) {
    const requests = [text, '3,4,0,0', '0,5,0,0'].map((one) => inferBytes('short', jsonRequest(words(one))));
    const [hung, ...others] = (await sendTogether(server.url, requests)) as [Answer, Answer, Answer];
    assertRefused(hung, 'TRANSFORM_FAILED', /took longer than 500 ms \(transform\.timeout_ms\) and was ended/);
    const sums = others.map((answer) => outputsOf(answer).get('y')!.data[0]);
    assert.deepEqual(sums, [3, 0]);
    await assertOthersServed('short');
  }
});

test('a deadline passes also while a transform is at work', async () => {
  const request = jsonRequest(words('wait'), { parameters: { timeout: 50_000 } });
  assertRefused(await infer(server.url, 'short', request), 'DEADLINE_EXCEEDED', /expired/);
  await assertOthersServed('short');
});

test('what a transform throws after its call costs nobody an answer, and is logged', async () => {
  const told = async () => {
    await assertOthersServed('parsed');
    return server.logs.some((line) => line.msg === 'a transform threw outside of its calls')
      ? undefined
      : 'it is not logged';
  };
  for (let round = 0; round < 5; round++) {
    assertRefused(await ask('parsed', 'later'), 'BAD_TENSOR', /expected four numbers/);
    await assertOthersServed('parsed');
  }
  await eventually(told);
});

test('modules that cannot be used keep their models from being served, with the reason', async () => {
  const reason = async (model: string, message: RegExp) =>
    assertRefused(await ask(model, '1,2,3,4'), 'NOT_READY', message);
  await reason('absent', /no\.mjs, its transform, does not exist/);
  await reason('faulty', /its transform transform\.mjs cannot be loaded: Error: Cannot find package 'no-such-package'/);
  await reason('empty', /its transform transform\.mjs exports no function before, which transform\.inputs is for/);
});

test('a changed module is taken with the next load, and none from a client', async () => {
  const changed = MODULE.replace("'= ' + sum", "'sum ' + sum");
  const text = async () => outputsOf(await ask('changed', '1,1,1,1')).get('text');
  assert.deepEqual(await text(), stringTensor([1], ['= 4']));
  repository.writeFile(['changed', 'transform.mjs'], changed);
  assert.deepEqual(await text(), stringTensor([1], ['= 4']));
  const load = (body: object) =>
    send(server.url, '/v2/repository/models/changed/load', { headers: [], body: Buffer.from(JSON.stringify(body)) });
  assert.equal((await load({})).status, 200);
  assert.deepEqual(await text(), stringTensor([1], ['sum 4']));
  const config = JSON.stringify({ transform });
  assertRefused(
    await load({ parameters: { config } }),
    'BAD_REQUEST',
    /labels and transforms, are taken from the model's own/,
  );
  await assertIdle(server);
});
