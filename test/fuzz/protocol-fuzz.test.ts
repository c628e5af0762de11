/**
 * Mutates valid requests and feeds them to decoders that live through the whole run, and encodes random outputs for those that pass.
 *
 * Allowed outcomes of a decode: a `BoundRequest` that holds its invariants, or a `BatchportError` of status 400. Beyond that, a decoder that
 * has seen everything before must answer as a new one does, and what was accepted as JSON must be JSON of the same values to `JSON.parse`.
 *
 * Bounded by `ROUNDS`; FUZZ_SECONDS runs for that long instead. TEST_SEED repeats a run.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../src/config/errors.ts';
import type { BoundRequest } from '../../src/protocol/bound-request.ts';
import { type ModelInterface, RequestDecoder } from '../../src/protocol/request-decoder.ts';
import { type OutputTensor, ResponseEncoder } from '../../src/protocol/response-encoder.ts';
import { bytesTensorFault, encodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import { type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import { elementCount, shapeFits } from '../../src/tensor/shape.ts';
import { MODELS, mutate, type Sample, sample } from '../support/fuzz-requests.ts';
import { type Random, seedFromEnv } from '../support/random.ts';
import { LIMITS, SIMPLE } from '../unit/protocol/fixtures.ts';

const ROUNDS = 10_000;

type Outcome = BoundRequest | BatchportError;

function attempt(decoder: RequestDecoder, { body, headerLength }: Sample): Outcome {
  try {
    return decoder.decode(body, headerLength);
  } catch (error) {
    if (error instanceof BatchportError && error.httpStatus === 400) return error;
    throw error;
  }
}

/** Checks what `bound-request.ts` promises. */
function checkBound(request: BoundRequest, target: ModelInterface): void {
  const { template, inputs } = request;
  const { signature } = target;
  assert.equal(inputs.length, signature.inputs.length);
  assert.equal(template.whole && template.rows !== 1, false);
  assert.ok(template.rows >= 1 && (template.whole || template.rows <= target.maxBatchSize));
  if (!target.batching) assert.ok(template.whole);
  for (const [i, spec] of signature.inputs.entries()) {
    const shape = template.whole ? template.shapes[i]! : [template.rows, ...template.shapes[i]!];
    assert.ok(shapeFits(shape, spec.shape), `${spec.name} ${shape}`);
    const count = elementCount(shape)!;
    const { elementBytes } = datatypeInfo(spec.datatype);
    assert.equal(template.inputBytes[i], elementBytes === 0 ? -1 : count * elementBytes);
    if (elementBytes === 0) assert.equal(bytesTensorFault(inputs[i]!, count), undefined);
    else assert.equal(inputs[i]!.length, count * elementBytes);
    if (spec.datatype === 'BOOL') assert.ok(inputs[i]!.every((byte) => byte <= 1));
  }
  const wanted = template.outputs.map((output) => output.index);
  assert.equal(new Set(wanted).size, wanted.length);
  for (const index of wanted) assert.ok(signature.outputs[index] !== undefined);
  assert.ok(request.id === undefined || Buffer.from(request.id).toString() === request.id);
  for (const value of [request.timeoutUs, request.priority])
    assert.ok(value === undefined || (Number.isSafeInteger(value) && value > 0));
}

/** Compares JSON tensors of up to 53 bits with what JSON.parse makes of the request. */
function checkAgainstParse(request: BoundRequest, target: ModelInterface, json: string): void {
  const parsed = JSON.parse(json);
  if (request.id !== undefined) assert.equal(request.id, parsed.id);
  for (const [i, { name, datatype }] of target.signature.inputs.entries()) {
    const data = parsed.inputs.find((input: { name: string }) => input.name === name).data;
    if (
      data === undefined ||
      datatype === 'INT64' ||
      datatype === 'UINT64' ||
      datatype === 'BYTES' ||
      datatype === 'BOOL'
    )
      continue;
    const copy = Uint8Array.from(request.inputs[i]!).buffer;
    const views = {
      FP32: Float32Array,
      FP64: Float64Array,
      INT32: Int32Array,
      INT16: Int16Array,
      INT8: Int8Array,
      UINT32: Uint32Array,
      UINT16: Uint16Array,
      UINT8: Uint8Array,
    };
    const view = views[datatype as keyof typeof views];
    assert.deepEqual(
      [...new view(copy)],
      [...view.from(data.flat(8))].map((value) => value),
    );
  }
}

function randomOutput(random: Random, datatype: Datatype): OutputTensor {
  const count = random.int(0, 4);
  if (datatype === 'BYTES') {
    return {
      shape: [count],
      data: encodeBytesTensor(Array.from({ length: count }, () => random.bytes(random.int(0, 6)))),
    };
  }
  const data = random.bytes(count * datatypeInfo(datatype).elementBytes);
  if (datatype === 'BOOL') for (const i of data.keys()) data[i]! &= 1;
  return { shape: [count], data };
}

