/**
 * Limits of request bodies: what is within them is served, what is beyond is refused as early as it can be known, by an answer that the client gets to see.
 *
 * Two servers: one with a small limit, so that every form of a body can be tried on both sides of it, and one with the limits of the defaults.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  type Answer,
  assertRefused,
  binaryBody,
  type HeaderList,
  infer,
  jsonBody,
  outputsOf,
} from '../support/exchange.ts';
import { assertIdle, complaints, eventually } from '../support/idle.ts';
import { residentBytes } from '../support/process-table.ts';
import { RawConnection, requestBytes } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer, startServer, type TestServer } from '../support/server.ts';

const LIMIT_BYTES = 256 * 1024;
const MARGIN_BYTES = 128;
const MIB = 2 ** 20;
const INFER = '/v2/models/dynamic/infer';
/** More than the sockets' buffers hold, so that a server which does not read is noticed. */
const ENDLESS_BYTES = 64 * MIB;
const PIECE_BYTES = 64 * 1024;

const repository = makeRepository({ after }, ['dynamic', 'idB', 'id_int64', 'wide', 'rows']);
const small = launchServer({ after }, { repository: repository.dir, args: ['--max-body-bytes', String(LIMIT_BYTES)] });
const usual = launchServer({ after }, { repository: repository.dir });

before(() => Promise.all([small.ready(), usual.ready()]));

const columns = (count: number) => `{"name":"x","datatype":"FP32","shape":[1,${count}]`;

/** A JSON body of exactly `length` bytes: blanks are part of JSON. */
function jsonOf(length: number): Buffer {
  const text = `{"inputs":[${columns(4)},"data":[1,2,3,4]}]}`;
  return Buffer.from(text.padEnd(length, ' '));
}

/** A binary body of exactly `length` bytes; the tensor fills it. */
function binaryOf(length: number): { headers: HeaderList; body: Buffer } {
  const head = (bytes: number) =>
    `{"inputs":[${columns(bytes / 4)},"parameters":{"binary_data_size":${bytes}}}],"parameters":{"binary_data_output":true}}`;
  const bytes = Math.floor((length - head(length).length) / 4) * 4;
  const header = head(bytes).padEnd(length - bytes, ' ');
  return binaryBody(header, Buffer.alloc(bytes));
}

/** A body cut into chunks of `size` bytes. */
function chunked(body: Buffer, size: number): Buffer {
  const parts: Buffer[] = [];
  for (let at = 0; at < body.length; at += size) {
    const piece = body.subarray(at, at + size);
    parts.push(Buffer.from(`${piece.length.toString(16)}\r\n`), piece, Buffer.from('\r\n'));
  }
  return Buffer.concat([...parts, Buffer.from('0\r\n\r\n')]);
}

async function post(server: TestServer, headers: HeaderList, body: Buffer): Promise<Answer> {
  const connection = await RawConnection.open(server.url);
  try {
    await connection.write(requestBytes('POST', INFER, headers, body));
    return await connection.response(60_000, 'POST');
  } finally {
    connection.destroy();
  }
}

// Stories: bodies of 8 MiB crashed the server; limits were counted at one place only, or nobody knew which one refused (body-size-limits, 55).
test('a body just below the limit is served and one just above is refused, in JSON and binary, with a length and in chunks', async () => {
  const forms = {
    json: (length: number) => ({ headers: [] as HeaderList, body: jsonOf(length) }),
    binary: binaryOf,
  };
  for (const [form, make] of Object.entries(forms)) {
    for (const framing of ['a length', 'chunks']) {
      for (const [length, fits] of [
        [LIMIT_BYTES - MARGIN_BYTES, true],
        [LIMIT_BYTES, true],
        [LIMIT_BYTES + 1, false],
        [LIMIT_BYTES + MARGIN_BYTES, false],
      ] as const) {
        const { headers, body } = make(length);
        assert.equal(body.length, length);
        const answer =
          framing === 'chunks'
            ? await post(small, [...headers, ['Transfer-Encoding', 'chunked']], chunked(body, 1000))
            : await post(small, headers, body);
        const what = `${form}, ${framing}, ${length}: ${answer.body.toString('utf8', 0, 200)}`;
        assert.equal(answer.status, fits ? 200 : 413, what);
        if (!fits) assertRefused(answer, 'BODY_TOO_LARGE', new RegExp(`${LIMIT_BYTES} bytes \\(--max-body-bytes\\)`));
      }
    }
  }
});

