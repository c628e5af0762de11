/**
 * The binary form: where the JSON ends, which bytes belong to which tensor, and requests that are nothing but a tensor. A length is believed only when it
 * agrees with the bytes that are there.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  type Answer,
  assertRefused,
  assertUnharmed,
  HEADER_LENGTH,
  type HeaderList,
  infer,
  inferPath,
  json,
  outputsOf,
  send,
} from '../support/exchange.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, assertSameTensors, tensor } from '../support/tensor.ts';

const config = { queue: { max_bytes: '4MiB' } };
const repository = makeRepository(
  { after },
  Object.fromEntries(
    [
      'simple',
      'id_fp32',
      'rows_fp32',
      'dynamic',
      'idB',
      'id_bytes',
      'bytes_column',
      'id_bool',
      'no_batch',
      'empty_output',
      'add_with_initializer',
      'scalar',
    ].map((name) => [name, { config }]),
  ),
);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const INPUT0 = Int32Array.from({ length: 16 }, (_, i) => i);
const INPUT1 = Int32Array.from({ length: 16 }, () => 1000);
const bytesOf = (array: Int32Array | Float32Array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
const TENSORS = Buffer.concat([bytesOf(INPUT0), bytesOf(INPUT1)]);

/** One input of the model `simple`, with what stands behind its shape. */
function input(name: string, rest: string, shape = '[1,16]'): string {
  return `{"name":"${name}","datatype":"INT32","shape":${shape}${rest}}`;
}
const sized = (bytes: number | string) => `,"parameters":{"binary_data_size":${bytes}}`;
const request = (...inputs: string[]) => `{"inputs":[${inputs.join()}]}`;
const GOOD = request(input('INPUT0', sized(64)), input('INPUT1', sized(64)));

/** Sends JSON and bytes behind it, with the header as given or, by default, right. */
function sendBody(text: string, tail: Uint8Array, headers?: HeaderList, model = 'simple'): Promise<Answer> {
  const head = Buffer.from(text);
  return infer(server.url, model, {
    headers: headers ?? [[HEADER_LENGTH, String(head.length)]],
    body: Buffer.concat([head, tail]),
  });
}

async function assertStillRight(): Promise<void> {
  const outputs = outputsOf(await sendBody(GOOD, TENSORS));
  assertSameTensor(
    outputs.get('OUTPUT0'),
    tensor(
      'INT32',
      [1, 16],
      INPUT0.map((value) => value + 1000),
    ),
  );
  assertSameTensor(
    outputs.get('OUTPUT1'),
    tensor(
      'INT32',
      [1, 16],
      INPUT0.map((value) => value - 1000),
    ),
  );
}

// A length field that is trusted reads past the body; one read leniently takes '0x10' or a repeated header for a number (case 13).
test('the length of the JSON must be plain digits, sent once, and within the body', async () => {
  const size = Buffer.byteLength(GOOD);
  const bodySize = size + TENSORS.length;
  const digits = /must be a number of bytes in decimal digits/;
  const range = /inference header size should be in range/;
  const wrong: [string, RegExp][] = [
    ['99999999999', range],
    ['9'.repeat(40), range],
    [String(2n ** 64n + BigInt(size)), range],
    [String(2n ** 32n + BigInt(size)), range],
    [String(bodySize + 1), range],
    ['-1', digits],
    ['+1', digits],
    ['abc', digits],
    [`${size}abc`, digits],
    ['0x10', digits],
    ['1e2', digits],
    ['1.5', digits],
    [`${size}.0`, digits],
    [`${size},${size}`, digits],
    ['١٢', digits],
    ['', digits],
  ];
  for (const [value, message] of wrong) {
    const header = Buffer.from(value).toString('latin1'); // as bytes of a header
    assertRefused(await sendBody(GOOD, TENSORS, [[HEADER_LENGTH, header]]), 'BAD_REQUEST', message);
  }
  const lines = [HEADER_LENGTH, HEADER_LENGTH.toLowerCase()].map((name) => [name, String(size)] as const);
  assertRefused(await sendBody(GOOD, TENSORS, lines), 'BAD_REQUEST', /sent more than once/);
  await assertStillRight();
});

