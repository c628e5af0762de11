/** The watch over one child process, with a real one; its clock is the test's. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { createLogger } from '../../../src/config/log.ts';
import { ChildProcess } from '../../../src/supervisor/child-process.ts';
import { DEVICE_POLICY } from '../../../src/supervisor/life-policies.ts';
import { OomWatch } from '../../../src/supervisor/oom-watch.ts';
import { processState } from '../../../src/system/process.ts';
import { eventually } from '../../support/idle.ts';
import { temporaryDirectory } from '../../support/repository.ts';

/** A little late each time, as on a busy machine: the limit then passes between two looks at the kernel. */
const LOOK_MS = 110;

interface World {
  readonly child: ChildProcess<{ type: string }, object>;
  readonly pid: number;
  /** Looks as often as the supervisor does, for a while; at every fifth look the kernel is asked. */
  readonly watchFor: (ms: number) => void;
}

/** A child that is at work and says that it lives. */
async function start(t: TestContext): Promise<World> {
  const entry = path.join(temporaryDirectory(t, 'child'), 'child.mjs');
  fs.writeFileSync(entry, "setInterval(() => process.send({ type: 'working' }), 20);\n");
  let heard = 0;
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
    oom: new OomWatch(0, () => undefined),
    onMessage: () => heard++,
    onExit: () => ({ atWork: false, worked: false, fields: {} }),
    onState: () => {},
  });
  t.after(async () => {
    child.stopping();
    child.condemn('server stopped', 'the test is over');
    await child.gone;
  });
  child.start();
  child.up();
  child.ready();
  await eventually(async () => (heard > 0 ? undefined : 'the child says nothing'));
  const { pid } = child;
  assert(pid !== undefined);
  let nowMs = 1000;
  let looks = 0;
  const watchFor = (ms: number): void => {
    for (const endMs = nowMs + ms; nowMs < endMs; nowMs += LOOK_MS) child.watch(nowMs, looks++ % 5 === 0, []);
  };
  return { child, pid, watchFor };
}

async function signalled(pid: number, signal: 'SIGSTOP' | 'SIGCONT'): Promise<void> {
  process.kill(pid, signal);
  await eventually(async () => {
    const stopped = processState(pid) === 'T';
    return stopped === (signal === 'SIGSTOP') ? undefined : `the child does not hear ${signal}`;
  });
}

// What the kernel was asked half a second ago counted: one that had gone on after 1.5 s was killed for 2.
test('a child that is stopped and goes on in time is not killed', async (t) => {
  const { child, pid, watchFor } = await start(t);
  watchFor(500);
  await signalled(pid, 'SIGSTOP');
  watchFor(1700);
  assert.equal(child.state, 'suspect');
  await signalled(pid, 'SIGCONT');
  watchFor(2000);
  assert.equal(child.state, 'ready');
  assert.equal(child.pid, pid);
});

test('a child that stays stopped is killed, and its end says why', async (t) => {
  const { child, pid, watchFor } = await start(t);
  watchFor(500);
  await signalled(pid, 'SIGSTOP');
  watchFor(4000);
  await eventually(async () => (child.lastExit?.pid === pid ? undefined : 'the child is not dead'));
  assert.match(child.lastExit!.how, /killed by the supervisor: it was stopped by a signal for 2 s/);
});
