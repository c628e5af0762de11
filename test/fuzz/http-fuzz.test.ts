/**
 * Fuzzes a running server over HTTP: valid inference requests, in JSON and in binary, with something changed in their heads, their bodies, their lengths or their
 * framing, sent whole, in pieces and several at once.
 *
 * Whatever comes, the answers are 200 or 4xx, or the connection is closed; no process dies, nothing hangs, nothing is left. Between them, requests nobody touched
 * get their right answers.
 *
 *     FUZZ_SECONDS=600 FUZZ_SEED=1 node dist/test/run.js http-fuzz     longer, and repeatable
 *     FUZZ_SEED=1 FUZZ_CASE=4711 …                                     one case of a run, which a failure names
 *
 * Each case has a generator of its own, from the seed and its number, so it can be repeated without those before it.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { binaryRequest, HEADER_LENGTH, inferPath, jsonRequest, outputsOf } from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { JSON_TOKENS, NUMBER_TEXTS } from '../support/fuzz-requests.ts';
import { assertIdle, assertNoMoreDescriptors, complaints, countDescriptors, processesOf } from '../support/idle.ts';
import { fixture } from '../support/models.ts';
import { residentBytes } from '../support/process-table.ts';
import { Random, seedFromEnv } from '../support/random.ts';
import { RawConnection, type RawResponse } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors } from '../support/tensor.ts';

const CASES = 2500;
const CONNECTIONS = 32;
/** How long an answer is waited for before the client closes its side: a request that lacks something gets none. */
const PATIENCE_MS = 100;
/** By then a connection whose client has closed its side must be closed. */
const HANG_MS = 60_000;
const MIB = 2 ** 20;
const INGRESS_MAX_BYTES = 500 * MIB;

/** None of them can fail for its values: a 5xx is always the server's. */
const MODELS = ['simple', 'dynamic', 'idB', 'multitype', 'scalar', 'rows_int64', 'rows_bool', 'rows_fp16'];
const NO_JSON = new Set(['rows_fp16']);

const repository = makeRepository({ after }, MODELS);
const server = launchServer(
  { after },
  {
    repository: repository.dir,
    args: ['--max-body-bytes', '64KiB', '--headers-timeout-s', '5', '--body-idle-timeout-s', '5'],
  },
);
const { seed } = seedFromEnv('FUZZ_SEED');
const seconds = Number(process.env.FUZZ_SECONDS ?? 0);
const onlyCase = process.env.FUZZ_CASE === undefined ? undefined : Number(process.env.FUZZ_CASE);

before(() => server.ready());

interface Request {
  line: string;
  headers: [string, string][];
  body: Buffer;
}

/** Texts that mean something at one layer or another. */
const TOKENS = [
  ...JSON_TOKENS,
  ...NUMBER_TEXTS,
  '\r\n\r\n',
  'HTTP/1.1',
  'Transfer-Encoding: chunked\r\n',
  'chunked',
  '0\r\n\r\n',
];

const HEADERS: readonly (readonly [string, string])[] = [
  ['Content-Length', '0'],
  ['Content-Length', '5'],
  ['Content-Length', '99999'],
  ['Content-Length', '18446744073709551615'],
  ['Transfer-Encoding', 'chunked'],
  ['Transfer-Encoding', 'gzip'],
  ['Content-Encoding', 'gzip'],
  ['Content-Encoding', 'deflate'],
  ['Content-Encoding', 'br'],
  [HEADER_LENGTH, '0'],
  [HEADER_LENGTH, '1'],
  [HEADER_LENGTH, '-1'],
  [HEADER_LENGTH, '999999999999999999999'],
  ['Expect', '100-continue'],
  ['Connection', 'close'],
  ['Connection', 'upgrade'],
  ['Upgrade', 'h2c'],
  ['Accept-Encoding', 'gzip'],
  ['Host', 'again'],
  ['X-Long', 'a'.repeat(5000)],
];

function validRequest(random: Random): Request {
  const model = random.pick(MODELS);
  const inputs = sampleInputs(fixture(model), random, random.int(1, 4), {
    T: random.int(1, 20),
    var: random.int(1, 4),
    n: random.int(1, 8),
  });
  const fields = random.chance(0.3) ? { id: `case ${random.uint32()}` } : {};
  const form = NO_JSON.has(model) || random.chance(0.5) ? binaryRequest(inputs, fields) : jsonRequest(inputs, fields);
  const headers = form.headers.map(([name, value]) => [name, value] as [string, string]);
  return { line: `POST ${inferPath(model)} HTTP/1.1`, headers, body: form.body };
}

