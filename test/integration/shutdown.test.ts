/**
 * Stopping: what is in flight is answered to its last byte, everybody else is told or let go, and the exit code says whether anything was cut.
 */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { exitCode } from '../../src/config/exit-codes.ts';
import { ChildHook } from '../support/child-hook.ts';
import { assertRefused, get, infer, inferBytes, inferPath, json, jsonBody, send } from '../support/exchange.ts';
import { assertAllAtWork, eventually, untilModel, untilRunning } from '../support/idle.ts';
import { RawConnection, requestBytes } from '../support/raw.ts';
import { type ModelEntry, makeRepository } from '../support/repository.ts';
import { launchServer, startServer, type TestServer } from '../support/server.ts';

const IDLE_CONNECTIONS = 20;
const ROUNDS = 4;
const OK = { code: exitCode('OK'), signal: null };
const CUT = { code: exitCode('DRAIN_CUT'), signal: null };

const slow = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);
const wide = (rows: number) =>
  jsonBody(
    `{"inputs":[{"name":"x","datatype":"FP32","shape":[${rows},1],"data":[${Array.from({ length: rows }, (_, n) => n + 1)}]}],"parameters":{"binary_data_output":true}}`,
  );

function start(t: TestContext, models: Record<string, ModelEntry>, args: readonly string[] = []): Promise<TestServer> {
  return startServer(t, { repository: makeRepository(t, models).dir, args });
}

async function connect(server: TestServer, bytes: Uint8Array): Promise<RawConnection> {
  const connection = await RawConnection.open(server.url);
  await connection.write(bytes);
  return connection;
}

/** Waits until new connections are told that the server is on its way out. */
async function untilDraining(url: string): Promise<void> {
  await eventually(async () => {
    const answer = await get(url, '/v2/health/ready');
    return answer.status === 503 ? undefined : `ready is ${answer.status}`;
  });
}

