/**
 * Fault: one of two ingress processes stands still (SIGSTOP) while clients of both have requests in flight.
 *
 * Safety: what it had put into the queue runs once; nobody's rows are lost. Liveness: the other process and the device go on; once the stopped one goes on, its
 * clients get their answers.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { infer, inferBytes, json, jsonBody } from '../support/exchange.ts';
import { assertIdle, assertNoMoreDescriptors, countDescriptors, untilRunning } from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const CONNECTIONS = 20;
const STEPS = 1000;

const repository = makeRepository({ after }, { slow: { config: { max_batch_size: 8 } } });
const server = launchServer({ after }, { repository: repository.dir, args: ['--ingress', '2'] });

before(() => server.ready());

const slow = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);

test('the other ingress process serves while one stands still, and its clients get their answers afterwards', async () => {
  const descriptors = await countDescriptors(server);
  const [stopped] = await server.pids('ingress');
  const connections = await Promise.all(Array.from({ length: CONNECTIONS }, () => RawConnection.open(server.url)));
  for (const [n, connection] of connections.entries()) await connection.write(inferBytes('slow', slow(STEPS + n)));
  await untilRunning(server, 'slow');
  process.kill(stopped!, 'SIGSTOP');
  // New connections are taken by the process that runs. Not for long: who stands still for too long is replaced.
  const meanwhile = await infer(server.url, 'slow', slow(1));
  process.kill(stopped!, 'SIGCONT');
  assert.equal(meanwhile.status, 200);
  for (const [n, connection] of connections.entries()) {
    const answer = await connection.response(60_000, 'POST');
    assert.equal(answer.status, 200, answer.text());
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [STEPS + n]);
    connection.destroy();
  }
  assert((await server.pids('ingress')).includes(stopped!));
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});
