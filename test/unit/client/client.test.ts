import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { Client, type ClientOptions, type InferInput } from '../../../src/client/client.ts';
import { DATATYPES, type Datatype } from '../../../src/tensor/datatype.ts';
import { echo, type Handler, serveHttp } from '../../support/http-server.ts';
import { seedFromEnv } from '../../support/random.ts';
import { assertSameTensor, randomTensor, type TestTensor } from '../../support/tensor.ts';

const x: InferInput = { name: 'x', datatype: 'FP32', shape: [2], data: [1, 2] };

async function connect(t: TestContext, handler: Handler, options: ClientOptions = {}) {
  const server = await serveHttp(t, handler);
  const client = new Client(server.url, options);
  t.after(() => client.close());
  return { server, client };
}

test('every datatype travels unchanged in binary, and in JSON where it has such a form', async (t) => {
  const random = seedFromEnv();
  const { client } = await connect(t, echo);
  for (const datatype of Object.keys(DATATYPES) as Datatype[]) {
    for (const binary of DATATYPES[datatype].json ? [true, false] : [true]) {
      for (const shape of [[], [0], [3, 0], [7], [2, 3]]) {
        const sent = randomTensor(random, datatype, shape);
        const input = { name: 'x', ...sent } as InferInput;
        const result = await client.infer('m', { inputs: [input], binary, id: 'é"1' });
        assertSameTensor(result.output('x') as TestTensor, sent, `${datatype} ${binary ? 'binary' : 'JSON'}`);
        assert.equal(result.id, 'é"1');
      }
    }
  }
});

test('64-bit integers beyond 2^53 keep every digit in JSON', async (t) => {
  const { client, server } = await connect(t, echo, { binary: false });
  const data = BigInt64Array.of(9007199254740993n, -(2n ** 63n), 2n ** 63n - 1n, -1n);
  const result = await client.infer('m', { inputs: [{ name: 'x', datatype: 'INT64', shape: [4], data }] });
  assert.deepEqual(result.output('x', 'INT64').data, data);
  assert.match(server.requests[0]!.body.toString(), /\[9007199254740993,-9223372036854775808,/);
});

test('names and versions are escaped, and a base path and headers are kept', async (t) => {
  const { server } = await connect(t, echo);
  const client = new Client(`${server.url}/gateway/`, {
    headers: { Authorization: 'Bearer x', 'Content-Type': 'text/plain' },
  });
  t.after(() => client.close());
  await client.infer('a b/ü?', { inputs: [x], version: '1.0' });
  assert.equal(client.url, `${server.url}/gateway`);
  assert.equal(server.requests[0]!.path, '/gateway/v2/models/a%20b%2F%C3%BC%3F/versions/1.0/infer');
  assert.equal(server.requests[0]!.headers.authorization, 'Bearer x');
  assert.equal(server.requests[0]!.headers['content-type'], 'application/octet-stream');
  for (const name of ['', '\ud800']) await assert.rejects(client.infer(name, { inputs: [x] }), TypeError);
});

test('health, readiness and metadata are read', async (t) => {
  const answers = new Map<string, object | number>([
    ['/v2/health/live', {}],
    ['/v2/health/ready', 503],
    ['/v2', { name: 'batchport', version: '1', extensions: ['binary_tensor_data'] }],
    [
      '/v2/models/m',
      { name: 'm', versions: ['2'], platform: 'onnx', inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, 4] }] },
    ],
    ['/v2/models/m/versions/2', { name: 'm' }],
    ['/v2/models/m/ready', {}],
    ['/v2/models/loading/ready', 400],
    ['/v2/models/unknown/ready', 404],
    ['/v2/models/broken', { name: 'm', inputs: [{ name: 'x', datatype: 'FP32', shape: [-2] }] }],
  ]);
  const { client } = await connect(t, ({ path }) => {
    const answer = answers.get(path)!;
    return typeof answer === 'number' ? { status: answer, body: '{"error":"no"}' } : { body: JSON.stringify(answer) };
  });
  assert.deepEqual(await client.health(), { live: true, ready: false });
  assert.deepEqual(await client.serverMetadata(), {
    name: 'batchport',
    version: '1',
    extensions: ['binary_tensor_data'],
  });
  assert.deepEqual(await client.modelMetadata('m'), {
    name: 'm',
    versions: ['2'],
    platform: 'onnx',
    inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, 4] }],
    outputs: [],
  });
  assert.deepEqual((await client.modelMetadata('m', { version: '2' })).inputs, []);
  assert.equal(await client.modelReady('m'), true);
  assert.equal(await client.modelReady('loading'), false);
  await assert.rejects(client.modelReady('unknown'), { name: 'InferenceError', status: 404, message: 'no' });
  await assert.rejects(client.modelMetadata('broken'), { code: 'BAD_RESPONSE' });
});

