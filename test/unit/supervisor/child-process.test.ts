/** A child process and its next life; the child is a real one that ends at once. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { createLogger } from '../../../src/config/log.ts';
import { ChildProcess } from '../../../src/supervisor/child-process.ts';
import { DEVICE_POLICY } from '../../../src/supervisor/life-policies.ts';
import { OomWatch } from '../../../src/supervisor/oom-watch.ts';
import { temporaryDirectory } from '../../support/repository.ts';

function makeChild(t: TestContext, confirm: (pid: number) => Promise<void>) {
  const entry = path.join(temporaryDirectory(t, 'child'), 'child.mjs');
  fs.writeFileSync(entry, 'process.exit(1);');
  const states: string[] = [];
  const child = new ChildProcess<{ type: string }, object>({
    role: 'device',
    label: {},
    entry: pathToFileURL(entry),
    env: {},
    execArgv: [],
    inherit: [],
    policy: DEVICE_POLICY,
    silentMaxMs: 60_000,
    log: createLogger('test', 'fatal'),
    oom: new OomWatch(performance.now(), () => 0),
    onMessage: () => {},
    onExit: () => ({ atWork: false, worked: false, fields: {} }),
    confirm,
    onState: ({ state }) => states.push(state),
  });
  t.after(async () => {
    child.stopping();
    child.condemn('server stopped', 'the test is over');
    await child.gone;
  });
  return { child, states };
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 1));
}

// Story: a device process was started while the driver still freed the memory of the one before, found none, and died of it, again and again.
test('the next life begins only when all of the last one is known to be gone', async (t) => {
  const confirmed: (() => void)[] = [];
  const pids: number[] = [];
  const { child, states } = makeChild(t, (pid) => {
    pids.push(pid);
    return new Promise((resolve) => confirmed.push(resolve));
  });
  child.start();
  const first = child.pid;
  await until(() => pids.length === 1);
  assert.deepEqual(pids, [first]);
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual([child.state, child.epoch, child.nextStartInMs], ['exited', 1, undefined]);
  confirmed[0]!();
  await until(() => child.epoch === 2);
  assert(states.includes('backoff'));
});

test('told to stop meanwhile, it does not start again', async (t) => {
  const confirmed: (() => void)[] = [];
  const { child } = makeChild(t, () => new Promise((resolve) => confirmed.push(resolve)));
  child.start();
  await until(() => confirmed.length === 1);
  child.stopping();
  await child.gone;
  confirmed[0]!();
  await until(() => child.state === 'stopped');
  assert.equal(child.epoch, 1);
});
