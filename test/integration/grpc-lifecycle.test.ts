/**
 * Calls that end otherwise than with an answer: given up by their client or by their deadline, too slow, too large for all of them together, cut by a server that
 * stops. They harm nobody, and nothing is left of them.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type ClientHttp2Session, type ClientHttp2Stream, connect } from 'node:http2';
import { describe, type TestContext, test } from 'node:test';
import { status as Status, type StatusObject } from '@grpc/grpc-js';
import { exitCode } from '../../src/config/exit-codes.ts';
import { assertCallRefused, GrpcClients, INFERENCE, type Message, rawRequest } from '../support/grpc.ts';
import { assertIdle, eventually, modelsOf, untilModel, untilRunning } from '../support/idle.ts';
import { type ModelEntry, makeRepository } from '../support/repository.ts';
import { startServer, type TestServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

const GIVEN_UP = 200;
const ANSWER_LIMIT_MS = 60_000;
const AFTERWARDS = 20;
const MIB = 1024 * 1024;
const STEPS = 10_000;
/** Keeps the instance busy for much longer than it takes to send all that is to wait behind it. */
const BLOCKING_STEPS = 8 * STEPS;
const MODEL_INFER = INFERENCE.ModelInfer!;

function start(
  t: TestContext,
  models: Readonly<Record<string, ModelEntry>>,
  args: readonly string[] = [],
): Promise<TestServer> {
  return startServer(t, { grpc: true, repository: makeRepository(t, models).dir, args });
}

function slow(steps: number): Message {
  return rawRequest('slow', new Map([['steps', tensor('INT64', [1, 1], BigInt64Array.of(BigInt(steps)))]]));
}

async function rowsRun(server: TestServer): Promise<number> {
  return modelsOf(await server.status())[0]!.rows;
}

function session(t: TestContext, server: TestServer): ClientHttp2Session {
  const made = connect(`http://${server.address('grpc')}`);
  made.on('error', () => {});
  t.after(() => made.destroy());
  return made;
}

interface HandmadeCall {
  readonly stream: ClientHttp2Stream;
  /** Status and message, where nothing else comes. */
  readonly refusal: Promise<{ code: number; message: string }>;
}

/** A call of ModelInfer whose message is to be written. */
function openCall(from: ClientHttp2Session): HandmadeCall {
  const stream = from.request({
    ':method': 'POST',
    ':path': MODEL_INFER.path,
    'content-type': 'application/grpc',
    te: 'trailers',
  });
  stream.on('error', () => {});
  const refusal = new Promise<{ code: number; message: string }>((resolve) => {
    const timer = setTimeout(() => resolve({ code: -1, message: 'no answer' }), ANSWER_LIMIT_MS);
    stream.once('close', () => clearTimeout(timer));
    stream.once('response', (headers) => {
      resolve({ code: Number(headers['grpc-status']), message: decodeURI(String(headers['grpc-message'] ?? '')) });
    });
  });
  return { stream, refusal };
}

function written(stream: ClientHttp2Stream, bytes: Buffer): Promise<void> {
  return new Promise((resolve) => stream.write(bytes, () => resolve()));
}

function frame(length: number, ...bytes: Buffer[]): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(length, 1);
  return Buffer.concat([head, ...bytes]);
}

/** The status of a stream; events.once would take an error before it for the end. */
function statusOf(stream: {
  once(event: 'status', listener: (status: StatusObject) => void): unknown;
}): Promise<StatusObject> {
  return new Promise((resolve) => stream.once('status', resolve));
}

describe('calls that are given up', { concurrency: 2 }, () => {
  // Story: a cancelled call made the worker unusable (grpc-cancel-deadline, 72).
  test('deadlines and cancellations free their rows, and later calls are served', async (t) => {
    const server = await start(t, { slow: { config: { max_batch_size: 4 } } });
    const client = new GrpcClients(t, server).open();
    const outcomes = (outcome: string) => server.metric('batchport_requests_total', { model: 'slow', outcome });
    const run = client.call('ModelInfer', slow(BLOCKING_STEPS));
    await untilRunning(server, 'slow');
    const late = await Promise.allSettled(
      Array.from({ length: GIVEN_UP }, (_, n) =>
        client.call('ModelInfer', slow(STEPS + n), { deadline: Date.now() + 50 }),
      ),
    );
    for (const outcome of late) {
      // The latter where it was foreseen.
      const refused: unknown[] = [Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED];
      assert(refused.includes(outcome.status === 'rejected' && outcome.reason.code));
    }
    const cancelled = Array.from({ length: GIVEN_UP }, (_, n) => client.start('ModelInfer', slow(STEPS + n)));
    await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === GIVEN_UP);
    for (const { call } of cancelled) call.cancel();
    for (const { answer } of cancelled) await assert.rejects(answer, { code: Status.CANCELLED });
    const stream = client.stream();
    stream.on('error', () => {});
    for (let n = 0; n < 10; n++) stream.write(slow(STEPS));
    await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === 10);
    stream.cancel();
    await run;
    const answers = await Promise.all(Array.from({ length: AFTERWARDS }, (_, n) => client.call('ModelInfer', slow(n))));
    for (const [n, { raw_output_contents: raw }] of answers.entries()) {
      assert.equal(raw[0].readBigInt64LE(), BigInt(n));
    }
    const ran = await rowsRun(server);
    assert(ran <= 1 + AFTERWARDS + 4, `${ran} rows were run: what nobody waits for is run`);
    const ends = [await outcomes('deadline'), await outcomes('rejected'), await outcomes('cancelled')];
    assert.equal(
      ends.reduce((sum, count) => sum + count),
      2 * GIVEN_UP + 10,
    );
    assert((await outcomes('cancelled')) >= GIVEN_UP + 10);
    await assertIdle(server);
  });

  test('a timeout of the request is one of the call too', async (t) => {
    const server = await start(t, { slow: {} });
    const client = new GrpcClients(t, server).open();
    const message = { ...slow(STEPS), parameters: { timeout: { int64_param: '50000' } } };
    await assertCallRefused(client.call('ModelInfer', message), 'DEADLINE_EXCEEDED', /timeout expired/);
    await assertIdle(server);
  });
});

