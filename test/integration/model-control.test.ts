/**
 * Models loaded and unloaded while the server runs (`--model-control-mode explicit`): a new file takes over without a failed request, a bad one leaves the old one
 * serving with the reason told, an unloaded model answers what it had, equal loads are one, and a death of the device in the middle harms nothing.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { Client } from '../../src/client/client.ts';
import { assertDone, ControlledServer } from '../support/control.ts';
import { assertRefused, get, infer, json, jsonBody, jsonRequest, outputsOf } from '../support/exchange.ts';
import { EXTERNAL_FILE } from '../support/fixtures-compute.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { assertCallRefused, GrpcClients } from '../support/grpc.ts';
import { assertIdle, assertNoMoreDescriptors, countDescriptors, eventually, processesOf } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors, tensor } from '../support/tensor.ts';

const repository = makeRepository({ after }, { slow: { config: { max_batch_size: 4 } } });
for (const name of ['plus', 'other', 'unused']) repository.writeFile([name, '1', 'model.onnx'], plusModel(1));
const args = ['--model-control-mode', 'explicit', '--load-model', 'plus', '--load-model', 'other'];
const server = launchServer({ after }, { grpc: true, repository: repository.dir, args: [...args, '--ingress', '2'] });
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

const control = new ControlledServer(server, repository);

const isReady = async (path: string) => (await get(server.url, path)).status === 200;

test('at the start the models asked for are loaded, the others are listed', async () => {
  assert.equal(await control.valueOfTen('plus'), 11);
  const [entry] = await control.indexOf('unused');
  assert.deepEqual(entry, { name: 'unused', version: '1', state: 'UNAVAILABLE', reason: 'not loaded' });
  assertRefused(await control.ask('unused'), 'MODEL_NOT_FOUND', /no available versions: not loaded/);
  assert(await isReady('/v2/health/ready'));
  const { extensions } = json(await get(server.url, '/v2'));
  assert((extensions as string[]).includes('model_repository'));
});

test('a model is loaded, unloaded and loaded again', async () => {
  for (let round = 0; round < 2; round++) {
    assertDone(await control.load('unused'));
    assert.equal(await control.valueOfTen('unused'), 11);
    assert(await isReady('/v2/models/unused/ready'));
    assertDone(await control.unload('unused'));
    assertRefused(await control.ask('unused'), 'MODEL_NOT_FOUND', /no available versions: unloaded/);
    assert.equal((await get(server.url, '/v2/models/unused')).status, 404);
    assert(!(await isReady('/v2/models/unused/ready')));
    assert(await isReady('/v2/health/ready'), 'a model that was unloaded on purpose is missed by nobody');
    assert.deepEqual(await control.indexOf('unused'), [
      { name: 'unused', version: '1', state: 'UNAVAILABLE', reason: 'unloaded' },
    ]);
  }
});

test('a model that came after the start is loaded by its name', async () => {
  repository.writeFile(['late', '3', 'model.onnx'], plusModel(3));
  assertDone(await control.load('late'));
  assert.equal(await control.valueOfTen('late'), 13);
});

test('a new file takes over under load, and no request fails', async () => {
  const descriptors = await countDescriptors(server);
  let running = true;
  const seen = new Set<number>();
  const callers = Array.from({ length: 8 }, async () => {
    while (running) seen.add(await control.valueOfTen('plus'));
  });
  for (let addend = 2; addend <= 5; addend++) {
    control.replaceFile('plus', '1', plusModel(addend));
    assertDone(await control.load('plus'));
    // Every ingress has heard of it before the load is said to be done.
    assert.equal(await control.valueOfTen('plus'), 10 + addend);
  }
  running = false;
  await Promise.all(callers);
  assert.deepEqual([...seen].sort(), [11, 12, 13, 14, 15]);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('a load of what is loaded changes nothing', async () => {
  const served = () => server.logs.filter(({ msg }) => msg === 'model is served').length;
  const before = served();
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 15);
  assert.equal(served(), before);
});

test('a file that cannot be loaded leaves the old one serving, and the reason is told whenever it is asked', async () => {
  for (const bytes of [Buffer.from('no model'), Buffer.from(plusModel(9)).subarray(0, 60)]) {
    control.replaceFile('plus', '1', bytes);
    const answer = await control.load('plus');
    assertRefused(answer, 'BAD_REQUEST', /failed to load 'plus'/);
    assert.equal(await control.valueOfTen('plus'), 15);
    for (let n = 0; n < 2; n++) {
      const [entry] = await control.indexOf('plus');
      assert.equal(entry!.state, 'READY');
      assert.match(entry!.reason, /could not be loaded/);
    }
  }
  control.replaceFile('plus', '1', plusModel(6));
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 16);
  assert.equal((await control.indexOf('plus'))[0]!.reason, '');
});

test('a file of weights that has changed beside the model is a change of the model', async () => {
  repository.add('external');
  assertDone(await control.load('external'));
  const served = () => server.logs.filter(({ msg, model }) => msg === 'model is served' && /external/.test(`${model}`));
  assert.equal(served().length, 1);
  assertDone(await control.load('external'));
  assert.equal(served().length, 1);
  const weights = repository.writeFile(['external', '1', 'new'], new Uint8Array(32));
  fs.renameSync(weights, repository.path('external', '1', EXTERNAL_FILE));
  assertDone(await control.load('external'));
  const x = tensor('FP32', [1, 8], Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8));
  assertSameTensors(
    outputsOf(await infer(server.url, 'external', jsonRequest(new Map([['x', x]])))),
    new Map([['y', x]]),
  );
  assertDone(await control.unload('external'));
  repository.remove('external');
});

test('the highest version takes the place of the one before, and a removed one comes back', async () => {
  repository.writeFile(['plus', '2', 'model.onnx'], plusModel(20));
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 30);
  assert.deepEqual(
    (await control.indexOf('plus')).map(({ version }) => version),
    ['2'],
  );
  assertRefused(await control.ask('plus', '1'), 'MODEL_NOT_FOUND', /no version/);
  repository.remove('plus', '2');
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 16);
});

test('a configuration given with the load is in force', async () => {
  const config = JSON.stringify({ slo_ms: 12_345 });
  assertDone(await control.load('other', { config }));
  assert.equal(json(await get(server.url, '/v2/models/other/config')).slo_ms, 12_345);
  assert.equal(await control.valueOfTen('other'), 11);
  assertRefused(await control.load('other', { config: '{"slo": 1}' }), 'BAD_REQUEST', /config:1:2: unknown key "slo"/);
  assert.equal(json(await get(server.url, '/v2/models/other/config')).slo_ms, 12_345);
});

describe('what cannot be done is refused with its reason', () => {
  test('over HTTP', async () => {
    assertRefused(await control.load('nowhere'), 'BAD_REQUEST', /failed to load 'nowhere'/);
    assertRefused(await control.unload('nowhere'), 'BAD_REQUEST', /no such model/);
    assertRefused(await control.load('..%2Fplus'), 'BAD_REQUEST', /name/);
    const path = '/v2/repository/models/plus/load';
    assertRefused(await control.post(path, 'no json'), 'BAD_REQUEST', /not valid JSON/);
    assertRefused(await control.post(path, '{"parameters":[]}'), 'BAD_REQUEST', /object/);
    assertRefused(await control.load('plus', { config: {} }), 'BAD_REQUEST', /must be a string/);
    const file = { config: '{}', 'file:1/model.onnx': 'AAAA' };
    assertRefused(await control.load('plus', file), 'BAD_REQUEST', /from the repository of the server only/);
    for (const table of ['session', 'provider']) {
      const config = JSON.stringify({ runtime: { [table]: { trt_engine_cache_path: '/tmp' } } });
      assertRefused(await control.load('plus', { config }), 'BAD_REQUEST', /own config\.json only/);
    }
    assert.equal(await control.valueOfTen('plus'), 16);
  });

  test('through the client library', async (t) => {
    const client = new Client(server.url);
    t.after(() => client.close());
    await client.loadModel('unused', { config: { slo_ms: 999 } });
    assert.equal(json(await get(server.url, '/v2/models/unused/config')).slo_ms, 999);
    await client.unloadModel('unused');
    const index = await client.repositoryIndex();
    assert.deepEqual(
      index.find(({ name }) => name === 'unused'),
      { name: 'unused', version: '1', state: 'UNAVAILABLE', reason: 'unloaded' },
    );
    await assert.rejects(client.loadModel('nowhere'), /failed to load 'nowhere'/);
  });

  test('over gRPC', async () => {
    const client = clients.open();
    await client.call('RepositoryModelLoad', { model_name: 'unused' });
    assert.equal(await control.valueOfTen('unused'), 11);
    await client.call('RepositoryModelUnload', { model_name: 'unused' });
    await assertCallRefused(
      client.call('RepositoryModelLoad', { model_name: 'nowhere' }),
      'BAD_REQUEST',
      /failed to load/,
    );
    const parameters = { config: { string_param: '{"slo_ms": 777}' } };
    await client.call('RepositoryModelLoad', { model_name: 'unused', parameters });
    assert.equal(json(await get(server.url, '/v2/models/unused/config')).slo_ms, 777);
  });
});

test('equal loads at the same time are one', async () => {
  control.replaceFile('plus', '1', plusModel(7));
  const loads = () =>
    server.logs.filter(({ msg, model }) => msg === 'model is served' && `${model}`.startsWith('plus'));
  const before = loads().length;
  for (const answer of await Promise.all(Array.from({ length: 20 }, () => control.load('plus')))) assertDone(answer);
  assert.equal(await control.valueOfTen('plus'), 17);
  assert.equal(loads().length - before, 1);
});

test('a load that is asked for after the file has changed again serves the last one', async () => {
  control.replaceFile('plus', '1', plusModel(30));
  const first = control.load('plus');
  await eventually(async () => {
    const { loads } = (await server.status()) as unknown as { loads: { loading: { model: string } | null } };
    return loads.loading?.model.startsWith('plus') || (await control.valueOfTen('plus')) === 40
      ? undefined
      : 'no load has begun';
  });
  control.replaceFile('plus', '1', plusModel(7));
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 17);
  assertDone(await first);
});

test('more loads and unloads than may wait for one another are refused, and harm nothing', async () => {
  const answers = await Promise.all(
    Array.from({ length: 120 }, (_, n) => (n % 2 === 0 ? control.unload('unused') : control.load('unused'))),
  );
  const refused = answers.filter(({ status }) => status !== 200);
  assert(refused.length > 0);
  for (const answer of refused) assertRefused(answer, 'QUEUE_FULL', /wait for one another/);
  assertDone(await control.load('unused'));
  assert.equal(await control.valueOfTen('unused'), 11);
});

test('a model that is unloaded answers what it had', async () => {
  assertDone(await control.load('slow'));
  const slow = (steps: number) =>
    infer(
      server.url,
      'slow',
      jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`),
    );
  const asked = Array.from({ length: 12 }, (_, n) => slow(5000 + n));
  await eventually(async () => {
    const running = await server.metric('batchport_requests_in_flight', { model: 'slow' });
    return running === asked.length ? undefined : `${running} requests are under way`;
  });
  assertDone(await control.unload('slow'));
  for (const { status } of await Promise.all(asked)) assert.equal(status, 200);
  assertRefused(await slow(1), 'MODEL_NOT_FOUND', /unloaded/);
});

test('a device that dies in the middle of a load costs nobody anything', async () => {
  const device = processesOf(await server.status()).find(({ role }) => role === 'device')!;
  control.replaceFile('plus', '1', plusModel(8));
  const loading = control.load('plus');
  process.kill(device.pid, 'SIGKILL');
  const asked = Array.from({ length: 8 }, () => control.valueOfTen('plus'));
  assertDone(await loading);
  for (const value of await Promise.all(asked)) assert(value === 17 || value === 18, String(value));
  assert.equal(await control.valueOfTen('plus'), 18);
  assert.equal(await control.valueOfTen('other'), 11);
  await assertIdle(server);
});

test('an ingress that dies in the middle of a load is told of the new one', async () => {
  control.replaceFile('plus', '1', plusModel(9));
  const loading = control.load('plus').catch(() => undefined);
  const [pid] = await server.pids('ingress');
  process.kill(pid!, 'SIGKILL');
  await loading;
  await eventually(async () => {
    const value = await control.valueOfTen('plus').catch(() => 0);
    return value === 19 ? undefined : `the model gives ${value}`;
  });
  await eventually(async () => ((await server.pids('ingress')).length === 2 ? undefined : 'an ingress is away'));
});