test('the server is told how long the caller waits', async (t) => {
  const { client, server } = await connect(t, echo);
  const told = async (request: object) => {
    await client.infer('m', { inputs: [x], binary: false, ...request });
    return JSON.parse(server.requests.at(-1)!.body.toString()).parameters.timeout;
  };
  const timeoutUs = await told({ timeoutMs: 30_000 });
  assert(Number.isInteger(timeoutUs) && timeoutUs > 0 && timeoutUs <= 30_000_000, String(timeoutUs));
  assert((await told({})) <= 60_000_000);
  assert.equal(await told({ timeoutMs: 0 }), undefined);
  assert.equal(await told({ parameters: { timeout: 5 } }), 5);
});

test('no more connections are made than the pool may have', async (t) => {
  // Answers in pairs: with one connection it would wait for ever, with more than two `open` would show it.
  let open = 0;
  let releasePair: (() => void) | undefined;
  const { client, server } = await connect(
    t,
    async (request) => {
      assert(++open <= 2);
      await new Promise<void>((resolve) => {
        if (releasePair === undefined) releasePair = resolve;
        else {
          releasePair();
          releasePair = undefined;
          resolve();
        }
      });
      open--;
      return echo(request);
    },
    { connections: 2 },
  );
  await Promise.all(Array.from({ length: 8 }, () => client.infer('m', { inputs: [x] })));
  assert.equal(server.requests.length, 8);
  assert.equal(server.connections(), 2);
});

test('a call beyond maxPending fails at once', async (t) => {
  let answer = () => {};
  const held = new Promise<void>((resolve) => {
    answer = resolve;
  });
  const { client } = await connect(t, async (request) => held.then(() => echo(request)), { maxPending: 1 });
  const first = client.infer('m', { inputs: [x] });
  await assert.rejects(client.infer('m', { inputs: [x] }), { code: 'TOO_MANY_PENDING', sent: false });
  answer();
  await first;
  await client.infer('m', { inputs: [x] });
});

test('close waits for the calls under way, and later calls fail', async (t) => {
  let answer = () => {};
  const held = new Promise<void>((resolve) => {
    answer = resolve;
  });
  let arrived = () => {};
  const request = new Promise<void>((resolve) => {
    arrived = resolve;
  });
  const { client } = await connect(t, async (received) => {
    arrived();
    await held;
    return echo(received);
  });
  const order: string[] = [];
  const call = client.infer('m', { inputs: [x] }).then(() => order.push('answer'));
  await request;
  const closed = client[Symbol.asyncDispose]().then(() => order.push('closed'));
  await assert.rejects(client.health(), { name: 'ConnectionError', code: 'CLIENT_CLOSED', sent: false });
  answer();
  await Promise.all([call, closed]);
  assert.deepEqual(order, ['answer', 'closed']);
  await client.close();
});

test('close also waits for a call that is to be tried again', async (t) => {
  let closed: Promise<void> | undefined;
  const { client, server } = await connect(
    t,
    (request, index) => {
      if (index > 0) return echo(request);
      closed = client.close();
      return { status: 503, headers: { 'retry-after': '0' }, body: '{"error":"later"}' };
    },
    { retry: { baseMs: 1 } },
  );
  assert.equal((await client.infer('m', { inputs: [x] })).modelName, 'echo');
  assert.equal(server.requests.length, 2);
  await closed;
});

test('impossible URLs and options are refused at once', () => {
  for (const url of ['nonsense', 'ftp://host', 'http://user:secret@host', 'http://host/?a=1', 'http://host/#x']) {
    assert.throws(() => new Client(url), TypeError, url);
  }
  const options: ClientOptions[] = [
    { connections: 0 },
    { connections: 1.5 },
    { timeoutMs: -1 },
    { timeoutMs: 2 ** 31 },
    { timeoutMs: Number.NaN },
    { maxResponseBytes: 0 },
    { connectTimeoutMs: -1 },
    { maxPending: 0 },
    { retry: { attempts: 0 } },
    { retry: { totalMs: Number.POSITIVE_INFINITY } },
  ];
  for (const option of options)
    assert.throws(() => new Client('http://host', option), RangeError, JSON.stringify(option));
});
