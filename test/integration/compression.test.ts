/**
 * Compressed bodies: what clients send under gzip and deflate is understood, what is broken or grows beyond the limit is refused, and answers are compressed as
 * the client asks.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { constants, deflateRawSync, deflateSync, gunzipSync, gzipSync, inflateSync } from 'node:zlib';
import {
  type Answer,
  assertRefused,
  binaryBody,
  HEADER_LENGTH,
  type HeaderList,
  inferPath,
  json,
  outputsOf,
  send,
} from '../support/exchange.ts';
import { assertIdle } from '../support/idle.ts';
import { residentBytes } from '../support/process-table.ts';
import { RawConnection, requestBytes } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, type TestTensor, tensor } from '../support/tensor.ts';

const MIB = 2 ** 20;
const LIMIT_BYTES = 4 * MIB;
const ENCODINGS = { gzip: gzipSync, 'x-gzip': gzipSync, deflate: deflateSync } as const;

const repository = makeRepository({ after }, ['dynamic']);
const server = launchServer({ after }, { repository: repository.dir, args: ['--max-body-bytes', String(LIMIT_BYTES)] });

before(() => server.ready());

const VALUES = Float32Array.from({ length: 1000 }, (_, n) => n / 8);
const EXPECTED = tensor('FP32', [1, VALUES.length], VALUES) as TestTensor;
const HEAD = `"name":"x","datatype":"FP32","shape":[1,${VALUES.length}]`;
const JSON_BODY = Buffer.from(`{"inputs":[{${HEAD},"data":[${VALUES.join()}]}]}`);
const BINARY = binaryBody(
  `{"inputs":[{${HEAD},"parameters":{"binary_data_size":${VALUES.byteLength}}}],"parameters":{"binary_data_output":true}}`,
  new Uint8Array(VALUES.buffer),
);

function post(body: Uint8Array, headers: HeaderList): Promise<Answer> {
  return send(server.url, inferPath('dynamic'), { headers, body: Buffer.from(body) });
}

function postEncoded(body: Uint8Array, encoding: string): Promise<Answer> {
  return post(body, [['Content-Encoding', encoding]]);
}

function assertEchoed(answer: Answer): void {
  assertSameTensor(outputsOf(answer).get('y'), EXPECTED);
}

test('gzip and deflate bodies are understood, in JSON and in binary', async () => {
  for (const [encoding, compress] of Object.entries(ENCODINGS)) {
    assertEchoed(await postEncoded(compress(JSON_BODY), encoding));
    // The length of the header is that of the expanded JSON.
    assertEchoed(await post(compress(BINARY.body), [...BINARY.headers, ['Content-Encoding', encoding.toUpperCase()]]));
  }
});

test('bare deflate data is understood under the name of deflate, at every level', async () => {
  assertEchoed(await postEncoded(deflateRawSync(JSON_BODY), 'deflate'));
  for (let level = 0; level <= 9; level++) {
    assertEchoed(await postEncoded(deflateSync(JSON_BODY, { level }), 'deflate'));
    assertEchoed(await postEncoded(deflateRawSync(JSON_BODY, { level }), 'deflate'));
  }
});

test('several gzip members are one body', async () => {
  const middle = JSON_BODY.length >> 1;
  const members = [JSON_BODY.subarray(0, middle), Buffer.alloc(0), JSON_BODY.subarray(middle)];
  assertEchoed(await postEncoded(Buffer.concat(members.map((member) => gzipSync(member))), 'gzip'));
});

test('identity and an empty name are no encoding', async () => {
  for (const name of ['identity', 'Identity', '']) assertEchoed(await postEncoded(JSON_BODY, name));
});

test('a compressed body in chunks, split at any place, is the same body', async () => {
  const body = gzipSync(JSON_BODY);
  const connection = await RawConnection.open(server.url);
  const head = `POST ${inferPath('dynamic')} HTTP/1.1\r\nHost: test\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n`;
  await connection.write(head);
  for (let at = 0; at < body.length; at += 97) {
    const piece = body.subarray(at, at + 97);
    await connection.write(
      Buffer.concat([Buffer.from(`${piece.length.toString(16)}\r\n`), piece, Buffer.from('\r\n')]),
    );
  }
  await connection.write('0\r\n\r\n');
  assertEchoed(await connection.response(undefined, 'POST'));
  connection.destroy();
});

test('another encoding is 415 and says which there are, before the body is read', async () => {
  for (const encoding of [
    'br',
    'zstd',
    'compress',
    'gzip, gzip',
    'gzip, deflate',
    'identity, gzip',
    'nonsense',
    'gzip;q=1',
  ]) {
    const connection = await RawConnection.open(server.url);
    const head = `POST ${inferPath('dynamic')} HTTP/1.1\r\nHost: test\r\nContent-Encoding: ${encoding}\r\nContent-Length: 1000\r\n\r\n`;
    await connection.write(head);
    const answer = await connection.response(undefined, 'POST');
    assertRefused(answer, 'UNSUPPORTED_ENCODING', /gzip, deflate/);
    assert.equal(answer.header('accept-encoding'), 'gzip, deflate', encoding);
    connection.destroy();
  }
  const twice: HeaderList = [
    ['Content-Encoding', 'gzip'],
    ['Content-Encoding', 'gzip'],
  ];
  assertRefused(await post(gzipSync(gzipSync(JSON_BODY)), twice), 'UNSUPPORTED_ENCODING', /one Content-Encoding/);
});

test('broken data is 400: cut anywhere, with something behind it, damaged, in the other format, or not compressed at all', async () => {
  const gzip = gzipSync(JSON_BODY);
  const deflate = deflateSync(JSON_BODY);
  const damaged = Buffer.from(gzip);
  damaged[gzip.length >> 1]! ^= 0xff;
  const wrongSum = Buffer.from(gzip);
  wrongSum[gzip.length - 8]! ^= 1;
  const wrongLength = Buffer.from(gzip);
  wrongLength[gzip.length - 1]! ^= 1;
  const cases: readonly (readonly [body: Uint8Array, encoding: string])[] = [
    ...[0, 1, 5, 10, 11, gzip.length >> 1, gzip.length - 9, gzip.length - 8, gzip.length - 1].map(
      (length) => [gzip.subarray(0, length), 'gzip'] as const,
    ),
    ...[0, 1, 2, 3, deflate.length >> 1, deflate.length - 1].map(
      (length) => [deflate.subarray(0, length), 'deflate'] as const,
    ),
    [Buffer.concat([gzip, Buffer.from('junk')]), 'gzip'],
    [Buffer.concat([gzip, Buffer.alloc(10)]), 'gzip'],
    [Buffer.concat([gzip, gzip.subarray(0, 20)]), 'gzip'],
    [Buffer.concat([deflate, Buffer.from('junk')]), 'deflate'],
    [damaged, 'gzip'],
    [wrongSum, 'gzip'],
    [wrongLength, 'gzip'],
    [deflate, 'gzip'],
    [gzip, 'deflate'],
    [JSON_BODY, 'gzip'],
    [JSON_BODY, 'deflate'],
  ];
  for (const [body, encoding] of cases) {
    assertRefused(await postEncoded(body, encoding), 'BAD_REQUEST', /not valid (gzip|deflate) data|JSON/);
  }
  assertEchoed(await postEncoded(gzip, 'gzip'));
});

test('the limit of bodies counts expanded bytes', async () => {
  for (const [length, status] of [
    [LIMIT_BYTES, 200],
    [LIMIT_BYTES + 1, 413],
  ] as const) {
    const body = Buffer.from(JSON_BODY.toString('latin1').padEnd(length, ' '));
    for (const [encoding, compress] of Object.entries(ENCODINGS)) {
      const answer = await postEncoded(compress(body), encoding);
      assert.equal(answer.status, status, `${encoding} ${length}`);
      if (status === 413) assertRefused(answer, 'BODY_TOO_LARGE', /--max-body-bytes/);
    }
  }
});

/** A request of a few dozen kilobytes that grows to sixteen times the limit. */
function bombOf(encoding: string, compress: (data: Buffer) => Buffer): Buffer {
  return requestBytes('POST', inferPath('dynamic'), [['Content-Encoding', encoding]], compress(Buffer.alloc(64 * MIB)));
}

