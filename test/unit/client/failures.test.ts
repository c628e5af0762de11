/** What a client does when the server, the network or the caller lets it down. */
import assert from 'node:assert/strict';
import diagnostics from 'node:diagnostics_channel';
import http from 'node:http';
import { type TestContext, test } from 'node:test';
import { Client, type ClientOptions, type InferInput } from '../../../src/client/client.ts';
import { type Answer, echo, serveHttp, serveRaw, unusedUrl } from '../../support/http-server.ts';

const x: InferInput = { name: 'x', datatype: 'FP32', shape: [2], data: [1, 2] };

function clientOf(t: TestContext, url: string, options: ClientOptions = {}): Client {
  const client = new Client(url, options);
  t.after(() => client.close());
  return client;
}

const infer = (client: Client, options: object = {}) => client.infer('m', { inputs: [x], ...options });

/** A server over bare sockets that sends these bytes for each request, and then maybe closes. */
async function serveBytes(t: TestContext, bytes: string, close: boolean): Promise<string> {
  return serveRaw(t, (socket) => {
    if (close) socket.end(bytes, 'latin1');
    else socket.write(bytes, 'latin1');
  });
}

const head = (lines: string) => `HTTP/1.1 200 OK\r\n${lines}\r\n\r\n`;

test('a body cut short is a lost connection, whether its length was announced or not', async (t) => {
  const cut = [
    head('Content-Length: 1000') + 'x'.repeat(600),
    `${head('Transfer-Encoding: chunked')}5\r\nhello\r\n`,
    head('Content-Length: 1000'),
    'HTTP/1.1 200 OK\r\nContent-Le',
    '',
  ];
  for (const bytes of cut) {
    const client = clientOf(t, await serveBytes(t, bytes, true));
    await assert.rejects(infer(client), { name: 'ConnectionError', code: 'CONNECTION_LOST', sent: true }, bytes);
  }
});

test('bytes that are not HTTP are a lost connection', async (t) => {
  const client = clientOf(t, await serveBytes(t, 'SSH-2.0-OpenSSH\r\n', false));
  await assert.rejects(infer(client), { code: 'CONNECTION_LOST' });
});

test('a web page is a bad response, or an error with its text', async (t) => {
  const page = '<html><body>Please log in</body></html>';
  const answers: Answer[] = [{ body: page }, { status: 502, body: page }];
  const server = await serveHttp(t, (_request, index) => answers[index]!);
  const client = clientOf(t, server.url);
  await assert.rejects(infer(client), { name: 'ConnectionError', code: 'BAD_RESPONSE', message: /not JSON: <html>/ });
  await assert.rejects(infer(client), {
    name: 'InferenceError',
    status: 502,
    code: 'HTTP_502',
    message: /Please log in/,
  });
});

test('a repeated length header is a bad response', async (t) => {
  const body = '{"model_name":"m","outputs":[]}';
  const repeated = `Inference-Header-Content-Length: ${body.length}\r\n`.repeat(2);
  const client = clientOf(t, await serveBytes(t, head(`${repeated}Content-Length: ${body.length}`) + body, false));
  await assert.rejects(infer(client), { code: 'BAD_RESPONSE' });
});

test('an answer larger than the limit is given up', async (t) => {
  const server = await serveHttp(t, () => ({ body: Buffer.alloc(100_000, 0x20) }));
  const client = clientOf(t, server.url, { maxResponseBytes: 50_000 });
  await assert.rejects(infer(client), { code: 'BAD_RESPONSE', message: /maxResponseBytes/ });
});

test('a server that never answers ends in a timeout, also in the middle of a body', async (t) => {
  for (const bytes of ['', `${head('Content-Length: 1000')}{`]) {
    const client = clientOf(t, await serveBytes(t, bytes, false));
    await assert.rejects(infer(client, { timeoutMs: 1000 }), {
      name: 'ConnectionError',
      code: 'TIMEOUT',
      sent: true,
      message: 'no answer within 1000 ms',
    });
  }
});

test('a call that waits for a connection times out unsent, and its request never goes out', async (t) => {
  let release = () => {};
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  const server = await serveHttp(t, async (request, index) => {
    if (index === 0) await held;
    return echo(request);
  });
  const client = clientOf(t, server.url, { connections: 1 });
  const first = infer(client, { id: 'first' });
  await assert.rejects(infer(client, { id: 'second', timeoutMs: 30 }), { code: 'TIMEOUT', sent: false });
  release();
  await first;
  assert.equal((await infer(client, { id: 'third' })).id, 'third');
  const seen = server.requests.map(({ body }) => /"id":"(\w+)"/.exec(body.toString('latin1'))?.[1]);
  assert.deepEqual(seen, ['first', 'third']);
});

test('an AbortSignal ends a call with its own reason, and the connection with it', async (t) => {
  const controller = new AbortController();
  const reason = new Error('changed my mind');
  let closed = () => {};
  const connectionClosed = new Promise<void>((resolve) => {
    closed = resolve;
  });
  const url = await serveRaw(t, (socket) => {
    socket.on('close', closed);
    controller.abort(reason);
  });
  const client = clientOf(t, url);
  await assert.rejects(infer(client, { signal: controller.signal }), reason);
  await connectionClosed;
});

test('a signal that has fired already keeps anything from being sent', async (t) => {
  const server = await serveHttp(t, echo);
  const client = clientOf(t, server.url);
  await assert.rejects(infer(client, { signal: AbortSignal.abort() }), { name: 'AbortError' });
  await infer(client);
  assert.equal(server.requests.length, 1);
});

