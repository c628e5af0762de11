/**
 * The edges of HTTP: methods and paths the server does not know, heads that are no heads, several requests at once, bodies where none is needed.
 *
 * Nothing of it may be a 5xx, and what is wrong with one request must not harm the next.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ENDPOINTS } from '../../src/ingress/router.ts';
import {
  type Answer,
  assertRefused,
  get,
  infer,
  inferBytes,
  json,
  jsonBody,
  outputsOf,
  send,
} from '../support/exchange.ts';
import { assertIdle, complaints } from '../support/idle.ts';
import { RawConnection, rawRequest, requestBytes } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, tensor } from '../support/tensor.ts';

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'TRACE', 'PATCH', 'PROPFIND'];
const LONG_NAME = `long-${'n'.repeat(195)}`;
const ODD_NAME = 'two words & 50%';

const repository = makeRepository(
  { after },
  {
    rows: {},
    [LONG_NAME]: { fixture: 'rows' },
    [ODD_NAME]: { fixture: 'rows' },
  },
);
const server = launchServer({ after }, { repository: repository.dir, args: ['--system-shared-memory'] });

before(() => server.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

/** A connection of its own, whatever the bytes are. */
function ask(bytes: string | Uint8Array, method = 'GET'): Promise<Answer> {
  return rawRequest(server.url, bytes, { method });
}

async function assertServes(): Promise<void> {
  assertSameTensor(
    outputsOf(await infer(server.url, 'rows', ROWS)).get('y'),
    tensor('FP32', [1, 4], Float32Array.of(1, 2, 3, 4)),
  );
}

// Stories: fuzzed methods and routes gave 500, or 404 where 405 belongs (methods-and-paths, 57).
test('every route answers every method: what it takes, or 405 with what it takes', async () => {
  for (const { path, methods } of Object.values(ENDPOINTS)) {
    const url = ['/v2', ...path.map((part) => (part === ':m' ? 'rows' : part))].join('/');
    for (const method of METHODS) {
      const answer = await ask(requestBytes(method, url), method);
      const what = `${method} ${url}`;
      if ((methods as readonly string[]).includes(method)) {
        assert.notEqual(answer.status, 405, what);
        // What there is not says so: shared memory of GPUs.
        assert(answer.status < 500 || answer.status === 501, `${what}: ${answer.status}`);
        continue;
      }
      assert.equal(answer.status, 405, what);
      assert.equal(answer.header('allow'), methods.join(', '), what);
      if (method !== 'HEAD') assertRefused(answer, 'METHOD_NOT_ALLOWED', /this path takes/);
    }
  }
});

test('a path that is none is 404 for every method', async () => {
  for (const method of METHODS) {
    const answer = await ask(requestBytes(method, '/v3/models'), method);
    assert.equal(answer.status, 404, method);
  }
});

test('HEAD has the status and the headers of GET and no body', async () => {
  for (const path of ['/v2', '/v2/health/live', '/v2/models/rows', '/v2/models/none', '/v2/models/rows/versions/x']) {
    // Two on one connection: a body would be taken for the beginning of the second answer.
    const connection = await RawConnection.open(server.url);
    await connection.write(Buffer.concat([requestBytes('HEAD', path), requestBytes('GET', path)]));
    const head = await connection.response(undefined, 'HEAD');
    const whole = await connection.response(undefined, 'GET');
    connection.destroy();
    assert.equal(head.status, whole.status, path);
    assert.equal(head.header('content-length'), String(whole.body.length), path);
    assert.equal(head.header('content-type'), whole.header('content-type'), path);
  }
});

test('CONNECT is refused: the server is no proxy', async () => {
  const answer = await ask('CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n', 'POST');
  assertRefused(answer, 'METHOD_NOT_ALLOWED', /no proxy/);
});