// Stories: workers were closed before the listeners, so late requests got 500; the exit hung on idle keep-alive sockets (sigterm-drain, 52).
describe('SIGTERM', { concurrency: 4 }, () => {
  test('requests in flight are answered; new ones are told 503; idle connections are let go; the exit code is 0', async (t) => {
    const server = await start(t, { slow: { config: { max_batch_size: 2 } } });
    const { url } = server;
    const live = requestBytes('GET', '/v2/health/live');
    const idle = await Promise.all(Array.from({ length: IDLE_CONNECTIONS }, () => connect(server, live)));
    for (const connection of idle) assert.equal((await connection.response()).status, 200);
    const steps = Array.from({ length: 6 }, (_, n) => 10_000 + n);
    const inFlight = await Promise.all(steps.map((count) => connect(server, inferBytes('slow', slow(count)))));
    await untilRunning(server, 'slow');
    server.signal('SIGTERM');
    await untilDraining(url);
    for (const connection of idle) assert.equal((await connection.closed()).length, 0);
    // The last of the slow ones is far from done: new connections are still taken, and told.
    assert.equal((await get(url, '/v2/health/live')).status, 200);
    for (const [path, request] of [
      ['/v2/health/ready', requestBytes('GET', '/v2/health/ready')],
      [inferPath('slow'), inferBytes('slow', slow(1))],
    ] as const) {
      const connection = await connect(server, request);
      const answer = await connection.response(undefined, 'POST');
      assert.equal(answer.status, 503, path);
      assert.equal(answer.header('connection'), 'close', path);
      if (path === inferPath('slow')) assertRefused(answer, 'DRAINING', /shutting down/);
      await connection.closed();
    }
    for (const [n, connection] of inFlight.entries()) {
      const answer = await connection.response(60_000, 'POST');
      assert.equal(answer.status, 200, answer.text());
      assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [steps[n]]);
      assert.equal((await connection.closed()).length, 0);
    }
    assert.deepEqual(await server.ended(), OK);
    await assert.rejects(get(url, '/v2/health/live'), /ECONNREFUSED/);
  });

  test('answers that are being written or compressed go out to their last byte', async (t) => {
    const server = await start(t, { wide: {} });
    const rows = 24;
    const plain = await connect(server, inferBytes('wide', wide(rows)));
    plain.pause();
    const { headers, body } = wide(rows);
    const compressed = await connect(
      server,
      requestBytes('POST', inferPath('wide'), [...headers, ['Accept-Encoding', 'gzip']], body),
    );
    await untilModel(server, 'wide', (model) => model.rows >= 2 * rows && model.queue!.rows_running === 0);
    server.signal('SIGTERM');
    await untilDraining(server.url);
    plain.resume();
    const answer = await plain.response(60_000, 'POST');
    assert.equal(answer.status, 200);
    const values = answer.body.subarray(answer.body.length - rows * 2 ** 20);
    for (let row = 0; row < rows; row++) assert.equal(values.readFloatLE((row + 1) * 2 ** 20 - 4), row + 1);
    const other = await compressed.response(60_000, 'POST');
    assert.deepEqual([other.status, other.header('content-encoding')], [200, 'gzip']);
    assert.deepEqual(await server.ended(), OK);
  });

  test('a request whose body is on its way is served', async (t) => {
    const server = await start(t, { slow: {} });
    const bytes = inferBytes('slow', slow(5));
    const connection = await connect(server, bytes.subarray(0, bytes.length - 10));
    // The head has to have been read, which only an answer on another connection of the same process shows.
    await eventually(async () =>
      (await server.metric('batchport_requests_in_flight')) === 1 ? undefined : 'not read',
    );
    server.signal('SIGTERM');
    await untilDraining(server.url);
    await connection.write(bytes.subarray(bytes.length - 10));
    assert.equal((await connection.response(60_000, 'POST')).status, 200);
    assert.deepEqual(await server.ended(), OK);
  });

  test('a device that dies meanwhile is replaced, and its requests are answered', async (t) => {
    const server = await start(t, { slow: {} });
    const [device] = await server.pids('device');
    const request = infer(server.url, 'slow', slow(8000));
    await untilRunning(server, 'slow');
    server.signal('SIGTERM');
    await untilDraining(server.url);
    process.kill(device!, 'SIGKILL');
    const answer = await request;
    assert.equal(answer.status, 200, answer.body.toString());
    assert.deepEqual(await server.ended(), OK);
  });

  test('what is stuck is cut at the limit, which the exit code and the log say', async (t) => {
    const server = await start(t, { slow: {}, wide: {} }, ['--drain-timeout-s', '0.3']);
    const running = await connect(server, inferBytes('slow', slow(150_000)));
    const half = await connect(server, inferBytes('slow', slow(1)).subarray(0, 100));
    const reader = await connect(server, inferBytes('wide', wide(16)));
    reader.pause();
    await untilRunning(server, 'slow');
    await untilModel(server, 'wide', ({ rows, queue }) => rows >= 16 && queue!.rows_running === 0);
    server.signal('SIGTERM');
    const cut = assert.rejects(running.response(60_000, 'POST'), /connection ended/);
    assert.deepEqual(await server.ended(), CUT);
    await cut;
    assert.equal((await server.log(({ msg }) => /were cut/.test(String(msg)))).unanswered, 3);
    for (const connection of [running, half, reader]) connection.destroy();
  });

  test('a second signal ends everything at once', async (t) => {
    const server = await start(t, { slow: {} });
    const running = await connect(server, inferBytes('slow', slow(300_000)));
    await untilRunning(server, 'slow');
    server.signal('SIGTERM');
    await server.log(({ msg }) => msg === 'draining');
    const cut = assert.rejects(running.response(60_000, 'POST'), /connection ended/);
    server.signal('SIGTERM');
    // Far sooner than the run would be over, or the time for draining.
    assert.deepEqual(await server.ended(8000), CUT);
    await cut;
    running.destroy();
  });

  test('connections that have said nothing, or half a head, hold nothing up; SIGINT is as good', async (t) => {
    const server = await start(t, { slow: {} });
    const connections = [
      await connect(server, Buffer.alloc(0)),
      await connect(server, Buffer.from('GET /v2/health/li')),
      await connect(
        server,
        Buffer.concat([requestBytes('GET', '/v2'), Buffer.from('POST /v2/models/slow/infer HTTP/1.1\r\n')]),
      ),
    ];
    await connections[2]!.response();
    server.signal('SIGINT');
    assert.deepEqual(await server.ended(), OK);
    for (const connection of connections) connection.destroy();
  });

  test('a start that is not finished is broken off', async (t) => {
    const hook = new ChildHook(t);
    hook.holdAtStart('device');
    const server = launchServer(t, { repository: makeRepository(t, ['slow']).dir, env: hook.env });
    await server.log(({ msg }) => msg === 'ingress process started');
    server.signal('SIGTERM');
    await server.log(({ msg }) => msg === 'draining');
    hook.letGo('device');
    assert.deepEqual(await server.ended(), OK);
    assert.deepEqual(server.output, []);
  });
});

