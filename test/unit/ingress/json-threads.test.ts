/** Large JSON in threads: the same results and refusals as at once, what is counted meanwhile, and threads that die. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import { createLogger } from '../../../src/config/log.ts';
import { BodyBudget } from '../../../src/ingress/body.ts';
import { JsonThreads, type LargeBody } from '../../../src/ingress/json-threads.ts';
import { type OutputJob, processOutput } from '../../../src/postprocess/process.ts';
import { readLines, type TextLines } from '../../../src/postprocess/text-lines.ts';
import type { BoundRequest } from '../../../src/protocol/bound-request.ts';
import { type ModelInterface, RequestDecoder } from '../../../src/protocol/request-decoder.ts';
import { type OutputTensor, ResponseEncoder } from '../../../src/protocol/response-encoder.ts';
import { encodeBytesTensor } from '../../../src/tensor/bytes-tensor.ts';
import { DATATYPES, type Datatype, datatypeInfo } from '../../../src/tensor/datatype.ts';
import { DEADLY_CLASSES, DEADLY_ID } from '../../support/mortal-json.ts';
import { identity, model, tensor } from '../protocol/fixtures.ts';

const MIB = 2 ** 20;
const LIMITS = { maxElements: MIB, maxTensorBytes: 8 * MIB };
const ENTRY = new URL('../../../workers/json.js', import.meta.url);
const MORTAL_ENTRY = new URL('../../support/mortal-json.js', import.meta.url);
const JSON_TYPES = (Object.keys(DATATYPES) as Datatype[]).filter((datatype) => datatypeInfo(datatype).json);
const wanted = () => true;

function makeThreads(entry = ENTRY, budget = new BodyBudget(64 * MIB, 16 * MIB)) {
  return { budget, threads: new JsonThreads({ entry, threads: 1, budget, log: createLogger('test', 'fatal') }) };
}

const shared = makeThreads();

/** Fails unless nothing is counted any more. */
function assertNothingHeld(budget: BodyBudget): void {
  budget.take(budget.maxBytes);
  budget.give(budget.maxBytes);
}

interface Body {
  readonly body: Buffer;
  readonly headerLength?: number;
}

/** In pieces of lengths that fit nothing. */
function largeBody(body: Buffer, headerLength?: number): LargeBody {
  const size = Math.max(7, Math.floor(body.length / 3) - 1);
  const pieces = Array.from({ length: Math.ceil(body.length / size) }, (_, n) =>
    Buffer.from(body.subarray(n * size, (n + 1) * size)),
  );
  return { pieces, length: body.length, headerLength };
}

/** What decoding comes to, at once and in a thread; both are the same for the same body. */
async function decodeBothWays(target: ModelInterface, { body, headerLength }: Body) {
  const text = Buffer.from(body);
  const settled = async (work: () => BoundRequest | Promise<BoundRequest>) => {
    try {
      const { template, inputs, ...rest } = await work();
      return { template, inputs: inputs.map((data) => Buffer.from(data).toString('hex')), ...rest };
    } catch (error) {
      if (!(error instanceof BatchportError)) throw error;
      return { code: error.code, message: error.message };
    }
  };
  const atOnce = await settled(() => new RequestDecoder(target, LIMITS).decode(text, headerLength));
  const decoder = new RequestDecoder(target, LIMITS);
  const inThread = await settled(() => shared.threads.read(decoder, largeBody(body, headerLength), wanted));
  assert.deepEqual(inThread, atOnce);
  return atOnce;
}

const oneInput = (datatype: Datatype, count: number, data: string, rest = '') =>
  `{${rest}"inputs":[{"name":"x","shape":[${count}],"datatype":"${datatype}","data":[${data}]}]}`;

const ELEMENTS: Record<string, string[]> = {
  bool: ['true', 'false'],
  uint: ['0', '255', '1e1'],
  int: ['-128', '0', '127'],
  float: ['-0.0', '1.5', '3.4e38', '1e-45', '0.1'],
  bytes: ['""', '"é大😀"', '"a\\u0000b"', '"\\\\"'],
};

