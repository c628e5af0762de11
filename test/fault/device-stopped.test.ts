/**
 * Fault: a device process stands still (SIGSTOP) in the middle of a batch.
 *
 * Safety: nothing is answered wrongly or twice. Liveness: everything that needs no device answers meanwhile; deadlines pass; once the process goes on, who still
 * waits is served.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertRefused, get, infer, json, jsonBody } from '../support/exchange.ts';
import {
  assertAllAtWork,
  assertIdle,
  assertNoMoreDescriptors,
  countDescriptors,
  processesOf,
  untilRunning,
} from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const STEPS = 10_000;

const repository = makeRepository({ after }, { slow: { config: { queue: { max_rows: 64 } } } });
const server = launchServer({ after }, { repository: repository.dir });
const two = launchServer({ after }, { repository: repository.dir, args: ['--device', 'cpu', '--device', 'cpu'] });

before(() => Promise.all([server.ready(), two.ready()]));

const slow = (steps: number, timeoutUs?: number) =>
  jsonBody(
    `{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]${timeoutUs === undefined ? '' : `,"parameters":{"timeout":${timeoutUs}}`}}`,
  );

/** A process that stood still for too long has been replaced. */
function goOn(pid: number): void {
  try {
    process.kill(pid, 'SIGCONT');
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, 'ESRCH');
  }
}

test('while a device stands still, health, metrics, status and refusals go on, and deadlines pass', async () => {
  const descriptors = await countDescriptors(server);
  const [device] = await server.pids('device');
  const first = infer(server.url, 'slow', slow(STEPS));
  await untilRunning(server, 'slow');
  process.kill(device!, 'SIGSTOP');
  const waiting = [1, 2, 3].map((steps) => infer(server.url, 'slow', slow(steps)));
  try {
    assert.equal((await get(server.url, '/v2/health/live')).status, 200);
    assert.equal((await get(server.url, '/v2/models/slow')).status, 200);
    assert.equal((await get(server.metricsUrl, '/healthz')).status, 200);
    assertRefused(await infer(server.url, 'slow', jsonBody('{"inputs":[]}')), 'BAD_TENSOR', /expected 1 input/);
    assert.equal(await server.metric('batchport_queue_rows', { model: 'slow', state: 'running' }), 1);
    for (const answer of await Promise.all([1, 2, 3].map(() => infer(server.url, 'slow', slow(1, 20_000))))) {
      assertRefused(answer, 'DEADLINE_EXCEEDED', /timeout/);
    }
    // More than the queue takes: refused at once, nobody is left waiting.
    const many = Array.from({ length: 100 }, () => infer(server.url, 'slow', slow(1, 60_000_000)));
    const refused = await Promise.race(many);
    assertRefused(refused, 'QUEUE_FULL', /max_rows/);
    assert.equal(refused.header('retry-after'), '1');
    goOn(device!);
    const statuses = (await Promise.all(many)).map(({ status }) => status);
    assert.deepEqual(
      statuses.filter((status) => status !== 200 && status !== 429),
      [],
    );
    assert(statuses.includes(200));
  } finally {
    goOn(device!);
  }
  for (const [n, answer] of (await Promise.all([first, ...waiting])).entries()) {
    assert.equal(answer.status, 200);
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [[STEPS, 1, 2, 3][n]]);
  }
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('the other device serves while one stands still, and takes over what that one has in hand', async () => {
  await assertAllAtWork(two);
  const descriptors = await countDescriptors(two);
  const first = infer(two.url, 'slow', slow(STEPS));
  await untilRunning(two, 'slow');
  // Whichever of them runs it.
  const [stopped] = await Promise.all(
    ['cpu', 'cpu#2'].map(async (device) =>
      (await two.metric('batchport_instances', { device, state: 'running' })) > 0 ? device : undefined,
    ),
  ).then((devices) => devices.filter((device) => device !== undefined));
  const { pid } = processesOf(await two.status()).find(({ device }) => device === stopped)!;
  process.kill(pid, 'SIGSTOP');
  const others = await Promise.all(Array.from({ length: 10 }, (_, n) => infer(two.url, 'slow', slow(n + 1))));
  for (const [n, answer] of others.entries()) {
    assert.equal(answer.status, 200, answer.body.toString());
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [n + 1]);
  }
  const answer = await first;
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [STEPS]);
  goOn(pid);
  await assertAllAtWork(two, 60_000);
  assert.equal((await infer(two.url, 'slow', slow(3))).status, 200);
  await assertIdle(two);
  await assertNoMoreDescriptors(two, descriptors);
});
