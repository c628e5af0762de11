/**
 * Models that nobody asks for: their weights are released and come back with the next request, which waits for them; readiness and metadata stay what they were, and
 * neither a deadline nor a death of the device in the middle loses anything.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertRefused, binaryRequest, get, infer, outputsOf } from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { assertIdle, eventually, modelsOf, processesOf, untilModel } from '../support/idle.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors } from '../support/tensor.ts';

const random = seedFromEnv();
const config = { idle_unload_s: 1, instances: { min: 2 } };
const repository = makeRepository({ after }, { simple: { config }, lost: { fixture: 'simple', config }, rows: {} });
const server = launchServer({ after }, { repository: repository.dir });

before(async () => {
  await server.ready();
});

async function stateOf(model: string): Promise<string> {
  return modelsOf(await server.status()).find(({ name }) => name === model)!.devices[0]!.state;
}

async function untilUnloaded(model = 'simple'): Promise<void> {
  await eventually(async () => {
    const state = await stateOf(model);
    return state === 'idle' ? undefined : `the model is ${state}`;
  });
}

async function assertAnswered(headers: readonly (readonly [string, string])[] = []): Promise<void> {
  const inputs = sampleInputs(fixture('simple'), random, 2);
  const request = binaryRequest(inputs);
  const answer = await infer(server.url, 'simple', { ...request, headers: [...(request.headers ?? []), ...headers] });
  assertSameTensors(outputsOf(answer), fixture('simple').reference!(inputs));
}

test('a model without requests is released, stays ready, and the next request loads it again', async () => {
  await untilUnloaded();
  assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
  assert.equal((await get(server.url, '/v2/models/simple/ready')).status, 200);
  assert.equal((await get(server.url, '/v2/models/simple')).status, 200);
  const loaded = modelsOf(await server.status()).find(({ name }) => name === 'simple')!.devices[0] as unknown as {
    instances: { running: number };
  };
  assert.equal(loaded.instances.running, 0);
  await Promise.all(Array.from({ length: 8 }, () => assertAnswered()));
  // Or have served, and been released again for want of requests.
  await eventually(async () => (/serving|idle/.test(await stateOf('simple')) ? undefined : 'not all instances serve'));
  await assertIdle(server);
});

test('a model that is not meant to be unloaded is not', async () => {
  await untilUnloaded();
  assert.equal(await stateOf('rows'), 'serving');
});

test('a request with a deadline waits inside it', async () => {
  await untilUnloaded();
  await assertAnswered([['Batchport-Deadline-Ms', '20000']]);
  await untilUnloaded();
  const request = binaryRequest(sampleInputs(fixture('simple'), random, 1));
  const headers = [...(request.headers ?? []), ['Batchport-Deadline-Ms', '1'] as const];
  assertRefused(await infer(server.url, 'simple', { ...request, headers }), 'DEADLINE_EXCEEDED', /timeout/);
  // What the late one left in the queue goes with the next one.
  await assertAnswered();
  await assertIdle(server);
});

test('after a death of the device it stays released until somebody asks', async () => {
  await untilUnloaded();
  const device = processesOf(await server.status()).find(({ role }) => role === 'device')!;
  process.kill(device.pid, 'SIGKILL');
  await eventually(async () => {
    const status = await server.status();
    const now = processesOf(status).find(({ role }) => role === 'device')!;
    const rows = modelsOf(status).find(({ name }) => name === 'rows')!.devices[0]!.state;
    return now.restarts > device.restarts && rows === 'serving' ? undefined : 'the device is not back';
  });
  assert.equal(await stateOf('simple'), 'idle');
  assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
  await assertAnswered();
});

test('a device that dies while it loads the model again costs the request nothing', async () => {
  await untilUnloaded();
  const device = processesOf(await server.status()).find(({ role }) => role === 'device')!;
  const answered = assertAnswered();
  await eventually(async () => ((await stateOf('simple')) === 'idle' ? 'nobody has woken it' : undefined));
  process.kill(device.pid, 'SIGKILL');
  await answered;
});

test('one whose file is gone meanwhile is loaded again all the same', async () => {
  await untilUnloaded();
  repository.remove('simple', '1');
  await assertAnswered();
});

// Story: the server said that a model whose weights could not be loaded again was ready, and to its clients that it was not available, being ready.
test('one that is lost is said to be unavailable, and why', async () => {
  await untilUnloaded('lost');
  repository.writeFile(['lost', '1', 'model.onnx'], '<html>');
  const request = binaryRequest(sampleInputs(fixture('simple'), random, 1));
  const { status } = await infer(server.url, 'lost', request);
  assert.equal(status, 503);
  await untilModel(server, 'lost', ({ state, reason }) => state === 'UNAVAILABLE' && /HTML/.test(reason));
  assertRefused(await infer(server.url, 'lost', request), 'NOT_READY', /HTML/);
  repository.add('lost', { fixture: 'simple' });
  server.signal('SIGHUP');
  // It may have been loaded and, since nobody asked for it, unloaded before anybody looks: whoever asks finds it.
  await eventually(async () => {
    const answer = await infer(server.url, 'lost', request);
    return answer.status === 200 ? undefined : `it is not loaded again: ${answer.body}`;
  });
});
