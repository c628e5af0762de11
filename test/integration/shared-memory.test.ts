/**
 * Tensors in POSIX shared memory (`--system-shared-memory`): what is read from a region and written into one is what would have travelled with the request, for every
 * datatype and over both protocols; regions are known to every ingress process; and whatever a client does to its region harms nobody else.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import type { Datatype } from '../../src/tensor/datatype.ts';
import {
  type Answer,
  assertRefused,
  assertUnharmed,
  get,
  HEADER_LENGTH,
  type InferRequest,
  infer,
  inferBytes,
  json,
  jsonBody,
  outputsOf,
  send,
  sendTogether,
} from '../support/exchange.ts';
import { EVERY_DATATYPE, rowsOf } from '../support/fixtures-elementwise.ts';
import { assertCallRefused, type GrpcClient, GrpcClients, type Message } from '../support/grpc.ts';
import {
  assertAllAtWork,
  assertIdle,
  assertNoMoreDescriptors,
  countDescriptors,
  untilRunning,
} from '../support/idle.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer, type TestServer } from '../support/server.ts';
import {
  assertSameTensor,
  fromWire,
  randomTensor,
  stringTensor,
  type TestTensor,
  wireBytes,
} from '../support/tensor.ts';

const random = seedFromEnv();
const models = {
  ...Object.fromEntries(EVERY_DATATYPE.map((datatype) => [rowsOf(datatype), {}])),
  rows: { config: { max_batch_size: 4, queue: { max_rows: 64 } } },
  simple: {},
  slow: {},
};
const server = launchServer(
  { after },
  { grpc: true, repository: makeRepository({ after }, models).dir, args: ['--system-shared-memory', '--ingress', '2'] },
);
const plain = launchServer({ after }, { grpc: true, repository: makeRepository({ after }, ['rows']).dir });
const clients = new GrpcClients({ after }, server);
let client: GrpcClient;

before(async () => {
  await Promise.all([server.ready(), plain.ready()]);
  client = clients.open();
});

afterEach(async () => assertDone(await unregisterAll()));

const paths: string[] = [];
after(() => {
  for (const file of paths) fs.rmSync(file, { force: true });
});

/** A file of shared memory of this test. Its name is not one by which others look for what a server has left. */
class SharedFile {
  readonly key: string;
  readonly path: string;

  constructor(bytes: Uint8Array) {
    this.key = `test-client-${process.pid}-${paths.length}`;
    this.path = path.join('/dev/shm', this.key);
    fs.writeFileSync(this.path, bytes);
    paths.push(this.path);
  }

  read(at: number, bytes: number): Uint8Array {
    return new Uint8Array(fs.readFileSync(this.path).subarray(at, at + bytes));
  }
}

const regionPath = (name: string, what: string) => `/v2/systemsharedmemory/region/${encodeURIComponent(name)}/${what}`;

function register(name: string, key: string, bytes: number, offset = 0, of: TestServer = server): Promise<Answer> {
  return send(of.url, regionPath(name, 'register'), jsonBody(JSON.stringify({ key, offset, byte_size: bytes })));
}

const unregister = (name: string) => send(server.url, regionPath(name, 'unregister'), jsonBody(''));

const unregisterAll = () => send(server.url, '/v2/systemsharedmemory/unregister', jsonBody(''));

function assertDone(answer: Answer): void {
  assert.equal(answer.status, 200, answer.body.toString());
  assert.equal(answer.body.length, 0);
}

async function regionOf(name: string, bytes: Uint8Array): Promise<SharedFile> {
  const file = new SharedFile(bytes);
  assertDone(await register(name, file.key, bytes.length));
  return file;
}

interface Place {
  readonly region: string;
  readonly bytes: number;
  readonly offset?: number;
}

const parametersOf = ({ region, bytes, offset }: Place) => ({
  shared_memory_region: region,
  shared_memory_byte_size: bytes,
  ...(offset === undefined ? {} : { shared_memory_offset: offset }),
});

