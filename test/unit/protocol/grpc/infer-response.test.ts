/** What the server writes, read by @grpc/proto-loader. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { BoundRequest } from '../../../../src/protocol/bound-request.ts';
import { readInferMessage } from '../../../../src/protocol/grpc/infer-message.ts';
import { InferResponseEncoder, streamedError } from '../../../../src/protocol/grpc/infer-response.ts';
import { readMessage, writeMessage } from '../../../../src/protocol/grpc/message.ts';
import {
  HEALTH_REQUEST,
  HEALTH_RESPONSE,
  INDEX_REQUEST,
  INDEX_RESPONSE,
  MODEL_CONFIG_RESPONSE,
  MODEL_METADATA_RESPONSE,
  MODEL_REQUEST,
  SERVER_METADATA_RESPONSE,
} from '../../../../src/protocol/grpc/messages.ts';
import { RequestDecoder } from '../../../../src/protocol/request-decoder.ts';
import { HEALTH, INFERENCE, type Message } from '../../../support/grpc.ts';
import { LIMITS, model, tensor } from '../fixtures.ts';

const MODEL = model('é', [tensor('x', 'INT32', [-1])], [tensor('a b', 'FP32', [-1, -1]), tensor('s', 'INT64', [])]);

function request(fields: Message = {}): BoundRequest {
  const message = { inputs: [{ name: 'x', datatype: 'INT32', shape: [0] }], ...fields };
  const bytes = INFERENCE.ModelInfer!.requestSerialize(message);
  return new RequestDecoder(MODEL, LIMITS).bindMessage(readInferMessage(bytes));
}

const OUTPUTS = [
  { shape: [300, 2], data: new Uint8Array(2400).fill(7) },
  { shape: [], data: Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8) },
];

test('a response says what each output is and has its bytes in raw_output_contents', () => {
  const encoder = new InferResponseEncoder(MODEL);
  const { body, headerLength } = encoder.encode(request({ id: 'ü' }), OUTPUTS);
  assert.equal(headerLength, undefined);
  const answer = INFERENCE.ModelInfer!.responseDeserialize(body) as Message;
  assert.deepEqual([answer.model_name, answer.model_version, answer.id], ['é', '1', 'ü']);
  const described = answer.outputs.map(({ name, datatype, shape }: Message) => [name, datatype, shape]);
  assert.deepEqual(described, [
    ['a b', 'FP32', ['300', '2']],
    ['s', 'INT64', []],
  ]);
  assert.deepEqual(
    answer.raw_output_contents,
    OUTPUTS.map(({ data }) => Buffer.from(data)),
  );
});

test('only the outputs that were asked for come, in the order of the request', () => {
  const encoder = new InferResponseEncoder(MODEL);
  const { body } = encoder.encode(request({ outputs: [{ name: 's' }] }), OUTPUTS.slice(1));
  const answer = INFERENCE.ModelInfer!.responseDeserialize(body) as Message;
  assert.deepEqual(
    answer.outputs.map(({ name }: Message) => name),
    ['s'],
  );
});

test('an answer on a stream is the same within its envelope, an error has the id', () => {
  const encoder = new InferResponseEncoder(MODEL);
  const read = (bytes: Buffer) => INFERENCE.ModelStreamInfer!.responseDeserialize(bytes) as Message;
  const alone = INFERENCE.ModelInfer!.responseDeserialize(encoder.encode(request(), OUTPUTS).body);
  const streamed = read(encoder.encode(request(), OUTPUTS, true).body);
  assert.deepEqual([streamed.error_message, streamed.infer_response], ['', alone]);
  const error = read(streamedError('no', 'i'));
  assert.deepEqual([error.error_message, error.infer_response.id], ['no', 'i']);
});

test('bytes that do not make up the shape are a bug and not an answer', () => {
  const encoder = new InferResponseEncoder(MODEL);
  assert.throws(
    () => encoder.encode(request({ outputs: [{ name: 's' }] }), [{ shape: [2], data: new Uint8Array(8) }]),
    /This is a bug/,
  );
});

test('small messages are read by others as they were meant', () => {
  const index = {
    models: [
      { name: 'm', version: '1', state: 'READY', reason: '' },
      { name: '', version: '', state: '', reason: 'x' },
    ],
  };
  assert.deepEqual(INFERENCE.RepositoryIndex!.responseDeserialize(writeMessage(INDEX_RESPONSE, index)), index);
  const server = { name: 'b', version: '1', extensions: ['x', ''] };
  assert.deepEqual(
    INFERENCE.ServerMetadata!.responseDeserialize(writeMessage(SERVER_METADATA_RESPONSE, server)),
    server,
  );
  const metadata = INFERENCE.ModelMetadata!.responseDeserialize(
    writeMessage(MODEL_METADATA_RESPONSE, {
      name: 'm',
      inputs: [{ name: 'x', datatype: 'INT64', shape: [-1, 2 ** 53 - 1] }],
      properties: [{ key: 'k', value: 'v' }],
    }),
  ) as Message;
  assert.deepEqual([metadata.inputs[0].shape, metadata.properties], [['-1', '9007199254740991'], { k: 'v' }]);
  const { config } = INFERENCE.ModelConfig!.responseDeserialize(
    writeMessage(MODEL_CONFIG_RESPONSE, {
      config: {
        name: 'm',
        backend: 'o',
        max_batch_size: 8,
        input: [{ name: 'x', data_type: 14, dims: [-1] }],
        output: [{ dims: [3] }],
      },
    }),
  ) as Message;
  assert.deepEqual([config.backend, config.max_batch_size, config.input[0].data_type], ['o', 8, 'TYPE_BF16']);
  assert.deepEqual([config.input[0].dims, config.output[0].dims], [['-1'], ['3']]);
  assert.deepEqual(HEALTH.Check!.responseDeserialize(writeMessage(HEALTH_RESPONSE, { status: 2 })), {
    status: 'NOT_SERVING',
  });
});

test('small requests are read as others write them', () => {
  const named = { name: 'é', version: '2' };
  assert.deepEqual(readMessage(MODEL_REQUEST, INFERENCE.ModelReady!.requestSerialize(named)), named);
  const index = { repository_name: '', ready: true };
  assert.deepEqual(readMessage(INDEX_REQUEST, INFERENCE.RepositoryIndex!.requestSerialize(index)), index);
  assert.deepEqual(readMessage(HEALTH_REQUEST, Buffer.alloc(0)), { service: '' });
});
