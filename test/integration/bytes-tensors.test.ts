/**
 * BYTES elements are opaque: zero bytes, bytes that are not UTF-8 and empty elements reach the model and come back as they are. What JSON cannot carry is
 * refused there, never replaced.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { encodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import {
  type Answer,
  assertRefused,
  assertUnharmed,
  binaryBody,
  binaryRequest,
  infer,
  inferBytes,
  jsonBody,
  jsonRequest,
  outputsOf,
  sendTogether,
} from '../support/exchange.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, stringTensor, type TestTensor, tensor } from '../support/tensor.ts';

const random = seedFromEnv();
const queue = { max_bytes: '16MiB' };
const repository = makeRepository(
  { after },
  {
    idB: { config: { queue } },
    batched: { fixture: 'rows_bytes', config: { queue, max_batch_size: 6, max_queue_delay_us: 300_000 } },
    simple_string: { config: { queue } },
  },
);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const bytes = (...values: number[]) => Uint8Array.from(values);
const utf8 = (text: string) => new TextEncoder().encode(text);

/** Sends elements to the identity `INPUT0[N,var] → OUTPUT0` as one row, in binary. */
function echo(elements: readonly Uint8Array[], answerIn: 'json' | 'binary'): Promise<Answer> {
  const inputs = new Map([['INPUT0', tensor('BYTES', [1, elements.length], [...elements])]]);
  return infer(server.url, 'idB', binaryRequest(inputs, { parameters: { binary_data_output: answerIn === 'binary' } }));
}

function echoText(data: string, count: number, parameters = '{}'): Promise<Answer> {
  const input = `{"name":"INPUT0","shape":[1,${count}],"datatype":"BYTES","data":${data}}`;
  return infer(server.url, 'idB', jsonBody(`{"parameters":${parameters},"inputs":[${input}]}`));
}

/** Bytes behind the JSON of an answer. */
function tail(answer: Answer): Buffer {
  assert.equal(answer.status, 200, answer.body.toString());
  return answer.body.subarray(Number(answer.header('inference-header-content-length')));
}

/** The `data` of the only output as it stands in the answer. */
function dataText(answer: Answer): string {
  const text = answer.body.toString('utf8');
  assert.equal(answer.status, 200, text);
  const match = /"shape":\[[\d,]*\],"data":(\[.*\])\}\]\}$/s.exec(text);
  assert(match !== null, text);
  return match[1]!;
}

// A string that passes through a C function ends at its first zero byte, silently (case 3).
test('an element holds zero bytes, first, last and in between', async () => {
  const elements = [utf8('abc\0def'), utf8(''), utf8('é大😀'), utf8('\0'), utf8('\0\0x\0')];
  const wire = encodeBytesTensor(elements);
  assert.deepEqual([...wire.subarray(0, 11)], [7, 0, 0, 0, 0x61, 0x62, 0x63, 0, 0x64, 0x65, 0x66]);
  assert.deepEqual(tail(await echo(elements, 'binary')), Buffer.from(wire));
  const text = '["abc\\u0000def","","é大😀","\\u0000","\\u0000\\u0000x\\u0000"]';
  assert.equal(dataText(await echo(elements, 'json')), text);
  assert.equal(dataText(await echoText(text, 5)), text);
  assert.deepEqual(tail(await echoText(text, 5, '{"binary_data_output":true}')), Buffer.from(wire));
});

// A picture sent as BYTES arrives altered after a trip through a string (case 4).
test('an element need not be UTF-8', async () => {
  assert.deepEqual(tail(await echo([bytes(0xff, 0xfe, 0x41)], 'binary')), Buffer.from([3, 0, 0, 0, 0xff, 0xfe, 0x41]));
  const everyByte = Uint8Array.from({ length: 256 }, (_, value) => value);
  const surrogate = bytes(0xed, 0xa0, 0x80);
  const overlong = bytes(0xc0, 0xaf);
  const elements = [everyByte, surrogate, overlong, everyByte.toReversed()];
  assert.deepEqual(tail(await echo(elements, 'binary')), Buffer.from(encodeBytesTensor(elements)));
});

test('an output element that is not UTF-8 is refused in JSON by name, not replaced', async () => {
  for (const bad of [bytes(0xff, 0xfe, 0x41), bytes(0xed, 0xa0, 0x80), bytes(0xc0, 0xaf), bytes(0xe5, 0xa4)]) {
    assertRefused(
      await echo([utf8('good'), bad], 'json'),
      'BAD_REQUEST',
      /output 'OUTPUT0': element 1 is not valid UTF-8.*binary/,
    );
  }
  assert.equal(dataText(await echo([utf8('good')], 'json')), '["good"]');
});

test('JSON text of an element that is not UTF-8, or half a surrogate pair, is refused', async () => {
  const head = '{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"BYTES","data":["';
  for (const bad of [bytes(0xff), bytes(0xed, 0xa0, 0x80), bytes(0xe5, 0xa4)]) {
    const body = Buffer.concat([Buffer.from(head), bad, Buffer.from('"]}]}')]);
    assertRefused(await infer(server.url, 'idB', { headers: [], body }), 'BAD_REQUEST', /not valid UTF-8/);
  }
  for (const bad of [
    '\\ud83d',
    '\\ude00',
    '\\ud83d\\ud83d',
    '\\ude00\\ud83d',
    '\\ud83dx',
    '\\u12',
    '\\x41',
    '\u0001',
  ]) {
    assertRefused(await echoText(`["${bad}"]`, 1), 'BAD_REQUEST', /not valid JSON/);
  }
});