// Story: one megabyte of gzip became one gigabyte of zeros in memory (compressed-request-bomb, 29).
test('a hundred bombs at once are refused, and memory stays within a few bodies', async () => {
  const [pid] = await server.pids('ingress');
  const bombs = [bombOf('gzip', gzipSync), bombOf('deflate', deflateSync)];
  const before = residentBytes(pid!);
  let peak = before;
  const watch = setInterval(() => {
    peak = Math.max(peak, residentBytes(pid!));
  }, 5);
  try {
    const connections = await Promise.all(Array.from({ length: 100 }, () => RawConnection.open(server.url)));
    await Promise.all(connections.map((connection, n) => connection.write(bombs[n % bombs.length]!)));
    for (const connection of connections) {
      assertRefused(await connection.response(60_000, 'POST'), 'BODY_TOO_LARGE', /--max-body-bytes/);
      connection.destroy();
    }
  } finally {
    clearInterval(watch);
  }
  // Expanded all at once to the limit they would be 400 MiB and more.
  assert(peak - before < 200 * MIB, `grew by ${Math.round((peak - before) / MIB)} MiB`);
  assertEchoed(await post(JSON_BODY, []));
});

test('a client that leaves while its body waits to be expanded costs nothing', async () => {
  const body = bombOf('gzip', gzipSync);
  for (let n = 0; n < 30; n++) {
    const connection = await RawConnection.open(server.url);
    await connection.write(body);
    connection.destroy(true);
  }
  assertEchoed(await postEncoded(gzipSync(JSON_BODY), 'gzip'));
});