const inputAt = (name: string, { datatype, shape }: Pick<TestTensor, 'datatype' | 'shape'>, place: Place) => ({
  name,
  datatype,
  shape,
  parameters: parametersOf(place),
});

const request = (fields: object): InferRequest => jsonBody(JSON.stringify(fields));

/** FP32 rows of four in a region, to the model `rows`. */
const rowsIn = (rows: number, place: Place, fields: object = {}): InferRequest =>
  request({ inputs: [inputAt('x', { datatype: 'FP32', shape: [rows, 4] }, place)], ...fields });

test('the server says that it has the extension only where it is on', async () => {
  const extensionsOf = async (of: TestServer) => json(await get(of.url, '/v2')).extensions as string[];
  assert((await extensionsOf(server)).includes('system_shared_memory'));
  assert(!(await extensionsOf(plain)).includes('system_shared_memory'));
});

test('where it is off nothing of it is taken, and the message says how to turn it on', async () => {
  const off = /--system-shared-memory/;
  assertRefused(await register('r', 'any', 16, 0, plain), 'NOT_SUPPORTED', off);
  assertRefused(await get(plain.url, '/v2/systemsharedmemory/status'), 'NOT_SUPPORTED', off);
  assertRefused(await infer(plain.url, 'rows', rowsIn(1, { region: 'r', bytes: 16 })), 'BAD_REQUEST', off);
  const grpc = new GrpcClients({ after }, plain).open();
  await assertCallRefused(grpc.call('SystemSharedMemoryStatus'), 'NOT_SUPPORTED', off);
});

for (const datatype of EVERY_DATATYPE) {
  test(`${datatype} read from a region and written into one is as it was sent, over HTTP and gRPC`, async () => {
    const model = rowsOf(datatype);
    const [input, output] = ['x', 'y'];
    const value =
      datatype === 'BYTES'
        ? stringTensor([3, 4], [...'abcdefghij', '', 'lm\0n'])
        : randomTensor(random, datatype, [3, 4]);
    const bytes = wireBytes(value);
    const names = ['in', 'out'].map((what) => `${what}-${datatype}`) as [string, string];
    // Not at the start of the file, nor of the region.
    const file = new SharedFile(Buffer.concat([Buffer.alloc(24), bytes, Buffer.alloc(8)]));
    assertDone(await register(names[0], file.key, bytes.length + 16, 16));
    const room = new SharedFile(new Uint8Array(2 * bytes.length + 8));
    assertDone(await register(names[1], room.key, 2 * bytes.length + 8));
    const from = { region: names[0], bytes: bytes.length, offset: 8 };
    const into = { region: names[1], bytes: bytes.length + 8, offset: bytes.length };
    const check = (where: string) =>
      assertSameTensor(fromWireOf(value, room.read(bytes.length, bytes.length)), value, where);

    const asked = request({
      inputs: [inputAt(input, value, from)],
      outputs: [{ name: output, parameters: parametersOf(into) }],
    });
    const answer = await infer(server.url, model, asked);
    assert.equal(answer.status, 200, answer.body.toString());
    assert.deepEqual((json(answer).outputs as unknown[])[0], {
      name: output,
      datatype,
      shape: [3, 4],
    });
    check('over HTTP');

    fs.writeFileSync(room.path, new Uint8Array(2 * bytes.length + 8));
    const message = await client.call('ModelInfer', {
      model_name: model,
      inputs: [{ name: input, datatype, shape: value.shape, parameters: grpcParameters(from) }],
      outputs: [{ name: output, parameters: grpcParameters(into) }],
    });
    assert.equal(message.raw_output_contents.length, 1);
    assert.equal(message.raw_output_contents[0].length, 0);
    check('over gRPC');
  });
}