for (const datatype of JSON_TYPES) {
  test(`${datatype} read in a thread is what is read at once, with few and with many elements`, async () => {
    const texts = ELEMENTS[datatypeInfo(datatype).kind]!;
    for (const count of [0, 1, 7, 50_000]) {
      const data = Array.from({ length: count }, (_, n) => texts[n % texts.length]).join();
      const result = await decodeBothWays(identity(datatype), { body: Buffer.from(oneInput(datatype, count, data)) });
      assert('inputs' in result, JSON.stringify(result));
    }
  });
}

test('binary tensors behind the JSON, ids, parameters and outputs come through a thread', async () => {
  const mixed = model(
    'mixed',
    [tensor('a', 'FP32', [-1, 2]), tensor('s', 'INT64', []), tensor('t', 'BYTES', [-1])],
    [tensor('b', 'BOOL', []), tensor('c', 'FP32', [])],
  );
  const strings = encodeBytesTensor([Buffer.from('one'), Buffer.from([0xff, 0])]);
  const floats = Buffer.alloc(16, 1);
  const json = Buffer.from(
    `{"id":"ü","parameters":{"timeout":5,"priority":1},"inputs":[{"name":"t","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":${strings.length}}},` +
      `{"name":"s","shape":[],"datatype":"INT64","data":[9007199254740993]},{"name":"a","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],` +
      `"outputs":[{"name":"c","parameters":{"binary_data":true}},{"name":"b"}]}`,
  );
  const request = await decodeBothWays(mixed, {
    body: Buffer.concat([json, strings, floats]),
    headerLength: json.length,
  });
  assert('inputs' in request);
  assert.deepEqual(request.inputs, [floats.toString('hex'), '0100000000002000', Buffer.from(strings).toString('hex')]);
  assert.deepEqual([request.id, request.timeoutUs, request.priority], ['ü', 5, 1]);
});

test('what is refused at once is refused in a thread with the same words', async () => {
  const zeros = '0,'.repeat(20_000);
  const bodies: Body[] = [
    '',
    '[]',
    '{"inputs":[]}',
    oneInput('FP32', 20_001, `${zeros}NaN`),
    oneInput('FP32', 20_001, `${zeros}1e39`),
    oneInput('FP32', 20_001, `${zeros}"x"`),
    oneInput('FP32', 20_001, `${zeros}0,0`),
    oneInput('FP32', 20_002, `${zeros}0`),
    oneInput('FP64', 1, '0'),
    oneInput('FP32', 1 << 30, '0'),
    oneInput('FP32', 20_001, `${zeros}0`).slice(0, -1),
    oneInput('FP32', 20_001, `${zeros}0`, '"id":"a","id":"b",'),
  ].map((text) => ({ body: Buffer.from(text) }));
  bodies.push({ body: Buffer.concat([Buffer.from(oneInput('FP32', 1, '0')), Buffer.from([0xff])]) });
  // The JSON is right, what is behind it is not: found when the thread is done.
  const text = Buffer.from(oneInput('FP32', 1, '0'));
  bodies.push({ body: Buffer.concat([text, Buffer.alloc(3)]), headerLength: text.length });
  for (const body of bodies) {
    const result = await decodeBothWays(identity('FP32'), body);
    assert('code' in result, JSON.stringify(result).slice(0, 200));
  }
  assertNothingHeld(shared.budget);
});

/** Outputs in memory of their own, as an encoder in a thread wants them. */
function outputOf(datatype: Datatype, count: number): OutputTensor {
  const bytes =
    datatype === 'BYTES'
      ? encodeBytesTensor(Array.from({ length: count }, (_, n) => Buffer.from(`"${n}\n`)))
      : Uint8Array.from({ length: count * datatypeInfo(datatype).elementBytes }, (_, n) =>
          datatype === 'BOOL' ? n % 2 : n % 127,
        );
  return { shape: [count], data: new Uint8Array(bytes) };
}

