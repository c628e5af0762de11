/**
 * Fault: the kernel kills a device process because the memory of the control group is used up.
 *
 * Safety: the other processes live on, nothing is answered wrongly. Liveness: the batch in hand is answered by the next process; the death is told for what it was.
 */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { ChildHook, GREED_SIGNAL } from '../support/child-hook.ts';
import { endsOf } from '../support/child-log.ts';
import { infer, json, jsonBody } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, eventually } from '../support/idle.ts';
import { MemoryGroup } from '../support/memory-group.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const LIMIT_MS = 60_000;

// Clean-up goes in the order of the calls: the server ends before its group and its files are removed.
const cleanUps: (() => void | Promise<void>)[] = [];
const later = { after: (action: () => void | Promise<void>) => cleanUps.unshift(action) };
after(async () => {
  for (const action of cleanUps) await action();
});
const group = MemoryGroup.make(later, 1024 * 2 ** 20);

test('a process killed by the kernel for want of memory is told as such, and its batch is run by the next one', {
  skip: group === undefined && 'no control group can be made here (needs root and a writable hierarchy)',
}, async () => {
  const hook = new ChildHook(later);
  const repository = makeRepository(later, { slow: { config: { queue: { max_bytes: '16MiB' } } } });
  const server = launchServer(later, { repository: repository.dir, env: hook.env, program: group!.program });
  await server.ready(LIMIT_MS);
  const others = [server.pid, ...(await server.pids('ingress'))];
  const [device] = await server.pids('device');
  const request = infer(
    server.url,
    'slow',
    jsonBody('{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[20000]}]}'),
  );
  process.kill(device!, GREED_SIGNAL);
  await eventually(async () => (endsOf(server, 'device').length > 0 ? undefined : 'it lives'), LIMIT_MS);
  const [end] = endsOf(server, 'device');
  assert.equal(end!.how, 'killed by the kernel for want of memory (signal SIGKILL)');
  const answer = await request;
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [20_000]);
  await assertAllAtWork(server, LIMIT_MS);
  assert.deepEqual([server.pid, ...(await server.pids('ingress'))], others);
  assert.equal(
    await server.metric('batchport_process_exits_total', { role: 'device', reason: 'signal SIGKILL (out of memory)' }),
    1,
  );
  // One killed by somebody is told apart, also now that the kernel's counter has risen.
  process.kill((await server.pids('device'))[0]!, 'SIGKILL');
  await eventually(async () => (endsOf(server, 'device').length > 1 ? undefined : 'it lives'), LIMIT_MS);
  assert.equal(endsOf(server, 'device')[1]!.how, 'killed from outside (signal SIGKILL)');
  await assertAllAtWork(server, LIMIT_MS);
  await assertIdle(server);
});
