/**
 * What surrounds the tensors of a request: its content type, its framing, its id and its parameters. None of them may keep a good request from its model, and
 * what a client gave is given back as it was.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  type Answer,
  assertRefused,
  assertUnharmed,
  binaryRequest,
  get,
  type HeaderList,
  infer,
  inferPath,
  json,
  jsonBody,
  jsonRequest,
  outputsOf,
  type RequestFields,
  send,
  sendTogether,
} from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { fixture } from '../support/models.ts';
import { Random } from '../support/random.ts';
import { rawRequest, requestBytes } from '../support/raw.ts';
import { type ModelEntry, makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, assertSameTensors, tensor } from '../support/tensor.ts';

/** Names that a route or an encoding could trip over; a file name has at most 255 bytes. */
const NAMES = [
  'n'.repeat(255),
  'größe '.repeat(28),
  'a b',
  'per%cent',
  '100%25',
  'what?#&=+;',
  '模型-😀',
  'versions',
  'ready',
  'infer',
  'C:\\model',
  '"quoted"',
  "o'clock",
  'e\u0301',
];

const config = { queue: { max_bytes: '4MiB' } };
const repository = makeRepository(
  { after },
  new Map<string, ModelEntry>([
    ['simple', { config }],
    ['dynamic', { config: { queue: { max_bytes: '64MiB' } } }],
    ...NAMES.map((name): [string, ModelEntry] => [name, { fixture: 'rows', config }]),
  ]),
);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const inputs = sampleInputs(fixture('simple'), new Random(1), 1);
const expected = fixture('simple').reference!(inputs);

/** A good request for the model `simple` with further members in front. */
function ask(fields: string): Promise<Answer> {
  const { body } = jsonRequest(inputs);
  return infer(server.url, 'simple', jsonBody(`{${fields}${fields === '' ? '' : ','}${body.toString().slice(1)}`));
}

function askBinary(fields: RequestFields): Promise<Answer> {
  return infer(server.url, 'simple', binaryRequest(inputs, fields));
}

// curl -d sends a form, other clients no type at all: a framework's default answers 415 (case 16).
test('an inference request is read whatever its content type', async () => {
  const { body } = jsonRequest(inputs);
  const types = [
    undefined,
    'application/json',
    'application/json; charset=utf-8',
    'APPLICATION/JSON;charset="utf-8"',
    'application/x-www-form-urlencoded',
    'application/octet-stream',
    'text/plain',
    'multipart/form-data; boundary=x',
    'nonsense',
    '/',
    '',
  ];
  for (const type of types) {
    const headers: HeaderList = type === undefined ? [] : [['Content-Type', type]];
    const answer = await infer(server.url, 'simple', { headers, body });
    assertSameTensors(outputsOf(answer), expected);
    assert.equal(answer.header('content-type'), 'application/json', type);
    const binary = binaryRequest(inputs);
    assertSameTensors(
      outputsOf(await infer(server.url, 'simple', { ...binary, headers: [...binary.headers, ...headers] })),
      expected,
    );
  }
});

test('a chunked body is read like one of a declared length, however it is cut', async () => {
  const { body } = jsonRequest(inputs);
  for (const size of [1, 100, body.length]) {
    const chunks: Buffer[] = [];
    for (let at = 0; at < body.length; at += size) {
      const chunk = body.subarray(at, at + size);
      chunks.push(Buffer.from(`${chunk.length.toString(16)}\r\n`), chunk, Buffer.from('\r\n'));
    }
    const head = `POST ${inferPath('simple')} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n`;
    const answer = await rawRequest(
      server.url,
      Buffer.concat([Buffer.from(head), ...chunks, Buffer.from('0\r\n\r\n')]),
    );
    assertSameTensors(outputsOf(answer), expected);
  }
});

test('a body of several megabytes is an ordinary request', async () => {
  const x = tensor(
    'FP32',
    [1, 2 ** 20],
    Float32Array.from({ length: 2 ** 20 }, (_, i) => i / 7),
  );
  for (const request of [jsonRequest(new Map([['x', x]])), binaryRequest(new Map([['x', x]]))]) {
    assert(request.body.length > 4e6);
    assertSameTensor(outputsOf(await infer(server.url, 'dynamic', request)).get('y'), x);
  }
});

