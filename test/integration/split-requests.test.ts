/**
 * Requests of more rows than a batch may have: run in parts and joined, over both protocols and in every form; all or nothing when a part fails, is late, or nobody
 * waits any more; and refused where the model's configuration says so.
 */
import assert from 'node:assert/strict';
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
} from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { rowsOf } from '../support/fixtures-elementwise.ts';
import { LOOKUP_ROWS } from '../support/fixtures-shapes.ts';
import { assertCallRefused, GrpcClients, rawRequest, tensorsOf, typedRequest } from '../support/grpc.ts';
import { assertIdle, processesOf, untilModel, untilRunning } from '../support/idle.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors, tensor } from '../support/tensor.ts';

const BATCH_ROWS = 4;
const QUEUE_ROWS = 64;
/** About a third of a second of work on an idle core. */
const STEPS = 10_000;

const random = seedFromEnv();
const config = { max_batch_size: BATCH_ROWS, queue: { max_rows: QUEUE_ROWS, max_bytes: '4MiB' } };
const MODELS = [
  rowsOf('FP32'),
  rowsOf('BOOL'),
  rowsOf('INT64'),
  rowsOf('BYTES'),
  'simple',
  'simple_string',
  'multitype',
];
const models = [...MODELS, 'lookup', 'slow'];
const server = launchServer(
  { after },
  {
    grpc: true,
    repository: makeRepository(
      { after },
      {
        ...Object.fromEntries(models.map((name) => [name, { config }])),
        whole: { fixture: rowsOf('FP32'), config: { ...config, split_large_requests: false } },
      },
    ).dir,
  },
);
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

