/**
 * The protocol over gRPC: the same answers as over HTTP, bit for bit, for every datatype and shape; the same refusals with their own status; messages that are none.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { ServiceError } from '@grpc/grpc-js';
import { loadFileDescriptorSetFromBuffer } from '@grpc/proto-loader';
import { ProtobufReader } from '../../src/protocol/grpc/protobuf-reader.ts';
import { type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import { assertUnharmed, binaryRequest, get, infer, json, outputsOf } from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { EVERY_DATATYPE, rowsOf } from '../support/fixtures-elementwise.ts';
import {
  assertCallRefused,
  type GrpcClient,
  GrpcClients,
  INFERENCE,
  type Message,
  rawRequest,
  tensorsOf,
  typedRequest,
} from '../support/grpc.ts';
import { assertIdle } from '../support/idle.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors, type TensorMap, tensor } from '../support/tensor.ts';

const MODELS = [
  ...EVERY_DATATYPE.map(rowsOf),
  'simple',
  'simple_string',
  'multitype',
  'halved',
  'empty_rows',
  'empty_output',
  'image_u8',
  'bf16_in',
  'recurrent',
  'scalar',
  'no_batch',
  'nonzero',
  'reduce_batch',
  'half_to_bf16',
];
const INFERENCE_NAME = 'inference.GRPCInferenceService';
const MIB = 1024 * 1024;
/** Many models, one at a time. */
const START_LIMIT_MS = 120_000;
const MAX_BODY_BYTES = 16 * MIB;

const random = seedFromEnv();
const server = launchServer(
  { after },
  {
    grpc: true,
    repository: makeRepository(
      { after },
      Object.fromEntries([
        ...MODELS.map((name) => [name, { config: { queue: { max_bytes: '4MiB' } } }]),
        // Room for the largest message that is taken.
        ['large', { fixture: 'dynamic', config: { queue: { max_bytes: '128MiB' } } }],
        ['absent', { fixture: 'simple', config: '{' }],
      ]),
    ).dir,
    args: ['--ingress', '2', '--max-body-bytes', '16MiB'],
  },
);
const clients = new GrpcClients({ after }, server);
let client: GrpcClient;

before(async () => {
  await server.ready(START_LIMIT_MS);
  client = clients.open();
});

function isTyped(datatype: Datatype): boolean {
  return datatypeInfo(datatype).json;
}

/** Length-delimited fields of a message by number; the last of each. */
function fieldsOf(message: Buffer): Map<number, Buffer> {
  const fields = new Map<number, Buffer>();
  const reader = new ProtobufReader(message);
  while (reader.next()) {
    reader.bytes();
    fields.set(reader.field, message.subarray(reader.start, reader.at));
  }
  return fields;
}

/** Both forms that the tensors have. */
function messagesFor(model: string, inputs: TensorMap): Message[] {
  const raw = rawRequest(model, inputs);
  return [...inputs.values()].every(({ datatype }) => isTyped(datatype)) ? [raw, typedRequest(model, inputs)] : [raw];
}

for (const name of MODELS) {
  test(`${name} gives over gRPC what it gives over HTTP`, async () => {
    for (const rows of [1, 3]) {
      const inputs = sampleInputs(fixture(name), random, rows);
      const answer = await infer(server.url, name, binaryRequest(inputs, { parameters: { binary_data_output: true } }));
      assert.equal(answer.status, 200, answer.body.toString());
      const expected = outputsOf(answer);
      for (const message of messagesFor(name, inputs)) {
        const response = await client.call('ModelInfer', { ...message, id: `${name}-${rows}` });
        assertSameTensors(tensorsOf(response), expected);
        assert.deepEqual([response.model_name, response.model_version, response.id], [name, '1', `${name}-${rows}`]);
      }
    }
  });
}

// Stories: a shape with a zero was taken for none (zero-size-tensors, 31); a scalar had no elements (scalar-inputs, 32).
test('no rows and no dimensions are what they say', async () => {
  const none = tensor('INT32', [0, 16], new Int32Array(0));
  const inputs = new Map([
    ['INPUT0', none],
    ['INPUT1', none],
  ]);
  for (const message of messagesFor('simple', inputs)) {
    assertSameTensors(
      tensorsOf(await client.call('ModelInfer', message)),
      new Map([
        ['OUTPUT0', none],
        ['OUTPUT1', none],
      ]),
    );
  }
});