for (const datatype of JSON_TYPES) {
  test(`${datatype} written in a thread is what is written at once`, async () => {
    for (const count of [0, 3, 20_000]) {
      for (const id of [undefined, 'ü']) {
        const encoder = new ResponseEncoder(identity(datatype));
        const head = id === undefined ? '' : `"id":"${id}",`;
        const request = new RequestDecoder(identity(datatype), LIMITS).decode(
          Buffer.from(oneInput(datatype, 0, '', head)),
          undefined,
        );
        const expected = new ResponseEncoder(identity(datatype)).encode(request, [outputOf(datatype, count)]);
        const answer = await shared.threads.write(encoder, request, [outputOf(datatype, count)], wanted);
        assert.equal(answer.headerLength, undefined);
        assert(answer.body.equals(expected.body));
      }
    }
  });
}

test('an answer that JSON cannot carry is refused with the words that it has at once, and one in both forms is whole', async () => {
  const target = model('two', [tensor('x', 'FP32', [-1])], [tensor('y', 'FP32', [-1]), tensor('z', 'FP32', [-1])]);
  const request = new RequestDecoder(target, LIMITS).decode(
    Buffer.from(oneInput('FP32', 0, '', '"outputs":[{"name":"z","parameters":{"binary_data":true}},{"name":"y"}],')),
    undefined,
  );
  const outputs = () => [outputOf('FP32', 3), outputOf('FP32', 20_000)];
  const expected = new ResponseEncoder(target).encode(request, outputs());
  const answer = await shared.threads.write(new ResponseEncoder(target), request, outputs(), wanted);
  assert.equal(answer.headerLength, expected.headerLength);
  assert(answer.body.equals(expected.body));

  const bad = () => {
    const [z, y] = outputs() as [OutputTensor, OutputTensor];
    y.data.fill(0xff, 400, 404);
    return [z, y];
  };
  const failure = (error: BatchportError) => `${error.code} ${error.message}`;
  let words = '';
  try {
    new ResponseEncoder(target).encode(request, bad());
  } catch (error) {
    words = failure(error as BatchportError);
  }
  assert.match(words, /^BAD_REQUEST .*element 100 is NaN/);
  await assert.rejects(shared.threads.write(new ResponseEncoder(target), request, bad(), wanted), (error) => {
    assert.equal(failure(error as BatchportError), words);
    return true;
  });
  assertNothingHeld(shared.budget);
});

const large = (bytes: number) => Buffer.from(oneInput('INT64', 1, '7').padEnd(bytes, ' '));

test('a body is counted from when it comes, and what it may grow to while it is read', async () => {
  const { threads, budget } = makeThreads(ENTRY, new BodyBudget(64 * MIB, 16 * MIB));
  const decoder = new RequestDecoder(identity('INT64'), LIMITS);
  const reads = [threads.read(decoder, largeBody(large(4 * MIB)), wanted)];
  budget.take(56 * MIB);
  assert.throws(() => budget.take(1), /Retry later/);
  budget.give(56 * MIB);
  // One that waits has not grown yet.
  reads.push(threads.read(decoder, largeBody(large(4 * MIB)), wanted));
  budget.take(52 * MIB);
  assert.throws(() => budget.take(1), /Retry later/);
  budget.give(52 * MIB);
  await Promise.all(reads);
  assertNothingHeld(budget);
});

test('bodies take half of what may be held, then further ones are refused; one of any size is read', async () => {
  const { threads, budget } = makeThreads(ENTRY, new BodyBudget(16 * MIB, 16 * MIB));
  const decoder = new RequestDecoder(identity('INT64'), LIMITS);
  const reads = [3, 5].map((size) => threads.read(decoder, largeBody(large(size * MIB)), wanted));
  await assert.rejects(threads.read(decoder, largeBody(large(1)), wanted), { code: 'QUEUE_FULL' });
  await Promise.all(reads);
  assertNothingHeld(budget);
  assert.equal((await threads.read(decoder, largeBody(large(16 * MIB)), wanted)).template.rows, 1);
  assertNothingHeld(budget);
});

test('a body whose client has left is not read, and nothing stays counted for it', async () => {
  const { threads, budget } = makeThreads();
  const decoder = new RequestDecoder(identity('INT64'), LIMITS);
  let here = true;
  const first = threads.read(decoder, largeBody(large(MIB)), wanted);
  const second = threads.read(decoder, largeBody(Buffer.from('no JSON')), () => here);
  here = false;
  assert.equal((await first).template.rows, 1);
  await assert.rejects(second, { code: 'CLIENT_CLOSED' });
  assertNothingHeld(budget);
});