// Story: what a process cut that had to be killed was not counted, and the exit code said that every request was answered.
test('an ingress that stands still is killed at the limit, and the exit code says what it cut', async (t) => {
  const server = await start(t, { slow: {} }, ['--ingress', '1', '--drain-timeout-s', '1']);
  const connection = await connect(server, inferBytes('slow', slow(1_000_000)));
  await untilRunning(server, 'slow');
  const [pid] = await server.pids('ingress');
  process.kill(pid!, 'SIGSTOP');
  server.signal('SIGTERM');
  await assert.rejects(connection.response(60_000, 'POST'), /connection ended/);
  assert.deepEqual(await server.ended(), CUT);
  assert.equal((await server.log(({ msg }) => /were cut/.test(String(msg)))).unanswered, 1);
});

// Story: native code that was torn down while threads still used it aborted, after all work was done: exit code 134 (exit-crash, 63).
test('starts and stops over and over, in the middle of runs too, end with code 0 and no process dies of it', async (t) => {
  const repository = makeRepository(t, { slow: { config: { instances: { min: 2 } } } });
  for (let round = 0; round < ROUNDS; round++) {
    const server = await startServer(t, { repository: repository.dir });
    await assertAllAtWork(server);
    const requests = [2000, 1000, 1].slice(0, round).map((steps) => infer(server.url, 'slow', slow(steps)));
    if (round > 0) await untilModel(server, 'slow', ({ queue, rows }) => queue!.rows_running > 0 || rows > 0);
    server.signal('SIGTERM');
    for (const answer of await Promise.allSettled(requests)) {
      // One that came behind the signal may have been refused, or found the door closed.
      if (answer.status === 'fulfilled') assert([200, 503].includes(answer.value.status));
      else assert.match(String(answer.reason), /connection ended|ECONNREFUSED|ECONNRESET/);
    }
    assert.deepEqual(await server.ended(), OK);
    const ends = server.logs.filter(({ msg }) => /process (ended|is killed)/.test(String(msg)));
    assert.deepEqual(ends, [], 'a process died by itself');
  }
});

test('requests without a pause while the server stops are each answered, refused, or find the door closed', async (t) => {
  const server = await start(t, { rows: {} });
  const rows = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');
  const { url } = server;
  let stopped = false;
  const statuses = new Map<number | string, number>();
  const callers = Array.from({ length: 8 }, async () => {
    while (!stopped) {
      // A connection for each request, so that none is reused after its last answer.
      const outcome = await send(url, inferPath('rows'), rows).then(
        ({ status }) => status,
        (error: Error) =>
          /ECONNREFUSED|ECONNRESET|connection ended|EPIPE/.test(error.message) ? 'closed' : error.message,
      );
      statuses.set(outcome, (statuses.get(outcome) ?? 0) + 1);
      stopped ||= outcome === 'closed';
    }
  });
  await eventually(async () => ((statuses.get(200) ?? 0) > 50 ? undefined : 'not yet under load'));
  server.signal('SIGTERM');
  assert.deepEqual(await server.ended(), OK);
  stopped = true;
  await Promise.all(callers);
  assert.deepEqual(
    [...statuses.keys()].filter((outcome) => ![200, 503, 'closed'].includes(outcome)),
    [],
  );
});