// Stories: a string was cut at its zero byte, or went through a text decoding (3, 4).
test('elements of BYTES are opaque', async () => {
  const name = rowsOf('BYTES');
  const [spec] = fixture(name).inputs;
  const width = spec!.shape.slice(1).reduce((product, dim) => product * (dim === -1 ? 1 : dim), 1);
  const elements = Array.from(
    { length: width },
    (_, n) => [Buffer.from('abc\0def'), Buffer.from([0xff, 0xfe, 0x41]), Buffer.alloc(0)][n % 3]!,
  );
  const shape = [1, ...spec!.shape.slice(1).map((dim) => (dim === -1 ? 1 : dim))];
  const inputs = new Map([[spec!.name, tensor('BYTES', shape, elements)]]);
  for (const message of messagesFor(name, inputs)) {
    const [output] = tensorsOf(await client.call('ModelInfer', message)).values();
    assert.deepEqual(
      Array.from(output!.data as readonly Uint8Array[], (bytes) => Buffer.from(bytes)),
      elements,
    );
  }
});

test('only the outputs asked for come, in that order', async () => {
  const inputs = sampleInputs(fixture('simple'), random, 1);
  const response = await client.infer('simple', inputs, { outputs: [{ name: 'OUTPUT1' }, { name: 'OUTPUT0' }] });
  assert.deepEqual([...tensorsOf(response).keys()], ['OUTPUT1', 'OUTPUT0']);
});

test('the documents say what those over HTTP say', async () => {
  assert.deepEqual(await client.call('ServerLive'), { live: true });
  assert.deepEqual(await client.call('ServerReady'), { ready: true });
  assert.deepEqual(await client.call('ServerMetadata'), json(await get(server.url, '/v2')));
  const metadata = await client.call('ModelMetadata', { name: 'scalar' });
  const { parameters, ...expected } = json(await get(server.url, '/v2/models/scalar')) as Message;
  const tensors = (list: Message[]) => list.map((one) => ({ ...one, shape: one.shape.map(String) }));
  const properties = Object.fromEntries(Object.entries(parameters).map(([key, value]) => [key, String(value)]));
  assert.deepEqual(metadata, {
    ...expected,
    inputs: tensors(expected.inputs),
    outputs: tensors(expected.outputs),
    properties,
  });
  const { config } = await client.call('ModelConfig', { name: 'simple', version: '1' });
  const http = json(await get(server.url, '/v2/models/simple/config')) as Message;
  assert.deepEqual(
    [config.name, config.backend, config.max_batch_size],
    [http.name, http.backend, http.max_batch_size],
  );
  assert.deepEqual(
    config.input.map((one: Message) => [one.name, one.data_type, one.dims.map(Number)]),
    http.input.map((one: Message) => [one.name, one.data_type, one.dims]),
  );
  const { models } = await client.call('RepositoryIndex', { ready: true });
  assert.deepEqual(models.map(({ name }: Message) => name).sort(), [...MODELS, 'large'].sort());
});

test('what is not ready or not there is said to be so', async () => {
  assert.deepEqual(await client.call('ModelReady', { name: 'simple' }), { ready: true });
  assert.deepEqual(await client.call('ModelReady', { name: 'absent' }), { ready: false });
  await assertCallRefused(client.infer('absent', new Map()), 'NOT_READY', /absent/);
  for (const call of [
    client.call('ModelReady', { name: 'nope' }),
    client.call('ModelMetadata', { name: 'nope' }),
    client.call('ModelConfig', { name: 'simple', version: '2' }),
    client.infer('nope', new Map()),
    client.infer('', new Map()),
  ]) {
    await assertCallRefused(call, 'MODEL_NOT_FOUND', /not found|no version/);
  }
});

// Stories: native exception texts as internal errors (dtype-and-rank-mismatch, 74), tensors that were missing, doubled or too many (34), sizes that do not add up (14).
test('what does not fit the model is refused in words, and nothing else suffers', async () => {
  const zeros = Buffer.alloc(64);
  const input = (name: string, fields: Message = {}) => ({ name, datatype: 'INT32', shape: [1, 16], ...fields });
  const both = [input('INPUT0'), input('INPUT1')];
  const cases: [Message, RegExp][] = [
    [{ inputs: [] }, /expected 2 inputs but got 0/],
    [{ inputs: both.slice(1), raw_input_contents: [zeros] }, /missing 'INPUT0'/],
    [{ inputs: [both[0], both[0]], raw_input_contents: [zeros, zeros] }, /already exists/],
    [
      { inputs: [...both, input('FOO')], raw_input_contents: [zeros, zeros, zeros] },
      /unexpected inference input 'FOO'/,
    ],
    [
      { inputs: [both[0], input('INPUT1', { datatype: 'INT64' })], raw_input_contents: [zeros, zeros] },
      /expects type 'INT32'/,
    ],
    [
      { inputs: [both[0], input('INPUT1', { shape: [16] })], raw_input_contents: [zeros, zeros] },
      /send \[1,16\] for one row/,
    ],
    [
      { inputs: [both[0], input('INPUT1', { shape: [1, 15] })], raw_input_contents: [zeros, zeros] },
      /Expected \[-1,16\]/,
    ],
    [
      { inputs: [both[0], input('INPUT1', { shape: [2, 16] })], raw_input_contents: [zeros, Buffer.alloc(128)] },
      /has 2 rows/,
    ],
    [{ inputs: both, raw_input_contents: [zeros, Buffer.alloc(60)] }, /expected 64 bytes, got 60/],
    [{ inputs: both, raw_input_contents: [zeros] }, /1 tensors for 2 inputs/],
    [{ inputs: both }, /0 elements in int_contents/],
  ];
  for (const [fields, message] of cases) {
    await assertCallRefused(client.call('ModelInfer', { model_name: 'simple', ...fields }), 'BAD_TENSOR', message);
  }
  await client.infer('simple', sampleInputs(fixture('simple'), random, 1));
});

