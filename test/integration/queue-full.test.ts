/**
 * A full queue: as many requests as it may hold are kept and answered, the others refused at once, over both protocols and whether they come together or one by one
 * (case 37); and a deadline that passes behind a run does not wait for its end (case 38).
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { type Answer, assertRefused, infer, inferBytes, jsonBody, sendTogether } from '../support/exchange.ts';
import { assertCallRefused, GrpcClients, typedRequest } from '../support/grpc.ts';
import { assertIdle, modelsOf, untilModel, untilRunning } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

const QUEUE_ROWS = 2;
const ASKED = 10;
/** More than a second of work. */
const LONG_STEPS = 40_000;

const config = { max_batch_size: 1, queue: { max_rows: QUEUE_ROWS } };
const server = launchServer({ after }, { grpc: true, repository: makeRepository({ after }, { slow: { config } }).dir });
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

const body = (steps: number, parameters = '') =>
  jsonBody(`{${parameters}"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);
const ask = (steps: number, parameters?: string) => infer(server.url, 'slow', body(steps, parameters));
const refusals = () => server.metric('batchport_requests_total', { model: 'slow', outcome: 'rejected' });

/** Runs `action` while the only instance is busy, and nothing waits. */
async function whileBusy<T>(action: () => Promise<T>): Promise<T> {
  const running = ask(LONG_STEPS);
  await untilRunning(server, 'slow');
  const result = await action();
  assert.equal((await running).status, 200);
  await assertIdle(server);
  return result;
}

/** As many as the queue holds are answered with 200, the others refused, with a time to come again. */
function assertKept(answers: readonly Answer[]): void {
  const refused = answers.filter(({ status }) => status !== 200);
  assert.equal(answers.length - refused.length, QUEUE_ROWS);
  for (const answer of refused) {
    assertRefused(answer, 'QUEUE_FULL', /queue is full.*queue.max_rows/);
    assert.match(answer.header('retry-after') ?? '', /^[1-9]\d*$/);
  }
}

test('of requests that come together exactly as many are kept as the queue may hold', async () => {
  const before = await refusals();
  const bytes = Array.from({ length: ASKED }, () => inferBytes('slow', body(1)));
  assertKept(await whileBusy(() => sendTogether(server.url, bytes)));
  assert.equal((await refusals()) - before, ASKED - QUEUE_ROWS);
});

test('the same when they come one by one, and the refused are answered while the others wait', async () => {
  const before = await refusals();
  const answers = await whileBusy(async () => {
    const kept: Promise<Answer>[] = [];
    for (let n = 0; n < QUEUE_ROWS; n++) {
      kept.push(ask(1));
      await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === n + 1);
    }
    const refused: Answer[] = [];
    for (let n = QUEUE_ROWS; n < ASKED; n++) refused.push(await ask(1));
    assert.equal(modelsOf(await server.status())[0]!.queue!.rows_running, 1);
    return [...refused, ...(await Promise.all(kept))];
  });
  assertKept(answers);
  assert.equal((await refusals()) - before, ASKED - QUEUE_ROWS);
});

test('a full queue is full for gRPC as well', async () => {
  const client = clients.open();
  const request = typedRequest('slow', new Map([['steps', tensor('INT64', [1, 1], BigInt64Array.of(1n))]]));
  await whileBusy(async () => {
    const kept = Array.from({ length: QUEUE_ROWS }, () => ask(1));
    await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === QUEUE_ROWS);
    await assertCallRefused(client.call('ModelInfer', request), 'QUEUE_FULL', /queue is full/);
    for (const { status } of await Promise.all(kept)) assert.equal(status, 200);
  });
});

test('a timeout behind a run passes when it is over and not when the run ends, and its request never runs', async () => {
  const executed = async () => modelsOf(await server.status())[0]!.rows;
  const before = await executed();
  await whileBusy(async () => {
    // 429 where the server knows already how long the run before it takes.
    const answer = await ask(1, '"parameters":{"timeout":200000},');
    assert.ok(answer.status === 504 || answer.status === 429, String(answer.status));
    if (answer.status === 504) assertRefused(answer, 'DEADLINE_EXCEEDED', /request timeout expired/);
    assert.equal(modelsOf(await server.status())[0]!.queue!.rows_running, 1, 'the run before it goes on');
  });
  assert.equal((await executed()) - before, 1);
});