test('a signal used for many calls keeps no listeners', async (t) => {
  const server = await serveHttp(t, echo);
  const client = clientOf(t, server.url);
  const { signal } = new AbortController();
  let listeners = 0;
  const { addEventListener, removeEventListener } = signal;
  signal.addEventListener = (...args: Parameters<typeof addEventListener>) => {
    listeners++;
    addEventListener.apply(signal, args);
  };
  signal.removeEventListener = (...args: Parameters<typeof removeEventListener>) => {
    listeners--;
    removeEventListener.apply(signal, args);
  };
  for (let i = 0; i < 3; i++) await infer(client, { signal });
  assert.equal(listeners, 0);
});

test('429 and 503 with Retry-After are tried again, and then succeed', async (t) => {
  const statuses = [503, 429];
  const server = await serveHttp(t, (request, index) => {
    const status = statuses[index];
    return status === undefined
      ? echo(request)
      : { status, headers: { 'retry-after': '0' }, body: '{"error":"later"}' };
  });
  const client = clientOf(t, server.url, { retry: { baseMs: 1 } });
  assert.equal((await infer(client)).modelName, 'echo');
  assert.equal(server.requests.length, 3);
});

test('tries are bounded, and the last error is the one that counts', async (t) => {
  const server = await serveHttp(t, () => ({
    status: 503,
    headers: { 'retry-after': '0' },
    body: '{"error":"draining","code":"DRAINING"}',
  }));
  const client = clientOf(t, server.url, { retry: { attempts: 3, baseMs: 1 } });
  await assert.rejects(infer(client), { name: 'InferenceError', status: 503, code: 'DRAINING', retryAfterMs: 0 });
  assert.equal(server.requests.length, 3);
  const once = clientOf(t, server.url, { retry: false });
  await assert.rejects(infer(once), { code: 'DRAINING' });
  assert.equal(server.requests.length, 4);
});

test('an error without Retry-After, or one that asks for more time than there is, is final', async (t) => {
  const answers: Answer[] = [
    { status: 503, body: '{"error":"no"}' },
    { status: 503, headers: { 'retry-after': '3600' }, body: '{"error":"no"}' },
    { status: 503, headers: { 'retry-after': '5' }, body: '{"error":"no"}' },
    { status: 500, headers: { 'retry-after': '0' }, body: '{"error":"no"}' },
  ];
  const server = await serveHttp(t, (_request, index) => answers[index]!);
  const client = clientOf(t, server.url);
  await assert.rejects(infer(client), { status: 503, retryAfterMs: undefined });
  await assert.rejects(infer(client), { status: 503, retryAfterMs: 3_600_000 });
  await assert.rejects(infer(client, { timeoutMs: 4_000 }), { status: 503, retryAfterMs: 5_000 });
  await assert.rejects(infer(client), { status: 500 });
  assert.equal(server.requests.length, 4);
});

test('a refused connection is tried again until the server is there', async (t) => {
  const url = await unusedUrl();
  const server = http.createServer((_request, response) => response.end('{"name":"late"}'));
  t.after(() => new Promise((resolve) => server.close(resolve)));
  // The server starts to listen once the first try has failed.
  const onError = () => {
    diagnostics.unsubscribe('undici:client:connectError', onError);
    server.listen(Number(new URL(url).port), '127.0.0.1');
  };
  diagnostics.subscribe('undici:client:connectError', onError);
  const client = clientOf(t, url, { retry: { attempts: 1_000, baseMs: 20, maxMs: 20 } });
  assert.equal((await client.serverMetadata()).name, 'late');
});

test('a connection that cannot be made says why, and that nothing was sent', async (t) => {
  const client = clientOf(t, await unusedUrl(), { retry: { attempts: 2, baseMs: 1 } });
  await assert.rejects(infer(client), {
    code: 'CONNECT_FAILED',
    sent: false,
    message: /cannot connect: .*ECONNREFUSED/,
  });
});

test('a request whose connection is lost after it was sent goes out again only on demand', async (t) => {
  let requests = 0;
  const server = http.createServer((request, response) => {
    request.resume().on('end', () => {
      if (++requests % 2 === 1) request.socket.destroy();
      else response.end('{"model_name":"m","outputs":[]}');
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => new Promise((resolve) => server.close(resolve)));
  const url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const careful = clientOf(t, url);
  await assert.rejects(infer(careful), { code: 'CONNECTION_LOST', sent: true });
  assert.equal(requests, 1);
  await infer(careful);
  const bold = clientOf(t, url, { retry: { afterSend: true, baseMs: 1 } });
  await infer(bold);
  assert.equal(requests, 4);
});

test('a wrong argument is thrown before anything is sent', async (t) => {
  const server = await serveHttp(t, echo);
  const client = clientOf(t, server.url);
  const wrong = { name: 'x', datatype: 'UINT8', shape: [1], data: [256] } satisfies InferInput;
  await assert.rejects(client.infer('m', { inputs: [wrong] }), {
    name: 'RangeError',
    message: /input "x": 256 is outside/,
  });
  await assert.rejects(infer(client, { parameters: { a: null } }), TypeError);
  await assert.rejects(infer(client, { timeoutMs: -1 }), RangeError);
  assert.equal(server.requests.length, 0);
  assert.equal(server.connections(), 0);
});