/** Bytes of a request; its length is right unless one of its headers says otherwise. */
function bytesOf({ line, headers, body }: Request): Buffer {
  const framed = headers.some(([name]) => /^(content-length|transfer-encoding)$/i.test(name));
  const lines = [
    line,
    'Host: fuzz',
    ...(framed ? [] : [`Content-Length: ${body.length}`]),
    ...headers.map((pair) => pair.join(': ')),
  ];
  return Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1'), body]);
}

function chunked(random: Random, body: Buffer): Buffer {
  const parts: Buffer[] = [];
  for (let at = 0; at < body.length; ) {
    const size = Math.min(body.length - at, random.int(1, 200));
    parts.push(Buffer.from(`${size.toString(16)}\r\n`), body.subarray(at, at + size), Buffer.from('\r\n'));
    at += size;
  }
  return Buffer.concat([...parts, Buffer.from('0\r\n\r\n')]);
}

/** One change at the level of bytes. */
function changeBytes(random: Random, bytes: Buffer): Buffer {
  if (bytes.length === 0) return Buffer.from(random.bytes(random.int(0, 8)));
  const at = random.int(0, bytes.length - 1);
  const end = Math.min(bytes.length, at + random.int(1, 16));
  const cut = (middle: Uint8Array) => Buffer.concat([bytes.subarray(0, at), middle, bytes.subarray(end)]);
  switch (random.int(0, 8)) {
    case 0: {
      const changed = Buffer.from(bytes);
      changed[at]! ^= 1 << random.int(0, 7);
      return changed;
    }
    case 1: {
      const changed = Buffer.from(bytes);
      changed[at] = random.uint32() & 0xff;
      return changed;
    }
    case 2:
      return cut(Buffer.alloc(0));
    case 3:
      return Buffer.concat([bytes.subarray(0, at), random.bytes(random.int(1, 16)), bytes.subarray(at)]);
    case 4:
      return cut(Buffer.concat([bytes.subarray(at, end), bytes.subarray(at, end)]));
    case 5:
      return bytes.subarray(0, at);
    case 6:
      return cut(Buffer.from(random.pick(TOKENS), random.chance(0.5) ? 'latin1' : 'utf8'));
    case 7:
      return Buffer.concat([bytes.subarray(0, at), Buffer.from(random.pick(TOKENS), 'latin1'), bytes.subarray(at)]);
    default: {
      // A number becomes another one.
      const text = bytes.toString('latin1');
      const numbers = [...text.matchAll(/-?\d+/g)];
      const found = numbers.length === 0 ? undefined : random.pick(numbers);
      if (found === undefined) return cut(Buffer.alloc(0));
      const value = random.chance(0.1) ? String(random.int(0, 300)) : random.pick(NUMBER_TEXTS);
      return Buffer.from(`${text.slice(0, found.index)}${value}${text.slice(found.index + found[0].length)}`, 'latin1');
    }
  }
}

function changedRequest(random: Random): Buffer {
  const request = validRequest(random);
  const other = validRequest(random);
  for (let changes = random.int(1, 3); changes > 0; changes--) {
    const kind = random.int(0, 9);
    if (kind <= 4) request.body = changeBytes(random, request.body);
    else if (kind === 5) request.headers.push([...random.pick(HEADERS)]);
    else if (kind === 6 && request.headers.length > 0) {
      const header = random.pick(request.headers);
      header[random.int(0, 1)] = changeBytes(random, Buffer.from(header[1], 'latin1')).toString('latin1');
    } else if (kind === 7) request.headers = other.headers;
    else if (kind === 8) request.line = changeBytes(random, Buffer.from(request.line, 'latin1')).toString('latin1');
    else request.body = random.chance(0.5) ? other.body : Buffer.concat([request.body, other.body]);
  }
  if (random.chance(0.1)) {
    request.body = gzipSync(request.body);
    if (random.chance(0.5)) request.body = changeBytes(random, request.body);
    request.headers.push(['Content-Encoding', 'gzip']);
  }
  if (random.chance(0.1)) {
    request.body = chunked(random, request.body);
    request.headers.push(['Transfer-Encoding', 'chunked']);
  }
  const bytes = bytesOf(request);
  return random.chance(0.25) ? changeBytes(random, bytes) : bytes;
}

interface Case {
  /** Written one after another. */
  readonly pieces: readonly Buffer[];
  /** How many answers there are when everything is understood. */
  readonly requests: number;
}