test('a malformed or unknown path is a 4xx that says so, and means no other path', async () => {
  const cases: readonly (readonly [path: string, status: number])[] = [
    ['/', 404],
    ['/v2/', 200],
    ['//v2', 404],
    ['/v2//health/live', 404],
    ['/v2/health/live/', 404],
    ['/V2/health/live', 404],
    ['/v2/health/live?x=1', 200],
    ['/v2/health/live?', 200],
    ['/v2/health/live#top', 200],
    ['/v2/models', 404],
    ['/v2/models/', 404],
    ['/v2/models//ready', 404],
    ['/v2/models/%zz', 400],
    ['/v2/models/%', 400],
    ['/v2/models/%c3', 400],
    ['/v2/models/rows%', 400],
    ['/v2/models/%00/ready', 404],
    ['/v2/models/rows%00', 404],
    ['/v2/models/%2e%2e/ready', 404],
    ['/v2/models/../models/rows', 404],
    ['/v2/models/rows/../rows', 404],
    ['/v2/models/..%2frows', 404],
    ['/v2/models/rows%2fversions%2f1', 404],
    ['/v2/models/__proto__', 404],
    ['/v2/models/constructor/ready', 404],
    ['/v2/models/%72ows', 200],
    ['/v2/models/rows/infer/more', 404],
    ['/v2/models/rows/versions', 404],
    ['/v2/models/rows/versions/', 404],
    ['/v2/models/rows/versions//ready', 404],
    ['/v2/models/rows/versions/1/ready', 200],
    [`/v2/models/${'a'.repeat(8000)}`, 404],
    [`/v2/models/${'a'.repeat(9000)}`, 400],
    [`/v2/models/${'a'.repeat(20_000)}`, 431],
    [`/v2/health/live?${'a'.repeat(9000)}`, 400],
    ['http://example.org/v2/health/live', 200],
    ['HTTP://example.org:80/v2/health/live?x=1', 200],
    ['http://example.org', 404],
    ['https://example.org/v2', 200],
    ['ftp://example.org/v2', 404],
    ['*', 404],
  ];
  for (const [path, status] of cases) {
    const answer = await get(server.url, path);
    assert.equal(answer.status, status, `${path.slice(0, 60)}: ${answer.body.toString('utf8', 0, 200)}`);
    if (status === 200) continue;
    const { error, code } = json(answer);
    assert(typeof error === 'string' && error !== '' && typeof code === 'string', path.slice(0, 60));
  }
});

test('names in error messages are shortened', async () => {
  const answer = await get(server.url, `/v2/models/${'a'.repeat(8000)}`);
  assertRefused(answer, 'MODEL_NOT_FOUND', /unknown model/);
  assert(answer.body.length < 1000, `${answer.body.length} bytes`);
});

// Story: routers with a limit of 100 characters per segment answered 404 (fastify-style-content-types, 16).
test('model names of 200 characters, with blanks and with percent signs have routes', async () => {
  for (const name of [LONG_NAME, ODD_NAME]) {
    const path = `/v2/models/${encodeURIComponent(name)}`;
    assert.equal(json(await get(server.url, path)).name, name);
    assert.equal((await get(server.url, `${path}/versions/1/ready`)).status, 200);
    assert.equal((await infer(server.url, name, ROWS)).status, 200);
  }
});

// Story: curl's own content type got 415 since the framework knew parsers for JSON only (16).
test('the content type of an inference request is of no importance', async () => {
  for (const type of [
    'application/x-www-form-urlencoded',
    'application/octet-stream',
    'application/json; charset=utf-8',
    'multipart/form-data; boundary=x',
    'text/plain',
    'not a type',
    '',
  ]) {
    const answer = await infer(server.url, 'rows', { headers: [['Content-Type', type]], body: ROWS.body });
    assert.equal(answer.status, 200, type);
  }
  await assertServes();
});

// Story: an empty POST with a JSON content type got 400 from the framework before the handler saw it (16).
test('POST to the repository takes no body, an empty one, and one of any kind', async () => {
  const bodies: readonly (readonly [headers: readonly (readonly [string, string])[], body: string])[] = [
    [[], ''],
    [[['Content-Type', 'application/json']], ''],
    [[['Content-Type', 'application/json']], '{}'],
    [[['Content-Type', 'application/json']], '{"ready":true}'],
    [[['Content-Type', 'application/x-www-form-urlencoded']], '{}'],
    [[['Content-Type', 'application/json']], 'not json'],
    [[['Transfer-Encoding', 'chunked']], '0\r\n\r\n'],
  ];
  for (const [headers, body] of bodies) {
    const what = `${JSON.stringify(headers)} ${body}`;
    const connection = await RawConnection.open(server.url);
    await connection.write(requestBytes('POST', '/v2/repository/index', headers, body));
    const index = await connection.response(undefined, 'POST');
    assert.equal(index.status, 200, what);
    assert.equal((JSON.parse(index.text()) as unknown[]).length, 3, what);
    // The same connection goes on: nothing of the body is left on it.
    for (const action of ['load', 'unload']) {
      await connection.write(requestBytes('POST', `/v2/repository/models/rows/${action}`, headers, body));
      assertRefused(await connection.response(undefined, 'POST'), 'BAD_REQUEST', /read at start/);
    }
    connection.destroy();
  }
  const bare = await ask('POST /v2/repository/index HTTP/1.1\r\nHost: test\r\n\r\n', 'POST');
  assert.equal(bare.status, 200);
});

