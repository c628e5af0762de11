/**
 * Values keep their bits between a client and a model, in JSON and in binary, or are refused by name: never wrapped, rounded, cut or turned into null.
 *
 * One server with an identity `x[n] → y[n]` of each datatype, so that whatever changes has been changed by the server. JSON is compared as text, since
 * JSON.parse itself loses digits.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import {
  type Answer,
  assertRefused,
  assertUnharmed,
  binaryBody,
  binaryRequest,
  infer,
  jsonBody,
  jsonRequest,
  outputsOf,
  type RequestFields,
} from '../support/exchange.ts';
import { EVERY_DATATYPE, idOf } from '../support/fixtures-elementwise.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, fromWire, randomTensor, type TestTensor, tensor, wireBytes } from '../support/tensor.ts';

type FixedDatatype = Exclude<Datatype, 'BYTES'>;

const random = seedFromEnv();
const config = { queue: { max_bytes: '4MiB' } };
const models = ['bf16_in', ...EVERY_DATATYPE.map(idOf)];
const repository = makeRepository({ after }, Object.fromEntries(models.map((name) => [name, { config }])));
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const INTEGERS: readonly [FixedDatatype, bigint, bigint][] = [
  ['UINT8', 0n, 2n ** 8n - 1n],
  ['UINT16', 0n, 2n ** 16n - 1n],
  ['UINT32', 0n, 2n ** 32n - 1n],
  ['UINT64', 0n, 2n ** 64n - 1n],
  ['INT8', -(2n ** 7n), 2n ** 7n - 1n],
  ['INT16', -(2n ** 15n), 2n ** 15n - 1n],
  ['INT32', -(2n ** 31n), 2n ** 31n - 1n],
  ['INT64', -(2n ** 63n), 2n ** 63n - 1n],
];
const FLOATS = ['FP32', 'FP64'] as const;
const HALVES = ['FP16', 'BF16'] as const;

/** Sends elements as they are to be written in JSON. */
function sendTexts(datatype: Datatype, texts: readonly string[], fields: RequestFields = {}): Promise<Answer> {
  const others = Object.entries(fields).map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)},`);
  const input = `{"name":"x","shape":[${texts.length}],"datatype":"${datatype}","data":[${texts.join()}]}`;
  return infer(server.url, idOf(datatype), jsonBody(`{${others.join('')}"inputs":[${input}]}`));
}

/** Sends a tensor in binary; the answer is in JSON or in binary. */
function sendBits(value: TestTensor, answerIn: 'json' | 'binary'): Promise<Answer> {
  const fields = { parameters: { binary_data_output: answerIn === 'binary' } };
  return infer(server.url, idOf(value.datatype), binaryRequest(new Map([['x', value]]), fields));
}

/** Elements of the only output as they are written in the answer's JSON. */
function textsOf(answer: Answer): string[] {
  const text = answer.body.toString('utf8');
  assert.equal(answer.status, 200, text);
  const match = /^\{"model_name":"[^"]*","model_version":"1","outputs":\[\{[^{}]*"data":\[([^\]]*)\]\}\]\}$/.exec(text);
  assert(match !== null, text);
  return match[1]!.split(',');
}

const binaryOutput = { parameters: { binary_data_output: true } };

// A 64-bit integer that passes through a JavaScript number comes back a few units off, and nothing says so (case 1).
for (const datatype of ['INT64', 'UINT64'] as const) {
  test(`${datatype} keeps every digit beyond 2^53`, async () => {
    const values = [2n ** 53n - 1n, 2n ** 53n, 2n ** 53n + 1n, 2n ** 63n - 1n, 10n ** 18n + 1n, 0n, 1n];
    if (datatype === 'INT64') values.push(-(2n ** 53n) - 1n, -(2n ** 63n), -(2n ** 63n) + 1n, -1n);
    else values.push(2n ** 63n, 2n ** 64n - 1n, 2n ** 64n - 2n);
    const texts = values.map(String);
    const bits = fromWire(
      datatype,
      [values.length],
      new Uint8Array(BigUint64Array.from(values, (v) => BigInt.asUintN(64, v)).buffer),
    );
    assert.deepEqual(textsOf(await sendTexts(datatype, texts)), texts, 'from JSON to JSON');
    assert.deepEqual(textsOf(await sendBits(bits, 'json')), texts, 'from binary to JSON');
    assertSameTensor(outputsOf(await sendTexts(datatype, texts, binaryOutput)).get('y'), bits, 'from JSON to binary');
    assertSameTensor(outputsOf(await sendBits(bits, 'binary')).get('y'), bits, 'from binary to binary');
  });
}

// Conversions that wrap or round silently make 0 of a UINT8 256 and 1 of 1.7 (case 2).
for (const [datatype, min, max] of INTEGERS) {
  test(`${datatype} takes its whole range and nothing beyond it`, async () => {
    const inside = [min, min + 1n, 0n, 1n, max - 1n, max].map(String);
    assert.deepEqual(textsOf(await sendTexts(datatype, inside)), inside);
    const outside = [max + 1n, min - 1n, 10n * max, 10n ** 30n, -(10n ** 30n)].map(String);
    const notIntegers = ['1.5', '-0.5', '1e-1', '1e400', '"1"', '"x"', 'true', 'null'];
    for (const text of [...outside, ...notIntegers]) {
      const named = new RegExp(
        `^input 'x': element 1 is ${text.replace('.', '\\.')}, but ${datatype} takes integers from`,
      );
      assertRefused(await sendTexts(datatype, ['1', text]), 'BAD_TENSOR', named);
    }
    for (const text of ['[1]', '{}']) {
      assertRefused(await sendTexts(datatype, ['1', text]), 'BAD_TENSOR', /^input 'x': element 1 is an (array|object)/);
    }
  });

  test(`${datatype} takes a number by its value, however it is written`, async () => {
    const forms = { '1.0': '1', '1e2': '100', '10e-1': '1', '0.12e3': '120', '-0': '0', '-0.0': '0', '0e5': '0' };
    assert.deepEqual(textsOf(await sendTexts(datatype, Object.keys(forms))), Object.values(forms));
  });
}

test('BOOL takes true and false, in binary one byte of 0 or 1, and nothing else', async () => {
  assert.deepEqual(textsOf(await sendTexts('BOOL', ['true', 'false', 'true'])), ['true', 'false', 'true']);
  for (const text of ['2', '1', '0', '"true"', 'null', '1.0', '[true]']) {
    assertRefused(await sendTexts('BOOL', ['true', text]), 'BAD_TENSOR', /input 'x'.*element 1 is .*BOOL|nest/);
  }
  for (const byte of [2, 128, 255]) {
    const bits: TestTensor = { datatype: 'BOOL', shape: [3], data: Uint8Array.of(1, byte, 0) };
    for (const answerIn of ['json', 'binary'] as const) {
      assertRefused(
        await sendBits(bits, answerIn),
        'BAD_TENSOR',
        new RegExp(`input 'x'.*element 1 is the byte ${byte}`),
      );
    }
  }
});

test('floats and strings do not take each other, literals or null', async () => {
  for (const datatype of FLOATS) {
    for (const text of ['"1"', '"NaN"', 'true', 'null', '[1]']) {
      assertRefused(await sendTexts(datatype, ['1', text]), 'BAD_TENSOR', /input 'x'.*element 1 is/);
    }
  }
  for (const text of ['1', 'true', 'null', '["a"]']) {
    assertRefused(await sendTexts('BYTES', ['"a"', text]), 'BAD_TENSOR', /input 'x'.*element 1 is/);
  }
});

/** Values that a conversion on the way would touch: signs of zero, the least and the greatest, halves of units. */
const FLOAT_VALUES = {
  FP32: [
    -0,
    1,
    2 ** -149,
    -(2 ** -149),
    2 ** -126,
    3.4028234663852886e38,
    -3.4028234663852886e38,
    1 / 3,
    16777217,
    1e-7,
    1e21,
  ],
  FP64: [
    -0,
    1,
    5e-324,
    -5e-324,
    2 ** -1022,
    Number.MAX_VALUE,
    -Number.MAX_VALUE,
    1 / 3,
    2 ** 53 + 2,
    1e-7,
    1e21,
    1e300,
  ],
} as const;

function floats(datatype: (typeof FLOATS)[number], values: readonly number[]): TestTensor {
  return datatype === 'FP32'
    ? tensor('FP32', [values.length], Float32Array.from(values))
    : tensor('FP64', [values.length], Float64Array.from(values));
}

for (const datatype of FLOATS) {
  test(`${datatype} has the same bits after JSON, down to the sign of zero and the smallest number`, async () => {
    const values = floats(datatype, FLOAT_VALUES[datatype]);
    const inputs = new Map([['x', values]]);
    assertSameTensor(outputsOf(await infer(server.url, idOf(datatype), jsonRequest(inputs))).get('y'), values);
    assertSameTensor(
      outputsOf(await infer(server.url, idOf(datatype), jsonRequest(inputs, binaryOutput))).get('y'),
      values,
    );
    assertSameTensor(outputsOf(await sendBits(values, 'json')).get('y'), values);
  });

  // JSON.stringify makes null of what is not finite, other servers write tokens that no strict parser reads (case 18).
  test(`${datatype} that is not finite passes in binary and is refused in JSON, never null`, async () => {
    const special = floats(datatype, [1, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -0, 1e-45]);
    assertSameTensor(outputsOf(await sendBits(special, 'binary')).get('y'), special);
    const answers = [
      [Number.NaN, 'NaN'],
      [Number.POSITIVE_INFINITY, 'Infinity'],
      [Number.NEGATIVE_INFINITY, '-Infinity'],
    ] as const;
    for (const [value, text] of answers) {
      const answer = await sendBits(floats(datatype, [1, value]), 'json');
      assertRefused(answer, 'BAD_REQUEST', new RegExp(`output 'y': element 1 is ${text}.*binary`));
      // What the refused answer had written already is gone.
      assert.deepEqual(textsOf(await sendTexts(datatype, ['7'])), ['7']);
    }
    for (const text of ['NaN', 'Infinity', '-Infinity', 'nan', 'inf']) {
      assertRefused(await sendTexts(datatype, ['1', text]), 'BAD_REQUEST', /not valid JSON.*binary/);
    }
    for (const text of ['1e400', '-1e400', '1e999999999999']) {
      assertRefused(await sendTexts(datatype, ['1', text]), 'BAD_TENSOR', /input 'x': element 1 is -?1e/);
    }
  });
}

test('a number that rounds beyond the greatest FP32 is refused, one that rounds to it is taken', async () => {
  for (const text of ['3.4028236e38', '-3.4028236e38', '1e39']) {
    assertRefused(await sendTexts('FP32', [text]), 'BAD_TENSOR', /element 0 is .*FP32/);
  }
  assert.deepEqual(textsOf(await sendTexts('FP32', ['3.4028235e38', '3.40282350000000001e38'])), [
    '3.4028235e+38',
    '3.4028235e+38',
  ]);
  assert.deepEqual(textsOf(await sendTexts('FP32', ['1e-60', '-1e-60'])), ['0', '-0.0']);
});

// Half types have no number of their own in JavaScript or JSON, and arrays of them differ between versions of Node (case 19).
for (const datatype of HALVES) {
  test(`${datatype} passes in binary bit by bit and has no JSON form`, async () => {
    const all = fromWire(
      datatype,
      [2 ** 16],
      new Uint8Array(Uint16Array.from({ length: 2 ** 16 }, (_, bits) => bits).buffer),
    );
    assertSameTensor(outputsOf(await sendBits(all, 'binary')).get('y'), all);
    // In little-endian order: 1, infinity, not a number, the smallest number.
    const bytes = Uint8Array.of(0x00, 0x3c, 0x00, 0x7c, 0x00, 0x7e, 0x01, 0x00);
    const answer = await sendBits(fromWire(datatype, [4], bytes), 'binary');
    assert.deepEqual(
      answer.body.subarray(Number(answer.header('inference-header-content-length'))),
      Buffer.from(bytes),
    );
    const toBinary = /no JSON form.*binary/;
    assertRefused(await sendTexts(datatype, ['1']), 'BAD_TENSOR', toBinary);
    assertRefused(await sendTexts(datatype, ['1'], binaryOutput), 'BAD_TENSOR', toBinary);
    assertRefused(await sendBits(fromWire(datatype, [4], bytes), 'json'), 'BAD_TENSOR', toBinary);
    // Without a word about the form, an output is JSON.
    const header = `{"inputs":[{"name":"x","shape":[1],"datatype":"${datatype}","parameters":{"binary_data_size":2}}]}`;
    assertRefused(
      await infer(server.url, idOf(datatype), binaryBody(header, bytes.subarray(0, 2))),
      'BAD_TENSOR',
      toBinary,
    );
  });
}

test('a BF16 input may stand beside a JSON output', async () => {
  const values = fromWire('BF16', [1, 4], new Uint8Array(Uint16Array.of(0x3fc0, 0xbf80, 0x0000, 0x4049).buffer));
  const fields = { parameters: { binary_data_output: false } };
  const answer = await infer(server.url, 'bf16_in', binaryRequest(new Map([['x', values]]), fields));
  assert.deepEqual(textsOf(answer), ['1.5', '-1', '0', '3.140625']);
});

for (const datatype of EVERY_DATATYPE) {
  test(`any bits of ${datatype} come back as they are`, async () => {
    const count = 1000;
    const { elementBytes } = datatypeInfo(datatype);
    const random1000 =
      datatype === 'BOOL' || datatype === 'BYTES'
        ? randomTensor(random, datatype, [count])
        : fromWire(datatype, [count], random.bytes(count * elementBytes));
    const output = outputsOf(await sendBits(random1000, 'binary')).get('y')!;
    assert.deepEqual(Buffer.from(wireBytes(output)), Buffer.from(wireBytes(random1000)));
  });
}

test('no process of the server died on the way', () => assertUnharmed(server));