function makeCase(number: number): Case {
  const random = new Random(seed + number * 0x9e3779b1);
  const requests = Array.from({ length: random.chance(0.15) ? random.int(2, 4) : 1 }, () =>
    random.chance(0.1) ? bytesOf(validRequest(random)) : changedRequest(random),
  );
  const bytes = Buffer.concat(requests);
  const pieces = random.chance(0.2) ? random.int(2, 6) : 1;
  const cuts = Array.from({ length: pieces - 1 }, () => random.int(0, bytes.length)).sort((a, b) => a - b);
  return {
    pieces: [0, ...cuts].map((start, n) => bytes.subarray(start, cuts[n] ?? bytes.length)),
    requests: requests.length,
  };
}

/** The next answer, or undefined when there is none in time. @throws Error when what comes is no answer. */
async function nextAnswer(connection: RawConnection, patienceMs: number): Promise<RawResponse | undefined> {
  try {
    return await connection.response(patienceMs, 'POST');
  } catch (error) {
    if (/not an HTTP answer|malformed/.test((error as Error).message)) throw error;
    return undefined;
  }
}

/** Everything the server answers to a case, until it has closed the connection. */
async function answersTo({ pieces, requests }: Case): Promise<RawResponse[]> {
  const answers: RawResponse[] = [];
  const connection = await RawConnection.open(server.url);
  try {
    for (const piece of pieces) await connection.write(piece);
    while (answers.length < requests) {
      const answer = await nextAnswer(connection, PATIENCE_MS);
      if (answer === undefined) break;
      answers.push(answer);
    }
    connection.endWriting();
    await connection.closed(HANG_MS).catch((error: Error) => {
      if (/not within/.test(error.message)) throw error; // Else a reset, which is a way to close.
    });
    for (let more = await nextAnswer(connection, 0); more !== undefined; more = await nextAnswer(connection, 0)) {
      answers.push(more);
    }
    return answers;
  } finally {
    connection.destroy();
  }
}

/** Answers by status. */
const seen = new Map<number, number>();

async function runCase(number: number): Promise<void> {
  const one = makeCase(number);
  try {
    for (const { status, header } of await answersTo(one)) {
      seen.set(status, (seen.get(status) ?? 0) + 1);
      assert((status >= 400 && status < 500) || status === 200, `status ${status}`);
      assert(status === 200 || header('content-type') === 'application/json', 'a refusal without a reason');
    }
  } catch (error) {
    const sent = Buffer.concat(one.pieces);
    throw new Error(
      `FUZZ_SEED=${seed} FUZZ_CASE=${number}: ${(error as Error).message}\n${JSON.stringify(sent.toString('latin1').slice(0, 3000))}`,
      { cause: error },
    );
  }
}

/** A request that nobody touched, and its right answer. */
async function assertServes(random: Random): Promise<void> {
  const model = random.pick(['simple', 'idB', 'rows_int64']);
  const inputs = sampleInputs(fixture(model), random, random.int(1, 5));
  const { headers, body } = binaryRequest(inputs);
  const connection = await RawConnection.open(server.url);
  await connection.write(
    bytesOf({
      line: `POST ${inferPath(model)} HTTP/1.1`,
      headers: headers.map(([name, value]) => [name, value]),
      body,
    }),
  );
  const answer = await connection.response(HANG_MS, 'POST');
  connection.destroy();
  assertSameTensors(outputsOf(answer), fixture(model).reference!(inputs));
}

test('changed requests are answered 200 or 4xx or their connection is closed; nothing dies, hangs or is left', async (t) => {
  const descriptors = await countDescriptors(server);
  const pids = processesOf(await server.status()).map(({ pid }) => pid);
  if (onlyCase !== undefined) {
    await runCase(onlyCase);
    return;
  }
  const deadline = performance.now() + seconds * 1000;
  let next = 0;
  const goOn = () => (seconds > 0 ? performance.now() < deadline : next < CASES);
  await Promise.all(
    Array.from({ length: CONNECTIONS }, async (_, n) => {
      const random = new Random(seed ^ n);
      while (goOn()) {
        await runCase(next++);
        if (random.chance(0.1)) await assertServes(random);
      }
    }),
  );
  t.diagnostic(`${next} cases; answers: ${[...seen].map(([status, count]) => `${count} × ${status}`).join(', ')}`);
  // Were nearly all refused for their heads, nothing behind would have been tried.
  assert(seen.get(200)! > 0.05 * next && seen.get(400)! > 0.2 * next, 'the cases are one-sided');
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
  const processes = processesOf(await server.status());
  assert.deepEqual(
    processes.map(({ pid }) => pid),
    pids,
  );
  for (const { role, pid } of processes) {
    const bytes = residentBytes(pid);
    assert(bytes < INGRESS_MAX_BYTES, `${role}: ${Math.round(bytes / MIB)} MiB`);
  }
  assert.deepEqual(complaints(server), []);
  assert.equal(await server.metric('batchport_requests_total', { outcome: 'failed' }), 0);
});
