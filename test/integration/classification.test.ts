/** The protocol's classification of outputs: over HTTP in JSON and binary, over gRPC, by the event loop and by threads; labels of a configuration and of Triton's. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertRefused, binaryRequest, get, infer, json, jsonRequest, outputsOf, send } from '../support/exchange.ts';
import { assertCallRefused, GrpcClients, rawRequest, tensorsOf } from '../support/grpc.ts';
import { assertIdle } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

const LABELS = 'zero\none\ntwo\nthree\n';
const outputs = [{ name: 'y', labels: 'labels.txt' }];
const repository = makeRepository(
  { after },
  {
    rows: { config: { max_batch_size: 4, outputs } },
    dynamic: { config: { max_batch_size: 8, queue: { max_bytes: '64MiB' } } },
    rows_int64: {},
    rows_fp16: {},
    rows_bytes: {},
    id_fp32: {},
    triton: { fixture: 'rows' },
    wrong_output: { fixture: 'rows', config: { outputs: [{ name: 'z', labels: 'labels.txt' }] } },
    no_labels: { fixture: 'rows', config: { outputs } },
  },
);
for (const model of ['rows', 'triton', 'wrong_output']) repository.writeFile([model, 'labels.txt'], LABELS);
repository.writeFile(
  ['triton', 'config.pbtxt'],
  'backend: "onnxruntime" output [ { name: "y" dims: [ 4 ] label_filename: "labels.txt" } ]',
);
const server = launchServer(
  { after },
  { grpc: true, repository: repository.dir, args: ['--model-control-mode', 'explicit', '--load-model', '*'] },
);
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

const VALUES = [0.5, 2.25, -1, 2.25, 9, 8, 7, 6.5];
const X = new Map([['x', tensor('FP32', [2, 4], Float32Array.from(VALUES))]]);
const TOP_2 = ['2.25:1:one', '2.25:3:three', '9:0:zero', '8:1:one'];
const asked = (parameters: object) => ({ outputs: [{ name: 'y', parameters }] });

function textsOf(value: ReturnType<typeof tensor> | undefined, shape: readonly number[]): string[] {
  assert.equal(value?.datatype, 'BYTES');
  assert.deepEqual(value.shape, shape);
  return value.data.map((element) => Buffer.from(element).toString());
}

test('JSON, binary and gRPC give the same texts, with labels', async () => {
  const texts = [
    outputsOf(await infer(server.url, 'rows', jsonRequest(X, asked({ classification: 2 })))),
    outputsOf(await infer(server.url, 'rows', binaryRequest(X, asked({ classification: 2, binary_data: true })))),
    outputsOf(await infer(server.url, 'triton', jsonRequest(X, asked({ classification: 2 })))),
    tensorsOf(
      await clients.open().call('ModelInfer', {
        ...rawRequest('rows', X),
        outputs: [{ name: 'y', parameters: { classification: { int64_param: '2' } } }],
      }),
    ),
  ];
  for (const one of texts) assert.deepEqual(textsOf(one.get('y'), [2, 2]), TOP_2);
});

test('more classes than there are gives all; 0 gives the tensor', async () => {
  const all = outputsOf(await infer(server.url, 'rows', jsonRequest(X, asked({ classification: 10_000 }))));
  assert.equal(textsOf(all.get('y'), [2, 4]).length, 8);
  const none = outputsOf(await infer(server.url, 'rows', jsonRequest(X, asked({ classification: 0 }))));
  assert.deepEqual([...none.get('y')!.data], VALUES);
  const again = outputsOf(await infer(server.url, 'rows', jsonRequest(X, asked({ classification: 2 }))));
  assert.deepEqual(textsOf(again.get('y'), [2, 2]), TOP_2);
});

test('a request that is run in several batches, and one of no rows', async () => {
  const rows = Array.from({ length: 9 * 4 }, (_, n) => (n * 7) % 11);
  const nine = new Map([['x', tensor('FP32', [9, 4], Float32Array.from(rows))]]);
  const texts = textsOf(
    outputsOf(await infer(server.url, 'rows', jsonRequest(nine, asked({ classification: 1 })))).get('y'),
    [9, 1],
  );
  for (const [row, text] of texts.entries()) {
    const own = rows.slice(4 * row, 4 * row + 4);
    const best = own.indexOf(Math.max(...own));
    assert.equal(text, `${own[best]}:${best}:${LABELS.split('\n')[best]}`);
  }
  const none = new Map([['x', tensor('FP32', [0, 4], new Float32Array(0))]]);
  const answer = outputsOf(await infer(server.url, 'rows', jsonRequest(none, asked({ classification: 3 }))));
  assert.deepEqual(textsOf(answer.get('y'), [0, 3]), []);
});

test('a model that is not batched has one list for the whole tensor', async () => {
  const x = new Map([['x', tensor('FP32', [5], Float32Array.of(1, 5, 3, 4, 2))]]);
  const answer = outputsOf(await infer(server.url, 'id_fp32', jsonRequest(x, asked({ classification: 3 }))));
  assert.deepEqual(textsOf(answer.get('y'), [3]), ['5:1', '4:3', '3:2']);
});

test('FP16, which has no JSON form, has classes in JSON; 64 bits are exact', async () => {
  const half = new Map([['x', tensor('FP16', [1, 4], Uint16Array.of(0x3c00, 0x4000, 0xbc00, 0x3800))]]);
  const halves = outputsOf(
    await infer(server.url, 'rows_fp16', binaryRequest(half, asked({ classification: 2, binary_data: false }))),
  );
  assert.deepEqual(textsOf(halves.get('y'), [1, 2]), ['2:1', '1:0']);
  const wide = new Map([['x', tensor('INT64', [1, 4], BigInt64Array.of(1n, 2n ** 53n + 1n, 2n ** 53n, -1n))]]);
  const exact = outputsOf(await infer(server.url, 'rows_int64', jsonRequest(wide, asked({ classification: 2 }))));
  assert.deepEqual(textsOf(exact.get('y'), [1, 2]), ['9007199254740993:1', '9007199254740992:2']);
});

test('NaN, which JSON cannot say, is a text like any other', async () => {
  const x = new Map([['x', tensor('FP32', [1, 4], Float32Array.of(Number.NaN, 1, Number.NaN, 2))]]);
  const fields = asked({ classification: 3, binary_data: false });
  const answer = outputsOf(await infer(server.url, 'rows', binaryRequest(x, fields)));
  assert.deepEqual(textsOf(answer.get('y'), [1, 3]), ['2:3:three', '1:1:one', 'NaN:0:zero']);
});

test('large outputs are worked on in a thread, to the same texts', async () => {
  const width = 40_000;
  const rows = Float32Array.from({ length: 3 * width }, (_, n) => ((n * 7919) % 104729) / 8);
  const x = new Map([['x', tensor('FP32', [3, width], rows)]]);
  const fields = asked({ classification: 5, binary_data: false });
  const texts = textsOf(outputsOf(await infer(server.url, 'dynamic', binaryRequest(x, fields))).get('y'), [3, 5]);
  const expected = [0, 1, 2].flatMap((row) => {
    const own = [...rows.subarray(row * width, (row + 1) * width)].map((value, index) => ({ value, index }));
    own.sort((a, b) => b.value - a.value);
    return own.slice(0, 5).map(({ value, index }) => `${value}:${index}`);
  });
  assert.deepEqual(texts, expected);
});

test('what cannot be asked for is refused', async () => {
  const refused = async (parameters: object, code: 'BAD_REQUEST' | 'BAD_TENSOR', message: RegExp, model = 'rows') =>
    assertRefused(await infer(server.url, model, jsonRequest(X, asked(parameters))), code, message);
  for (const classification of [-1, 1.5, '2', true]) {
    await refused({ classification }, 'BAD_REQUEST', /'classification' of output 'y' must be an integer of 0 or more/);
  }
  await refused(
    { classification: 10_001 },
    'BAD_REQUEST',
    /'classification' of output 'y' is 10001; at most 10000 classes/,
  );
  const words = new Map([
    [
      'x',
      tensor(
        'BYTES',
        [1, 4],
        [0, 1, 2, 3].map(() => new Uint8Array(0)),
      ),
    ],
  ]);
  assertRefused(
    await infer(server.url, 'rows_bytes', jsonRequest(words, asked({ classification: 1 }))),
    'BAD_TENSOR',
    /output 'y' is BYTES, of which there are no classes/,
  );
  assertRefused(
    await infer(server.url, 'rows', jsonRequest(X, { parameters: { classification: 2 } })),
    'BAD_REQUEST',
    /'classification' is one of outputs; the request has it/,
  );
  const call = (value: object) =>
    clients.open().call('ModelInfer', {
      ...rawRequest('rows', X),
      outputs: [{ name: 'y', parameters: { classification: value } }],
    });
  await assertCallRefused(
    call({ int64_param: '-1' }),
    'BAD_REQUEST',
    /'classification' of output 'y' must be an integer/,
  );
  await assertCallRefused(call({ int64_param: '10001' }), 'BAD_REQUEST', /at most 10000 classes/);
  await assertCallRefused(call({ string_param: '1' }), 'BAD_REQUEST', /got another kind of value/);
});

test('labels for an output that there is not, and labels that are not there, keep the model from being served', async () => {
  assertRefused(
    await infer(server.url, 'wrong_output', jsonRequest(X)),
    'NOT_READY',
    /has an output "z", which the model does not have; it has "y"/,
  );
  assertRefused(
    await infer(server.url, 'no_labels', jsonRequest(X)),
    'NOT_READY',
    /labels\.txt, asked for by its configuration, does not exist/,
  );
});

test('labels stay as they were loaded until the model is loaded again', async () => {
  const first = async () =>
    textsOf(
      outputsOf(await infer(server.url, 'rows', jsonRequest(X, asked({ classification: 1 })))).get('y'),
      [2, 1],
    )[0];
  repository.writeFile(['rows', 'labels.txt'], 'null\neins\n');
  assert.equal(await first(), '2.25:1:one');
  const load = (body = '') =>
    send(server.url, '/v2/repository/models/rows/load', { headers: [], body: Buffer.from(body) });
  assert.equal((await load()).status, 200);
  assert.equal(await first(), '2.25:1:eins');
  // Not from a client: it would be told what is in the file.
  const config = JSON.stringify({ outputs: [{ name: 'y', labels: 'config.json' }] });
  assertRefused(
    await load(JSON.stringify({ parameters: { config } })),
    'BAD_REQUEST',
    /from the model's own config\.json only/,
  );
  assert.equal(await first(), '2.25:1:eins');
});

test('the extension is announced, the configuration tells of labels, and nothing is left behind', async () => {
  assert((json(await get(server.url, '/v2')).extensions as string[]).includes('classification'));
  assert.deepEqual(json(await get(server.url, '/v2/models/rows/config')).outputs, outputs);
  await assertIdle(server);
});
