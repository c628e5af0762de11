/**
 * Fault: a model that was served cannot be loaded again after its device process has died, since its file has become fatal to whoever loads it.
 *
 * Safety: requests that waited for it are answered and not left waiting for ever. Liveness: the other models are served.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { assertRefused, infer, jsonBody } from '../support/exchange.ts';
import { fatalModel, plusModel } from '../support/fixtures-faults.ts';
import { assertIdle, untilModel } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const repository = makeRepository({ after }, {});
for (const name of ['lost', 'other']) repository.writeFile([name, '1', 'model.onnx'], plusModel(1));
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const ONE = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[1]}]}');

test('requests that wait for a model are answered when it is lost for good', {
  skip: process.arch !== 'x64' && 'the fault is one of x64',
}, async () => {
  assert.equal((await infer(server.url, 'lost', ONE)).status, 200);
  const file = repository.path('lost', '1', 'model.onnx');
  // Written over: one that had been put in its place would leave the old one to be loaded again.
  fs.writeFileSync(file, fatalModel());
  const [device] = await server.pids('device');
  process.kill(device!, 'SIGKILL');
  await untilModel(server, 'lost', ({ state }) => state !== 'READY');
  // A version whose device is coming back keeps taking requests.
  const waiting = Array.from({ length: 20 }, () => infer(server.url, 'lost', ONE));
  for (const answer of await Promise.all(waiting)) {
    if (answer.status === 200) assert.fail('nothing could have run it');
    assert.equal(answer.status, 503, answer.body.toString());
  }
  await untilModel(
    server,
    'lost',
    ({ state, reason }) => state === 'UNAVAILABLE' && /died \d+ times/.test(reason),
    60_000,
  );
  // From the death on until every ingress process has heard that it is for good, one may still get into the queue.
  assert.equal((await infer(server.url, 'lost', ONE)).status, 503);
  assertRefused(await infer(server.url, 'lost', ONE), 'NOT_READY', /died/);
  assert.equal((await infer(server.url, 'other', ONE)).status, 200);
  await assertIdle(server);
});
