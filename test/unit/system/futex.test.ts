import assert from 'node:assert/strict';
import { closeSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { FUTEX_CHANGED, FUTEX_TIMEOUT, FUTEX_WOKEN, futexWait, futexWake } from '../../../src/system/futex.ts';
import { mapShared, memfdCreate, setSize } from '../../../src/system/memory.ts';
import { startFixture, until } from './child.ts';

function openWords(t: TestContext): { fd: number; words: Int32Array; address: number } {
  const fd = memfdCreate('batchport-test');
  setSize(fd, 4096);
  const mapping = mapShared(fd, 4096);
  t.after(() => {
    mapping.unmap();
    closeSync(fd);
  });
  return { fd, words: new Int32Array(mapping.buffer), address: Number(mapping.address) };
}

test('a wait for a word that has another value ends at once', (t) => {
  const { words, address } = openWords(t);
  words[1] = 3;
  assert.equal(futexWait(address + 4, 2, 1_000_000), FUTEX_CHANGED);
});

test('a wait that nobody ends runs into its timeout, whatever the timeout', (t) => {
  const { words, address } = openWords(t);
  for (const timeoutUs of [1000, 0.5, 0, -1, Number.NaN]) assert.equal(futexWait(address, 0, timeoutUs), FUTEX_TIMEOUT);
  words[0] = -5;
  assert.equal(futexWait(address, -5, 1), FUTEX_TIMEOUT);
  assert.equal(futexWait(address, 2 ** 32 - 5, 1), FUTEX_TIMEOUT);
});

test('a wake-up without a sleeper wakes nobody', (t) => {
  const { address } = openWords(t);
  assert.equal(futexWake(address, 1), 0);
});

test('a bad address is an error and not a crash', (t) => {
  const { address } = openWords(t);
  assert.throws(() => futexWait(address + 1, 0, 1), { code: 'EINVAL' });
  assert.throws(() => futexWait(0, 0, 1), { code: 'EFAULT' });
  assert.throws(() => futexWake(Number.NaN, 1), { code: 'EFAULT' });
});

test('a sleeping process is woken by another, also when the word has not changed', { timeout: 60_000 }, async (t) => {
  const { fd, words, address } = openWords(t);
  const sleeper = startFixture(t, 'futex-sleeper', [process.pid, fd]);
  await until(() => futexWake(address, 10) === 1);
  assert.equal(await sleeper.line(), String(FUTEX_WOKEN));
  assert.equal(futexWake(address + 4, 10), 0);
  await until(() => futexWake(address, 10) === 1);
  assert.equal(await sleeper.line(), String(FUTEX_WOKEN));
  Atomics.store(words, 0, 1);
  futexWake(address, 10);
  assert.equal(await sleeper.exit, 0);
});

test('two processes hand a counter to and fro without losing a turn', { timeout: 60_000 }, async (t) => {
  const { fd, words, address } = openWords(t);
  const rounds = 2000;
  const child = startFixture(t, 'ping-pong', [process.pid, fd, rounds]);
  assert.equal(await child.line(), 'ready');
  for (let round = 1; round <= rounds; round += 1) {
    Atomics.store(words, 0, round);
    futexWake(address, 1);
    while (Atomics.load(words, 16) !== round) futexWait(address + 64, round - 1, 1_000_000);
  }
  assert.equal(await child.line(), `${rounds} true`);
  assert.equal(await child.exit, 0);
});
