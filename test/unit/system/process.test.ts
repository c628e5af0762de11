import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { currentThreadId, PARENT_GONE_EXIT_CODE, processState, setProcessName } from '../../../src/system/process.ts';
import { startFixture, until } from './child.ts';

const MODULE = new URL('../../../src/system/process.js', import.meta.url).href;

/**
 * Runs a function body with the module as `m` on another thread; resolves to what it returns or to the message it
 * throws.
 */
async function onOtherThread(body: string): Promise<unknown> {
  const source = `import('${MODULE}').then((m) => { ${body} }).catch((e) => e.message)
    .then((value) => require('node:worker_threads').parentPort.postMessage(value))`;
  const worker = new Worker(source, { eval: true });
  const [value] = await once(worker, 'message');
  await worker.terminate();
  return value;
}

test('a child dies when its parent is killed', { timeout: 60_000 }, async (t) => {
  const parent = startFixture(t, 'parent', []);
  const childPid = Number(await parent.line());
  t.after(() => {
    try {
      process.kill(childPid, 'SIGKILL');
    } catch {}
  });
  assert.notEqual(childPid, parent.pid);
  process.kill(childPid, 0);
  parent.process.kill('SIGKILL');
  // The child is the last that holds the pipe: its end is the child's death.
  await assert.rejects(parent.line(), /ended without a further line/);
});

test('a child that finds another parent than it was told leaves at once', async (t) => {
  const child = startFixture(t, 'dying-child', [process.ppid]);
  assert.equal(await child.exit, PARENT_GONE_EXIT_CODE);
});

test('the tie to the parent is refused outside of the main thread', async () => {
  assert.match(String(await onOtherThread('m.dieWithParent(1)')), /main thread/);
});

test('a process name is cut between two characters to what the kernel keeps', () => {
  const before = readFileSync('/proc/self/comm', 'utf8').trim();
  setProcessName('batchport-ééé');
  assert.equal(readFileSync('/proc/self/comm', 'utf8'), 'batchport-éé\n');
  setProcessName(before);
  assert.equal(readFileSync('/proc/self/comm', 'utf8').trim(), before);
});

test('threads have numbers of their own, and the main thread that of the process', async () => {
  assert.equal(currentThreadId(), process.pid);
  const other = await onOtherThread('return m.currentThreadId()');
  assert.equal(typeof other, 'number');
  assert.notEqual(other, process.pid);
});

test('a process that is stopped by a signal shows it, until it goes on', async (t) => {
  const child = startFixture(t, 'parent', []);
  await child.line();
  assert.match(processState(child.pid) ?? '', /^[RSD]$/);
  child.process.kill('SIGSTOP');
  await until(() => processState(child.pid) === 'T');
  child.process.kill('SIGCONT');
  await until(() => processState(child.pid) !== 'T');
});

test('a process that does not exist has no state', () => {
  assert.equal(processState(2 ** 22 + 1), undefined);
});
