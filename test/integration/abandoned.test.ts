/**
 * Requests that nobody waits for any more: their client has left, or their time has passed. They are given up, are not run if they have not been, and harm nobody
 * who comes after them.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertRefused, infer, inferBytes, json, jsonBody } from '../support/exchange.ts';
import {
  assertIdle,
  assertNoMoreDescriptors,
  countDescriptors,
  eventually,
  modelsOf,
  untilModel,
  untilRunning,
} from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const GIVEN_UP = 200;
const AFTERWARDS = 20;
/** About a third of a second of work on an idle core, far more than the deadlines below. */
const STEPS = 10_000;
/** Keeps the instance busy for much longer than it takes to send all that is to wait behind it, however loaded the machine is. */
const BLOCKING_STEPS = 8 * STEPS;
const DEADLINE_US = 50_000;

const repository = makeRepository({ after }, { slow: { config: { max_batch_size: 4 } } });
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const slow = (steps: number, timeoutUs?: number) =>
  jsonBody(
    `{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]${timeoutUs === undefined ? '' : `,"parameters":{"timeout":${timeoutUs}}`}}`,
  );

async function rowsRun(): Promise<number> {
  return modelsOf(await server.status())[0]!.rows;
}

function outcomes(outcome: string): Promise<number> {
  return server.metric('batchport_requests_total', { model: 'slow', outcome });
}

async function assertServes(): Promise<void> {
  const answers = await Promise.all(Array.from({ length: AFTERWARDS }, (_, n) => infer(server.url, 'slow', slow(n))));
  for (const [n, answer] of answers.entries()) {
    assert.equal(answer.status, 200, answer.body.toString());
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [n]);
  }
}

// Story: a call that was given up made the worker unusable for those after it (grpc-cancel-deadline, 72).
test('requests whose deadline passes are answered 504, or 429 where that was foreseen, are not run, and later ones are served', async () => {
  const descriptors = await countDescriptors(server);
  const before = await rowsRun();
  const run = infer(server.url, 'slow', slow(BLOCKING_STEPS));
  await untilRunning(server, 'slow');
  const late = await Promise.all(
    Array.from({ length: GIVEN_UP }, (_, n) => infer(server.url, 'slow', slow(STEPS + n, DEADLINE_US))),
  );
  for (const answer of late) {
    if (answer.status === 429) assertRefused(answer, 'OVERLOADED', /inside its deadline/);
    else assertRefused(answer, 'DEADLINE_EXCEEDED', /timeout/);
  }
  assert.equal((await run).status, 200);
  await assertServes();
  const ran = (await rowsRun()) - before;
  assert(ran <= 1 + AFTERWARDS + 4, `${ran} rows were run: what nobody waits for is run`);
  assert.equal((await outcomes('deadline')) + (await outcomes('rejected')), GIVEN_UP);
  assert((await outcomes('deadline')) > 0, 'none was let in');
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('requests whose clients have left are not run, and later ones are served', async () => {
  const descriptors = await countDescriptors(server);
  const before = await rowsRun();
  const run = infer(server.url, 'slow', slow(BLOCKING_STEPS));
  await untilRunning(server, 'slow');
  const connections = await Promise.all(Array.from({ length: GIVEN_UP }, () => RawConnection.open(server.url)));
  for (const [n, connection] of connections.entries()) await connection.write(inferBytes('slow', slow(STEPS + n)));
  await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === GIVEN_UP);
  for (const [n, connection] of connections.entries()) {
    // By a close, by a reset, and by a client that closes its sending side only, which is taken for leaving.
    if (n % 3 === 2) connection.endWriting();
    else connection.destroy(n % 3 === 1);
  }
  assert.equal((await run).status, 200);
  await assertServes();
  const ran = (await rowsRun()) - before;
  assert(ran <= 1 + AFTERWARDS + 4, `${ran} rows were run: what nobody waits for is run`);
  await eventually(async () => {
    const count = await outcomes('cancelled');
    return count === GIVEN_UP ? undefined : `${count} requests are counted as cancelled`;
  });
  for (const connection of connections) connection.destroy();
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('clients that leave in the middle of a run take nothing from the others in the batch', async () => {
  const descriptors = await countDescriptors(server);
  for (let round = 0; round < 3; round++) {
    const run = infer(server.url, 'slow', slow(STEPS / 10));
    await untilModel(server, 'slow', ({ queue, rows }) => queue!.rows_running > 0 || rows > 0);
    const connections = await Promise.all(Array.from({ length: 4 }, () => RawConnection.open(server.url)));
    for (const [n, connection] of connections.entries())
      await connection.write(inferBytes('slow', slow(STEPS / 10 + n)));
    await untilRunning(server, 'slow', 2);
    connections[1]!.destroy(true);
    connections[2]!.destroy();
    for (const n of [0, 3]) {
      const answer = await connections[n]!.response(60_000, 'POST');
      assert.equal(answer.status, 200);
      assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [STEPS / 10 + n]);
      connections[n]!.destroy();
    }
    assert.equal((await run).status, 200);
  }
  await assertServes();
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('a run all of whose clients have left is ended', async () => {
  const connections = await Promise.all([RawConnection.open(server.url), RawConnection.open(server.url)]);
  // Far longer than anything here waits.
  for (const connection of connections) await connection.write(inferBytes('slow', slow(100 * BLOCKING_STEPS)));
  await untilRunning(server, 'slow');
  for (const connection of connections) connection.destroy();
  await assertServes();
  await assertIdle(server);
});

test('a client that leaves with several requests on one connection gives up all of them', async () => {
  const before = await outcomes('cancelled');
  const run = infer(server.url, 'slow', slow(BLOCKING_STEPS));
  await untilRunning(server, 'slow');
  const connection = await RawConnection.open(server.url);
  await connection.write(Buffer.concat(Array.from({ length: 10 }, () => inferBytes('slow', slow(STEPS)))));
  await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === 10);
  connection.destroy();
  assert.equal((await run).status, 200);
  await assertServes();
  assert.equal((await outcomes('cancelled')) - before, 10);
  await assertIdle(server);
});

test('a deadline that has not passed changes nothing, and 0 is none', async () => {
  for (const timeoutUs of [0, 60_000_000, 2 ** 40]) {
    assert.equal((await infer(server.url, 'slow', slow(1, timeoutUs))).status, 200, String(timeoutUs));
  }
});
