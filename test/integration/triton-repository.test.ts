/** A repository as Triton has it, with `config.pbtxt`: served as it is, its settings in force. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertRefused, get, infer, json, jsonRequest, outputsOf } from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { fixture, writeModel } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors } from '../support/tensor.ts';

const CONFIG = `
name: "simple"
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] } ]
default_model_filename: "net.onnx"
version_policy { all {} }
dynamic_batching { max_queue_delay_microseconds: 200 }
`;

const repository = makeRepository({ after }, ['rows']);
for (const version of ['1', '2']) writeModel(repository.path('simple', version), 'simple', 'net.onnx');
repository.writeFile(['simple', 'config.pbtxt'], CONFIG);
repository.add('sequence', { fixture: 'rows' });
repository.writeFile(['sequence', 'config.pbtxt'], 'sequence_batching { max_sequence_idle_microseconds: 5 }');
repository.add('misnamed', { fixture: 'rows' });
repository.writeFile(
  ['misnamed', 'config.pbtxt'],
  'output { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] }',
);
const server = launchServer({ after }, { repository: repository.dir });

before(async () => {
  await server.ready();
});

test('its models are served, in all versions, with their settings', async () => {
  const inputs = sampleInputs(fixture('simple'), seedFromEnv(), 3);
  for (const version of ['1', '2']) {
    const answer = await infer(server.url, 'simple', jsonRequest(inputs), version);
    assertSameTensors(outputsOf(answer), fixture('simple').reference!(inputs));
  }
  const config = json(await get(server.url, '/v2/models/simple/config'));
  assert.equal(config.max_batch_size, 4);
  assert.equal(config.max_queue_delay_us, 200);
});

test('what would give other answers here is not served, and says why', async () => {
  assertRefused(
    await infer(server.url, 'sequence', jsonRequest(new Map())),
    'NOT_READY',
    /sequence_batching is not supported/,
  );
});

test('a configuration of tensors that the model does not have is not served, and says which it has', async () => {
  const outputs = fixture('rows').outputs.map(({ name }) => JSON.stringify(name));
  assertRefused(
    await infer(server.url, 'misnamed', jsonRequest(new Map())),
    'NOT_READY',
    new RegExp(`names the output "probabilities", but the outputs of the model are ${outputs.join(', ')}`),
  );
});
