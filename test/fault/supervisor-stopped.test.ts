/**
 * Fault: the supervisor stands still for a while (SIGSTOP) under load, and a device dies meanwhile.
 *
 * Safety: requests need no supervisor and go on; when it goes on itself, nobody is blamed for what it did not see. Liveness: the death that it missed is mended.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { endsOf } from '../support/child-log.ts';
import { get, infer, json, jsonBody } from '../support/exchange.ts';
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

/** Longer than a child may say nothing without being suspected. */
const STOPPED_MS = 6000;
const STEPS = 10_000;

const repository = makeRepository({ after }, { slow: { config: { run_timeout_ms: 60_000 } }, rows: {} });
const server = launchServer({ after }, { repository: repository.dir, args: ['--device', 'cpu', '--device', 'cpu'] });

before(() => server.ready());

const slow = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);
const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

async function assertServes(steps: number): Promise<void> {
  const answer = await infer(server.url, 'slow', slow(steps));
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [steps]);
}

test('while the supervisor stands still requests are served, and afterwards no child is blamed for its silence', async () => {
  await assertAllAtWork(server);
  const pids = processesOf(await server.status()).map(({ pid }) => pid);
  server.signal('SIGSTOP');
  try {
    const goOnMs = performance.now() + STOPPED_MS;
    for (let n = 1; performance.now() < goOnMs; n++) {
      await assertServes(n);
      assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
    }
  } finally {
    server.signal('SIGCONT');
  }
  await assertAllAtWork(server);
  assert.deepEqual(
    processesOf(await server.status()).map(({ pid }) => pid),
    pids,
  );
  assert.deepEqual(
    server.logs.filter(({ msg }) => / is (suspect|killed)$/.test(String(msg))),
    [],
  );
  await assertIdle(server);
});

test('a device that dies while the supervisor stands still is replaced, and its batch run, once it goes on', async () => {
  const descriptors = await countDescriptors(server);
  const devices = await server.pids('device');
  const requests = [STEPS, STEPS + 1].map((steps) => infer(server.url, 'slow', slow(steps)));
  await untilRunning(server, 'slow');
  server.signal('SIGSTOP');
  try {
    process.kill(devices[0]!, 'SIGKILL');
    // The other device serves meanwhile.
    for (let n = 0; n < 20; n++) assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  } finally {
    server.signal('SIGCONT');
  }
  for (const [n, answer] of (await Promise.all(requests)).entries()) {
    assert.equal(answer.status, 200, answer.body.toString());
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [STEPS + n]);
  }
  await server.log(({ childPid, msg }) => childPid === devices[0] && msg === 'device process ended');
  assert.equal(endsOf(server, 'device').length, 1);
  await assertAllAtWork(server);
  await assertServes(3);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});