function fromWireOf({ datatype, shape }: TestTensor, bytes: Uint8Array): TestTensor {
  if (datatype !== 'BYTES') return fromWire(datatype, shape, bytes);
  const answer = { status: 200, body: Buffer.from(bytes), header: () => undefined };
  const head = Buffer.from(
    JSON.stringify({ outputs: [{ name: 'y', datatype, shape, parameters: { binary_data_size: bytes.length } }] }),
  );
  const whole: Answer = {
    ...answer,
    body: Buffer.concat([head, answer.body]),
    header: (name) => (name === HEADER_LENGTH ? String(head.length) : undefined),
  };
  return outputsOf(whole).get('y')!;
}

function grpcParameters({ region, bytes, offset }: Place): Message {
  return {
    shared_memory_region: { string_param: region },
    shared_memory_byte_size: { int64_param: bytes },
    ...(offset === undefined ? {} : { shared_memory_offset: { int64_param: offset } }),
  };
}

test('inputs in a region, in JSON and behind it, and outputs of each kind meet in one request', async () => {
  const a = randomTensor(random, 'INT32', [2, 16]);
  const b = randomTensor(random, 'INT32', [2, 16]);
  await regionOf('mixed-in', wireBytes(a));
  const room = await regionOf('mixed-out', new Uint8Array(128));
  const sum = Int32Array.from(a.data as Int32Array, (value, n) => value + (b.data as Int32Array)[n]!);
  const inputs = [
    inputAt('INPUT0', a, { region: 'mixed-in', bytes: 128 }),
    { name: 'INPUT1', datatype: 'INT32', shape: [2, 16], data: [...(b.data as Int32Array)] },
  ];
  const outputs = [
    { name: 'OUTPUT1' },
    { name: 'OUTPUT0', parameters: parametersOf({ region: 'mixed-out', bytes: 128 }) },
  ];
  const answer = await infer(server.url, 'simple', request({ inputs, outputs }));
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual(new Int32Array(room.read(0, 128).buffer), sum);
  const [difference] = json(answer).outputs as { name: string; data: number[] }[];
  assert.deepEqual(
    difference!.data,
    Array.from(a.data as Int32Array, (value, n) => (value - (b.data as Int32Array)[n]!) | 0),
  );

  const raw = await client.call('ModelInfer', {
    model_name: 'simple',
    inputs: [
      { name: 'INPUT1', datatype: 'INT32', shape: [2, 16] },
      {
        name: 'INPUT0',
        datatype: 'INT32',
        shape: [2, 16],
        parameters: grpcParameters({ region: 'mixed-in', bytes: 128 }),
      },
    ],
    raw_input_contents: [wireBytes(b)],
    outputs: [{ name: 'OUTPUT0' }],
  });
  assert.deepEqual(new Int32Array(new Uint8Array(raw.raw_output_contents[0]).buffer), sum);
});

test('a request of more rows than a batch is cut out of its region and joined in it', async () => {
  const value = randomTensor(random, 'FP32', [11, 4]);
  await regionOf('many', wireBytes(value));
  const room = await regionOf('many-out', new Uint8Array(176));
  const outputs = [{ name: 'y', parameters: parametersOf({ region: 'many-out', bytes: 176 }) }];
  const answer = await infer(server.url, 'rows', rowsIn(11, { region: 'many', bytes: 176 }, { outputs }));
  assert.equal(answer.status, 200, answer.body.toString());
  assertSameTensor(fromWire('FP32', [11, 4], room.read(0, 176)), value);
});

