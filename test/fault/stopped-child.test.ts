/**
 * Fault: a child process that stands still for good: stopped by a signal (SIGSTOP), or with an event loop that does not turn any more.
 *
 * Safety: nothing is answered wrongly or twice. Liveness: it is found without being asked, killed and replaced; what it had in hand is run by the next one; a late
 * SIGCONT does no harm.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ChildHook, STALL_SIGNAL } from '../support/child-hook.ts';
import { endsOf } from '../support/child-log.ts';
import { get, infer, json, jsonBody } from '../support/exchange.ts';
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
import { launchServer } from '../support/server.ts';

const LIMIT_MS = 60_000;

const hook = new ChildHook({ after });
const repository = makeRepository({ after }, ['slow']);
const server = launchServer(
  { after },
  { repository: repository.dir, env: hook.env, args: ['--ingress', '2', '--max-body-bytes', '1MiB'] },
);

before(() => server.ready());

const slow = (steps: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}]}`);

function signalGone(pid: number): void {
  try {
    process.kill(pid, 'SIGCONT');
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, 'ESRCH');
  }
}

async function assertServes(steps: number): Promise<void> {
  const answer = await infer(server.url, 'slow', slow(steps));
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [steps]);
}

function untilReplaced(pid: number): Promise<void> {
  return eventually(async () => {
    const pids = processesOf(await server.status()).map((child) => child.pid);
    return pids.includes(pid) ? `${pid} is still there` : undefined;
  }, LIMIT_MS);
}

test('a device that is stopped in the middle of a batch is replaced, and the batch answered', async () => {
  const descriptors = await countDescriptors(server);
  const [device] = await server.pids('device');
  const request = infer(server.url, 'slow', slow(20_000));
  await untilRunning(server, 'slow');
  process.kill(device!, 'SIGSTOP');
  const answer = await request;
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [20_000]);
  signalGone(device!);
  const [end] = endsOf(server, 'device');
  assert.match(end!.how, /killed by the supervisor: it was stopped by a signal for 2 s/);
  await server.log(({ msg }) => msg === 'device process is suspect');
  await assertAllAtWork(server, LIMIT_MS);
  await assertServes(3);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

// Story: for as long as it took to find out that it would not go on, its models were said to be ready.
test('a device that is stopped for a moment is not killed; its model is not ready meanwhile, and is again afterwards', async () => {
  const standsStill = /stands still: it is stopped by a signal/;
  await eventually(async () => {
    const [device] = await server.pids('device');
    process.kill(device!, 'SIGSTOP');
    let reason = '';
    try {
      await eventually(async () => {
        const { status, body } = await get(server.url, '/v2/health/ready');
        reason = body.toString();
        return status === 200 ? 'ready' : undefined;
      }, LIMIT_MS);
    } finally {
      signalGone(device!);
    }
    await assertAllAtWork(server, LIMIT_MS);
    await eventually(async () => {
      const { status } = await get(server.url, '/v2/health/ready');
      return status === 200 ? undefined : `ready is ${status}`;
    }, LIMIT_MS);
    // Whoever looks too seldom sees only that it was killed.
    if (!standsStill.test(reason)) return `not ready since ${reason}`;
    return (await server.pids('device'))[0] === device ? undefined : 'it went on too late';
  }, LIMIT_MS);
  await assertServes(4);
});

test('an ingress that is stopped is replaced, and the others serve meanwhile', async () => {
  const descriptors = await countDescriptors(server);
  const [ingress, other] = await server.pids('ingress');
  process.kill(ingress!, 'SIGSTOP');
  await untilReplaced(ingress!);
  signalGone(ingress!);
  assert.match(endsOf(server, 'ingress')[0]!.how, /stopped by a signal/);
  await assertAllAtWork(server, LIMIT_MS);
  assert((await server.pids('ingress')).includes(other!));
  await assertServes(4);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('a device whose event loop stands still is found by its silence', async () => {
  const [device] = await server.pids('device');
  process.kill(device!, STALL_SIGNAL);
  // Its instances are threads of their own: they go on until it is found.
  await assertServes(5);
  await untilReplaced(device!);
  assert.match(endsOf(server, 'device').at(-1)!.how, /its event loop did not turn for 10 s/);
  await assertAllAtWork(server, LIMIT_MS);
  await assertServes(6);
  await assertIdle(server);
});

test('an ingress whose event loop stands still is found by its silence', async () => {
  const [ingress] = await server.pids('ingress');
  process.kill(ingress!, STALL_SIGNAL);
  await untilReplaced(ingress!);
  assert.match(endsOf(server, 'ingress').at(-1)!.how, /its event loop did not turn/);
  await assertAllAtWork(server, LIMIT_MS);
  await assertServes(7);
  await assertIdle(server);
});