test('an inference request without a body is refused', async () => {
  for (const head of ['', 'Content-Length: 0\r\n', 'Content-Type: application/json\r\nContent-Length: 0\r\n']) {
    const answer = await ask(`POST /v2/models/rows/infer HTTP/1.1\r\nHost: test\r\n${head}\r\n`, 'POST');
    assertRefused(answer, 'BAD_REQUEST', /JSON object/);
  }
});

test('what is not HTTP gets an answer that says so, and its connection is closed', async () => {
  const post = 'POST /v2/models/rows/infer HTTP/1.1\r\nHost: test\r\n';
  const cases: readonly (readonly [bytes: string, status: number])[] = [
    ['\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', 400],
    ['PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400],
    ['GET\r\n\r\n', 400],
    ['GET /v2\r\n\r\n', 400],
    ['GET /v2 HTTP/9.9\r\nHost: test\r\n\r\n', 400],
    ['FETCH /v2 HTTP/1.1\r\nHost: test\r\n\r\n', 400],
    ['get /v2 HTTP/1.1\r\nHost: test\r\n\r\n', 400],
    ['GET /v2 HTTP/1.1\r\nHost test\r\n\r\n', 400],
    ['GET /v2 HTTP/1.1\r\nHost: test\r\nA B: c\r\n\r\n', 400],
    ['GET /v2 HTTP/1.1\r\nHost: test\r\nX: a\x00b\r\n\r\n', 400],
    [`GET /v2 HTTP/1.1\r\nHost: test\r\nX: ${'a'.repeat(20_000)}\r\n\r\n`, 431],
    [`GET /v2 HTTP/1.1\r\nHost: test\r\n${'X: y\r\n'.repeat(12_000)}\r\n`, 431],
    [`${post}Content-Length: -1\r\n\r\n`, 400],
    [`${post}Content-Length: 1e3\r\n\r\n`, 400],
    [`${post}Content-Length: 0x10\r\n\r\n`, 400],
    [`${post}Content-Length: 99999999999999999999999\r\n\r\n`, 400],
    [`${post}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab`, 400],
    [`${post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`, 400],
    [`${post}Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n`, 400],
    [`${post}Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n`, 400],
    [`${post}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc`, 400],
    [`${post}Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n`, 400],
    [`${post}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n`, 400],
    [`${post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`, 400],
    [`${post}Transfer-Encoding: identity\r\n\r\n`, 400],
  ];
  for (const [bytes, status] of cases) {
    const what = JSON.stringify(bytes.slice(0, 100));
    const connection = await RawConnection.open(server.url);
    await connection.write(bytes);
    const answer = await connection.response(undefined, 'POST');
    assert.equal(answer.status, status, `${what}: ${answer.text()}`);
    assert.equal(typeof json(answer).error, 'string', what);
    assert.equal((await connection.closed()).length, 0, `${what}: bytes behind the answer`);
    connection.destroy();
  }
  await assertServes();
});

test('HTTP/1.1 needs one Host, HTTP/1.0 none', async () => {
  assertRefused(await ask('GET /v2 HTTP/1.1\r\n\r\n'), 'BAD_REQUEST', /one Host/);
  assertRefused(await ask('GET /v2 HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n'), 'BAD_REQUEST', /one Host/);
  assert.equal((await ask('GET /v2 HTTP/1.1\r\nHost:\r\n\r\n')).status, 200);
  const old = await ask('GET /v2 HTTP/1.0\r\n\r\n');
  assert.equal(old.status, 200);
  assert.equal(old.header('connection'), 'close');
});

test('offers to change the protocol are passed over', async () => {
  const upgrade = 'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n';
  assert.equal((await ask(`GET /v2 HTTP/1.1\r\nHost: test\r\n${upgrade}\r\n`)).status, 200);
  const socket = 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n';
  assert.equal((await ask(`GET /v2 HTTP/1.1\r\nHost: test\r\n${socket}\r\n`)).status, 200);
});

test('a client that waits for 100 Continue is told, or refused before it has sent a byte', async () => {
  const head = (path: string, length: number, expect = '100-continue') =>
    `POST ${path} HTTP/1.1\r\nHost: test\r\nExpect: ${expect}\r\nContent-Length: ${length}\r\n\r\n`;
  const connection = await RawConnection.open(server.url);
  await connection.write(head('/v2/models/rows/infer', ROWS.body.length));
  // The 100 itself is passed over by response(): what it has to wait for is the body.
  await connection.write(ROWS.body);
  assert.equal((await connection.response(undefined, 'POST')).status, 200);
  connection.destroy();
  const told = await RawConnection.open(server.url);
  await told.write(head('/v2/models/rows/infer', ROWS.body.length));
  told.endWriting();
  assert.match((await told.closed()).toString('latin1'), /^HTTP\/1\.1 100 Continue\r\n\r\n/);
  told.destroy();
  for (const [path, length, status] of [
    ['/v2/models/none/infer', 10, 404],
    ['/v2/models/rows/infer', 2 ** 32, 413],
    ['/v2/health/live', 10, 405],
    ['/v2/repository/index', 10, 200],
  ] as const) {
    const refused = await RawConnection.open(server.url);
    await refused.write(head(path, length));
    const answer = await refused.response(undefined, 'POST');
    assert.equal(answer.status, status, path);
    assert.equal(answer.header('connection'), 'close', path);
    refused.destroy();
  }
  // Any other expectation may be ignored.
  const other = await ask(
    Buffer.concat([Buffer.from(head('/v2/models/rows/infer', ROWS.body.length, 'tea')), ROWS.body]),
    'POST',
  );
  assert.equal(other.status, 200);
});

test('requests sent in one piece are answered in their order, good and bad ones', async () => {
  const good = inferBytes('rows', ROWS);
  const requests: readonly (readonly [bytes: Uint8Array, status: number])[] = [
    [good, 200],
    [inferBytes('none', ROWS), 404],
    [good, 200],
    [inferBytes('rows', jsonBody('{')), 400],
    [requestBytes('GET', '/v2/health/live'), 200],
    [requestBytes('DELETE', '/v2/health/live', [], 'a body'), 405],
    [requestBytes('GET', '/v2/models/%zz', [], 'a body'), 400],
    [requestBytes('POST', '/v2/repository/index', [['Transfer-Encoding', 'chunked']], '3\r\nabc\r\n0\r\n\r\n'), 200],
    [good, 200],
  ];
  const connection = await RawConnection.open(server.url);
  await connection.write(Buffer.concat(requests.map(([bytes]) => bytes)));
  for (const [n, [, status]] of requests.entries()) {
    assert.equal((await connection.response(undefined, 'POST')).status, status, `answer ${n}`);
  }
  connection.destroy();
});

test('garbage behind requests takes no answer away from them', async () => {
  const connection = await RawConnection.open(server.url);
  await connection.write(
    Buffer.concat([inferBytes('rows', ROWS), inferBytes('rows', ROWS), Buffer.from('garbage\r\n\r\n')]),
  );
  for (let n = 0; n < 2; n++) assert.equal((await connection.response(undefined, 'POST')).status, 200);
  const rest = (await connection.closed()).toString('latin1');
  assert(rest === '' || rest.startsWith('HTTP/1.1 400 '), rest);
  connection.destroy();
});

test('requests split at every byte are the same requests', async () => {
  const bytes = inferBytes('rows', ROWS);
  const connection = await RawConnection.open(server.url);
  for (let at = 0; at < bytes.length; at++) await connection.write(bytes.subarray(at, at + 1));
  assert.equal((await connection.response(undefined, 'POST')).status, 200);
  // A head and a body of one request around the end of another.
  const both = Buffer.concat([bytes, bytes]);
  await connection.write(both.subarray(0, bytes.length + 20));
  await connection.write(both.subarray(bytes.length + 20));
  for (let n = 0; n < 2; n++) assert.equal((await connection.response(undefined, 'POST')).status, 200);
  connection.destroy();
});

test('blank lines before a request, chunk extensions and trailers are HTTP too', async () => {
  const body = ROWS.body.toString('latin1');
  const chunks = `5;name=value\r\n${body.slice(0, 5)}\r\n${(body.length - 5).toString(16)}\r\n${body.slice(5)}\r\n0\r\nX-Trailer: x\r\n\r\n`;
  const head = 'POST /v2/models/rows/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n';
  assert.equal((await ask(`\r\n${head}${chunks}`, 'POST')).status, 200);
});

test('nothing of all this is left in the server', async () => {
  await assertServes();
  await assertIdle(server);
  assert.deepEqual(complaints(server), []);
  assert.equal((await send(server.url, '/v2/models/rows/infer', ROWS)).status, 200);
});