test('answers are compressed as the client asks, the JSON and the binary form', async () => {
  const expand = { gzip: gunzipSync, deflate: inflateSync };
  const cases: readonly (readonly [accept: string, encoding: 'gzip' | 'deflate' | undefined])[] = [
    ['gzip', 'gzip'],
    ['deflate', 'deflate'],
    ['GZIP', 'gzip'],
    ['gzip, deflate', 'gzip'],
    ['deflate, gzip', 'deflate'],
    ['gzip;q=0.5, deflate;q=0.8', 'deflate'],
    ['gzip;q=0', undefined],
    ['gzip;q=0, deflate', 'deflate'],
    ['br, zstd', undefined],
    ['br;q=1, gzip;q=0.1', 'gzip'],
    ['identity', undefined],
    ['gzip;q=nonsense', undefined],
    [`${'a,'.repeat(500)}gzip`, undefined],
  ];
  for (const [accept, encoding] of cases) {
    for (const { headers, body } of [{ headers: [] as HeaderList, body: JSON_BODY }, BINARY]) {
      const answer = await post(body, [...headers, ['Accept-Encoding', accept]]);
      assert.equal(answer.header('content-encoding'), encoding, accept);
      assert.equal(answer.header('content-length'), String(answer.body.length));
      const expanded = encoding === undefined ? answer.body : expand[encoding](answer.body);
      assertEchoed({ status: answer.status, body: expanded, header: (name) => answer.header(name) });
      if (headers.length > 0) {
        // Counts bytes of the expanded body here too.
        const length = Number(answer.header(HEADER_LENGTH));
        assert.doesNotThrow(() => JSON.parse(expanded.toString('utf8', 0, length)));
      }
    }
  }
});

test('short answers and refusals are not compressed', async () => {
  const short = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]}';
  const accept: HeaderList = [['Accept-Encoding', 'gzip']];
  const answer = await post(Buffer.from(short), accept);
  assert.equal(answer.header('content-encoding'), undefined);
  assert.equal(answer.status, 200);
  const refused = await post(Buffer.from('{'), accept);
  assert.equal(refused.header('content-encoding'), undefined);
  assert.equal(json(refused).code, 'BAD_REQUEST');
});

test('a body is expanded in full, whatever way its data was flushed', async () => {
  const flushed = gzipSync(JSON_BODY, { finishFlush: constants.Z_SYNC_FLUSH });
  // Without an end marker it is cut: not to be taken for whole.
  assertRefused(await postEncoded(flushed, 'gzip'), 'BAD_REQUEST', /not valid gzip/);
  assertEchoed(await postEncoded(gzipSync(JSON_BODY, { flush: constants.Z_FULL_FLUSH, level: 1 }), 'gzip'));
  await assertIdle(server);
});
