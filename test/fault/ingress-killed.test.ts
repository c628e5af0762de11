/**
 * Fault: an ingress process is killed (SIGKILL) with requests in flight on it.
 *
 * Safety: its own connections break, which their clients see, and nothing else: no other ingress process, no device, no row that nobody gives back. Liveness: new
 * connections wait for the next process and are served.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { infer, inferBytes, json, jsonBody } from '../support/exchange.ts';
import {
  assertAllAtWork,
  assertIdle,
  assertNoMoreDescriptors,
  countDescriptors,
  eventually,
  processesOf,
  untilRunning,
} from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const STEPS = 10_000;
const CONNECTIONS = 12;

const repository = makeRepository({ after }, ['slow', 'wide']);
const one = launchServer({ after }, { repository: repository.dir, args: ['--ingress', '1'] });
const two = launchServer({ after }, { repository: repository.dir, args: ['--ingress', '2'] });

before(() => Promise.all([one.ready(), two.ready()]));

const slow = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);

/** What became of a request: its answer's status, or that the connection broke without any. */
async function outcome(connection: RawConnection): Promise<number | 'broken'> {
  try {
    return (await connection.response(60_000, 'POST')).status;
  } catch (error) {
    assert.match((error as Error).message, /connection ended/);
    return 'broken';
  } finally {
    connection.destroy();
  }
}

// Story: the process behind the socket died, and its clients waited for ever while its slots stayed taken.
test('clients of a killed ingress process see their connections break; the next process serves', async () => {
  const descriptors = await countDescriptors(one);
  const devices = await one.pids('device');
  for (let round = 1; round <= 2; round++) {
    const [pid] = await one.pids('ingress');
    const connections = await Promise.all(Array.from({ length: CONNECTIONS }, () => RawConnection.open(one.url)));
    for (const connection of connections) await connection.write(inferBytes('slow', slow(STEPS)));
    // One of them has sent half a request, one nothing, one takes nothing of its answer.
    const half = await RawConnection.open(one.url);
    await half.write(inferBytes('slow', slow(1)).subarray(0, 60));
    const reader = await RawConnection.open(one.url);
    reader.pause();
    await reader.write(
      inferBytes(
        'wide',
        jsonBody(
          '{"inputs":[{"name":"x","datatype":"FP32","shape":[4,1],"data":[1,2,3,4]}],"parameters":{"binary_data_output":true}}',
        ),
      ),
    );
    await untilRunning(one, 'slow');
    process.kill(pid!, 'SIGKILL');
    // A connection made before anybody has noticed: it waits in the backlog.
    const early = infer(one.url, 'slow', slow(3));
    const outcomes: (number | 'broken')[] = [];
    for (const connection of connections) outcomes.push(await outcome(connection));
    // Some may have been answered before the kill.
    assert(
      outcomes.every((one) => one === 200 || one === 'broken'),
      outcomes.join(),
    );
    assert(outcomes.includes('broken'));
    half.destroy();
    reader.destroy();
    const answer = await early;
    assert.equal(answer.status, 200, answer.body.toString());
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [3]);
    await assertAllAtWork(one);
    const now = processesOf(await one.status()).find(({ role }) => role === 'ingress')!;
    assert.equal(now.restarts, round);
    assert.notEqual(now.pid, pid);
    assert.deepEqual(await one.pids('device'), devices, 'the weights stay loaded');
    await assertIdle(one);
    await assertNoMoreDescriptors(one, descriptors);
  }
});

test('connections of the other ingress process do not notice', async () => {
  const descriptors = await countDescriptors(two);
  const connections = await Promise.all(Array.from({ length: 2 * CONNECTIONS }, () => RawConnection.open(two.url)));
  const outcomes: (number | 'broken')[] = [];
  for (const connection of connections) await connection.write(inferBytes('slow', slow(STEPS)));
  await untilRunning(two, 'slow');
  const [pid, other] = await two.pids('ingress');
  process.kill(pid!, 'SIGKILL');
  // Meanwhile new connections reach the process that is left.
  assert.equal((await infer(two.url, 'slow', slow(1))).status, 200);
  for (const connection of connections) outcomes.push(await outcome(connection));
  assert(
    outcomes.every((one) => one === 200 || one === 'broken'),
    outcomes.join(),
  );
  // The connections break before the supervisor has noticed the death.
  await eventually(async () => {
    const ingresses = processesOf(await two.status()).filter(({ role }) => role === 'ingress');
    const restarts = ingresses.map(({ restarts }) => restarts);
    return isDeepStrictEqual(restarts, [1, 0]) ? undefined : `restarts: ${restarts}`;
  });
  await assertAllAtWork(two);
  assert.equal((await two.pids('ingress'))[1], other);
  await assertIdle(two);
  await assertNoMoreDescriptors(two, descriptors);
});
