/**
 * Fault: a model whose load ends the device process, beside one that is served.
 *
 * Safety: the model is put aside, and the other one keeps its process. Liveness: once the file has been repaired, a command brings the model, without a restart of
 * anything.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { assertRefused, get, infer, json, jsonBody } from '../support/exchange.ts';
import { fatalModel, plusModel } from '../support/fixtures-faults.ts';
import { assertAllAtWork, assertIdle, untilModel } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer, type ServerOptions } from '../support/server.ts';

const skip = process.arch !== 'x64' && 'the fault is one of x64';
const LIMIT_MS = 60_000;

const repository = makeRepository({ after }, {});
repository.writeFile(['good', '1', 'model.onnx'], plusModel(1));
repository.writeFile(['bad', '1', 'model.onnx'], fatalModel());
const start = (args: readonly string[]) => {
  const options: ServerOptions = { repository: repository.dir, args, startLimitMs: LIMIT_MS };
  return launchServer({ after }, options);
};
const lenient = start([]);
const strict = start(['--strict-readiness']);

before(() => (skip === false ? Promise.all([lenient.ready(), strict.ready()]) : undefined));

const ONE = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[1]}]}');

test('a model that cannot be loaded leaves the server ready, unless readiness is strict', { skip }, async () => {
  assert.equal((await get(lenient.url, '/v2/health/ready')).status, 200);
  const answer = await get(strict.url, '/v2/health/ready');
  assert.equal(answer.status, 503);
  assert.match(String(json(answer).error), /bad\/1: .*died 3 times in a row while loading it.*SIGFPE/);
  for (const server of [lenient, strict]) {
    assert.equal((await get(server.url, '/v2/models/good/ready')).status, 200);
    const bad = await get(server.url, '/v2/models/bad/ready');
    assert.equal(bad.status, 503);
    assert.match(String(json(bad).error), /died 3 times/);
  }
});

test('a repaired model is loaded on command, and the one beside it does not notice', { skip }, async () => {
  await assertAllAtWork(lenient, LIMIT_MS);
  const devices = await lenient.pids('device');
  assertRefused(await infer(lenient.url, 'bad', ONE), 'NOT_READY', /died 3 times/);
  const file = repository.path('bad', '1', 'model.onnx');
  fs.writeFileSync(`${file}.new`, plusModel(2));
  fs.renameSync(`${file}.new`, file);
  lenient.signal('SIGHUP');
  await untilModel(lenient, 'bad', ({ state }) => state === 'READY', LIMIT_MS);
  const answer = await infer(lenient.url, 'bad', ONE);
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [3]);
  assert.equal((await infer(lenient.url, 'good', ONE)).status, 200);
  assert.deepEqual(await lenient.pids('device'), devices);
  await assertAllAtWork(lenient, LIMIT_MS);
  await assertIdle(lenient);
});

test('one that still kills is put aside again after the same few tries', { skip }, async () => {
  const broken = repository.path('bad', '1', 'model.onnx');
  fs.writeFileSync(`${broken}.new`, fatalModel());
  fs.renameSync(`${broken}.new`, broken);
  strict.signal('SIGHUP');
  await strict.log(({ msg }) => msg === 'a load that failed is tried again');
  await untilModel(
    strict,
    'bad',
    ({ state, reason, devices }) =>
      state === 'UNAVAILABLE' && /died 3 times/.test(reason) && devices.every((one) => one.state === 'failed'),
    LIMIT_MS,
  );
  await untilModel(strict, 'good', ({ state }) => state === 'READY', LIMIT_MS);
  assert.equal((await infer(strict.url, 'good', ONE)).status, 200);
  assert.equal((await get(strict.url, '/v2/health/ready')).status, 503);
  await assertIdle(strict);
});
