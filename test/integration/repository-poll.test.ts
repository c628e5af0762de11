/** A repository that is looked at again at intervals (`--model-control-mode poll`): what is new, changed, repaired or gone is found out without a command. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { assertRefused, get, infer, json, jsonBody, jsonRequest, outputsOf, send } from '../support/exchange.ts';
import { EXTERNAL_FILE } from '../support/fixtures-compute.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { eventually } from '../support/idle.ts';
import { modelFiles } from '../support/models.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

const repository = makeRepository({ after }, {});
repository.writeFile(['plus', '1', 'model.onnx'], plusModel(1));
repository.writeFile(['faulty', '1', 'model.onnx'], plusModel(1));
repository.writeConfig('faulty', '{"max_batch_siz": 8}');
const args = ['--model-control-mode', 'poll', '--repository-poll-s', '0.1'];
const server = launchServer({ after }, { repository: repository.dir, args });

before(async () => {
  await server.ready();
});

const ask = (model: string) =>
  infer(server.url, model, jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[10]}]}'));

async function untilGives(model: string, expected: number | undefined): Promise<void> {
  await eventually(async () => {
    const answer = await ask(model);
    const value = answer.status === 200 ? (json(answer).outputs as { data: number[] }[])[0]!.data[0]! : undefined;
    return value === expected ? undefined : `the model gives ${value}, not ${expected}`;
  });
}

test('a changed file and a new version are loaded', async () => {
  await untilGives('plus', 11);
  const file = repository.writeFile(['plus', '1', 'model.onnx.new'], plusModel(2));
  fs.renameSync(file, repository.path('plus', '1', 'model.onnx'));
  await untilGives('plus', 12);
  repository.writeFile(['plus', '4', 'model.onnx'], plusModel(4));
  await untilGives('plus', 14);
});

test('a new model is loaded, and one that is gone is forgotten', async () => {
  repository.writeFile(['late', '1', 'model.onnx'], plusModel(5));
  await untilGives('late', 15);
  repository.remove('late');
  await eventually(async () => ((await ask('late')).status === 404 ? undefined : 'it is still known'));
});

test('a repaired configuration needs no restart', async () => {
  assertRefused(await ask('faulty'), 'NOT_READY', /max_batch_siz/);
  repository.writeConfig('faulty', '{"max_batch_size": 8}');
  await untilGives('faulty', 11);
});

// Story: it said that it was ready, as it would where the disk with its models had not been mounted.
test('a server that finds no model in its repository is not ready, and is once there is one', async (t) => {
  const empty = makeRepository(t, {});
  const other = launchServer(t, { repository: empty.dir, args });
  await other.ready();
  const before = await get(other.url, '/v2/health/ready');
  assert.deepEqual([before.status, json(before).error], [503, 'there is no model']);
  empty.writeFile(['plus', '1', 'model.onnx'], plusModel(1));
  await eventually(async () => {
    const { status } = await get(other.url, '/v2/health/ready');
    return status === 200 ? undefined : `ready is ${status}`;
  });
  await eventually(async () =>
    other.output.at(-1)?.startsWith('batchport ready ') ? undefined : 'it has not said so',
  );
});

test('a changed file of weights beside a model that has not changed is loaded', async () => {
  repository.add('external');
  const x = tensor('FP32', [1, 8], new Float32Array(8));
  const outputs = async () => {
    const answer = await infer(server.url, 'external', jsonRequest(new Map([['x', x]])));
    return answer.status === 200 ? String(outputsOf(answer).get('y')!.data) : `status ${answer.status}`;
  };
  const untilAnswers = (bias: Float32Array) =>
    eventually(async () => {
      const y = await outputs();
      return y === String(bias) ? undefined : `the model gives ${y}`;
    });
  const first = modelFiles('external').sideFiles!.get(EXTERNAL_FILE)!;
  await untilAnswers(new Float32Array(first.slice().buffer));
  const other = Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8);
  const file = repository.writeFile(['external', '1', 'new'], new Uint8Array(other.buffer));
  fs.renameSync(file, repository.path('external', '1', EXTERNAL_FILE));
  await untilAnswers(other);
});

test('a half copied file leaves the old one serving until it is whole', async () => {
  const whole = Buffer.from(plusModel(6));
  repository.writeFile(['plus', '4', 'model.onnx'], whole.subarray(0, whole.length / 2));
  await eventually(async () => {
    const lines = server.logs.filter(({ msg }) => msg === 'a change of the repository');
    return lines.length > 0 ? undefined : 'the half has not been looked at';
  });
  await untilGives('plus', 14);
  repository.writeFile(['plus', '4', 'model.onnx'], whole);
  await untilGives('plus', 16);
});

test('nothing is loaded or unloaded on command', async () => {
  for (const action of ['load', 'unload']) {
    const answer = await send(server.url, `/v2/repository/models/plus/${action}`, {
      headers: [],
      body: Buffer.alloc(0),
    });
    assertRefused(answer, 'BAD_REQUEST', /looks at its repository by itself/);
  }
});
