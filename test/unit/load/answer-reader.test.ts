/** The reader of answers, with every answer cut at every place. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AnswerFault, AnswerReader } from '../../../src/load/answer-reader.ts';
import { seedFromEnv } from '../../support/random.ts';

interface Expected {
  readonly status: number;
  readonly keepAlive: boolean;
  readonly sample: string;
}

const ANSWERS: readonly (readonly [string, Expected])[] = [
  ['HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello', { status: 200, keepAlive: true, sample: '' }],
  ['HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n', { status: 200, keepAlive: true, sample: '' }],
  ['HTTP/1.1 204 No Content\r\n\r\n', { status: 204, keepAlive: true, sample: '' }],
  [
    'HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 16\r\n\r\n{"error":"full"}',
    { status: 429, keepAlive: true, sample: '{"error":"full"}' },
  ],
  [
    'HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno',
    { status: 503, keepAlive: false, sample: 'no' },
  ],
  ['HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok', { status: 200, keepAlive: false, sample: '' }],
  [
    'HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok',
    { status: 200, keepAlive: true, sample: '' },
  ],
  [
    'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!',
    { status: 200, keepAlive: true, sample: '' },
  ],
  [
    'HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n',
    { status: 500, keepAlive: true, sample: 'abc0123456789' },
  ],
  ['HTTP/1.1 200 \r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n', { status: 200, keepAlive: true, sample: '' }],
];

function read(parts: readonly string[]): Expected {
  const reader = new AnswerReader();
  for (const [index, part] of parts.entries()) {
    const bytes = Buffer.from(part, 'latin1');
    const isWhole = reader.push(bytes);
    // Whoever gives the bytes uses their memory again.
    bytes.fill(0);
    assert.equal(isWhole, index === parts.length - 1, `after part ${index} of ${JSON.stringify(parts)}`);
  }
  const { status, keepAlive, sample } = reader;
  return { status, keepAlive, sample };
}

test('an answer is found whole, cut in two at any place, and byte by byte', () => {
  for (const [answer, expected] of ANSWERS) {
    assert.deepEqual(read([answer]), expected);
    for (let cut = 1; cut < answer.length; cut++) {
      assert.deepEqual(read([answer.slice(0, cut), answer.slice(cut)]), expected, `cut at ${cut}`);
    }
    assert.deepEqual(read([...answer]), expected, 'byte by byte');
  }
});

test('many answers on one connection are told apart, however their bytes come', () => {
  const random = seedFromEnv();
  const reader = new AnswerReader();
  for (let n = 0; n < 500; n++) {
    const [answer, expected] = random.pick(ANSWERS);
    let at = 0;
    while (at < answer.length) {
      const to = Math.min(answer.length, at + random.int(1, 40));
      assert.equal(reader.push(Buffer.from(answer.slice(at, to), 'latin1')), to === answer.length);
      at = to;
    }
    assert.deepEqual([reader.status, reader.sample], [expected.status, expected.sample]);
  }
});

test('an answer without a length ends with the connection', () => {
  const reader = new AnswerReader();
  assert.equal(reader.end(), false, 'nothing had come');
  assert.equal(reader.push(Buffer.from('HTTP/1.1 500 x\r\n\r\nsome')), false);
  assert.equal(reader.push(Buffer.from(' words')), false);
  assert.equal(reader.end(), true);
  assert.deepEqual([reader.status, reader.keepAlive, reader.sample], [500, false, 'some words']);
  const cut = new AnswerReader();
  cut.push(Buffer.from('HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\nsome'));
  assert.equal(cut.end(), false, 'the answer was not whole');
});

test('bytes after an answer make the connection useless', () => {
  const reader = new AnswerReader();
  assert.equal(reader.push(Buffer.from('HTTP/1.1 200 x\r\nContent-Length: 1\r\n\r\n!HTTP')), true);
  assert.equal(reader.keepAlive, false);
});

test('only the start of a long complaint is kept', () => {
  const reader = new AnswerReader();
  const body = 'x'.repeat(100_000);
  assert.equal(reader.push(Buffer.from(`HTTP/1.1 400 x\r\nContent-Length: ${body.length}\r\n\r\n${body}`)), true);
  assert.equal(reader.sample.length, 400);
});

test('what is not HTTP, or has no bound, is a fault', () => {
  for (const [bad, message] of [
    ['SSH-2.0-OpenSSH_9.2\r\n\r\n', /not an HTTP answer: "SSH-2\.0/],
    ['HTTP/2 200\r\n\r\n', /not an HTTP answer/],
    [`HTTP/1.1 200 x\r\n${'x'.repeat(70_000)}`, /a head of more than/],
    ['HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n', /a chunk without its size/],
    ['HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n', /a chunk longer than its size/],
    [`HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n${'0'.repeat(5000)}`, /a line too long/],
    ['HTTP/1.1 101 Switching Protocols\r\n\r\n', /switch protocols/],
  ] as const) {
    assert.throws(
      () => new AnswerReader().push(Buffer.from(bad)),
      (error) => error instanceof AnswerFault && message.test(error.message),
      bad.slice(0, 60),
    );
  }
});
