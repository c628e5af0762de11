/** Priorities, as clients ask for them: what is urgent is answered first, over both protocols; a level that a model does not have is refused. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { assertRefused, get, infer, json, jsonBody } from '../support/exchange.ts';
import { assertCallRefused, GrpcClients, typedRequest } from '../support/grpc.ts';
import { assertIdle, untilModel, untilRunning } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

/** Keeps an instance busy for a while. */
const LONG_STEPS = 40_000;
/** Long enough for an answer to be out before the next one is there. */
const SHORT_STEPS = 6_000;

const server = launchServer(
  { after },
  {
    grpc: true,
    repository: makeRepository(
      { after },
      {
        levels: { fixture: 'slow', config: { max_batch_size: 1, priority_levels: 3 } },
        plain: { fixture: 'slow', config: { max_batch_size: 1 } },
      },
    ).dir,
  },
);
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

function ask(model: string, steps: number, priority?: number) {
  const parameters = priority === undefined ? '' : `"parameters":{"priority":${priority}},`;
  return infer(
    server.url,
    model,
    jsonBody(`{${parameters}"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`),
  );
}

/** The order in which requests of these priorities are answered when they come one after another, while the only instance is busy. */
async function orderOf(model: string, priorities: readonly (number | undefined)[]): Promise<(number | undefined)[]> {
  const busy = ask(model, LONG_STEPS);
  await untilRunning(server, model);
  const order: (number | undefined)[] = [];
  const asked: Promise<void>[] = [];
  for (const [n, priority] of priorities.entries()) {
    asked.push(
      ask(model, SHORT_STEPS, priority).then(({ status }) => {
        assert.equal(status, 200);
        order.push(priority);
      }),
    );
    await untilModel(server, model, ({ queue }) => queue!.rows_queued === n + 1);
  }
  await Promise.all([busy, ...asked]);
  await assertIdle(server);
  return order;
}

test('urgent requests are answered before those that came first; without a priority a request is of the middle level', async () => {
  assert.deepEqual(await orderOf('levels', [3, undefined, 2, 0, 1]), [1, undefined, 2, 0, 3]);
});

test('a model without levels takes any priority, and keeps the order', async () => {
  assert.deepEqual(await orderOf('plain', [3, 1000, undefined, 1]), [3, 1000, undefined, 1]);
});

describe('a priority that the model does not have', () => {
  const message = /priority is 4; model 'levels' has priorities from 1, the most urgent, to 3/;

  test('is refused over HTTP', async () => {
    assertRefused(await ask('levels', 1, 4), 'BAD_REQUEST', message);
    await assertIdle(server);
  });

  test('is refused over gRPC', async () => {
    const client = clients.open();
    const request = typedRequest('levels', new Map([['steps', tensor('INT64', [1, 1], BigInt64Array.of(1n))]]));
    const urgent = { ...request, parameters: { priority: { int64_param: 4 } } };
    await assertCallRefused(client.call('ModelInfer', urgent), 'BAD_REQUEST', message);
    await client.call('ModelInfer', { ...request, parameters: { priority: { int64_param: 1 } } });
  });
});

test('the levels are in the configuration, and the extension is advertised', async () => {
  const { extensions } = json(await get(server.url, '/v2'));
  assert((extensions as string[]).includes('schedule_policy'));
  const { priority_levels: levels, default_priority_level: usual } = json(
    await get(server.url, '/v2/models/levels/config'),
  );
  assert.deepEqual({ levels, usual }, { levels: 3, usual: 2 });
});
