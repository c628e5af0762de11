/**
 * Fault: a device process is killed after it has finished a batch and before anybody has looked at the results, since the ingress process stands still.
 *
 * Safety: the results are in shared memory and survive; nothing is run twice. Liveness: the clients get them once the ingress process goes on.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { binaryRequest, infer, inferBytes, outputsOf } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, eventually, modelsOf, processesOf, untilModel } from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, type TestTensor, tensor } from '../support/tensor.ts';

/** About a tenth of a second of work on an idle core. */
const STEPS = 3000;
const REQUESTS = 3;
const ATTEMPTS_MAX = 20;

const repository = makeRepository({ after }, ['slow']);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const stepsOf = (count: number): TestTensor => tensor('INT64', [1, 1], BigInt64Array.of(BigInt(count)));

/**
 * Sends requests and stops the ingress process before they are finished, so that it has not looked at their results.
 *
 * @returns undefined when they were finished before.
 */
async function sendAndStop(ingress: number): Promise<readonly RawConnection[] | undefined> {
  const connections = await Promise.all(Array.from({ length: REQUESTS }, () => RawConnection.open(server.url)));
  for (const [n, connection] of connections.entries()) {
    await connection.write(inferBytes('slow', binaryRequest(new Map([['steps', stepsOf(STEPS + n)]]))));
  }
  await untilModel(server, 'slow', ({ queue, rows }) => queue!.rows_running > 0 || rows > 0);
  process.kill(ingress, 'SIGSTOP');
  const [model] = modelsOf(await server.status());
  const { rows_running, slabs } = model!.queue!;
  if (rows_running > 0 || slabs.done! > 0) return connections;
  process.kill(ingress, 'SIGCONT');
  for (const connection of connections) connection.destroy();
  return undefined;
}

/** Whether the batches were finished while their ingress process stood still. Not if that took too long: who stands still for too long is replaced. */
async function finishedUnseen(ingress: number): Promise<boolean> {
  let replaced = false;
  await eventually(async () => {
    const status = await server.status();
    replaced = !processesOf(status).some(({ pid, state }) => pid === ingress && state !== 'killing');
    const { rows_running, rows_queued, slabs } = modelsOf(status)[0]!.queue!;
    const finished = slabs.done! > 0 && rows_running === 0 && rows_queued === 0;
    return replaced || finished ? undefined : 'not finished yet';
  });
  return !replaced;
}

/** Kills the device between the end of the run and the first look at its results. Returns undefined when the machine was too slow or too fast for that. */
async function resultsOfTheDead(): Promise<readonly RawConnection[] | undefined> {
  const [ingress] = await server.pids('ingress');
  const [device] = await server.pids('device');
  const connections = await sendAndStop(ingress!);
  if (connections === undefined) return undefined;
  try {
    if (await finishedUnseen(ingress!)) {
      process.kill(device!, 'SIGKILL');
      await untilModel(server, 'slow', ({ state }) => state !== 'READY');
    }
  } finally {
    continueIfAlive(ingress!);
  }
  const alive = processesOf(await server.status()).some(({ pid, state }) => pid === ingress && state !== 'killing');
  if (alive) return connections;
  for (const connection of connections) connection.destroy();
  await assertAllAtWork(server);
  return undefined;
}

function continueIfAlive(pid: number): void {
  try {
    process.kill(pid, 'SIGCONT');
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, 'ESRCH');
  }
}

// Story: results that a process had sent vanished with it, since sending them was asynchronous (ipc-large-message-lost-or-mangled, 27).
test('results of a process that has died meanwhile are delivered', async () => {
  let connections: readonly RawConnection[] | undefined;
  let requeued = 0;
  for (let attempt = 0; connections === undefined; attempt++) {
    assert(attempt < ATTEMPTS_MAX, 'the device was never killed in time');
    requeued = modelsOf(await server.status())[0]!.rows_requeued;
    connections = await resultsOfTheDead();
  }
  for (const [n, connection] of connections.entries()) {
    const answer = await connection.response(60_000, 'POST');
    assert.equal(answer.status, 200, answer.text());
    assertSameTensor(outputsOf(answer).get('y'), stepsOf(STEPS + n));
    connection.destroy();
  }
  await assertAllAtWork(server);
  const [model] = modelsOf(await server.status());
  assert.deepEqual([model!.rows_requeued, model!.rows_lost], [requeued, 0]);
  assert.equal((await infer(server.url, 'slow', binaryRequest(new Map([['steps', stepsOf(1)]])))).status, 200);
  await assertIdle(server);
});
