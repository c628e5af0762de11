/**
 * Fault: runs that do not end: one that ONNX Runtime can cancel, and one inside a single kernel, which it cannot.
 *
 * Safety: nobody else's request is harmed, in the same batch or behind it. Liveness: the request gets an answer that says what happened; where cancelling does not
 * help, the process is replaced.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { endsOf } from '../support/child-log.ts';
import { assertRefused, get, infer, inferBytes, json, jsonBody, sendTogether } from '../support/exchange.ts';
import { deafModel, ENDLESS_BOXES } from '../support/fixtures-hang.ts';
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

/** About an hour. */
const ENDLESS = 100_000_000;

const repository = makeRepository({ after }, { slow: { config: { run_timeout_ms: 1500 } } });
repository.writeFile(['deaf', '1', 'model.onnx'], deafModel());
const server = launchServer({ after }, { repository: repository.dir, args: ['--run-timeout-s', '2'] });

before(() => server.ready());

const slow = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);
const deaf = (boxes: number) => jsonBody(`{"inputs":[{"name":"n","datatype":"INT64","shape":[1],"data":[${boxes}]}]}`);

function dataOf(answer: Parameters<typeof json>[0]): unknown {
  assert.equal(answer.status, 200, answer.body.toString());
  return (json(answer).outputs as { data: unknown }[])[0]!.data;
}

// Story: a stuck worker answered its liveness ping, and requests waited for ever (worker-hang, 42).
test('a run over its limit is cancelled, its request told so, and the process goes on', async () => {
  const descriptors = await countDescriptors(server);
  const devices = await server.pids('device');
  const endless = infer(server.url, 'slow', slow(ENDLESS));
  await untilRunning(server, 'slow');
  const behind = infer(server.url, 'slow', slow(3));
  assertRefused(await endless, 'DEADLINE_EXCEEDED', /cancelled after 1\.5 s \(--run-timeout-s, run_timeout_ms\)/);
  assert.deepEqual(dataOf(await behind), [3]);
  await server.log(({ msg }) => msg === 'a run passed its limit');
  assert.deepEqual(await server.pids('device'), devices);
  await assertAllAtWork(server);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('an endless request in a batch costs its neighbours time and nothing else', async () => {
  const devices = await server.pids('device');
  // While one runs, the others meet in a batch.
  const first = infer(server.url, 'slow', slow(1500));
  await untilRunning(server, 'slow');
  const steps = [1, 2, ENDLESS, 4];
  const answers = await sendTogether(
    server.url,
    steps.map((count) => inferBytes('slow', slow(count))),
  );
  assert.deepEqual(dataOf(await first), [1500]);
  for (const [n, answer] of answers.entries()) {
    if (steps[n] === ENDLESS) assertRefused(answer, 'DEADLINE_EXCEEDED', /cancelled/);
    else assert.deepEqual(dataOf(answer), [steps[n]]);
  }
  assert.deepEqual(await server.pids('device'), devices);
  await assertIdle(server);
});

test('a run that does not heed its cancellation costs its process, which is replaced; those behind it are served', async () => {
  const descriptors = await countDescriptors(server);
  const endless = infer(server.url, 'deaf', deaf(ENDLESS_BOXES));
  await untilRunning(server, 'deaf');
  const [behind, other] = [infer(server.url, 'deaf', deaf(7)), infer(server.url, 'slow', slow(2))];
  assert.deepEqual(dataOf(await other), [2]);
  const answer = await endless;
  assertRefused(answer, 'WORKER_LOST', /died/);
  assert.deepEqual(dataOf(await behind), [7]);
  assert.equal((await get(server.url, '/v2/health/live')).status, 200);
  const ends = endsOf(server, 'device');
  assert(ends.length > 0 && ends.length <= 4, `${ends.length} deaths`);
  for (const { how } of ends) assert.match(how, /killed by the supervisor: a run of deaf\/1 passed its limit of 2 s/);
  assert.equal(
    await server.metric('batchport_process_exits_total', { reason: 'killed by the supervisor (run too long)' }),
    ends.length,
  );
  await assertAllAtWork(server, 60_000);
  assert.equal(processesOf(await server.status()).find(({ role }) => role === 'device')!.restarts, ends.length);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});
