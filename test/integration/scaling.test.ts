/** Instances follow the load: by rows (`target_rows`), and where rows wait for busy ones; what is scaled answers all the while, also when the device dies in the middle. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { type Answer, infer, jsonBody } from '../support/exchange.ts';
import { assertIdle, eventually, modelsOf, processesOf } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const INSTANCES = 3;
/** About 50 ms of work on an idle core. */
const STEPS = 1_500;

const slow = (instances: object) => ({ fixture: 'slow', config: { max_batch_size: 1, instances } });
const server = launchServer(
  { after },
  {
    repository: makeRepository(
      { after },
      { rows: slow({ min: 1, max: INSTANCES, target_rows: 2 }), waiting: slow({ min: 1, max: INSTANCES }) },
    ).dir,
  },
);

before(async () => {
  await server.ready();
});

const ask = (model: string): Promise<Answer> =>
  infer(
    server.url,
    model,
    jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${STEPS}]}]}`),
  );

async function running(model: string): Promise<number> {
  const { devices } = modelsOf(await server.status()).find(({ name }) => name === model)!;
  return (devices[0] as unknown as { instances: { running: number } }).instances.running;
}

/** Keeps requests under way until the condition holds; all of them must be answered. */
async function underLoad(model: string, act: () => Promise<void>): Promise<void> {
  let on = true;
  const callers = Array.from({ length: 4 * INSTANCES }, async () => {
    while (on) assert.equal((await ask(model)).status, 200);
  });
  try {
    await act();
  } finally {
    on = false;
  }
  await Promise.all(callers);
  await assertIdle(server);
}

async function untilRunning(model: string, count: number): Promise<void> {
  await eventually(async () => {
    const now = await running(model);
    return now === count ? undefined : `${now} instances run`;
  });
}

for (const model of ['rows', 'waiting']) {
  test(`${model}: more instances run while there is more to do`, async () => {
    assert.equal(await running(model), 1);
    await underLoad(model, () => untilRunning(model, INSTANCES));
  });
}

test('a device that dies while it is scaled comes back, and loses nothing', async () => {
  await underLoad('rows', async () => {
    const { pid, restarts } = processesOf(await server.status()).find(({ role }) => role === 'device')!;
    process.kill(pid, 'SIGKILL');
    await eventually(async () => {
      const now = processesOf(await server.status()).find(({ role }) => role === 'device')!;
      return now.restarts > restarts ? undefined : 'the device is not back';
    });
    await untilRunning('rows', INSTANCES);
  });
});