test('methods that the server does not have say why', async () => {
  const methods = ['TraceSetting'];
  for (const method of methods) {
    await assertCallRefused(
      client.raw(Buffer.alloc(0), `/inference.GRPCInferenceService/${method}`),
      'NOT_SUPPORTED',
      /[Tt]his server/,
    );
  }
  await assert.rejects(client.raw(Buffer.alloc(0), '/inference.GRPCInferenceService/Nope'), /UNIMPLEMENTED/);
});

test('a message that is none is refused, and the connection goes on', async () => {
  for (const bytes of [Buffer.from([0x0a, 5, 0x61]), Buffer.from('{"inputs":[]}'), Buffer.alloc(20, 0xff)]) {
    await assertCallRefused(client.raw(bytes), 'BAD_REQUEST', /not a valid protocol buffer message/);
  }
  await assertCallRefused(client.raw(Buffer.alloc(0)), 'MODEL_NOT_FOUND', /unknown model: ''/);
});

// Story: 4 MiB, the default of gRPC's libraries, was the limit of every model (grpc-message-size, 69).
test('messages are taken up to the limit of HTTP, and refused beyond it with the name of the option', async () => {
  const shape = [1, (8 * MIB) / 4];
  const inputs = new Map([
    [
      'x',
      tensor(
        'FP32',
        shape,
        Float32Array.from({ length: shape[1]! }, (_, n) => n % 1000),
      ),
    ],
  ]);
  assertSameTensors(tensorsOf(await client.infer('large', inputs)), new Map([['y', inputs.get('x')!]]));
  const over = rawRequest('large', inputs);
  over.raw_input_contents = [Buffer.alloc(MAX_BODY_BYTES)];
  const tooLarge = client.call('ModelInfer', over);
  await assertCallRefused(tooLarge, 'BODY_TOO_LARGE', /larger than 16777216 bytes \(--max-body-bytes\)/);
});

test('compressed messages are taken, and one that expands past the limit is refused', async () => {
  const zipped = clients.open({ 'grpc.default_compression_algorithm': 2 });
  const inputs = sampleInputs(fixture('simple'), random, 1);
  assertSameTensors(tensorsOf(await zipped.infer('simple', inputs)), tensorsOf(await client.infer('simple', inputs)));
  const bomb = { model_name: 'large', inputs: [], raw_input_contents: [Buffer.alloc(2 * MAX_BODY_BYTES)] };
  await assert.rejects(zipped.call('ModelInfer', bomb), /RESOURCE_EXHAUSTED/);
});

test('a stream answers in the order of its requests, and goes on after a fault', async () => {
  const stream = client.stream();
  const messages = Array.from({ length: 200 }, (_, n) => {
    const inputs = sampleInputs(fixture('simple'), random, 1 + (n % 3));
    const model = n % 50 === 7 ? 'nope' : 'simple';
    return rawRequest(model, inputs, { id: String(n) });
  });
  const answers: Message[] = [];
  stream.on('data', (answer: Message) => answers.push(answer));
  const ended = new Promise<void>((resolve, reject) => {
    stream.once('end', resolve);
    stream.once('error', reject);
  });
  for (const message of messages) stream.write(message);
  stream.end();
  await ended;
  assert.equal(answers.length, messages.length);
  for (const [n, { error_message: fault, infer_response: response }] of answers.entries()) {
    if (n % 50 === 7) {
      assert.match(fault, /unknown model: 'nope'/);
      assert.equal(response.id, String(n));
      continue;
    }
    assert.equal(fault, '');
    assert.equal(response.id, String(n));
    assert.equal(response.outputs[0].shape[0], String(1 + (n % 3)));
  }
});