test('a declared length beyond the limit is refused before a byte of the body has come', async () => {
  for (const length of [LIMIT_BYTES + 1, 600 * MIB, Number.MAX_SAFE_INTEGER]) {
    const connection = await RawConnection.open(small.url);
    await connection.write(`POST ${INFER} HTTP/1.1\r\nHost: test\r\nContent-Length: ${length}\r\n\r\n`);
    const answer = await connection.response(undefined, 'POST');
    assertRefused(answer, 'BODY_TOO_LARGE', /--max-body-bytes/);
    assert.equal(answer.header('connection'), 'close');
    connection.destroy();
  }
});

/** Sends pieces until the server has closed or everything is sent. */
async function pour(connection: RawConnection, piece: Buffer, bytes: number): Promise<void> {
  for (let sent = 0; sent < bytes && connection.error === undefined; sent += piece.length)
    await connection.write(piece);
}

test('a client that goes on sending gets the refusal all the same, however the body is framed', async () => {
  for (const framing of [`Content-Length: ${ENDLESS_BYTES}`, 'Transfer-Encoding: chunked']) {
    const connection = await RawConnection.open(small.url);
    await connection.write(`POST ${INFER} HTTP/1.1\r\nHost: test\r\n${framing}\r\n\r\n`);
    const piece = Buffer.alloc(PIECE_BYTES, ' ');
    const data = framing.startsWith('Transfer')
      ? Buffer.concat([Buffer.from(`${PIECE_BYTES.toString(16)}\r\n`), piece, Buffer.from('\r\n')])
      : piece;
    // All of it is sent before the answer is looked at, as simple clients do.
    await pour(connection, data, ENDLESS_BYTES);
    assertRefused(await connection.response(60_000, 'POST'), 'BODY_TOO_LARGE', /--max-body-bytes/);
    connection.destroy();
  }
});

test('a body for a path that wants none is passed over up to a limit, then the connection is closed', async () => {
  const connection = await RawConnection.open(small.url);
  await connection.write(requestBytes('POST', '/v2/repository/index', [], Buffer.alloc(100_000, ' ')));
  assert.equal((await connection.response(undefined, 'POST')).status, 200);
  await connection.write(requestBytes('POST', '/v2/models/none/infer', [], Buffer.alloc(100_000, ' ')));
  assert.equal((await connection.response(undefined, 'POST')).status, 404);
  await connection.write(
    `POST /v2/models/none/infer HTTP/1.1\r\nHost: test\r\nContent-Length: ${ENDLESS_BYTES}\r\n\r\n`,
  );
  await pour(connection, Buffer.alloc(PIECE_BYTES), ENDLESS_BYTES);
  const last = await connection.response(60_000, 'POST');
  assert.deepEqual([last.status, last.header('connection')], [404, 'close']);
  await connection.closed(60_000);
  connection.destroy();
  const endless = await RawConnection.open(small.url);
  await endless.write('POST /v2/models/none/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n');
  assert.equal((await endless.response(undefined, 'POST')).status, 404);
  const chunk = Buffer.concat([Buffer.from('10000\r\n'), Buffer.alloc(0x10000), Buffer.from('\r\n')]);
  await pour(endless, chunk, ENDLESS_BYTES);
  await endless.closed(60_000);
  endless.destroy();
});

test('a body that ends early frees everything it held', async () => {
  const [before] = await small.pids('ingress');
  for (let n = 0; n < 20; n++) {
    const connection = await RawConnection.open(small.url);
    await connection.write(`POST ${INFER} HTTP/1.1\r\nHost: test\r\nContent-Length: ${LIMIT_BYTES}\r\n\r\n`);
    await connection.write(Buffer.alloc(LIMIT_BYTES - 1));
    connection.destroy(n % 2 === 0);
  }
  // Were the bytes of those still counted, the last of these would find no room.
  for (let n = 0; n < 20; n++) assert.equal((await post(small, [], jsonOf(LIMIT_BYTES))).status, 200);
  assert.deepEqual(await small.pids('ingress'), [before]);
});

test('the default limit is 64 MiB: a tensor just below it comes back bit for bit, one above is refused', async () => {
  const { headers, body } = binaryOf(64 * MIB - MARGIN_BYTES);
  const tensorBytes = body.length - Number(headers[0]![1]);
  for (let at = body.length - tensorBytes; at < body.length; at += 4096) body.writeFloatLE(at, at);
  const answer = await post(usual, headers, body);
  assert.equal(answer.status, 200, answer.body.toString('utf8', 0, 200));
  assert(answer.body.subarray(answer.body.length - tensorBytes).equals(body.subarray(body.length - tensorBytes)));
  const large = binaryOf(64 * MIB + MARGIN_BYTES);
  assertRefused(await post(usual, large.headers, large.body), 'BODY_TOO_LARGE', /67108864 bytes/);
});

