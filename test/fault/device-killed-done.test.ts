/**
 * Fault: a device process is killed after it has finished a batch and before anybody has looked at the results, since the ingress process stands still.
 *
 * Safety: the results are in shared memory and survive; nothing is run twice. Liveness: the clients get them once the ingress process goes on.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { binaryRequest, infer, inferBytes, outputsOf } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, modelsOf, untilModel, untilRunning } from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, type TestTensor, tensor } from '../support/tensor.ts';

/** Long enough to stop the ingress process before it is over. */
const STEPS = 40_000;
const REQUESTS = 3;

const repository = makeRepository({ after }, ['slow']);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const stepsOf = (count: number): TestTensor => tensor('INT64', [1, 1], BigInt64Array.of(BigInt(count)));

// Story: results that a process had sent vanished with it, since sending them was asynchronous (ipc-large-message-lost-or-mangled, 27).
test('results of a process that has died meanwhile are delivered', async () => {
  const [ingress] = await server.pids('ingress');
  const [device] = await server.pids('device');
  const connections = await Promise.all(Array.from({ length: REQUESTS }, () => RawConnection.open(server.url)));
  for (const [n, connection] of connections.entries()) {
    await connection.write(inferBytes('slow', binaryRequest(new Map([['steps', stepsOf(STEPS + n)]]))));
  }
  await untilRunning(server, 'slow');
  process.kill(ingress!, 'SIGSTOP');
  try {
    await untilModel(
      server,
      'slow',
      ({ queue }) => queue!.slabs.done! > 0 && queue!.rows_running === 0 && queue!.rows_queued === 0,
    );
    process.kill(device!, 'SIGKILL');
    await untilModel(server, 'slow', ({ state }) => state !== 'READY');
  } finally {
    process.kill(ingress!, 'SIGCONT');
  }
  for (const [n, connection] of connections.entries()) {
    const answer = await connection.response(60_000, 'POST');
    assert.equal(answer.status, 200, answer.text());
    assertSameTensor(outputsOf(answer).get('y'), stepsOf(STEPS + n));
    connection.destroy();
  }
  await assertAllAtWork(server);
  const [model] = modelsOf(await server.status());
  assert.deepEqual([model!.rows_requeued, model!.rows_lost], [0, 0]);
  assert.equal((await infer(server.url, 'slow', binaryRequest(new Map([['steps', stepsOf(1)]])))).status, 200);
  await assertIdle(server);
});