describe('calls that hold what others need', { concurrency: 2 }, () => {
  test('messages on their way in are counted for all connections, and given back when they go', async (t) => {
    const server = await start(t, { slow: {} }, ['--max-body-bytes', '32MiB']);
    const client = new GrpcClients(t, server).open();
    // One process holds 256 MiB: eight of these fit and the ninth does not.
    const length = 31 * MIB;
    const filler = Buffer.alloc(length - 1024);
    const holders = Array.from({ length: 8 }, () => openCall(session(t, server)));
    for (const { stream } of holders) await written(stream, frame(length, filler));
    const ninth = openCall(session(t, server));
    await written(ninth.stream, frame(length, Buffer.alloc(16 * 1024)));
    const { code, message } = await ninth.refusal;
    assert.equal(code, Status.RESOURCE_EXHAUSTED);
    assert.match(message, /as many bytes of requests and answers as it may/);
    // Small ones, which come in one piece, are served meanwhile.
    await client.call('ModelInfer', slow(1));
    for (const { stream } of holders) stream.close();
    await eventually(async () => {
      const again = openCall(session(t, server));
      again.stream.end(frame(length, Buffer.alloc(length)));
      return (await again.refusal).code === Status.INVALID_ARGUMENT ? undefined : 'nothing has been given back';
    });
  });

  test('a message without progress is given up', async (t) => {
    const server = await start(t, { slow: {} }, ['--body-idle-timeout-s', '0.2']);
    const { stream, refusal } = openCall(session(t, server));
    stream.write(frame(100, Buffer.alloc(16)));
    const { code, message } = await refusal;
    assert.equal(code, Status.DEADLINE_EXCEEDED);
    assert.match(message, /too slowly \(--body-idle-timeout-s\)/);
  });

  test('a call without its message is given up', async (t) => {
    const server = await start(t, { slow: {} }, ['--body-idle-timeout-s', '0.2']);
    assert.equal((await openCall(session(t, server)).refusal).code, Status.DEADLINE_EXCEEDED);
  });

  test('a client that takes nothing of its answer is given up', async (t) => {
    const server = await start(t, { wide: {} }, ['--body-idle-timeout-s', '0.3']);
    const { stream } = openCall(session(t, server));
    const responded = once(stream, 'response');
    const rows = 8;
    const inputs = new Map([['x', tensor('FP32', [rows, 1], new Float32Array(rows).fill(1))]]);
    const message = MODEL_INFER.requestSerialize(rawRequest('wide', inputs));
    stream.pause();
    stream.end(frame(message.length, message));
    await responded;
    await eventually(async () => (stream.closed ? undefined : 'the call is still open'));
    await assertIdle(server);
  });
});

describe('a server that stops', { concurrency: 2 }, () => {
  test('finishes calls under way, refuses new ones, lets streams and watchers go, and exits with 0', async (t) => {
    const server = await start(t, { slow: { config: { max_batch_size: 2 } } }, ['--ingress', '2']);
    const clients = new GrpcClients(t, server);
    const busy = Array.from({ length: 4 }, () => clients.open());
    const inFlight = busy.map((client, n) => client.call('ModelInfer', slow(STEPS + n)));
    const idle = clients.open();
    await idle.call('ServerLive');
    const stream = busy[0]!.stream();
    const streamed: Message[] = [];
    stream.on('data', (message: Message) => streamed.push(message));
    const streamEnded = statusOf(stream);
    stream.on('error', () => {});
    stream.write(slow(STEPS));
    const watch = idle.watch();
    watch.on('error', () => {});
    const watchEnded = statusOf(watch);
    await once(watch, 'data');
    const reflection = idle.rawStream('/grpc.reflection.v1.ServerReflection/ServerReflectionInfo');
    reflection.on('error', () => {});
    reflection.write(Buffer.from([0x3a, 0]));
    await once(reflection, 'data');
    const vain = idle.watch('nope');
    vain.on('error', () => {});
    await once(vain, 'data');
    await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued + queue!.rows_running === 5);
    server.signal('SIGTERM');
    assert.equal((await watchEnded).code, Status.UNAVAILABLE);
    const refused = () => assertCallRefused(clients.open().call('ModelInfer', slow(1)), 'DRAINING', /shutting down/);
    await refused().catch((error: Error) => {
      // An ingress process that has nothing to finish ends at once, and with it a connection that it has just taken.
      if (!error.message.includes('No connection established')) throw error;
      return refused();
    });
    for (const [n, answer] of (await Promise.all(inFlight)).entries()) {
      assert.equal(answer.raw_output_contents[0].readBigInt64LE(), BigInt(STEPS + n));
    }
    assert.equal((await streamEnded).code, Status.UNAVAILABLE);
    assert.deepEqual(
      streamed.map(({ infer_response: { raw_output_contents: raw } }) => raw[0].readBigInt64LE()),
      [BigInt(STEPS)],
    );
    assert.deepEqual(await server.ended(), { code: exitCode('OK'), signal: null });
  });

  test('is not held up by clients that never used their connection', async (t) => {
    const server = await start(t, { slow: {} });
    const made = session(t, server);
    await once(made, 'remoteSettings');
    assert.deepEqual(await server.stop(), { code: exitCode('OK'), signal: null });
  });
});
