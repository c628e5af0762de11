/**
 * Fault: an ingress process that crashes at every start.
 *
 * Safety: it is given up for now, loaded weights stay. Liveness: the metrics port tells why; a connection made meanwhile is served once a command has brought
 * the ingress back.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ChildHook } from '../support/child-hook.ts';
import { earlyStarts } from '../support/child-log.ts';
import { get, infer, jsonBody } from '../support/exchange.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { assertAllAtWork, assertIdle, eventually, processesOf } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const LIMIT_MS = 60_000;

const hook = new ChildHook({ after });
const repository = makeRepository({ after }, {});
repository.writeFile(['plus', '1', 'model.onnx'], plusModel(1));
const server = launchServer({ after }, { repository: repository.dir, env: hook.env });

before(() => server.ready());

const ONE = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[1]}]}');

test('an ingress that crashes at every start is given up for now and comes back on command', async () => {
  const [device] = await server.pids('device');
  const [ingress] = await server.pids('ingress');
  hook.crashAtStart('ingress');
  process.kill(ingress!, 'SIGSEGV');
  await eventually(async () => {
    const { state } = processesOf(await server.status()).find(({ role }) => role === 'ingress')!;
    return state === 'broken' ? undefined : `the ingress is ${state}`;
  }, LIMIT_MS);
  assert.equal((await get(server.metricsUrl, '/healthz')).status, 200);
  assert.deepEqual(earlyStarts(server, 'ingress', '0'), []);
  // It waits in the backlog of the socket, which the supervisor holds.
  const early = infer(server.url, 'plus', ONE);
  hook.mend('ingress');
  server.signal('SIGHUP');
  assert.equal((await early).status, 200);
  await assertAllAtWork(server, LIMIT_MS);
  assert.deepEqual(await server.pids('device'), [device], 'the weights stay loaded');
  await assertIdle(server);
});
