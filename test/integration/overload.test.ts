/**
 * Deadlines that cannot be kept: refused from the head of the request, with the time after which to come again; and those that can, which are let in.
 *
 * Times are not measured: an instance is kept busy with requests that have no deadline, whose cost is known by then, and what is asked for is far below or above it.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertRefused, infer, inferBytes, jsonBody } from '../support/exchange.ts';
import { assertIdle, modelsOf, untilModel, untilRunning } from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

/** About a third of a second of work on an idle core. */
const STEPS = 10_000;
const WAITING = 12;

const repository = makeRepository({ after }, { slow: { config: { max_batch_size: 2 } } });
const server = launchServer({ after }, { repository: repository.dir });

before(async () => {
  await server.ready();
  // What a run of so many steps costs, and how long a body of one row is.
  for (let n = 0; n < 8; n++) assert.equal((await ask(STEPS / 100, 600_000)).status, 200);
});

const body = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);

function ask(steps: number, deadlineMs?: number | string) {
  const request = body(steps);
  if (deadlineMs === undefined) return infer(server.url, 'slow', request);
  const headers = [...(request.headers ?? []), ['Batchport-Deadline-Ms', String(deadlineMs)] as const];
  return infer(server.url, 'slow', { ...request, headers });
}

const counted = (outcome: string) => server.metric('batchport_requests_total', { model: 'slow', outcome });

/** Runs `action` while the instance is busy and more waits. */
async function behindOthers(action: () => Promise<void>): Promise<void> {
  const blocking = ask(4 * STEPS);
  await untilRunning(server, 'slow');
  const waiting = Array.from({ length: WAITING }, () => ask(STEPS / 100));
  await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === WAITING);
  await action();
  for (const answer of await Promise.all([blocking, ...waiting])) assert.equal(answer.status, 200);
  await assertIdle(server);
}

test('a deadline that cannot be met is refused before the body is sent, with a time to come again', async () => {
  const before = await counted('rejected');
  await behindOthers(async () => {
    const connection = await RawConnection.open(server.url);
    const request = body(1);
    const headers = [...(request.headers ?? []), ['Batchport-Deadline-Ms', '1'] as const];
    const bytes = inferBytes('slow', { ...request, headers });
    // All but the last byte of the body.
    await connection.write(bytes.subarray(0, bytes.length - 1));
    const answer = await connection.response(60_000, 'POST');
    assert.equal(answer.status, 429, answer.text());
    assert.match(answer.text(), /"code":"OVERLOADED"/);
    const retry = answer.headers.find(([name]) => name.toLowerCase() === 'retry-after')?.[1];
    assert.match(retry ?? '', /^[1-9]\d*$/);
    connection.destroy();
  });
  assert.equal((await counted('rejected')) - before, 1);
});

test('a deadline that can be met is let in behind the same others', async () => {
  await behindOthers(async () => {
    assert.equal((await ask(1, 600_000)).status, 200);
  });
});

test('an idle instance lets in whatever comes, so that wrong costs are found out', async () => {
  const before = await counted('rejected');
  const { status } = await ask(1, 0.001);
  assert(status === 200 || status === 504, String(status));
  assert.equal(await counted('rejected'), before);
});

test('the soonest of several deadlines counts', async () => {
  await behindOthers(async () => {
    const parameter = jsonBody(
      '{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[1]}],"parameters":{"timeout":1000}}',
    );
    const headers = [...(parameter.headers ?? []), ['Batchport-Deadline-Ms', '600000'] as const];
    assertRefused(await infer(server.url, 'slow', { ...parameter, headers }), 'OVERLOADED', /inside its deadline/);
  });
});

test('a deadline that is no number of milliseconds is a bad request', async () => {
  for (const value of ['0', '-1', 'soon', '', '1e3', '1'.repeat(20)]) {
    assertRefused(await ask(1, value), 'BAD_REQUEST', /Batchport-Deadline-Ms/);
  }
});

test('what runs cost is told in the status and the metrics', async () => {
  const [model] = modelsOf(await server.status()) as unknown as { devices: { run_costs: { runs: number }[] }[] }[];
  const costs = model!.devices[0]!.run_costs;
  assert(
    costs.some(({ runs }) => runs >= 8),
    JSON.stringify(costs),
  );
  // A run of this model takes as long as its longest row.
  assert((await server.metric('batchport_run_cost_base_seconds', { model: 'slow' })) > 0);
});
