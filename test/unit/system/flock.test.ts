import assert from 'node:assert/strict';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { lock, tryLock, unlock } from '../../../src/system/flock.ts';
import { type Child, startFixture, until } from './child.ts';

function lockFile(t: TestContext): { path: string; open(): number } {
  const directory = mkdtempSync(join(tmpdir(), 'batchport-flock-'));
  const path = join(directory, 'lock');
  closeSync(openSync(path, 'w'));
  const fds: number[] = [];
  t.after(() => {
    for (const fd of fds) closeSync(fd);
    rmSync(directory, { recursive: true });
  });
  return {
    path,
    open() {
      const fd = openSync(path, 'r+');
      fds.push(fd);
      return fd;
    },
  };
}

async function startHolder(t: TestContext, path: string): Promise<Child> {
  const holder = startFixture(t, 'lock-holder', [path]);
  assert.equal(await holder.line(), 'locked');
  return holder;
}

test('one exclusive lock excludes all others, shared ones only exclude an exclusive one', (t) => {
  const file = lockFile(t);
  const [a, b, c] = [file.open(), file.open(), file.open()];
  assert.equal(tryLock(a, 'exclusive'), true);
  assert.equal(tryLock(b, 'exclusive'), false);
  assert.equal(tryLock(b, 'shared'), false);
  unlock(a);
  unlock(a);
  assert.equal(tryLock(b, 'shared'), true);
  assert.equal(tryLock(c, 'shared'), true);
  assert.equal(tryLock(a, 'exclusive'), false);
});

test('the lock of a killed process is free', async (t) => {
  const file = lockFile(t);
  const holder = await startHolder(t, file.path);
  const fd = file.open();
  assert.equal(tryLock(fd, 'exclusive'), false);
  holder.process.kill('SIGKILL');
  assert.equal(await holder.exit, 'SIGKILL');
  assert.equal(tryLock(fd, 'exclusive'), true);
});

test('the lock of a stopped process stays its own', async (t) => {
  const file = lockFile(t);
  const holder = await startHolder(t, file.path);
  holder.process.kill('SIGSTOP');
  await until(() => / \(.*\) T /.test(readFileSync(`/proc/${holder.pid}/stat`, 'utf8')));
  const fd = file.open();
  assert.equal(tryLock(fd, 'exclusive'), false);
  await assert.rejects(lock(fd, 'exclusive', { signal: AbortSignal.timeout(100) }), { name: 'TimeoutError' });
  holder.process.kill('SIGCONT');
  holder.process.stdin?.end();
  assert.equal(await holder.exit, 0);
  assert.equal(tryLock(fd, 'exclusive'), true);
});

test('a waiter gets the lock once its holder dies, is told once that it waits, and lets the event loop turn', async (t) => {
  const file = lockFile(t);
  const holder = await startHolder(t, file.path);
  const fd = file.open();
  let waits = 0;
  let acquired = false;
  const waiting = lock(fd, 'exclusive', {
    onWait: () => {
      waits += 1;
    },
  }).then(() => {
    acquired = true;
  });
  for (let turn = 0; turn < 100; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual([waits, acquired], [1, false]);
  holder.process.kill('SIGKILL');
  await waiting;
  assert.equal(waits, 1);
  assert.equal(tryLock(file.open(), 'shared'), false);
});

test('a wait ends with the reason of its signal, before it begins or later', async (t) => {
  const file = lockFile(t);
  const [holder, waiter] = [file.open(), file.open()];
  await lock(holder, 'exclusive', { onWait: () => assert.fail('a free lock needs no wait') });
  const reason = new Error('no longer wanted');
  await assert.rejects(lock(waiter, 'shared', { signal: AbortSignal.abort(reason) }), reason);
  const controller = new AbortController();
  await assert.rejects(
    lock(waiter, 'shared', { signal: controller.signal, onWait: () => setImmediate(() => controller.abort(reason)) }),
    reason,
  );
  unlock(holder);
  assert.equal(tryLock(waiter, 'shared'), true);
});

test('a closed descriptor is an error, not a lock that is never obtained', async () => {
  assert.throws(() => tryLock(1_000_000, 'shared'), { code: 'EBADF' });
  assert.throws(() => unlock(1_000_000), { code: 'EBADF' });
  await assert.rejects(lock(1_000_000, 'exclusive'), { code: 'EBADF' });
});