test('requests that need no body are answered with and without one, whatever its type', async () => {
  const variants: [HeaderList, string][] = [
    [[['Content-Length', '0']], ''],
    [
      [
        ['Content-Type', 'application/json'],
        ['Content-Length', '0'],
      ],
      '',
    ],
    [[['Content-Type', 'application/json']], '{}'],
    [[['Content-Type', 'application/x-www-form-urlencoded']], '{}'],
    [[], '{"parameters":{}}'],
    [[['Transfer-Encoding', 'chunked']], '0\r\n\r\n'],
  ];
  for (const [headers, body] of variants) {
    const post = (path: string) => send(server.url, path, { headers, body: Buffer.from(body) });
    const index = await post('/v2/repository/index');
    assert.equal(index.status, 200);
    const entries = JSON.parse(index.body.toString()) as { name: string; version: string; state: string }[];
    assert.deepEqual(entries.map(({ name }) => name).sort(), ['simple', 'dynamic', ...NAMES].sort());
    assert(entries.every(({ version, state }) => version === '1' && state === 'READY'));
    // The repository is read at start: refused for that reason and no other.
    for (const action of ['load', 'unload']) {
      assertRefused(
        await post(`/v2/repository/models/simple/${action}`),
        'BAD_REQUEST',
        /cannot be loaded or unloaded/,
      );
    }
  }
  // Not even a length, as some clients send a POST without a body.
  const bare = 'POST /v2/repository/index HTTP/1.1\r\nHost: test\r\n\r\n';
  assert.equal((await rawRequest(server.url, bare)).status, 200);
});

test('a model of any name is reached under its name, percent-encoded', async () => {
  const rows = sampleInputs(fixture('rows'), new Random(2), 1);
  for (const name of NAMES) {
    const answer = await infer(server.url, name, jsonRequest(rows));
    assertSameTensors(outputsOf(answer), fixture('rows').reference!(rows));
    assert.equal(json(answer).model_name, name);
    const base = `/v2/models/${encodeURIComponent(name)}`;
    for (const path of [base, `${base}/versions/1`]) assert.equal(json(await get(server.url, path)).name, name);
    assert.deepEqual(json(await get(server.url, `${base}/ready`)), { name, version: '1', ready: true });
    // Every byte escaped, as a careful client may do.
    const escaped = [...Buffer.from(name)].map((byte) => `%${byte.toString(16).padStart(2, '0')}`).join('');
    assert.equal((await get(server.url, `/v2/models/${escaped}/ready`)).status, 200);
  }
  // Names are compared byte by byte: the composed form of a letter is another name.
  assertRefused(await get(server.url, `/v2/models/${encodeURIComponent('\u00e9')}`), 'MODEL_NOT_FOUND', /not found/);
});

/** Ids that a wrong escape, encoding or conversion would change. */
const IDS = [
  'plain',
  '',
  ' ',
  'ü-"1',
  '\\',
  '\u0000\u001f\u007f',
  '\u2028\u2029',
  '😀',
  '9007199254740993',
  '__proto__',
  'null',
  '</script>',
  'i'.repeat(100_000),
];

// A client matches answers to requests by their id (case 36).
test('an id comes back exactly as it was, in JSON and in binary', async () => {
  for (const id of IDS) {
    const label = id.slice(0, 20);
    const answer = await ask(`"id":${JSON.stringify(id)}`);
    assertSameTensors(outputsOf(answer), expected);
    assert.equal(json(answer).id, id, label);
    assert(answer.body.includes(`"id":${JSON.stringify(id)}`), label);
    const binary = await askBinary({ id });
    assertSameTensors(outputsOf(binary), expected);
    assert.equal(json(binary).id, id, label);
  }
  // However it is written, and wherever it stands.
  for (const text of ['"\\u0061\\u00fc\\ud83d\\ude00"', '"aü😀"'])
    assert.equal(json(await ask(`"id":${text}`)).id, 'aü😀');
  const late = jsonRequest(inputs).body.toString().replace(/\}$/, ',"id":"late"}');
  assert.equal(json(await infer(server.url, 'simple', jsonBody(late))).id, 'late');
});

