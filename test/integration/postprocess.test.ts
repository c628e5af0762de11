/** Outputs that a model's configuration has processed before clients get them: metadata, answers in every form, threads, refusals. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import {
  assertRefused,
  binaryRequest,
  get,
  infer,
  inferBytes,
  json,
  jsonBody,
  jsonRequest,
  outputsOf,
  send,
  sendTogether,
} from '../support/exchange.ts';
import { GrpcClients, rawRequest, tensorsOf } from '../support/grpc.ts';
import { assertIdle } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { type TestTensor, tensor } from '../support/tensor.ts';

const of = (...postprocess: object[]) => ({ outputs: [{ name: 'y', postprocess }] });
const repository = makeRepository(
  { after },
  {
    kept: {
      fixture: 'rows',
      config: { response_cache: { enable: true }, ...of({ op: 'softmax' }) },
    },
    best: {
      fixture: 'rows',
      config: {
        max_batch_size: 4,
        outputs: [{ name: 'y', labels: 'labels.txt', postprocess: [{ op: 'softmax' }, { op: 'top_k', k: 2 }] }],
      },
    },
    likely: { fixture: 'rows', config: of({ op: 'softmax' }) },
    index: { fixture: 'rows_int64', config: of({ op: 'argmax' }) },
    embedding: { fixture: 'masked', config: of({ op: 'mean_pool', mask: 'mask' }, { op: 'normalize' }) },
    unit: {
      fixture: 'dynamic',
      config: { max_batch_size: 8, queue: { max_bytes: '64MiB' }, ...of({ op: 'normalize' }) },
    },
    real: { fixture: 'rows_uint8', config: of({ op: 'dequantize', scale: 0.25, zero_point: 128 }) },
    text: { fixture: 'masked', config: of({ op: 'ctc_decode', dictionary: 'keys.txt' }) },
    long_keys: { fixture: 'masked', config: of({ op: 'ctc_decode', dictionary: 'keys.txt' }) },
    rows_mixed: { fixture: 'rows', config: of({ op: 'softmax', axis: 0 }) },
  },
);
repository.writeFile(['best', 'labels.txt'], 'a\nb\nc\nd\n');
repository.writeFile(['text', 'keys.txt'], 'x\nü\n');
repository.writeFile(['long_keys', 'keys.txt'], 'x\nü\nz\n');
const server = launchServer(
  { after },
  { grpc: true, repository: repository.dir, args: ['--system-shared-memory', '--ingress', '1'] },
);
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

const floats = (shape: readonly number[], ...values: number[]) => tensor('FP32', shape, Float32Array.from(values));

function textsOf(value: TestTensor | undefined, shape: readonly number[]): string[] {
  assert.equal(value?.datatype, 'BYTES');
  assert.deepEqual(value.shape, shape);
  return value.data.map((text) => Buffer.from(text).toString());
}

test('metadata and configuration show outputs as clients get them', async () => {
  const outputOf = async (model: string) => {
    const [{ name, datatype, shape }] = json(await get(server.url, `/v2/models/${model}`)).outputs as [
      TestTensor & { name: string },
    ];
    return [name, datatype, shape];
  };
  assert.deepEqual(await outputOf('best'), ['y', 'BYTES', [-1, 2]]);
  assert.deepEqual(await outputOf('index'), ['y', 'INT64', [-1]]);
  assert.deepEqual(await outputOf('embedding'), ['y', 'FP32', [-1, 3]]);
  assert.deepEqual(await outputOf('text'), ['y', 'BYTES', [-1]]);
  const { output, outputs } = json(await get(server.url, '/v2/models/best/config'));
  assert.deepEqual(output, [{ name: 'y', data_type: 'TYPE_STRING', dims: [2] }]);
  assert.deepEqual(outputs, [
    {
      name: 'y',
      labels: 'labels.txt',
      postprocess: [
        { op: 'softmax', axis: -1 },
        { op: 'top_k', k: 2 },
      ],
    },
  ]);
  const about = await clients.open().call('ModelMetadata', { name: 'embedding' });
  assert.deepEqual(about.outputs[0], { name: 'y', datatype: 'FP32', shape: ['-1', '3'] });
});

test('the likeliest classes, over HTTP in both forms and over gRPC, in one batch and in several', async () => {
  const x = new Map([['x', floats([2, 4], 0, Math.log(3), 0, 0, 1000, 0, 1000, 0)]]);
  const expected = ['0.5:1:b', '0.16666667:0:a', '0.5:0:a', '0.5:2:c'];
  for (const answer of [
    outputsOf(await infer(server.url, 'best', jsonRequest(x))),
    outputsOf(await infer(server.url, 'best', binaryRequest(x))),
    tensorsOf(await clients.open().call('ModelInfer', rawRequest('best', x))),
  ]) {
    assert.deepEqual(textsOf(answer.get('y'), [2, 2]), expected);
  }
  const rows = Array.from({ length: 9 * 4 }, (_, n) => (n % 4 === Math.floor(n / 4) % 4 ? 5 : 0));
  const nine = outputsOf(await infer(server.url, 'best', jsonRequest(new Map([['x', floats([9, 4], ...rows)]]))));
  const firsts = textsOf(nine.get('y'), [9, 2]).filter((_, n) => n % 2 === 0);
  assert.deepEqual(
    firsts.map((text) => text.split(':')[2]),
    Array.from({ length: 9 }, (_, row) => 'abcd'[row % 4]),
  );
});

test('requests that share a batch get their own rows', async () => {
  const requests = Array.from({ length: 8 }, (_, n) => {
    const x = new Map([['x', floats([1, 4], ...[0, 1, 2, 3].map((at) => (at === n % 4 ? n + 1 : 0)))]]);
    return inferBytes('likely', n % 2 === 0 ? jsonRequest(x) : binaryRequest(x));
  });
  for (const [n, answer] of (await sendTogether(server.url, requests)).entries()) {
    const power = Math.exp(n + 1);
    const values = [...(outputsOf(answer).get('y')!.data as Float32Array)];
    for (const [at, value] of values.entries()) {
      assert.ok(Math.abs(value - (at === n % 4 ? power : 1) / (power + 3)) < 1e-6, `${n}: ${values}`);
    }
  }
});

test('an index, real numbers, and a classification of them', async () => {
  const wide = new Map([
    ['x', tensor('INT64', [2, 4], BigInt64Array.of(1n, 2n ** 60n + 1n, 2n ** 60n, 3n, 4n, 4n, 1n, 0n))],
  ]);
  assert.deepEqual(
    outputsOf(await infer(server.url, 'index', jsonRequest(wide))).get('y'),
    tensor('INT64', [2], BigInt64Array.of(1n, 0n)),
  );
  const bytes = new Map([['x', tensor('UINT8', [1, 4], Uint8Array.of(128, 132, 0, 255))]]);
  assert.deepEqual(
    outputsOf(await infer(server.url, 'real', binaryRequest(bytes))).get('y'),
    floats([1, 4], 0, 1, -32, 31.75),
  );
  const fields = { outputs: [{ name: 'y', parameters: { classification: 2 } }] };
  const classes = outputsOf(await infer(server.url, 'real', jsonRequest(bytes, fields)));
  assert.deepEqual(textsOf(classes.get('y'), [1, 2]), ['31.75:3', '1:1']);
  assertRefused(
    await infer(server.url, 'best', jsonRequest(new Map([['x', floats([1, 4], 1, 2, 3, 4)]]), fields)),
    'BAD_TENSOR',
    /output 'y' is BYTES, of which there are no classes/,
  );
});

test('an embedding is the mean of what its own mask leaves, of length 1', async () => {
  const inputs = new Map<string, TestTensor>([
    ['x', floats([2, 2, 3], 3, 4, 0, 9, 9, 9, 0, 0, 2, 0, 0, 4)],
    ['mask', tensor('INT64', [2, 2], BigInt64Array.of(1n, 0n, 1n, 1n))],
  ]);
  const expected = floats([2, 3], 0.6, 0.8, 0, 0, 0, 1);
  const answer = outputsOf(await infer(server.url, 'embedding', jsonRequest(inputs)));
  assert.deepEqual(answer.get('y'), expected);
  // The other output is given as it is.
  assert.deepEqual(answer.get('m')?.data, inputs.get('mask')!.data);
  assert.deepEqual(outputsOf(await infer(server.url, 'embedding', binaryRequest(inputs))).get('y'), expected);
  assert.deepEqual(
    tensorsOf(await clients.open().call('ModelInfer', rawRequest('embedding', inputs))).get('y'),
    expected,
  );
});

test('large outputs are processed in a thread, with their masks, beside outputs that are not processed', async () => {
  const steps = 40_000;
  const inputs = new Map<string, TestTensor>([
    [
      'x',
      tensor(
        'FP32',
        [1, steps, 3],
        new Float32Array(3 * steps).map((_, n) => (n % 3 === 0 ? 3 : n % 3 === 1 ? 4 : 0)),
      ),
    ],
    ['mask', tensor('INT64', [1, steps], new BigInt64Array(steps).fill(1n))],
  ]);
  const answer = outputsOf(await infer(server.url, 'embedding', binaryRequest(inputs)));
  assert.deepEqual(answer.get('y'), floats([1, 3], 0.6, 0.8, 0));
  assert.deepEqual(answer.get('m')?.data, inputs.get('mask')!.data);
  const row = new Float32Array(100_000).fill(2);
  const x = new Map([['x', tensor('FP32', [2, 50_000], row)]]);
  for (const request of [binaryRequest(x), binaryRequest(x, { parameters: { binary_data_output: false } })]) {
    const { data } = outputsOf(await infer(server.url, 'unit', request)).get('y')!;
    assert.equal(data.length, row.length);
    assert.ok((data as Float32Array).every((value) => Math.abs(value - 1 / Math.sqrt(50_000)) < 1e-8));
  }
});

test('texts by a dictionary', async () => {
  const inputs = new Map<string, TestTensor>([
    ['x', floats([1, 5, 3], 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1)],
    ['mask', tensor('INT64', [1, 5], new BigInt64Array(5))],
  ]);
  assert.deepEqual(textsOf(outputsOf(await infer(server.url, 'text', jsonRequest(inputs))).get('y'), [1]), ['xxü']);
});

test('what is kept for equal requests is what they ask for: the tensor, or so many classes', async () => {
  const x = new Map([['x', floats([1, 4], 0, Math.log(5), 0, 0)]]);
  const classes = (classification: number) => ({ outputs: [{ name: 'y', parameters: { classification } }] });
  for (let round = 0; round < 2; round++) {
    const whole = outputsOf(await infer(server.url, 'kept', jsonRequest(x))).get('y')!;
    assert.deepEqual(whole, floats([1, 4], 0.125, 0.625, 0.125, 0.125));
    for (const [count, texts] of [
      [1, ['0.625:1']],
      [2, ['0.625:1', '0.125:0']],
    ] as const) {
      const answer = outputsOf(await infer(server.url, 'kept', jsonRequest(x, classes(count))));
      assert.deepEqual(textsOf(answer.get('y'), [1, count]), texts);
    }
  }
  const { model_stats: stats } = json(await get(server.url, '/v2/models/kept/stats')) as {
    model_stats: { inference_stats: { cache_hit: { count: number } } }[];
  };
  assert.equal(stats[0]!.inference_stats.cache_hit.count, 3);
});

test('a mask in shared memory counts as it was when the request came, and results are written there processed', async (t) => {
  const key = `batchport-postprocess-${process.pid}`;
  const file = `/dev/shm/${key}`;
  t.after(() => fs.rmSync(file, { force: true }));
  fs.writeFileSync(file, Buffer.concat([new Uint8Array(BigInt64Array.of(1n, 0n).buffer), Buffer.alloc(64)]));
  const post = (what: string, body: object) =>
    send(server.url, `/v2/systemsharedmemory/region/r/${what}`, jsonBody(JSON.stringify(body)));
  assert.equal((await post('register', { key: `/${key}`, byte_size: 80 })).status, 200);
  const at = (offset: number, bytes: number) => ({
    shared_memory_region: 'r',
    shared_memory_byte_size: bytes,
    shared_memory_offset: offset,
  });
  const request = (parameters: object) =>
    jsonBody(
      JSON.stringify({
        inputs: [
          { name: 'x', datatype: 'FP32', shape: [1, 2, 3], data: [3, 4, 0, 9, 9, 9] },
          { name: 'mask', datatype: 'INT64', shape: [1, 2], parameters: at(0, 16) },
        ],
        outputs: [{ name: 'y', parameters }],
      }),
    );
  const [output] = json(await infer(server.url, 'embedding', request(at(16, 12)))).outputs as [object];
  assert.deepEqual(output, { name: 'y', datatype: 'FP32', shape: [1, 3] });
  const written = () => fs.readFileSync(file).subarray(16);
  assert.deepEqual(
    [0, 4, 8].map((byte) => written().readFloatLE(byte)),
    [0.6, 0.8, 0].map(Math.fround),
  );
  const classified = json(await infer(server.url, 'embedding', request({ ...at(16, 64), classification: 1 })));
  assert.deepEqual(classified.outputs, [{ name: 'y', datatype: 'BYTES', shape: [1, 1] }]);
  assert.equal(written().toString('latin1', 4, 4 + written().readUInt32LE(0)), '0.8:1');
  assertRefused(await infer(server.url, 'embedding', request(at(16, 11))), 'BAD_TENSOR', /12/);
  assert.equal((await post('unregister', {})).status, 200);
});

test('what does not fit the model keeps it from being served, with the reason', async () => {
  const x = new Map([['x', floats([1, 4], 1, 2, 3, 4)]]);
  assertRefused(
    await infer(server.url, 'rows_mixed', jsonRequest(x)),
    'NOT_READY',
    /postprocess of output "y" does not fit: softmax works along axis 0, which is the batch/,
  );
  assertRefused(
    await infer(server.url, 'long_keys', jsonRequest(x)),
    'NOT_READY',
    /keys\.txt has 3 lines, which with the blank are 4 classes, and the output has 3/,
  );
});

test('nothing is left behind', async () => {
  await assertIdle(server);
});
