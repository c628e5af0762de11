/**
 * Slow clients: those that hold a connection without getting anywhere are cut, in whatever part of a request they stand still; those that are only slow are served.
 * Meanwhile everybody else is served as ever.
 *
 * The timeouts are set to a second. Nothing is asserted about how soon a connection is cut, only that it is, and that steady clients outlast the timeouts.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import {
  assertRefused,
  get,
  HEADER_LENGTH,
  infer,
  inferBytes,
  inferPath,
  json,
  jsonBody,
} from '../support/exchange.ts';
import { assertIdle, assertNoMoreDescriptors, countDescriptors, type Descriptors } from '../support/idle.ts';
import { RawConnection, requestBytes } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const TIMEOUT_S = 1;
const ARGS = ['--headers-timeout-s', '--body-idle-timeout-s', '--keep-alive-timeout-s'].flatMap((flag) => [
  flag,
  String(TIMEOUT_S),
]);
const CUT_LIMIT_MS = 30_000;
const CROWD = 100;
/** Of an answer that is taken slowly. */
const SLOW_MIB = 64;

const repository = makeRepository({ after }, ['rows', 'dynamic', 'wide', 'slow']);
const server = launchServer({ after }, { repository: repository.dir, args: ARGS });

let atFirst: Descriptors;

before(async () => {
  await server.ready();
  atFirst = await countDescriptors(server);
});

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Sends the bytes one by one, a few per second, until the server has closed. Resolves with what it answered. */
async function trickle(bytes: Buffer): Promise<Buffer> {
  const connection = await RawConnection.open(server.url);
  const closed = connection.closed(CUT_LIMIT_MS);
  let open = true;
  closed.finally(() => (open = false)).catch(() => {});
  for (let at = 0; at < bytes.length && open; at++) {
    await connection.write(bytes.subarray(at, at + 1));
    await pause(100);
  }
  const answer = await closed;
  connection.destroy();
  return answer;
}

/** A request whose answer has as many MiB as it has rows. */
const wide = (rows: number) =>
  jsonBody(
    `{"inputs":[{"name":"x","datatype":"FP32","shape":[${rows},1],"data":[${Array.from({ length: rows }, (_, n) => n + 1)}]}],"parameters":{"binary_data_output":true}}`,
  );
const MIB = 2 ** 20;

