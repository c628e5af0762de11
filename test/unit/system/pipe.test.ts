import assert from 'node:assert/strict';
import { closeSync, readSync } from 'node:fs';
import { Socket } from 'node:net';
import { test } from 'node:test';
import { openProcessFd } from '../../../src/system/memory.ts';
import { createPipe, writeByte } from '../../../src/system/pipe.ts';

test('a ring is read as one byte', () => {
  const { readFd, writeFd } = createPipe();
  assert.equal(writeByte(writeFd), true);
  assert.equal(writeByte(writeFd), true);
  assert.equal(readSync(readFd, new Uint8Array(16)), 2);
  assert.throws(() => readSync(readFd, new Uint8Array(16)), { code: 'EAGAIN' });
  closeSync(readFd);
  closeSync(writeFd);
});

test('a ring wakes the event loop that watches the pipe', { timeout: 60_000 }, async () => {
  const { readFd, writeFd } = createPipe();
  const socket = new Socket({ fd: readFd, readable: true, writable: false });
  const rung = new Promise<Buffer>((resolve) => socket.once('data', resolve));
  assert.equal(writeByte(writeFd), true);
  assert.equal((await rung).length, 1);
  socket.destroy();
  closeSync(writeFd);
});

test('a full pipe counts as rung and blocks nobody', () => {
  const { readFd, writeFd } = createPipe();
  for (let i = 0; i < 70_000; i += 1) assert.equal(writeByte(writeFd), true);
  assert.equal(readSync(readFd, new Uint8Array(100_000)), 65_536);
  closeSync(readFd);
  closeSync(writeFd);
});

test('a full pipe blocks nobody who opened it from another process', () => {
  const { readFd, writeFd } = createPipe();
  const other = openProcessFd(process.pid, writeFd);
  for (let i = 0; i < 70_000; i += 1) assert.equal(writeByte(other), true);
  for (const fd of [readFd, writeFd, other]) closeSync(fd);
});

test('a ring that nobody can hear says so, and a descriptor that is no pipe is an error', () => {
  const { readFd, writeFd } = createPipe();
  closeSync(readFd);
  assert.equal(writeByte(writeFd), false);
  closeSync(writeFd);
  assert.throws(() => writeByte(1_000_000), { code: 'EBADF' });
});