test('small numbers in JSON that grow eightfold in memory are served or refused with what to raise, never a crash', async () => {
  const pids = await usual.pids('ingress');
  for (const [elements, status] of [
    [2 * MIB, 200],
    [30 * MIB, 413],
  ] as const) {
    const text = Buffer.concat([
      Buffer.from(`{"inputs":[{"name":"x","datatype":"INT64","shape":[${elements}],"data":[`),
      Buffer.alloc(2 * elements - 1, '7,'),
      Buffer.from(`]}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}`),
    ]);
    assert(text.length < 64 * MIB);
    const answer = await infer(usual.url, 'id_int64', { headers: [], body: text });
    assert.equal(answer.status, status, answer.body.toString('utf8', 0, 200));
    if (status === 413) assertRefused(answer, 'BODY_TOO_LARGE', /queue\.max_bytes/);
    else {
      const data = outputsOf(answer).get('y')?.data as BigInt64Array;
      assert(data.every((value) => value === 7n));
    }
  }
  assert.deepEqual(await usual.pids('ingress'), pids);
});

test('while as many bytes of bodies are on their way as may be, a further one is refused before a byte of it has come', async (t) => {
  const server = await startServer(t, {
    repository: repository.dir,
    args: ['--ingress', '1', '--max-body-bytes', String(32 * MIB)],
  });
  const head = `POST ${INFER} HTTP/1.1\r\nHost: test\r\nContent-Length: ${32 * MIB}\r\n\r\n`;
  const slow: RawConnection[] = [];
  for (let n = 0; n < 8; n++) {
    const connection = await RawConnection.open(server.url);
    await connection.write(head);
    await connection.write(Buffer.alloc(32 * MIB - 1, ' '));
    slow.push(connection);
  }
  // All of it is there once even a small body has no room.
  await eventually(async () => {
    const { status } = await post(server, [], jsonOf(4096));
    return status === 429 ? undefined : `answer ${status}`;
  }, 60_000);
  const next = await RawConnection.open(server.url);
  await next.write(head);
  assertRefused(await next.response(60_000, 'POST'), 'QUEUE_FULL', /as many bytes of requests and answers as it may/);
  next.destroy();
  for (const connection of slow) connection.destroy();
  await eventually(async () => {
    const { status } = await post(server, [], jsonOf(4096));
    return status === 200 ? undefined : `answer ${status}`;
  }, 60_000);
});

test('many clients that do not take their answers are refused further ones, and memory stays bounded', async () => {
  // 1 MiB of answer for each of these short requests.
  const request = (n: number) =>
    jsonBody(
      `{"id":"${n}","inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}],"parameters":{"binary_data_output":true}}`,
    );
  const connections: RawConnection[] = [];
  const [pid] = await small.pids('ingress');
  const rssBefore = residentBytes(pid!);
  // Each takes what the sockets of its connection hold, and leaves the rest to the server, until that holds as much as it may.
  await eventually(async () => {
    const connection = await RawConnection.open(small.url);
    connection.pause();
    connections.push(connection);
    const { headers, body } = request(connections.length);
    await connection.write(
      Buffer.concat(Array.from({ length: 64 }, () => requestBytes('POST', '/v2/models/wide/infer', headers, body))),
    );
    const answer = await infer(small.url, 'wide', request(0));
    if (answer.status !== 429) return `answer ${answer.status} beside ${connections.length} slow readers`;
    assertRefused(answer, 'QUEUE_FULL', /Retry later/);
    return undefined;
  }, 60_000);
  const growth = residentBytes(pid!) - rssBefore;
  assert(growth < 1024 * MIB, `the ingress process grew by ${Math.round(growth / MIB)} MiB`);
  for (const connection of connections) connection.destroy(true);
  await assertIdle(small);
  await eventually(async () => {
    const { status } = await infer(small.url, 'wide', request(0));
    return status === 200 ? undefined : `answer ${status}`;
  });
});

test('after all this the servers are as they were', async () => {
  for (const server of [small, usual]) {
    await assertIdle(server);
    assert.deepEqual(complaints(server), []);
  }
});