describe('at the same time', { concurrency: true }, () => {
  // Stories: a slow-loris held sockets for ever; or a legal upload was cut since its whole time was limited (slow-clients-and-uploads, 54).
  test('heads that come byte by byte are cut with 408, a crowd of them too, and nobody else waits for them', async () => {
    const head = Buffer.from(`GET /v2/health/live HTTP/1.1\r\nHost: test\r\nX-Long: ${'a'.repeat(2000)}`);
    let cut = 0;
    const crowd = Array.from({ length: CROWD }, async () => {
      const answer = (await trickle(head)).toString('latin1');
      assert.match(answer, /^HTTP\/1\.1 408 /);
      assert.match(answer, /"code":"REQUEST_TIMEOUT"/);
      cut++;
    });
    let servedBetween = 0;
    const all = Promise.all(crowd);
    let done = false;
    all.finally(() => (done = true)).catch(() => {});
    while (!done) {
      assert.equal((await get(server.url, '/v2/health/live')).status, 200);
      assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
      servedBetween++;
    }
    await all;
    assert.equal(cut, CROWD);
    assert(servedBetween > 0);
  });

  test('a connection that never says anything is closed', async () => {
    const connection = await RawConnection.open(server.url);
    const answer = (await connection.closed(CUT_LIMIT_MS)).toString('latin1');
    assert(answer === '' || answer.startsWith('HTTP/1.1 408 '), answer);
    connection.destroy();
  });

  test('a connection that has been answered and says nothing more is closed', async () => {
    for (const request of [requestBytes('GET', '/v2/health/live'), inferBytes('rows', ROWS)]) {
      const connection = await RawConnection.open(server.url);
      await connection.write(request);
      assert.equal((await connection.response(undefined, 'POST')).status, 200);
      assert.equal((await connection.closed(CUT_LIMIT_MS)).length, 0);
      connection.destroy();
    }
  });

  test('a body that stands still or comes byte by byte is cut with 408', async () => {
    const head = `POST ${inferPath('rows')} HTTP/1.1\r\nHost: test\r\n`;
    const chunkedHead = Buffer.from(`${head}Transfer-Encoding: chunked\r\n\r\n`);
    const lengthHead = Buffer.from(`${head}Content-Length: ${2 ** 20}\r\n\r\n`);
    const cases = [lengthHead, Buffer.concat([lengthHead, Buffer.alloc(10_000, ' ')]), chunkedHead].map(
      async (start, n) => {
        const connection = await RawConnection.open(server.url);
        await connection.write(start);
        let open = true;
        const answered = connection.response(CUT_LIMIT_MS, 'POST').finally(() => (open = false));
        answered.catch(() => {});
        while (open && n > 0) {
          await connection.write(n === 2 ? '1\r\n \r\n' : ' ');
          await pause(50);
        }
        assertRefused(await answered, 'REQUEST_TIMEOUT', /too slowly/);
        connection.endWriting();
        await connection.closed(CUT_LIMIT_MS);
        connection.destroy();
      },
    );
    await Promise.all(cases);
  });

  test('a body that nobody wants has to come in time as well', async () => {
    for (const path of ['/v2/repository/index', '/v2/models/none/infer']) {
      const connection = await RawConnection.open(server.url);
      await connection.write(`POST ${path} HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n`);
      assert((await connection.response(undefined, 'POST')).status < 500);
      let open = true;
      const closed = connection.closed(CUT_LIMIT_MS).finally(() => (open = false));
      closed.catch(() => {});
      while (open) {
        await connection.write(' ');
        await pause(50);
      }
      await closed;
      connection.destroy();
    }
  });

  test('a steady upload that takes several times the timeouts is served', async () => {
    const count = 20_000;
    const header = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,${count}],"parameters":{"binary_data_size":${4 * count}}}],"parameters":{"binary_data_output":true}}`;
    const body = Buffer.concat([Buffer.from(header), Buffer.alloc(4 * count, 1)]);
    const bytes = requestBytes('POST', inferPath('dynamic'), [[HEADER_LENGTH, String(header.length)]], body);
    const connection = await RawConnection.open(server.url);
    const startedMs = performance.now();
    for (let at = 0; at < bytes.length; at += 4096) {
      await connection.write(bytes.subarray(at, at + 4096));
      await pause(150);
    }
    assert(performance.now() - startedMs > 2500 * TIMEOUT_S, 'the upload was too fast to show anything');
    const answer = await connection.response(undefined, 'POST');
    assert.equal(answer.status, 200, answer.text().slice(0, 200));
    connection.destroy();
  });

  test('a client that waits for a model longer than all timeouts gets its answer', async () => {
    // About three seconds of work, and nothing moves on the connection meanwhile.
    const request = jsonBody('{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[80000]}]}');
    const startedMs = performance.now();
    const connection = await RawConnection.open(server.url);
    await connection.write(inferBytes('slow', request));
    const answer = await connection.response(120_000, 'POST');
    assert.equal(answer.status, 200);
    assert(performance.now() - startedMs > 2000 * TIMEOUT_S, 'the run was too short to show anything');
    // And goes on with the same connection.
    await connection.write(inferBytes('rows', ROWS));
    assert.equal((await connection.response(undefined, 'POST')).status, 200);
    connection.destroy();
  });

  test('a client that takes its answer slowly and steadily gets all of it', async () => {
    const connection = await RawConnection.open(server.url);
    connection.pause();
    const startedMs = performance.now();
    await connection.write(inferBytes('wide', wide(SLOW_MIB)));
    const answered = connection.response(120_000, 'POST');
    let open = true;
    answered.finally(() => (open = false)).catch(() => {});
    // A little at a time: one turn of the loop reads up to 2 MiB.
    while (open && performance.now() - startedMs < 3000 * TIMEOUT_S) {
      connection.resume();
      await new Promise((resolve) => setImmediate(resolve));
      connection.pause();
      await pause(100);
    }
    assert(open, 'the answer was taken too fast to show anything');
    connection.resume();
    const answer = await answered;
    assert.equal(answer.status, 200);
    assert(answer.body.length >= SLOW_MIB * MIB);
    assert.equal(answer.body.readFloatLE(answer.body.length - 4), SLOW_MIB);
    connection.destroy();
  });
});

test('a client that takes nothing of its answer is cut, and its answer freed', async () => {
  const connection = await RawConnection.open(server.url);
  connection.pause();
  await connection.write(inferBytes('wide', wide(16)));
  const before = await countDescriptors(server);
  // The server closes once nothing has moved for the timeout, which this process notices only when it reads.
  await assertIdle(server);
  const gone = [...before].map(([place, files]) => {
    const socket = place.startsWith('ingress') ? files.indexOf('socket:') : -1;
    return [place, files.filter((_, n) => n !== socket)] as const;
  });
  await assertNoMoreDescriptors(server, new Map(gone));
  connection.resume();
  const received = await connection.closed(CUT_LIMIT_MS).catch(() => Buffer.alloc(0));
  assert(received.length < 16 * MIB, `${received.length} bytes`);
  connection.destroy();
});

test('nothing of the slow ones is left', async () => {
  await assertIdle(server);
  await assertNoMoreDescriptors(server, atFirst);
  assert.deepEqual(json(await get(server.url, '/v2/health/ready')), { ready: true });
});