test('strings of JSON keep every character, written as it is or as an escape', async () => {
  const escapes = '["\\u00e9\\u5927\\ud83d\\ude00","\\"\\\\\\/\\b\\f\\n\\r\\t","\\u2028\u007f"]';
  const wanted = ['é大😀', '"\\/\b\f\n\r\t', '\u2028\u007f'];
  const binary = await echoText(escapes, 3, '{"binary_data_output":true}');
  assertSameTensor(outputsOf(binary).get('OUTPUT0'), stringTensor([1, 3], wanted));
  const text = dataText(await echoText(escapes, 3));
  assert.deepEqual(JSON.parse(text), wanted);
});

test('lengths that do not add up to the elements of the shape are refused', async () => {
  const send = (count: number, ...data: number[]) =>
    infer(
      server.url,
      'idB',
      binaryBody(
        `{"inputs":[{"name":"INPUT0","shape":[1,${count}],"datatype":"BYTES","parameters":{"binary_data_size":${data.length}}}]}`,
        bytes(...data),
      ),
    );
  const cases: [number, number[], RegExp][] = [
    [1, [], /expected 1 elements, got 0/],
    [1, [1, 0, 0], /element 0 has 3 of the 4 bytes of its length/],
    [1, [2, 0, 0, 0, 65], /element 0 says it has 2 bytes, but 1 are left/],
    [1, [0xff, 0xff, 0xff, 0xff, 65], /element 0 says it has 4294967295 bytes/],
    [1, [0xff, 0xff, 0xff, 0x7f], /element 0 says it has 2147483647 bytes/],
    [1, [1, 0, 0, 0, 65, 66], /1 bytes are left over after 1 elements/],
    [2, [1, 0, 0, 0, 65], /expected 2 elements, got 1/],
    [1, [0, 0, 0, 0, 0, 0, 0, 0], /4 bytes are left over after 1 elements/],
    [0, [0, 0, 0, 0], /4 bytes are left over after 0 elements/],
  ];
  for (const [count, data, message] of cases) {
    assertRefused(await send(count, ...data), 'BAD_TENSOR', new RegExp(`input 'INPUT0' .*${message.source}`));
  }
  assert.deepEqual(tail(await echo([utf8('fine')], 'binary')), Buffer.from(encodeBytesTensor([utf8('fine')])));
});

test('requests in one batch get their own elements back, whatever the lengths', async () => {
  for (const longest of [100, 2000, 40_000]) {
    const values = [1, 2, 3].map((rows): TestTensor => {
      const elements = Array.from({ length: rows * 4 }, () => random.bytes(random.pick([0, 1, 3, 4, 5, longest])));
      return tensor('BYTES', [rows, 4], elements);
    });
    const requests = values.map((value) => inferBytes('batched', binaryRequest(new Map([['x', value]]))));
    const answers = await sendTogether(server.url, requests);
    for (const [n, value] of values.entries()) assertSameTensor(outputsOf(answers[n]!).get('y'), value, `request ${n}`);
  }
});

test('an element of a megabyte and ten thousand small ones pass', async () => {
  const large = [random.bytes(2 ** 20), utf8(''), utf8('end')];
  assert.deepEqual(tail(await echo(large, 'binary')), Buffer.from(encodeBytesTensor(large)));
  const many = stringTensor(
    [1, 10_000],
    Array.from({ length: 10_000 }, (_, n) => `${n}é`),
  );
  assertSameTensor(
    outputsOf(await infer(server.url, 'idB', jsonRequest(new Map([['INPUT0', many]])))).get('OUTPUT0'),
    many,
  );
});

test('a model that reads strings as numbers gets exactly the characters sent', async () => {
  const shape = [1, 16];
  const digits = stringTensor(
    shape,
    Array.from({ length: 16 }, (_, n) => String(n)),
  );
  const ones = stringTensor(shape, new Array(16).fill('1'));
  const inputs = new Map([
    ['INPUT0', digits],
    ['INPUT1', ones],
  ]);
  const sums = stringTensor(
    shape,
    Array.from({ length: 16 }, (_, n) => String(n + 1)),
  );
  const differences = stringTensor(
    shape,
    Array.from({ length: 16 }, (_, n) => String(n - 1)),
  );
  for (const request of [jsonRequest(inputs), binaryRequest(inputs)]) {
    const outputs = outputsOf(await infer(server.url, 'simple_string', request));
    assertSameTensor(outputs.get('OUTPUT0'), sums);
    assertSameTensor(outputs.get('OUTPUT1'), differences);
  }
  // Its own failure, told as such: the request was well-formed.
  const words = new Map([...inputs, ['INPUT1', stringTensor(shape, new Array(16).fill('one'))]]);
  assertRefused(await infer(server.url, 'simple_string', jsonRequest(words)), 'MODEL_FAILED', /./);
});

test('no process of the server died on the way', () => assertUnharmed(server));
