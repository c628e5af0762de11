/**
 * Models loaded, replaced and unloaded at random while others ask for them and processes are killed: no answer is wrong, one that is unloaded is a 404, all else but 200 is
 * a 503, and afterwards everything serves and nothing is left taken.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { infer, json, jsonBody, send } from '../support/exchange.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { assertAllAtWork, assertIdle, eventually, modelsOf, processesOf } from '../support/idle.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const MODELS = ['a', 'b', 'c'];
const ADDENDS = 50;
const OPERATIONS = 60;
const CALLERS = 6;
const KILL_EVERY = 20;

const random = seedFromEnv();
const repository = makeRepository({ after }, {});
for (const name of MODELS) repository.writeFile([name, '1', 'model.onnx'], plusModel(1));
const args = ['--model-control-mode', 'explicit', '--load-model', '*', '--ingress', '2'];
const server = launchServer({ after }, { repository: repository.dir, args });

before(async () => {
  await server.ready();
});

/** @returns undefined where the connection was cut by a kill */
function control(model: string, action: 'load' | 'unload') {
  const path = `/v2/repository/models/${model}/${action}`;
  return send(server.url, path, { headers: [], body: Buffer.alloc(0) }).catch(() => undefined);
}

async function killOne(role: string): Promise<void> {
  const pids = await server.pids(role);
  if (pids.length > 0) process.kill(random.pick(pids), 'SIGKILL');
}

test('a storm of loads, unloads and kills leaves every answer right', async () => {
  let on = true;
  let right = 0;
  const callers = Array.from({ length: CALLERS }, async () => {
    const own = random.fork();
    while (on) {
      const x = own.int(0, 1000);
      const body = jsonBody(`{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[${x}]}]}`);
      const answer = await infer(server.url, own.pick(MODELS), body).catch(() => undefined);
      if (answer === undefined || [404, 503].includes(answer.status)) continue;
      assert.equal(answer.status, 200, answer.body.toString());
      const addend = (json(answer).outputs as { data: number[] }[])[0]!.data[0]! - x;
      assert(addend >= 1 && addend <= ADDENDS, `${addend} was added`);
      right++;
    }
  });
  for (let n = 1; n <= OPERATIONS; n++) {
    const model = random.pick(MODELS);
    if (random.chance(0.5)) {
      const file = repository.writeFile([model, '1', 'model.onnx.new'], plusModel(random.int(1, ADDENDS)));
      fs.renameSync(file, repository.path(model, '1', 'model.onnx'));
    }
    const done = control(model, random.chance(0.8) ? 'load' : 'unload');
    if (n % KILL_EVERY === 0) await killOne(n % (2 * KILL_EVERY) === 0 ? 'ingress' : 'device');
    const answer = await done;
    assert(answer === undefined || [200, 503].includes(answer.status), answer?.body.toString());
  }
  on = false;
  await Promise.all(callers);
  assert(right > 0, 'nothing was answered');
  for (const model of MODELS) {
    await eventually(async () =>
      (await control(model, 'load'))?.status === 200 ? undefined : `${model} is not loaded`,
    );
  }
  await assertAllAtWork(server);
  await assertIdle(server);
  const status = await server.status();
  assert(modelsOf(status).every(({ state, reason }) => state === 'READY' && reason === ''));
  assert(processesOf(status).some(({ restarts }) => restarts > 0));
});