test('a length that cuts the JSON, or takes in tensor bytes, is refused', async () => {
  const size = Buffer.byteLength(GOOD);
  for (const length of [1, size - 1, size + 1, size + 64, size + TENSORS.length]) {
    assertRefused(await sendBody(GOOD, TENSORS, [[HEADER_LENGTH, String(length)]]), 'BAD_REQUEST', /not valid/);
  }
  assertRefused(await sendBody(GOOD, TENSORS, []), 'BAD_REQUEST', /not valid/);
  await assertStillRight();
});

test('the name of the header is taken in any case, its value with zeros or space around it', async () => {
  const size = Buffer.byteLength(GOOD);
  for (const header of [
    [HEADER_LENGTH.toLowerCase(), `${size}`],
    [HEADER_LENGTH.toUpperCase(), `  ${size}  `],
    [HEADER_LENGTH, `000${size}`],
  ] as const) {
    assert.equal((await sendBody(GOOD, TENSORS, [header])).status, 200, header.join());
  }
});

test('binary_data_size without the header is refused, and so is a header with JSON tensors and bytes left over', async () => {
  assertRefused(
    await sendBody(GOOD, Buffer.alloc(0), []),
    'BAD_REQUEST',
    /'binary_data_size'.*no Inference-Header-Content-Length/,
  );
  const data = `,"data":[${INPUT0.join()}]`;
  const allJson = request(input('INPUT0', data), input('INPUT1', data));
  assert.equal((await sendBody(allJson, Buffer.alloc(0))).status, 200);
  assertRefused(
    await sendBody(allJson, Buffer.of(0)),
    'BAD_TENSOR',
    /unexpected additional input data.*expected 0 bytes.*got 1/,
  );
});

