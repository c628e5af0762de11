/**
 * Fault: a device process is killed (SIGKILL), idle, in the middle of a batch, with others waiting behind it.
 *
 * Safety: each request gets exactly one answer, the right one or a 503. Liveness after the fault: the next request is served, nothing is left taken.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { type Answer, assertRefused, get, infer, json, jsonBody } from '../support/exchange.ts';
import {
  assertAllAtWork,
  assertIdle,
  assertNoMoreDescriptors,
  countDescriptors,
  eventually,
  processesOf,
  untilRunning,
} from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer, type TestServer } from '../support/server.ts';

/** A third of a second of work on an idle core. */
const STEPS = 10_000;

const repository = makeRepository({ after }, ['slow', 'rows']);
const one = launchServer({ after }, { repository: repository.dir });
const two = launchServer({ after }, { repository: repository.dir, args: ['--device', 'cpu', '--device', 'cpu'] });

before(async () => {
  for (const server of [one, two]) {
    await server.ready();
    await assertAllAtWork(server);
  }
});

const slow = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);
const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

/** An answer that is right: the numbers of the request, or a 503 that says it may be sent again. */
function assertAnswered(answer: Answer, steps: number): void {
  if (answer.status === 200) {
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [steps]);
    return;
  }
  assertRefused(answer, 'WORKER_LOST', /./);
  assert.equal(answer.header('retry-after'), '1');
}

async function deviceOf(server: TestServer) {
  return processesOf(await server.status()).find(({ role }) => role === 'device')!;
}

// Story: after SIGKILL of a worker its requests hung for ever, and health went on saying ready (worker-killed-mid-batch, 8).
test('a batch whose process is killed is answered, requests behind it too, and ready tells what is true', async () => {
  const descriptors = await countDescriptors(one);
  const before = await deviceOf(one);
  const ingress = await one.pids('ingress');
  const steps = Array.from({ length: 4 }, (_, n) => STEPS + n);
  const inFlight = steps.map((count) => infer(one.url, 'slow', slow(count)));
  await untilRunning(one, 'slow');
  const behind = [7, 8, 9].map((count) => infer(one.url, 'slow', slow(count)));
  process.kill(before.pid, 'SIGKILL');
  // The process is reaped before long, and its successor takes a while to load.
  let unready = 0;
  await eventually(async () => {
    const { status } = await get(one.url, '/v2/health/ready');
    if (status === 200) return unready > 0 ? undefined : 'still ready';
    assert.equal(status, 503);
    assert.equal((await get(one.url, '/v2/health/live')).status, 200);
    unready++;
    return 'not ready';
  });
  for (const [n, answer] of (await Promise.all(inFlight)).entries()) assertAnswered(answer, steps[n]!);
  for (const [n, answer] of (await Promise.all(behind)).entries()) assertAnswered(answer, [7, 8, 9][n]!);
  const now = await deviceOf(one);
  assert.equal(now.restarts, before.restarts + 1);
  assert.notEqual(now.pid, before.pid);
  assert.deepEqual(await one.pids('ingress'), ingress);
  assert.equal((await infer(one.url, 'slow', slow(3))).status, 200);
  assert.equal((await infer(one.url, 'rows', ROWS)).status, 200);
  assert.equal(await one.metric('batchport_process_restarts_total', { role: 'device' }), now.restarts);
  assert.equal(await one.metric('batchport_process_exits_total', { role: 'device' }), 1);
  await assertIdle(one);
  await assertNoMoreDescriptors(one, descriptors);
});

test('a device killed while it has nothing to do is back for the next request', async () => {
  const { pid } = await deviceOf(one);
  process.kill(pid, 'SIGKILL');
  // At once, whether or not the death has been noticed.
  const answers = await Promise.all(Array.from({ length: 8 }, () => infer(one.url, 'rows', ROWS)));
  for (const answer of answers) {
    if (answer.status !== 200) assertRefused(answer, 'NOT_READY', /./);
  }
  await assertAllAtWork(one);
  assert.equal((await infer(one.url, 'rows', ROWS)).status, 200);
  await assertIdle(one);
});

test('with a second device nobody notices: every request is served and the server stays ready', async () => {
  const [first] = await two.pids('device');
  const descriptors = await countDescriptors(two);
  const inFlight = Array.from({ length: 6 }, (_, n) => infer(two.url, 'slow', slow(STEPS + n)));
  await untilRunning(two, 'slow');
  process.kill(first!, 'SIGKILL');
  const others: Promise<Answer>[] = [];
  for (let n = 0; n < 40; n++) {
    assert.equal((await get(two.url, '/v2/health/ready')).status, 200);
    others.push(infer(two.url, 'rows', ROWS));
  }
  for (const answer of await Promise.all(others)) assert.equal(answer.status, 200);
  for (const [n, answer] of (await Promise.all(inFlight)).entries()) {
    assert.equal(answer.status, 200, answer.body.toString());
    assertAnswered(answer, STEPS + n);
  }
  await assertAllAtWork(two);
  await assertIdle(two);
  await assertNoMoreDescriptors(two, descriptors);
});