describe('registering', () => {
  test('what is registered is told, by all and by name, over both protocols, until it is taken out', async () => {
    const file = await regionOf('told ü/%', new Uint8Array(64));
    const entry = { name: 'told ü/%', key: file.key, offset: 0, byte_size: 64 };
    const statusOf = async (what: string) => JSON.parse((await get(server.url, what)).body.toString());
    // Connections spread over the ingress processes.
    for (let n = 0; n < 8; n++) assert.deepEqual(await statusOf(regionPath('told ü/%', 'status')), [entry]);
    assert.deepEqual(await statusOf('/v2/systemsharedmemory/status'), [entry]);
    const { regions } = await client.call('SystemSharedMemoryStatus');
    assert.deepEqual(regions, { 'told ü/%': { ...entry, offset: '0', byte_size: '64' } });
    await client.call('SystemSharedMemoryUnregister', { name: 'told ü/%' });
    assertRefused(await get(server.url, regionPath('told ü/%', 'status')), 'NOT_FOUND', /told ü\/%/);
    await client.call('SystemSharedMemoryRegister', { name: 'again', key: `/${file.key}`, offset: 8, byte_size: 56 });
    assert.deepEqual(await statusOf('/v2/systemsharedmemory/status'), [
      { name: 'again', key: `/${file.key}`, offset: 8, byte_size: 56 },
    ]);
    assertDone(await unregisterAll());
    assert.deepEqual(await statusOf('/v2/systemsharedmemory/status'), []);
    // What is out is out.
    assertDone(await unregister('again'));
  });

  test('a name is registered once', async () => {
    const file = await regionOf('once', new Uint8Array(16));
    assertRefused(await register('once', file.key, 16), 'ALREADY_EXISTS', /'once' already in manager/);
    await assertCallRefused(
      client.call('SystemSharedMemoryRegister', { name: 'once', key: file.key, byte_size: 16 }),
      'ALREADY_EXISTS',
      /already in manager/,
    );
  });

  test('only regular files of /dev/shm that hold the region are taken, by plain names', async () => {
    const file = new SharedFile(new Uint8Array(16));
    const link = path.join('/dev/shm', `${file.key}-link`);
    fs.symlinkSync('/etc/hostname', link);
    paths.push(link);
    for (const [key, bytes, message] of [
      ['', 16, /no name of shared memory/],
      ['..', 16, /no name of shared memory/],
      ['/', 16, /no name of shared memory/],
      ['../etc/passwd', 16, /no name of shared memory/],
      ['a/b', 16, /no name of shared memory/],
      ['a\0b', 16, /no name of shared memory/],
      ['x'.repeat(300), 16, /no name of shared memory/],
      [`${file.key}-none`, 16, /ENOENT/],
      [`${file.key}-link`, 16, /ELOOP/],
      [file.key, 17, /would end at byte 17, but its file has 16 bytes/],
      [file.key, 0, /'byte_size' of 1 or more/],
    ] as const) {
      assertRefused(await register('bad', key, bytes), 'BAD_REQUEST', message);
    }
    assertRefused(await register('bad', file.key, 16, 1), 'BAD_REQUEST', /would end at byte 17/);
    assertRefused(await register('a\nb', file.key, 16), 'BAD_REQUEST', /control characters/);
    assertRefused(await register('n'.repeat(300), file.key, 16), 'BAD_REQUEST', /256 characters/);
    for (const body of [
      '',
      'x',
      '[]',
      'null',
      '{}',
      '{"key":7}',
      `{"key":"${file.key}","byte_size":-1}`,
      `{"key":"${file.key}","byte_size":1.5}`,
    ]) {
      const answer = await send(server.url, regionPath('bad', 'register'), jsonBody(body));
      assertRefused(answer, 'BAD_REQUEST', /./);
    }
    assert.equal((await get(server.url, '/v2/systemsharedmemory/status')).body.toString(), '[]');
  });

  test('regions are bounded, and none of them is left open when they are taken out', async () => {
    const descriptors = await countDescriptors(server);
    const file = new SharedFile(new Uint8Array(16));
    for (let n = 0; n < 256; n++) assertDone(await register(`r${n}`, file.key, 16));
    assertRefused(await register('one more', file.key, 16), 'QUEUE_FULL', /256 regions/);
    assertDone(await unregisterAll());
    await assertNoMoreDescriptors(server, descriptors);
  });

  test('shared memory of GPUs is not taken, and clients that tidy up all the same are content', async () => {
    assert.equal((await get(server.url, '/v2/cudasharedmemory/status')).body.toString(), '[]');
    assertDone(await send(server.url, '/v2/cudasharedmemory/unregister', jsonBody('')));
    const body = jsonBody('{"raw_handle":{"b64":"AA=="},"device_id":0,"byte_size":16}');
    assertRefused(await send(server.url, '/v2/cudasharedmemory/region/r/register', body), 'NOT_SUPPORTED', /GPU/);
    assert.deepEqual((await client.call('CudaSharedMemoryStatus')).regions, {});
    await client.call('CudaSharedMemoryUnregister');
    await assertCallRefused(client.call('CudaSharedMemoryRegister', { name: 'r' }), 'NOT_SUPPORTED', /GPU/);
  });
});