test('health is told to those who ask and to those who watch', async () => {
  for (const service of ['', 'inference.GRPCInferenceService']) {
    assert.deepEqual(await client.health(service), { status: 'SERVING' });
  }
  await assertCallRefused(client.health('nope'), 'NOT_FOUND', /no such service/);
  for (const [service, status] of [
    ['', 'SERVING'],
    ['nope', 'SERVICE_UNKNOWN'],
  ] as const) {
    const watch = client.watch(service);
    watch.on('error', () => {});
    const [first] = (await new Promise<Message[]>((resolve) =>
      watch.once('data', (message: Message) => resolve([message])),
    )) as [Message];
    assert.deepEqual(first, { status });
    watch.cancel();
  }
});

test('reflection gives the .proto files to those who ask for what is in them', async () => {
  const LIST = Buffer.from([0x3a, 0]);
  const bySymbol = (name: string) => Buffer.concat([Buffer.from([0x22, name.length]), Buffer.from(name)]);
  const byFile = Buffer.concat([Buffer.from([0x1a, 15]), Buffer.from('inference.proto')]);
  for (const version of ['v1', 'v1alpha']) {
    const stream = client.rawStream(`/grpc.reflection.${version}.ServerReflection/ServerReflectionInfo`);
    const answers: Map<number, Buffer>[] = [];
    stream.on('data', (answer: Buffer) => answers.push(fieldsOf(answer)));
    const ended = new Promise((resolve) => stream.once('end', resolve));
    const known = [bySymbol('inference.GRPCInferenceService.ModelInfer'), bySymbol('grpc.health.v1.Health'), byFile];
    const unknown = [bySymbol('inference.Nope'), Buffer.alloc(0), Buffer.from([0x32, 1, 0x61])];
    for (const question of [LIST, ...known, ...unknown]) stream.write(question);
    stream.end();
    await ended;
    const [list, ...others] = answers;
    assert.match(list!.get(6)!.toString('latin1'), /inference\.GRPCInferenceService.*grpc\.health\.v1\.Health/s);
    for (const [n, answer] of others.entries()) {
      if (n >= known.length) assert.match(answer.get(7)!.toString('latin1'), /no such definition/);
      else {
        // A list of files is a FileDescriptorSet.
        const found = loadFileDescriptorSetFromBuffer(answer.get(4)!)[INFERENCE_NAME];
        assert.deepEqual(Object.keys(found!), Object.keys(INFERENCE));
      }
    }
    const broken = client.rawStream(`/grpc.reflection.${version}.ServerReflection/ServerReflectionInfo`);
    broken.write(Buffer.from([0x0a, 5]));
    broken.resume();
    await new Promise<void>((resolve) =>
      broken.once('error', (error: ServiceError) => {
        assert.match(error.details, /not a valid protocol buffer message/);
        resolve();
      }),
    );
  }
});

test('a deadline that has passed before the call is refused by its status', async () => {
  const call = client.call('ModelInfer', rawRequest('simple', sampleInputs(fixture('simple'), random, 1)), {
    deadline: Date.now() - 1,
  });
  await assert.rejects(call, (error: ServiceError) => error.code === 4);
});

test('random bytes for messages end as refusals', async () => {
  const valid = INFERENCE.ModelInfer!.requestSerialize(
    rawRequest('simple', sampleInputs(fixture('simple'), random, 1)),
  );
  const calls = Array.from({ length: 300 }, () => {
    const bytes = Buffer.from(valid.subarray(0, random.int(1, valid.length)));
    for (let n = random.int(0, 4); n > 0; n--) bytes[random.int(0, bytes.length - 1)] = random.int(0, 255);
    return client.raw(bytes).then(
      () => 0,
      (error: ServiceError) => error.code,
    );
  });
  for (const code of await Promise.all(calls)) assert([0, 3, 5].includes(code), `status ${code}`);
});

test('requests over gRPC are counted as those over HTTP are', async () => {
  const count = (outcome: string) => server.metric('batchport_requests_total', { model: 'simple', outcome });
  const [ok, invalid] = [await count('ok'), await count('invalid')];
  await client.infer('simple', sampleInputs(fixture('simple'), random, 1));
  await assertCallRefused(client.infer('simple', new Map()), 'BAD_TENSOR', /expected 2 inputs/);
  assert.deepEqual([await count('ok'), await count('invalid')], [ok + 1, invalid + 1]);
});

test('nothing is left of all that', async () => {
  await assertIdle(server);
  await assertUnharmed(server);
});