test('without an id there is none in the answer', async () => {
  for (const fields of ['', '"id":null']) {
    assert.deepEqual(Object.keys(json(await ask(fields))), ['model_name', 'model_version', 'outputs']);
  }
  assert.equal(Object.hasOwn(json(await askBinary({})), 'id'), false);
});

test('an id that is no string, or comes twice, is refused', async () => {
  for (const text of ['5', '0', 'true', '["a"]', '{}', '9007199254740993']) {
    assertRefused(await ask(`"id":${text}`), 'BAD_REQUEST', /'id' must be a string/);
  }
  assertRefused(await ask('"id":"a","id":"b"'), 'BAD_REQUEST', /'id' twice/);
});

test('equal requests but for their ids get each its own, also in the binary form, whose headers are remembered', async () => {
  const { headers, body } = binaryRequest(inputs, {});
  const jsonBytes = Number(headers[0]![1]);
  const rest = body.toString('latin1', 1, jsonBytes);
  const requestWith = (front: string): Promise<Answer> => {
    const head = Buffer.from(`{${front}${rest}`, 'latin1');
    return infer(server.url, 'simple', {
      headers: [['Inference-Header-Content-Length', String(head.length)]],
      body: Buffer.concat([head, body.subarray(jsonBytes)]),
    });
  };
  const fronts: [string, string | undefined][] = [
    ['"id":"one",', 'one'],
    ['"id":"two",', 'two'],
    ['"id": "three",', 'three'],
    ['"id":"",', ''],
    ['', undefined],
    ['"id":"a\\u0062c",', 'abc'],
    ['"id":"end\\\\",', 'end\\'],
    ['"id":null,', undefined],
    ['"id" :"spaced",', 'spaced'],
    ['"id":"one",', 'one'],
  ];
  for (const [front, id] of [...fronts, ...fronts.toReversed()]) {
    const answer = await requestWith(front);
    assertSameTensors(outputsOf(answer), expected);
    assert.equal(json(answer).id, id, front);
  }
  for (const front of ['"id":"one","id":"two",', '"id":"one","parameters":{},', '"id":5,', '"id":"one"']) {
    assert.equal((await requestWith(front)).status, 400, front);
  }
});

test('parameters are strings, numbers and booleans, of any size; others are refused', async () => {
  const good = [
    '{}',
    'null',
    '{"a":"text","b":9007199254740993,"c":0.5,"d":true,"e":1e400,"":0}',
    '{"sequence_id":18446744073709551615,"sequence_start":true,"sequence_end":false}',
    '{"sequence_id":"a string"}',
    '{"priority":0}',
    '{"timeout":0}',
    '{"timeout":9007199254740993}',
    '{"timeout":18446744073709551615}',
    '{"priority":9007199254740993}',
  ];
  for (const parameters of good) {
    assertSameTensors(outputsOf(await ask(`"parameters":${parameters}`)), expected);
  }
  const bad: [string, RegExp][] = [
    ['{"a":{"b":1}}', /a parameter of the request is an object/],
    ['{"a":[1]}', /a parameter of the request is an array/],
    ['{"a":null}', /a parameter of the request is null/],
    ['{"triton_x":1}', /starting with 'triton_' are reserved/],
    ['{"triton_final_response":true}', /starting with 'triton_' are reserved/],
    ['[]', /'parameters' of the request must be an object/],
    ['"a"', /'parameters' of the request must be an object/],
    ['5', /'parameters' of the request must be an object/],
    ...['-1', '1.5', '"x"', '"5"', 'true', '1e3', 'null'].flatMap((value): [string, RegExp][] => [
      [`{"timeout":${value}}`, /parameter 'timeout' .*integer of 0 or more/],
      [`{"priority":${value}}`, /parameter 'priority' .*integer of 0 or more/],
    ]),
    ['{"binary_data_output":"true"}', /'binary_data_output' .*true or false/],
    ['{"binary_data_output":1}', /'binary_data_output' .*true or false/],
    ['{"timeout":1000000,"timeout":2000000}', /'timeout' .*twice/],
  ];
  for (const [parameters, message] of bad)
    assertRefused(await ask(`"parameters":${parameters}`), 'BAD_REQUEST', message);
});