function checkEncode(random: Random, encoder: ResponseEncoder, request: BoundRequest, target: ModelInterface): void {
  const outputs = request.template.outputs.map(({ index }) =>
    randomOutput(random, target.signature.outputs[index]!.datatype),
  );
  let response: ReturnType<ResponseEncoder['encode']>;
  try {
    response = encoder.encode(request, outputs);
  } catch (error) {
    if (error instanceof BatchportError && error.httpStatus === 400) return;
    throw error;
  }
  const { body, headerLength } = response;
  const json = JSON.parse(body.toString('utf8', 0, headerLength));
  assert.equal(json.id, request.id);
  let at = headerLength ?? body.length;
  for (const [i, { binary }] of request.template.outputs.entries()) {
    const { data, shape } = outputs[i]!;
    assert.deepEqual(json.outputs[i].shape, shape);
    if (!binary) {
      assert.equal(json.outputs[i].data.length, shape[0]);
      continue;
    }
    assert.equal(json.outputs[i].parameters.binary_data_size, data.length);
    assert.deepEqual(new Uint8Array(body.subarray(at, at + data.length)), new Uint8Array(data));
    at += data.length;
  }
  assert.equal(at, body.length);
}

/** What the outcome of a decode is worth: the same for a decoder with and without a past. */
function comparable(outcome: Outcome): unknown {
  return outcome instanceof BatchportError
    ? outcome.code
    : { ...outcome, inputs: outcome.inputs.map((data) => Buffer.from(data).toString('hex')) };
}

test('mutated requests are either bound with every invariant held or refused with a 400', () => {
  const random = seedFromEnv();
  const seconds = Number(process.env.FUZZ_SECONDS ?? 0);
  const until = performance.now() + 1000 * seconds;
  const rigs = MODELS.map((target) => ({
    target,
    decoder: new RequestDecoder(target, LIMITS),
    encoder: new ResponseEncoder(target),
  }));
  const counts = { bound: 0, refused: 0 };
  for (let round = 0; seconds > 0 ? performance.now() < until : round < ROUNDS; round++) {
    const { target, decoder, encoder } = random.pick(rigs);
    const valid = sample(random, target);
    let input = random.chance(0.25) ? valid : mutate(random, valid);
    if (random.chance(0.03)) input = { body: Buffer.from(random.bytes(random.int(0, 24))), headerLength: 0 };
    const before = Buffer.from(input.body);
    try {
      const outcome = attempt(decoder, input);
      assert.deepEqual(comparable(attempt(new RequestDecoder(target, LIMITS), input)), comparable(outcome));
      assert.ok(before.equals(input.body), 'the body was changed');
      if (outcome instanceof BatchportError) {
        counts.refused++;
        assert.ok(outcome.message.length < 700, 'a message repeats the request');
      } else {
        counts.bound++;
        checkBound(outcome, target);
        if (input.headerLength !== 0)
          checkAgainstParse(outcome, target, input.body.toString('utf8', 0, input.headerLength));
        checkEncode(random, encoder, outcome, target);
      }
    } catch (error) {
      console.log(`model ${target.name}, header ${input.headerLength}, body ${before.toString('base64')}`);
      throw error;
    }
  }
  console.log(`bound ${counts.bound}, refused ${counts.refused}`);
  // Both outcomes must be common, or the mutations test nothing.
  assert.ok(counts.bound * 20 > counts.refused && counts.refused * 20 > counts.bound, JSON.stringify(counts));
});

test('unmutated samples are all accepted, save for outputs that JSON cannot carry', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 2000; round++) {
    const target = random.pick(MODELS);
    const outcome = attempt(new RequestDecoder(target, LIMITS), sample(random, target));
    if (!(outcome instanceof BatchportError)) continue;
    assert.ok(target.name === 'raw' && outcome.message.includes('BF16'), outcome.message);
  }
});

test('the check of a bound request notices each broken promise', () => {
  const random = seedFromEnv();
  let outcome: Outcome;
  do outcome = attempt(new RequestDecoder(SIMPLE, LIMITS), sample(random, SIMPLE));
  while (outcome instanceof BatchportError || outcome.template.whole);
  const good = outcome;
  checkBound(good, SIMPLE);
  const { template } = good;
  const broken: BoundRequest[] = [
    { ...good, inputs: good.inputs.slice(1) },
    { ...good, inputs: good.inputs.map((data) => data.subarray(1)) },
    { ...good, template: { ...template, rows: 9 } },
    { ...good, template: { ...template, whole: true } },
    { ...good, template: { ...template, shapes: [[16], [15]] } },
    { ...good, template: { ...template, inputBytes: [1, 1] } },
    { ...good, template: { ...template, outputs: [{ index: 2, binary: true, classes: 0 }] } },
    { ...good, timeoutUs: -1 },
    { ...good, id: '\ud800' },
  ];
  for (const request of broken) assert.throws(() => checkBound(request, SIMPLE), assert.AssertionError);
});
