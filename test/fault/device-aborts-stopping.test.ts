/**
 * Fault: a device process aborts (SIGABRT) after it was told to stop, as native code does that is torn down in the wrong order.
 *
 * Safety: everything has been answered before; it is not taken for a crash that has to be mended. Liveness: the server ends, with code 0.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startsOf } from '../support/child-log.ts';
import { infer, jsonBody } from '../support/exchange.ts';
import { eventually, processesOf } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const repository = makeRepository({ after }, ['rows']);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

// Story: a worker that aborted on its way out was started again, and the stop did not end (exit-crash, 63).
test('a device that aborts on its way out is not started again, and the exit code stays 0', async () => {
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  const [device] = await server.pids('device');
  // It hears of the stop, and does nothing about it.
  process.kill(device!, 'SIGSTOP');
  server.signal('SIGTERM');
  await eventually(async () => {
    const { state } = processesOf(await server.status()).find(({ role }) => role === 'device')!;
    return state === 'draining' ? undefined : `the device is ${state}`;
  });
  process.kill(device!, 'SIGABRT');
  process.kill(device!, 'SIGCONT');
  assert.deepEqual(await server.ended(), { code: 0, signal: null });
  assert.equal(startsOf(server, 'device').length, 1);
});
