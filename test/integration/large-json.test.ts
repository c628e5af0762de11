/**
 * JSON so large that it is read and written in threads: the same values and the same refusals as at once, and while it goes on everybody else is answered.
 *
 * How fast is not asserted. That others go on is asserted by order: many exchanges on another connection, one after another, between the moment at which a body is
 * whole and its answer.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { LARGE_JSON_BYTES, LARGE_OUTPUT_BYTES } from '../../src/ingress/json-threads.ts';
import { datatypeInfo } from '../../src/tensor/datatype.ts';
import {
  assertRefused,
  binaryRequest,
  type InferRequest,
  infer,
  inferBytes,
  inferPath,
  jsonBody,
  jsonRequest,
  outputsOf,
} from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { EVERY_DATATYPE, idOf } from '../support/fixtures-elementwise.ts';
import { assertIdle, complaints, eventually, modelsOf } from '../support/idle.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { RawConnection, requestBytes } from '../support/raw.ts';
import { Oracle } from '../support/reference.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors, type TensorMap, wireBytes } from '../support/tensor.ts';

const JSON_TYPES = EVERY_DATATYPE.filter((datatype) => datatypeInfo(datatype).json);
/** Rows of ten digits in JSON, 24 MB: far longer to read than these many exchanges of a few bytes. */
const SLOW_ROWS = 1_200_000;
/** An event loop that stands still answers one at the most. */
const EXCHANGES = 4;

const random = seedFromEnv();
const server = launchServer(
  { after },
  {
    repository: makeRepository(
      { after },
      {
        ...Object.fromEntries(JSON_TYPES.map((datatype) => [idOf(datatype), {}])),
        reduce_batch: {},
        rows: {},
        wide: { config: { max_batch_size: 64 } },
      },
    ).dir,
    // Then bodies in line may take 128 MiB.
    args: ['--max-body-bytes', '32MiB'],
  },
);