describe('requests that do not fit their region', () => {
  let file: SharedFile;
  beforeEach(async () => {
    file = await regionOf('misfit', new Uint8Array(64));
  });

  test('are refused, and say why', async () => {
    const place = { region: 'misfit', bytes: 16 };
    const input = inputAt('x', { datatype: 'FP32', shape: [1, 4] }, place);
    const [only, data] = [{ ...input, parameters: { shared_memory_region: 'misfit' } }, [1, 2, 3, 4]];
    for (const [fields, code, message] of [
      [rowsIn(1, { region: 'other', bytes: 16 }), 'BAD_TENSOR', /'other'; it has to be registered/],
      [rowsIn(1, { region: 'misfit', bytes: 15 }), 'BAD_TENSOR', /expected 16 bytes, got 15/],
      [rowsIn(1, { region: 'misfit', bytes: 16, offset: 49 }), 'BAD_TENSOR', /has 64 bytes/],
      [rowsIn(1, { region: 'misfit', bytes: 16, offset: Number.MAX_SAFE_INTEGER }), 'BAD_TENSOR', /has 64 bytes/],
      [request({ inputs: [{ ...input, data }] }), 'BAD_REQUEST', /neither 'data' nor/],
      [request({ inputs: [only] }), 'BAD_REQUEST', /no parameter 'shared_memory_byte_size'/],
      [
        request({ inputs: [{ ...input, parameters: { ...input.parameters, binary_data_size: 16 } }] }),
        'BAD_REQUEST',
        /neither/,
      ],
      [
        request({ inputs: [{ ...input, parameters: { ...input.parameters, shared_memory_offset: -1 } }] }),
        'BAD_REQUEST',
        /integer of 0/,
      ],
      [
        request({ inputs: [{ ...input, parameters: { ...input.parameters, shared_memory_region: 7 } }] }),
        'BAD_REQUEST',
        /must be a string/,
      ],
      [
        request({ inputs: [input], parameters: { shared_memory_region: 'misfit' } }),
        'BAD_REQUEST',
        /belongs to an input or an output/,
      ],
      [
        rowsIn(1, place, { outputs: [{ name: 'y', parameters: parametersOf({ region: 'misfit', bytes: 15 }) }] }),
        'BAD_TENSOR',
        /should be at least 16 bytes/,
      ],
      [
        rowsIn(1, place, { outputs: [{ name: 'y', parameters: parametersOf({ region: 'none', bytes: 16 }) }] }),
        'BAD_TENSOR',
        /'none'/,
      ],
    ] as const) {
      assertRefused(await infer(server.url, 'rows', fields), code, message);
    }
    await assertCallRefused(
      client.call('ModelInfer', {
        model_name: 'rows',
        inputs: [
          { name: 'x', datatype: 'FP32', shape: [1, 4], parameters: grpcParameters({ region: 'other', bytes: 16 }) },
        ],
      }),
      'BAD_TENSOR',
      /'other'/,
    );
    await assertUnharmed(server);
  });

  test('values that no datatype has are found in a region too', async () => {
    fs.writeFileSync(file.path, Buffer.alloc(64, 7));
    const where = { region: 'misfit', bytes: 4 };
    const asked = (datatype: Datatype) => request({ inputs: [inputAt('x', { datatype, shape: [1, 4] }, where)] });
    assertRefused(
      await infer(server.url, rowsOf('BOOL'), asked('BOOL')),
      'BAD_TENSOR',
      /the byte 7, but BOOL takes 0 or 1/,
    );
    assertRefused(await infer(server.url, rowsOf('BYTES'), asked('BYTES')), 'BAD_TENSOR', /no|not a serialised/);
  });

  test('a file that has become shorter costs the requests that name what is gone, and is not made longer', async () => {
    fs.truncateSync(file.path, 20);
    assertRefused(
      await infer(server.url, 'rows', rowsIn(2, { region: 'misfit', bytes: 32 })),
      'BAD_TENSOR',
      /has become shorter/,
    );
    assert.equal((await infer(server.url, 'rows', rowsIn(1, { region: 'misfit', bytes: 16 }))).status, 200);
    const outputs = [{ name: 'y', parameters: parametersOf({ region: 'misfit', bytes: 16, offset: 16 }) }];
    const beyond = await infer(server.url, 'rows', rowsIn(1, { region: 'misfit', bytes: 16 }, { outputs }));
    assertRefused(beyond, 'BAD_TENSOR', /has become shorter/);
    assert.equal(fs.statSync(file.path).size, 20);
    // Its rows are in no batch: those of others are answered.
    const others = [1, 2, 3].map(() => rowsIn(1, { region: 'misfit', bytes: 16 }));
    const mixed = [...others, rowsIn(2, { region: 'misfit', bytes: 32 }), ...others];
    const answers = await sendTogether(
      server.url,
      mixed.map((one) => inferBytes('rows', one)),
    );
    assert.deepEqual(
      answers.map(({ status }) => status),
      [200, 200, 200, 400, 200, 200, 200],
    );
    await assertIdle(server);
    await assertUnharmed(server);
  });
});

