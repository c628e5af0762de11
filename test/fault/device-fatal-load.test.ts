/**
 * Fault: a model whose load ends the device process.
 *
 * Safety: no restart storm: restarts wait longer each time, and the model is given up after a few. Liveness: every other model is served in the end.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { earlyStarts, endsOf } from '../support/child-log.ts';
import { assertRefused, get, infer, jsonBody, sendTogether } from '../support/exchange.ts';
import { fatalModel, plusModel } from '../support/fixtures-faults.ts';
import { assertAllAtWork, assertIdle, modelsOf, processesOf } from '../support/idle.ts';
import { requestBytes } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const repository = makeRepository({ after }, {});
// Loaded before it and after it.
for (const name of ['a_good', 'z_good']) repository.writeFile([name, '1', 'model.onnx'], plusModel(1));
repository.writeFile(['fatal', '1', 'model.onnx'], fatalModel());
const server = launchServer({ after }, { repository: repository.dir });
const skip = process.arch !== 'x64' && 'the fault is one of x64';

before(() => (skip === false ? server.ready() : undefined));

const ONE = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[1]}]}');

// Story: a worker that died while it loaded was restarted without a pause, or no more and nobody was told (crash-loop-backoff-and-give-up, 9).
test('a model that ends the process which loads it is given up, with the reason, and the others are served', {
  skip,
}, async () => {
  await assertAllAtWork(server, 60_000);
  const status = await server.status();
  const fatal = modelsOf(status).find(({ name }) => name === 'fatal')!;
  assert.equal(fatal.state, 'UNAVAILABLE');
  assert.match(fatal.reason, /died \d+ times/);
  for (const name of ['a_good', 'z_good']) assert.equal((await infer(server.url, name, ONE)).status, 200);
  assertRefused(await infer(server.url, 'fatal', ONE), 'NOT_READY', /died \d+ times/);
  const [index] = await sendTogether(server.url, [requestBytes('POST', '/v2/repository/index')]);
  assert.match(index!.body.toString(), /"name":"fatal","version":"1","state":"UNAVAILABLE","reason":"[^"]*died/);
  assert.equal((await get(server.url, '/v2/health/live')).status, 200);
});

test('there were a handful of restarts, each after its pause, and there are no more', { skip }, async () => {
  const ends = endsOf(server, 'device');
  assert(ends.length >= 2 && ends.length <= 6, JSON.stringify(ends));
  assert.deepEqual(earlyStarts(server, 'device', 'cpu'), []);
  const { restarts } = processesOf(await server.status()).find(({ role }) => role === 'device')!;
  assert.equal(restarts, ends.length);
  for (let n = 0; n < 20; n++) assert.equal((await infer(server.url, 'a_good', ONE)).status, 200);
  assert.equal(processesOf(await server.status()).find(({ role }) => role === 'device')!.restarts, restarts);
  await assertIdle(server);
});