before(() => server.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

async function ingressThreads(): Promise<number> {
  const [pid] = await server.pids('ingress');
  return readdirSync(`/proc/${pid}/task`).length;
}

test('small JSON starts no thread, large JSON does', async () => {
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  const threads = await ingressThreads();
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  assert.equal(await ingressThreads(), threads);
  const text = ROWS.body.toString().padEnd(LARGE_JSON_BYTES, ' ');
  assert.equal((await infer(server.url, 'rows', jsonBody(text))).status, 200);
  assert((await ingressThreads()) > threads);
});

/** Inputs of an identity whose JSON is read, and whose result is written, in a thread. */
function largeInputs(name: string): TensorMap {
  for (let n = 20_000; ; n *= 2) {
    const inputs = sampleInputs(fixture(name), random, n);
    const bytes = [...inputs.values()].reduce((sum, value) => sum + wireBytes(value).length, 0);
    if (jsonRequest(inputs).body.length >= LARGE_JSON_BYTES && bytes >= LARGE_OUTPUT_BYTES) return inputs;
  }
}

const BINARY_OUT = { parameters: { binary_data_output: true } };
const JSON_OUT = { parameters: { binary_data_output: false } };

for (const datatype of JSON_TYPES) {
  test(`large ${datatype} tensors in JSON come back with every bit, in each form`, async (t) => {
    const name = idOf(datatype);
    const inputs = largeInputs(name);
    const expected = Oracle.of(t, name).run(inputs);
    const forms = [jsonRequest(inputs), jsonRequest(inputs, BINARY_OUT), binaryRequest(inputs, JSON_OUT)];
    for (const form of forms) assertSameTensors(outputsOf(await infer(server.url, name, form)), expected);
  });
}

test('a fault in a large body is told like that of a small one', async () => {
  const zeros = '0,'.repeat(LARGE_JSON_BYTES);
  const count = LARGE_JSON_BYTES + 1;
  const of = (shape: number, data: string) =>
    jsonBody(`{"inputs":[{"name":"x","datatype":"FP32","shape":[${shape}],"data":[${data}]}]}`);
  const cases: [InferRequest, 'BAD_TENSOR' | 'BAD_REQUEST', RegExp][] = [
    [of(count, `${zeros}"a"`), 'BAD_TENSOR', new RegExp(`element ${count - 1} is "a", but FP32 takes numbers`)],
    [of(count, `${zeros}1e39`), 'BAD_TENSOR', /element \d+ is 1e39/],
    [of(count, `${zeros}NaN`), 'BAD_REQUEST', /JSON has no NaN/],
    [of(count + 1, `${zeros}0`), 'BAD_TENSOR', new RegExp(`expected ${count + 1} elements`)],
    [jsonBody(of(count, `${zeros}0`).body.toString().slice(0, -2)), 'BAD_REQUEST', /not valid JSON at byte/],
  ];
  for (const [request, code, message] of cases) {
    assertRefused(await infer(server.url, 'id_fp32', request), code, message);
  }
});

/** A body that takes long to read, of a request that asks for next to nothing. Its last element decides whether it is right. */
function slowBody(last: string): Buffer {
  const head = `{"inputs":[{"name":"x","datatype":"INT64","shape":[${SLOW_ROWS},10],"data":[`;
  const others = Buffer.alloc(2 * (10 * SLOW_ROWS - 1), '7,');
  return Buffer.concat([Buffer.from(head), others, Buffer.from(`${last}]}]}`)]);
}

/** Sends all of a request but its last byte, which `finish` sends. */
async function almostSend(body: Buffer) {
  const connection = await RawConnection.open(server.url);
  const bytes = requestBytes('POST', inferPath('reduce_batch'), [], body);
  await connection.write(bytes.subarray(0, -1));
  return { connection, finish: () => connection.write(bytes.subarray(-1)) };
}

/** Exchanges on one connection, one after another, until `over`. */
async function exchangesUntil(over: () => boolean): Promise<number> {
  const connection = await RawConnection.open(server.url);
  const request = inferBytes('rows', ROWS);
  let count = 0;
  try {
    while (!over()) {
      await connection.write(request);
      const answer = await connection.response(60_000, 'POST');
      assert.equal(answer.status, 200);
      if (!over()) count++;
    }
  } finally {
    connection.destroy();
  }
  return count;
}

test('while a large body is read others are answered', async () => {
  // Refused at its last element, so that nothing comes between the reading and the answer.
  const { connection, finish } = await almostSend(slowBody('"x"'));
  let answered = false;
  const answer = connection.response(60_000, 'POST').finally(() => (answered = true));
  await finish();
  const count = await exchangesUntil(() => answered);
  assertRefused(await answer, 'BAD_TENSOR', /is "x", but INT64 takes integers/);
  connection.destroy();
  assert(count >= EXCHANGES, `${count} exchanges`);
});

test('while a large answer is written others are answered, and the queue is free', async () => {
  const rows = 32;
  const text = `{"inputs":[{"name":"x","datatype":"FP32","shape":[${rows},1],"data":[${Array.from({ length: rows }, (_, n) => n + 0.1)}]}]}`;
  const connection = await RawConnection.open(server.url);
  await connection.write(inferBytes('wide', jsonBody(text)));
  let answered = false;
  const answer = connection.firstByte(60_000).finally(() => (answered = true));
  // What is copied out of the queue is given back to it before it is written.
  await eventually(async () => {
    const wide = modelsOf(await server.status()).find(({ name }) => name === 'wide')!;
    return wide.rows >= rows && wide.queue!.used_bytes === 0 ? undefined : `the queue is in use: ${wide.rows}`;
  });
  const count = await exchangesUntil(() => answered);
  await answer;
  connection.destroy();
  assert(count >= EXCHANGES, `${count} exchanges`);
  await assertIdle(server);
});

test('answers to requests in a row keep their order, a large one among small ones', async () => {
  const connection = await RawConnection.open(server.url);
  const ids = ['a', 'b', 'c'];
  const numbered = (id: string, padding: number) =>
    jsonBody(`{"id":"${id}",${ROWS.body.toString().slice(1)}`.padEnd(padding, ' '));
  await connection.write(
    Buffer.concat(ids.map((id) => inferBytes('rows', numbered(id, id === 'b' ? LARGE_JSON_BYTES : 0)))),
  );
  for (const id of ids) {
    const answer = await connection.response(60_000, 'POST');
    assert.equal((JSON.parse(answer.text()) as { id: string }).id, id);
  }
  connection.destroy();
});

test('clients that leave while their bodies are read leave nothing behind', async () => {
  const outcomes = (outcome: string) => server.metric('batchport_requests_total', { model: 'reduce_batch', outcome });
  const before = { cancelled: await outcomes('cancelled'), ok: await outcomes('ok') };
  const clients = 5;
  const body = slowBody('7');
  let left = 0;
  // On a busy machine this process may sleep so long that an answer is there before its client leaves: then another one tries.
  for (let n = 0; left < clients; n++) {
    assert(n < 4 * clients, 'answers are there before their clients can leave');
    const { connection, finish } = await almostSend(body);
    // Of a connection that is reset before it was looked at, nobody would know.
    await eventually(async () =>
      (await server.metric('batchport_requests_in_flight', { model: 'reduce_batch' })) > 0 ? undefined : 'no request',
    );
    await finish();
    connection.destroy(n % 2 === 0);
    await eventually(async () => {
      left = (await outcomes('cancelled')) - before.cancelled;
      const answered = (await outcomes('ok')) - before.ok;
      return left + answered === n + 1
        ? undefined
        : `${left} requests are counted as cancelled, ${answered} as answered`;
    });
  }
  await assertIdle(server);
  // Were their bytes counted for ever, these would find no room. A thread reads a body that it has begun to its end.
  await eventually(async () => {
    const requests = Array.from({ length: 2 }, () => infer(server.url, 'reduce_batch', { headers: [], body }));
    const answers = await Promise.all(requests);
    if (answers.some(({ status }) => status === 429)) return 'the bodies of those that left are still counted';
    for (const answer of answers) assert.equal(outputsOf(answer).get('y')!.data[0], BigInt(7 * 10 * SLOW_ROWS));
    return undefined;
  });
});

test('a server that is told to stop answers the large bodies that it has begun', async () => {
  const { connection, finish } = await almostSend(slowBody('7'));
  await finish();
  server.signal('SIGTERM');
  const answer = await connection.response(60_000, 'POST');
  assert.equal(answer.status, 200, answer.text());
  connection.destroy();
  assert.deepEqual(await server.ended(), { code: 0, signal: null });
  assert.deepEqual(complaints(server), []);
});