test('parameters of inputs and outputs follow the same rule, and those that would change the answer are refused', async () => {
  const { body } = jsonRequest(inputs);
  const text = body.toString();
  const onInput = (parameters: string) =>
    infer(
      server.url,
      'simple',
      jsonBody(text.replace('{"name":"INPUT0",', `{"name":"INPUT0","parameters":${parameters},`)),
    );
  const onOutput = (parameters: string) => ask(`"outputs":[{"name":"OUTPUT0","parameters":${parameters}}]`);
  for (const parameters of ['{}', 'null', '{"content_type":"np","n":9007199254740993,"b":false}']) {
    assert.equal((await onInput(parameters)).status, 200, parameters);
    assert.equal((await onOutput(parameters)).status, 200, parameters);
  }
  for (const parameters of ['{"a":{}}', '{"a":[]}', '{"a":null}', '{"triton_x":1}', '[]', '1']) {
    assertRefused(await onInput(parameters), 'BAD_REQUEST', /of input 'INPUT0'|parameter/);
    assertRefused(await onOutput(parameters), 'BAD_REQUEST', /of output 'OUTPUT0'|parameter/);
  }
  assertRefused(await onInput('{"classification":3}'), 'BAD_REQUEST', /'classification' is one of outputs/);
  for (const value of ['1', '"true"', 'null']) {
    assertRefused(await onOutput(`{"binary_data":${value}}`), 'BAD_REQUEST', /'binary_data' .*true or false/);
  }
});

test('members that the protocol does not have are passed over, at any place and depth', async () => {
  const deep = `${'['.repeat(90)}${']'.repeat(90)}`;
  for (const member of [
    '"extra":{"inputs":[]}',
    '"model_name":"other"',
    '"raw_input_contents":["AA=="]',
    `"deep":${deep}`,
  ]) {
    assertSameTensors(outputsOf(await ask(member)), expected);
  }
  assertRefused(await ask(`"deep":${'['.repeat(200)}${']'.repeat(200)}`), 'BAD_REQUEST', /nested deeper than 100/);
});

test('the answer is exactly the members of the protocol, with the version that ran', async () => {
  const zeros = `[${new Array(16).fill(0).join()}]`;
  const input = (name: string) => `{"name":"${name}","shape":[1,16],"datatype":"INT32","data":${zeros}}`;
  const body = `{"id":"7","inputs":[${input('INPUT0')},${input('INPUT1')}],"outputs":[{"name":"OUTPUT1"}]}`;
  const answer = await infer(server.url, 'simple', jsonBody(body), '1');
  assert.equal(
    answer.body.toString(),
    `{"model_name":"simple","model_version":"1","outputs":[{"name":"OUTPUT1","datatype":"INT32","shape":[1,16],"data":${zeros}}],"id":"7"}`,
  );
});

test('pipelined requests of different kinds are answered in their order', async () => {
  const answers = await sendTogether(server.url, [
    requestBytes('GET', '/v2/models/simple/ready'),
    requestBytes('POST', inferPath('simple'), [], jsonRequest(inputs).body),
    requestBytes('GET', '/v2/models/nothing/ready'),
    requestBytes('POST', '/v2/repository/index', [], '{}'),
    requestBytes('POST', inferPath('simple'), [], '{"inputs":[]}'),
    requestBytes('GET', '/v2/health/live'),
  ]);
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 404, 200, 400, 200],
  );
  assertSameTensors(outputsOf(answers[1]!), expected);
});

test('no process of the server died on the way', () => assertUnharmed(server));

test('the repository index tells every version, or only those that are ready', async () => {
  const index = async (body: string): Promise<unknown> => {
    const response = await fetch(`${server.url}/v2/repository/index`, { method: 'POST', body });
    return { status: response.status, body: await response.json() };
  };
  const all = (await index('')) as { status: number; body: { state: string }[] };
  assert.equal(all.status, 200);
  assert.deepEqual(await index('{}'), all);
  assert.deepEqual(await index('{"ready":false}'), all);
  assert.deepEqual(await index('{"ready":true}'), {
    status: 200,
    body: all.body.filter(({ state }) => state === 'READY'),
  });
  for (const body of ['{"ready":1}', '{"ready":null}']) {
    assert.equal(((await index(body)) as { status: number }).status, 400, body);
  }
});