test('a thread that dies fails its own task with a 503; those behind it get another thread', async () => {
  const { threads, budget } = makeThreads(MORTAL_ENTRY);
  const decoder = new RequestDecoder(identity('INT64'), LIMITS);
  const deadly = Buffer.from(oneInput('INT64', 1, '7', `"id":"${DEADLY_ID}",`));
  const request = decoder.decode(deadly, undefined);
  for (let round = 0; round < 3; round++) {
    const dying = threads.read(decoder, largeBody(Buffer.from(deadly)), wanted);
    const next = threads.read(decoder, largeBody(large(MIB)), wanted);
    await assert.rejects(dying, { code: 'WORKER_LOST', httpStatus: 503, message: /thread that read .* died/ });
    assert.equal((await next).template.rows, 1);
    const encoder = new ResponseEncoder(identity('INT64'));
    await assert.rejects(threads.write(encoder, request, [outputOf('INT64', 3)], wanted), {
      code: 'WORKER_LOST',
      message: /thread that wrote .* died/,
    });
  }
  assertNothingHeld(budget);
});

const job = (values: readonly number[], classes: number): OutputJob => ({
  name: 'y',
  tensor: { datatype: 'FP32', shape: [values.length], data: new Uint8Array(Float32Array.from(values).buffer) },
  steps: [],
  masks: [],
  dictionaries: [],
  rowDims: 0,
  classes,
  labels: undefined,
});

test('outputs that are processed in a thread become what they become at once', async () => {
  const { threads, budget } = makeThreads();
  const mask = { datatype: 'BOOL' as const, shape: [1, 3], data: new Uint8Array(MIB).subarray(7, 10).fill(1) };
  const pooled = { ...job([3, 1, 5], 0), steps: [{ op: 'mean_pool' as const, axis: 1, mask: 'm' }], masks: [mask] };
  const text = { ...job([3, 1, 2], 1), labels: readLines(Buffer.from('a\nb\n')) as TextLines };
  const jobs = [job([3, 1, 2], 2), job([], 4), job([0.1], 1), text];
  jobs.push({ ...pooled, tensor: { ...pooled.tensor, shape: [1, 3, 1] } });
  const atOnce = jobs.map((one) => processOutput(one));
  const inThread = await threads.process(jobs, wanted);
  for (const [n, { shape, data }] of inThread.entries()) {
    assert.deepEqual(shape, atOnce[n]!.shape);
    assert.deepEqual(Buffer.from(data), Buffer.from(atOnce[n]!.data));
  }
  assertNothingHeld(budget);
});

test('what is wrong with outputs in a thread is refused as at once', async () => {
  const { threads, budget } = makeThreads();
  const bad = { ...job([], 0), steps: [{ op: 'argmax' as const, axis: 0 }] };
  assert.throws(() => processOutput(bad), { code: 'MODEL_FAILED' });
  await assert.rejects(threads.process([bad], wanted), { code: 'MODEL_FAILED', message: /output 'y' could not be/ });
  assertNothingHeld(budget);
});

test('a thread that dies while it processes outputs costs their request alone', async () => {
  const { threads, budget } = makeThreads(MORTAL_ENTRY);
  for (let round = 0; round < 2; round++) {
    const dying = threads.process([job([1], DEADLY_CLASSES)], wanted);
    const next = threads.process([job([1, 2], 1)], wanted);
    await assert.rejects(dying, { code: 'WORKER_LOST', message: /thread that processed the outputs died/ });
    assert.deepEqual((await next)[0]!.shape, [1]);
  }
  assertNothingHeld(budget);
});

test('threads that cannot even start fail their tasks instead of keeping them', async () => {
  const { threads, budget } = makeThreads(new URL('no-such-entry.js', import.meta.url));
  const decoder = new RequestDecoder(identity('INT64'), LIMITS);
  for (let round = 0; round < 3; round++) {
    await assert.rejects(threads.read(decoder, largeBody(large(MIB)), wanted), { code: 'WORKER_LOST' });
  }
  assertNothingHeld(budget);
});