// Declared sizes that are not held against the bytes there take them from the next tensor (case 14).
test('declared sizes, shapes and real bytes must agree', async () => {
  const two = (first: number | string, second: number | string) =>
    request(input('INPUT0', sized(first)), input('INPUT1', sized(second)));
  const mismatch = (name: string, got: number) =>
    new RegExp(`input byte size mismatch for input '${name}' .*expected 64 bytes, got ${got}`);
  const cases: [string, Uint8Array, 'BAD_REQUEST' | 'BAD_TENSOR', RegExp][] = [
    [two(64, 60), TENSORS, 'BAD_TENSOR', mismatch('INPUT1', 60)],
    [two(64, 60), TENSORS.subarray(0, 124), 'BAD_TENSOR', mismatch('INPUT1', 60)],
    [two(64, 68), TENSORS, 'BAD_TENSOR', mismatch('INPUT1', 68)],
    [two(64, 68), Buffer.concat([TENSORS, Buffer.alloc(4)]), 'BAD_TENSOR', mismatch('INPUT1', 68)],
    [two(60, 68), TENSORS, 'BAD_TENSOR', mismatch('INPUT0', 60)],
    [two(128, 0), TENSORS, 'BAD_TENSOR', mismatch('INPUT0', 128)],
    [two(64, 64), Buffer.concat([TENSORS, Buffer.of(0)]), 'BAD_TENSOR', /unexpected additional input data.*got 129/],
    [two(64, 64), TENSORS.subarray(0, 127), 'BAD_TENSOR', /unexpected size for .*expecting 1 additional bytes/],
    [two(64, 64), TENSORS.subarray(0, 40), 'BAD_TENSOR', /unexpected size for .*expecting/],
    [two(64, 64), Buffer.alloc(0), 'BAD_TENSOR', /unexpected size for .*expecting/],
    [two(64, -1), TENSORS, 'BAD_REQUEST', /binary_data_size.*0 or more, got -1/],
    [two(64, 1.5), TENSORS, 'BAD_REQUEST', /binary_data_size.*got 1.5/],
    [two(64, '"64"'), TENSORS, 'BAD_REQUEST', /binary_data_size.*got "64"/],
    [two(64, 'null'), TENSORS, 'BAD_REQUEST', /binary_data_size.*got null/],
    [two(64, 'true'), TENSORS, 'BAD_REQUEST', /binary_data_size.*got true/],
    [two(64, '[64]'), TENSORS, 'BAD_REQUEST', /binary_data_size.*got \[/],
    [two(64, '6.4e1'), TENSORS, 'BAD_REQUEST', /binary_data_size.*got 6.4e1/],
    [two(64, '18446744073709551680'), TENSORS, 'BAD_TENSOR', /input byte size mismatch/],
    [two(64, '64,"binary_data_size":64'), TENSORS, 'BAD_REQUEST', /binary_data_size.*twice/],
    [
      request(input('INPUT0', sized(40)), input('INPUT1', sized(64))),
      TENSORS.subarray(0, 104),
      'BAD_TENSOR',
      mismatch('INPUT0', 40),
    ],
    [
      request(input('INPUT0', sized(64), '[2,16]'), input('INPUT1', sized(64), '[2,16]')),
      TENSORS,
      'BAD_TENSOR',
      /expected 128 bytes, got 64/,
    ],
  ];
  for (const [text, tail, code, message] of cases) assertRefused(await sendBody(text, tail), code, message);
  // The same when an earlier request of this form has been remembered.
  await assertStillRight();
  assertRefused(
    await sendBody(GOOD, Buffer.concat([TENSORS, Buffer.of(0)])),
    'BAD_TENSOR',
    /additional input data.*got 129/,
  );
  assertRefused(await sendBody(GOOD, TENSORS.subarray(0, 127)), 'BAD_TENSOR', /expecting 1 additional bytes/);
  await assertStillRight();
});

test('an input has its data in JSON or in binary, not both and not neither', async () => {
  const data = `,"data":[${INPUT0.join()}]`;
  const other = input('INPUT1', sized(64));
  for (const both of [data + sized(64), sized(64) + data, sized(0) + data]) {
    assertRefused(
      await sendBody(request(input('INPUT0', both), other), TENSORS),
      'BAD_REQUEST',
      /'INPUT0' must have either.*both/,
    );
  }
  for (const neither of ['', ',"parameters":{}', ',"parameters":{"other":1}']) {
    assertRefused(
      await sendBody(request(input('INPUT0', neither), other), TENSORS),
      'BAD_REQUEST',
      /'INPUT0' must have either.*neither/,
    );
  }
});

test('tensors lie behind the JSON in the order of the request, some of them in JSON', async () => {
  const swapped = request(input('INPUT1', sized(64)), input('INPUT0', sized(64)));
  const outputs = outputsOf(await sendBody(swapped, Buffer.concat([bytesOf(INPUT1), bytesOf(INPUT0)])));
  assertSameTensors(outputs, outputsOf(await sendBody(GOOD, TENSORS)));
  const mixed = request(input('INPUT1', sized(64)), input('INPUT0', `,"data":[${INPUT0.join()}]`));
  assertSameTensors(outputsOf(await sendBody(mixed, bytesOf(INPUT1))), outputs);
});

test('each output comes in the form asked for it, else in the one asked for all, else in JSON', async () => {
  const form = (binary: boolean) => `"parameters":{"binary_data":${binary}}`;
  const all = (binary: boolean) => `"parameters":{"binary_data_output":${binary}},`;
  const cases: [string, string[]][] = [
    ['', ['json', 'json']],
    [all(true), ['binary', 'binary']],
    [`${all(true)}"outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT1",${form(false)}}],`, ['binary', 'json']],
    [`${all(false)}"outputs":[{"name":"OUTPUT0",${form(true)}},{"name":"OUTPUT1"}],`, ['binary', 'json']],
    [`"outputs":[{"name":"OUTPUT0",${form(true)}},{"name":"OUTPUT1",${form(true)}}],`, ['binary', 'binary']],
  ];
  const expected = outputsOf(await sendBody(GOOD, TENSORS));
  for (const [fields, forms] of cases) {
    const answer = await sendBody(GOOD.replace('{', `{${fields}`), TENSORS);
    const { outputs } = json(answer) as { outputs: { data?: unknown; parameters?: unknown }[] };
    assert.deepEqual(
      outputs.map(({ data }) => (data === undefined ? 'binary' : 'json')),
      forms,
    );
    const binary = forms.filter((name) => name === 'binary').length;
    assert.equal(answer.header('content-type'), binary > 0 ? 'application/octet-stream' : 'application/json');
    assert.equal(answer.header(HEADER_LENGTH) !== undefined, binary > 0);
    assertSameTensors(outputsOf(answer), expected);
  }
});

test('an output without elements has binary_data_size 0 and makes no binary answer by itself', async () => {
  const x = `{"inputs":[{"name":"x","datatype":"FP32","shape":[2,4,8],"data":[${new Array(64).fill(0).join()}]}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}`;
  const answer = await infer(server.url, 'empty_output', { headers: [], body: Buffer.from(x) });
  assert.equal(answer.header(HEADER_LENGTH), undefined);
  assert.equal(answer.header('content-type'), 'application/json');
  assert.equal(
    answer.body.toString(),
    '{"model_name":"empty_output","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[2,0,8],"parameters":{"binary_data_size":0}}]}',
  );
});

/** A request that is nothing but a tensor. */
function sendRaw(model: string, body: Uint8Array): Promise<Answer> {
  return infer(server.url, model, { headers: [[HEADER_LENGTH, '0']], body: Buffer.from(body) });
}

// A zero taken for "no header" makes a raw request into broken JSON (case 17).
test('a raw request is the tensor of the only input, its shape worked out from its size', async () => {
  const x = Float32Array.from({ length: 8 }, (_, i) => i);
  const expected: [string, number[]][] = [
    ['id_fp32', [8]],
    ['rows_fp32', [1, 4]],
  ];
  for (const [model, shape] of expected) {
    const values = x.subarray(0, shape.at(-1));
    const answer = await sendRaw(model, bytesOf(values));
    assert.equal(answer.header('content-type'), 'application/octet-stream');
    assertSameTensor(outputsOf(answer).get('y'), tensor('FP32', shape, values));
    assert.deepEqual(answer.body.subarray(Number(answer.header(HEADER_LENGTH))), bytesOf(values));
  }
  // A batched model with one more variable dimension: one row.
  assertSameTensor(outputsOf(await sendRaw('dynamic', bytesOf(x))).get('y'), tensor('FP32', [1, 8], x));
  const fixed = new Float32Array(25).fill(1);
  assert.deepEqual(outputsOf(await sendRaw('add_with_initializer', bytesOf(fixed))).get('OUTPUT')?.shape, [5, 5]);
});

test('a raw request for a BYTES input is its one element', async () => {
  for (const element of [Uint8Array.of(0, 1, 2, 0xff, 0), new Uint8Array(0), new Uint8Array(100_000).fill(65)]) {
    const output = outputsOf(await sendRaw('bytes_column', element)).get('y');
    assertSameTensor(output, tensor('BYTES', [1, 1], [element]));
  }
});

test('an empty raw request is a tensor of no elements, or is refused where the shape is fixed', async () => {
  const none = Buffer.alloc(0);
  assertSameTensor(outputsOf(await sendRaw('id_fp32', none)).get('y'), tensor('FP32', [0], new Float32Array(0)));
  assertSameTensor(outputsOf(await sendRaw('dynamic', none)).get('y'), tensor('FP32', [1, 0], new Float32Array(0)));
  assertRefused(await sendRaw('rows_fp32', none), 'BAD_TENSOR', /expected 16 bytes, got 0/);
});

test('a raw request that leaves the shape open, or does not fit it, is refused', async () => {
  const bytes = Buffer.alloc(32);
  const cases: [string, Uint8Array, RegExp][] = [
    ['simple', TENSORS, /it has 2 inputs, not one/],
    ['scalar', bytes, /it has 2 inputs/],
    ['id_fp32', bytes.subarray(0, 31), /expected a multiple of 4 bytes.*got 31/],
    ['rows_fp32', bytes, /expected 16 bytes, got 32/],
    ['rows_fp32', bytes.subarray(0, 15), /expected 16 bytes, got 15/],
    ['id_bool', Buffer.of(0, 1, 2), /element 2 is the byte 2/],
  ];
  for (const [model, body, message] of cases) assertRefused(await sendRaw(model, body), 'BAD_TENSOR', message);
  // A BYTES input of any number of elements has one.
  for (const model of ['idB', 'id_bytes']) {
    const answer = await sendRaw(model, bytes);
    assert.equal(answer.status, 200, `${model}: ${answer.body}`);
  }
});

test('a request with no body at all is refused with what is missing', async () => {
  const empty = { headers: [], body: Buffer.alloc(0) };
  assertRefused(await send(server.url, inferPath('simple'), empty), 'BAD_REQUEST', /must be a JSON object/);
});

test('no process of the server died on the way', async () => {
  await assertStillRight();
  await assertUnharmed(server);
});
