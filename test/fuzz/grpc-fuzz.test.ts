/**
 * Mutates valid ModelInferRequests and feeds them to a reader and to binders that live through the whole run.
 *
 * Allowed outcomes: a `BoundRequest` that holds its invariants, or a `BatchportError` of status 400. What has not been mutated must be read as protobufjs reads it.
 * Bounded by `ROUNDS`; FUZZ_SECONDS runs for that long instead. TEST_SEED repeats a run.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../src/config/errors.ts';
import type { BoundRequest } from '../../src/protocol/bound-request.ts';
import { readInferMessage } from '../../src/protocol/grpc/infer-message.ts';
import { readMessage } from '../../src/protocol/grpc/message.ts';
import { INDEX_REQUEST, MODEL_REQUEST } from '../../src/protocol/grpc/messages.ts';
import { type ModelInterface, RequestDecoder } from '../../src/protocol/request-decoder.ts';
import { bytesTensorFault } from '../../src/tensor/bytes-tensor.ts';
import { DATATYPES, type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import { elementCount } from '../../src/tensor/shape.ts';
import { INFERENCE, type Message, rawRequest, typedRequest } from '../support/grpc.ts';
import { type Random, seedFromEnv } from '../support/random.ts';
import { randomTensor, type TestTensor } from '../support/tensor.ts';
import { LIMITS, model, SIMPLE, tensor } from '../unit/protocol/fixtures.ts';

const ROUNDS = 6_000;
const { requestSerialize, requestDeserialize } = INFERENCE.ModelInfer!;

const MODELS: readonly ModelInterface[] = [
  SIMPLE,
  ...(Object.keys(DATATYPES) as Datatype[]).map((datatype) =>
    model(`n${datatype}`, [tensor('x', datatype, [-1, -1])], [tensor('y', datatype, [-1])]),
  ),
  model(
    'mixed',
    [tensor('a', 'FP32', [-1, 2]), tensor('s', 'INT64', []), tensor('t', 'BYTES', [-1])],
    [tensor('b', 'BOOL', [])],
  ),
];

function sample(random: Random, { name, signature }: ModelInterface): Message {
  const rows = random.int(0, 3);
  const inputs = new Map<string, TestTensor>(
    signature.inputs.map((input) => {
      const shape = input.shape.map((dim) => (dim === -1 ? rows : dim));
      return [input.name, randomTensor(random, input.datatype, shape)];
    }),
  );
  const typed = random.chance(0.5) && signature.inputs.every(({ datatype }) => datatypeInfo(datatype).json);
  return {
    ...(typed ? typedRequest : rawRequest)(name, inputs),
    id: random.pick(['', 'a', 'é😀']),
    parameters: random.chance(0.3)
      ? { timeout: { int64_param: String(random.int(0, 1e6)) }, x: { bool_param: true } }
      : {},
    outputs: random.chance(0.3) ? [{ name: signature.outputs[0]!.name }] : [],
  };
}

function mutate(random: Random, bytes: Buffer): Buffer {
  let mutated = Buffer.from(bytes);
  for (let n = random.int(1, 4); n > 0 && mutated.length > 0; n--) {
    const at = random.int(0, mutated.length - 1);
    switch (random.int(0, 4)) {
      case 0:
        mutated[at] = random.int(0, 255);
        break;
      case 1:
        mutated[at]! ^= 1 << random.int(0, 7);
        break;
      case 2:
        mutated = mutated.subarray(0, at);
        break;
      case 3:
        mutated = Buffer.concat([mutated.subarray(0, at), Buffer.from([random.int(0, 255)]), mutated.subarray(at)]);
        break;
      default: {
        // A field twice, or a piece of another.
        const end = random.int(at, mutated.length);
        mutated = Buffer.concat([mutated, mutated.subarray(at, end)]);
      }
    }
  }
  return mutated;
}

function assertHolds(request: BoundRequest, { signature }: ModelInterface): void {
  const { template, inputs } = request;
  assert.equal(inputs.length, signature.inputs.length);
  for (const [n, { datatype }] of signature.inputs.entries()) {
    const shape = template.shapes[n]!;
    const count = elementCount(shape)! * (template.whole ? 1 : template.rows);
    if (datatype === 'BYTES') assert.equal(bytesTensorFault(inputs[n]!, count), undefined);
    else assert.equal(inputs[n]!.length, count * datatypeInfo(datatype).elementBytes);
    if (datatype === 'BOOL') assert(inputs[n]!.every((byte) => byte <= 1));
  }
  for (const { index, binary } of template.outputs) {
    assert(binary && index >= 0 && index < signature.outputs.length);
  }
}

function assertRefusal(error: unknown): void {
  assert(error instanceof BatchportError && error.httpStatus === 400, String((error as Error).stack));
}

test('mutated messages end as sound requests or as refusals', () => {
  const random = seedFromEnv();
  const decoders = MODELS.map((one) => new RequestDecoder(one, LIMITS));
  const end = Date.now() + Number(process.env.FUZZ_SECONDS ?? 0) * 1000;
  let accepted = 0;
  for (let round = 0; round < ROUNDS || Date.now() < end; round++) {
    const which = random.int(0, MODELS.length - 1);
    const bytes: Buffer = requestSerialize(sample(random, MODELS[which]!));
    const message = requestDeserialize(bytes) as Message;
    const read = readInferMessage(bytes);
    assert.deepEqual(
      [read.modelName, read.id, read.inputs.map(({ name, datatype, shape }) => [name, datatype, shape.map(String)])],
      [message.model_name, message.id, message.inputs.map((one: Message) => [one.name, one.datatype, one.shape])],
    );
    assertHolds(decoders[which]!.bindMessage(read), MODELS[which]!);
    try {
      assertHolds(decoders[which]!.bindMessage(readInferMessage(mutate(random, bytes))), MODELS[which]!);
      accepted++;
    } catch (error) {
      assertRefusal(error);
    }
  }
  assert(accepted > 0, 'no mutation was harmless: they are too harsh to test anything');
});

test('mutated small requests end as texts or as refusals', () => {
  const random = seedFromEnv();
  const named: Buffer = INFERENCE.ModelReady!.requestSerialize({ name: 'é', version: '12' });
  const index: Buffer = INFERENCE.RepositoryIndex!.requestSerialize({ repository_name: 'x', ready: true });
  for (let round = 0; round < ROUNDS; round++) {
    for (const [table, bytes] of [
      [MODEL_REQUEST, named],
      [INDEX_REQUEST, index],
    ] as const) {
      try {
        const value = readMessage(table, mutate(random, bytes));
        assert.deepEqual(
          Object.values(value).map((field) => typeof field),
          Object.values(table).map(({ kind }) => (kind === 'bool' ? 'boolean' : kind)),
        );
      } catch (error) {
        assertRefusal(error);
      }
    }
  }
});