const slow = (steps: readonly number[]) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[${steps.length},1],"data":[${steps}]}]}`);
const lookup = (index: readonly number[]) =>
  new Map([['index', tensor('INT64', [index.length], BigInt64Array.from(index, BigInt))]]);

for (const name of MODELS) {
  test(`${name}: any number of rows comes back in its order, as JSON, in binary and over gRPC`, async () => {
    const client = clients.open();
    for (const rows of [BATCH_ROWS + 1, 2 * BATCH_ROWS, 5 * BATCH_ROWS - 1, QUEUE_ROWS]) {
      const inputs = sampleInputs(fixture(name), random, rows);
      const expected = fixture(name).reference!(inputs);
      for (const request of [jsonRequest(inputs), binaryRequest(inputs)]) {
        assertSameTensors(outputsOf(await infer(server.url, name, request)), expected);
      }
      for (const message of [rawRequest(name, inputs), typedRequest(name, inputs)]) {
        assertSameTensors(tensorsOf(await client.call('ModelInfer', message)), expected);
      }
    }
    await assertIdle(server);
  });
}

test('outputs come in the order they were asked for', async () => {
  const inputs = sampleInputs(fixture('simple'), random, 3 * BATCH_ROWS);
  const expected = fixture('simple').reference!(inputs);
  const outputs = ['OUTPUT1', 'OUTPUT0'];
  const answer = await infer(server.url, 'simple', jsonRequest(inputs, { outputs: outputs.map((name) => ({ name })) }));
  assert.deepEqual([...outputsOf(answer).keys()], outputs);
  assertSameTensors(outputsOf(answer), expected);
});

test('large and small requests at the same time each get their own rows', async () => {
  const counts = Array.from({ length: 24 }, () => random.int(1, 2 * BATCH_ROWS));
  await Promise.all(
    counts.map(async (rows) => {
      const inputs = sampleInputs(fixture('simple'), random, rows);
      const request = binaryRequest(inputs);
      for (;;) {
        const answer = await infer(server.url, 'simple', request);
        if (answer.status === 429) continue;
        assertSameTensors(outputsOf(answer), fixture('simple').reference!(inputs));
        return;
      }
    }),
  );
  await assertIdle(server);
});

test('a row that makes its run fail is the error of the whole request, and of no other', async () => {
  const good = Array.from({ length: 3 * BATCH_ROWS }, (_, n) => n % LOOKUP_ROWS);
  for (const at of [0, BATCH_ROWS + 1, good.length - 1]) {
    const [bad, fine] = await Promise.all([
      infer(server.url, 'lookup', jsonRequest(lookup(good.with(at, LOOKUP_ROWS)))),
      infer(server.url, 'lookup', jsonRequest(lookup(good))),
    ]);
    assertRefused(bad, 'MODEL_FAILED', /out of data bounds/);
    assertSameTensors(outputsOf(fine), fixture('lookup').reference!(lookup(good)));
  }
  await assertIdle(server);
});

test('more rows than the queue may hold are refused with the limit', async () => {
  const inputs = sampleInputs(fixture('simple'), random, QUEUE_ROWS + 1);
  const message = new RegExp(
    `batch-size must be <= ${QUEUE_ROWS} for 'simple', .*queue.max_rows.*, got ${QUEUE_ROWS + 1}`,
  );
  assertRefused(await infer(server.url, 'simple', binaryRequest(inputs)), 'BAD_TENSOR', message);
  await assertCallRefused(clients.open().call('ModelInfer', rawRequest('simple', inputs)), 'BAD_TENSOR', message);
});

test('with split_large_requests off, a request of more rows than a batch is refused', async () => {
  const inputs = sampleInputs(fixture(rowsOf('FP32')), random, BATCH_ROWS + 1);
  const message = new RegExp(
    `batch-size must be <= ${BATCH_ROWS} for 'whole', got ${BATCH_ROWS + 1}; send the rows in several requests`,
  );
  assertRefused(await infer(server.url, 'whole', jsonRequest(inputs)), 'BAD_TENSOR', message);
  const { split_large_requests: splits } = json(await get(server.url, '/v2/models/whole/config'));
  assert.equal(splits, false);
});

test('a client that leaves frees the rows of all parts', async () => {
  const blocking = infer(server.url, 'slow', slow([2 * STEPS]));
  await untilRunning(server, 'slow');
  const connection = await RawConnection.open(server.url);
  await connection.write(inferBytes('slow', slow(new Array(3 * BATCH_ROWS).fill(STEPS))));
  await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === 3 * BATCH_ROWS);
  connection.destroy();
  assert.equal((await blocking).status, 200);
  await assertIdle(server);
});

test('a deadline counts for all parts together', async () => {
  const request = slow(new Array(3 * BATCH_ROWS).fill(3 * STEPS));
  const headers = [...(request.headers ?? []), ['Batchport-Deadline-Ms', '300'] as const];
  assertRefused(await infer(server.url, 'slow', { ...request, headers }), 'DEADLINE_EXCEEDED', /timeout/);
  await assertIdle(server);
});

test('a queue that is too full for all parts takes none of them', async () => {
  const blocking = infer(server.url, 'slow', slow([2 * STEPS]));
  await untilRunning(server, 'slow');
  const waiting = infer(server.url, 'slow', slow(new Array(QUEUE_ROWS - BATCH_ROWS).fill(1)));
  await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === QUEUE_ROWS - BATCH_ROWS);
  assertRefused(await infer(server.url, 'slow', slow(new Array(2 * BATCH_ROWS).fill(1))), 'QUEUE_FULL', /full/);
  assert.equal((await infer(server.url, 'slow', slow([1]))).status, 200);
  for (const answer of await Promise.all([blocking, waiting])) assert.equal(answer.status, 200);
  await assertIdle(server);
});

test('a device that dies in the middle costs the request nothing', async () => {
  const steps = Array.from({ length: 3 * BATCH_ROWS }, (_, n) => STEPS / 10 + n);
  const answered = infer(server.url, 'slow', slow(steps));
  await untilRunning(server, 'slow');
  process.kill(processesOf(await server.status()).find(({ role }) => role === 'device')!.pid, 'SIGKILL');
  const answer = await answered;
  assert.equal(answer.status, 200);
  const { outputs } = json(answer);
  assert.deepEqual((outputs as { data: number[] }[])[0]!.data, steps);
  await assertIdle(server);
});