test('a region that goes while its request runs costs that request alone', async () => {
  const steps = 20_000;
  const file = await regionOf(
    'short-lived',
    wireBytes({ datatype: 'INT64', shape: [1, 1], data: BigInt64Array.of(BigInt(steps)) }),
  );
  const [input, output] = ['steps', 'y'];
  const asked = request({
    inputs: [inputAt(input, { datatype: 'INT64', shape: [1, 1] }, { region: 'short-lived', bytes: 8 })],
    outputs: [{ name: output, parameters: parametersOf({ region: 'short-lived', bytes: 8 }) }],
  });
  const running = infer(server.url, 'slow', asked);
  await untilRunning(server, 'slow');
  assertDone(await unregister('short-lived'));
  // The name may stand for another region at once, into which nothing of the old request goes.
  const other = await regionOf('short-lived', new Uint8Array(8));
  assertRefused(await running, 'BAD_TENSOR', /has been unregistered before the request was done/);
  assert.deepEqual(other.read(0, 8), new Uint8Array(8));
  assert.equal(file.read(0, 8).length, 8);
  await assertIdle(server);
});

test('regions outlive the ingress processes', async () => {
  const value = randomTensor(random, 'FP32', [1, 4]);
  await regionOf('lasting', wireBytes(value));
  for (const pid of await server.pids('ingress')) process.kill(pid, 'SIGKILL');
  await assertAllAtWork(server);
  for (let n = 0; n < 4; n++) {
    const answer = await infer(server.url, 'rows', rowsIn(1, { region: 'lasting', bytes: 16 }));
    assert.equal(answer.status, 200, answer.body.toString());
    assertSameTensor(outputsOf(answer).get('y'), value);
  }
});
