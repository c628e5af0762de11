import assert from 'node:assert/strict';
import { closeSync, fstatSync, readdirSync, readlinkSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { SystemError } from '../../../src/system/errno.ts';
import { availableMemory } from '../../../src/system/host-memory.ts';
import { mapShared, memfdCreate, openProcessFd, punchHole, reserve, setSize } from '../../../src/system/memory.ts';
import { fixturePath, startCommand, startFixture } from './child.ts';

const PAGE_BYTES = 4096;

function openSegment(t: TestContext, byteLength: number): number {
  const fd = memfdCreate('batchport-test');
  t.after(() => closeSync(fd));
  setSize(fd, byteLength);
  return fd;
}

function backedBytes(fd: number): number {
  return fstatSync(fd).blocks * 512;
}

test('two processes see each other through one segment, and atomic additions of both are all counted', async (t) => {
  const fd = openSegment(t, PAGE_BYTES);
  const mapping = mapShared(fd, PAGE_BYTES);
  const words = new Int32Array(mapping.buffer);
  Atomics.store(words, 1, 42);
  const child = startFixture(t, 'shared-segment', [process.pid, fd, PAGE_BYTES]);
  for (let i = 0; i < 1000; i += 1) Atomics.add(words, 3, 1);
  assert.equal(await child.line(), '42');
  assert.equal(await child.exit, 0);
  assert.equal(Atomics.load(words, 2), 43);
  assert.equal(Atomics.load(words, 3), 2000);
  mapping.unmap();
});

test('a reserved range is backed by memory, a merely sized one is not', (t) => {
  const fd = openSegment(t, 64 * PAGE_BYTES);
  assert.equal(backedBytes(fd), 0);
  reserve(fd, 0, 16 * PAGE_BYTES);
  assert.equal(backedBytes(fd), 16 * PAGE_BYTES);
  reserve(fd, 60 * PAGE_BYTES, 8 * PAGE_BYTES);
  assert.equal(fstatSync(fd).size, 68 * PAGE_BYTES);
});

test('a reservation beyond a limit fails with its code and leaves nothing behind', async (t) => {
  const script = 'ulimit -f 8 && exec "$0" "$@"';
  const child = startCommand(t, [
    'sh',
    '-c',
    script,
    process.execPath,
    fixturePath('reserve-limited'),
    String(1 << 20),
  ]);
  assert.equal(await child.line(), 'fallocate EFBIG');
  assert.equal(await child.line(), '0');
  assert.equal(await child.exit, 0);
});

test('a reservation beyond the available memory is refused before the kernel has to kill for it', (t) => {
  const fd = openSegment(t, 0);
  const tooManyBytes = availableMemory().totalBytes + PAGE_BYTES;
  assert.throws(
    () => reserve(fd, 0, tooManyBytes),
    (error) => error instanceof SystemError && error.code === 'ENOMEM' && error.message.includes(String(tooManyBytes)),
  );
  assert.equal(backedBytes(fd), 0);
});

test('a hole gives the memory back, reads as zeroes and keeps the size and the rest', (t) => {
  const fd = openSegment(t, 4 * PAGE_BYTES);
  const mapping = mapShared(fd, 4 * PAGE_BYTES);
  const bytes = new Uint8Array(mapping.buffer).fill(7);
  assert.equal(backedBytes(fd), 4 * PAGE_BYTES);
  punchHole(fd, PAGE_BYTES, 2 * PAGE_BYTES);
  assert.equal(backedBytes(fd), 2 * PAGE_BYTES);
  assert.equal(fstatSync(fd).size, 4 * PAGE_BYTES);
  assert.deepEqual(
    [bytes[PAGE_BYTES - 1], bytes[PAGE_BYTES], bytes[3 * PAGE_BYTES - 1], bytes[3 * PAGE_BYTES]],
    [7, 0, 0, 7],
  );
  mapping.unmap();
});

test('a mapping longer than its segment is refused', (t) => {
  const fd = openSegment(t, PAGE_BYTES);
  assert.throws(() => mapShared(fd, PAGE_BYTES + 1), RangeError);
  assert.throws(() => mapShared(fd, -1), RangeError);
  assert.throws(() => mapShared(1_000_000, PAGE_BYTES), { code: 'EBADF' });
});

test('a mapping outlives the descriptor, and after unmap the buffer reaches the segment no more', (t) => {
  const fd = openSegment(t, PAGE_BYTES);
  const other = openProcessFd(process.pid, fd);
  const first = mapShared(fd, PAGE_BYTES);
  const second = mapShared(other, PAGE_BYTES);
  closeSync(other);
  const firstWords = new Int32Array(first.buffer);
  const secondWords = new Int32Array(second.buffer);
  secondWords[5] = 9;
  assert.equal(firstWords[5], 9);
  second.unmap();
  second.unmap();
  assert.equal(secondWords[5], 0);
  secondWords[5] = 8;
  assert.equal(firstWords[5], 9);
  first.unmap();
});

test('the addresses of an ended mapping stay occupied until its buffer is collected, then they are free', async (t) => {
  const child = startCommand(t, [process.execPath, '--expose-gc', fixturePath('unmap-collected')]);
  assert.equal(await child.line(), 'still occupied');
  assert.equal(await child.line(), 'free');
  assert.equal(await child.exit, 0);
});

test('what another process does not have open cannot be opened, and the error names it', () => {
  assert.throws(() => openProcessFd(process.pid, 1_000_000), /descriptor 1000000 of process \d+: open: ENOENT/);
});

test('segments are not inherited by children', async (t) => {
  const fd = openSegment(t, PAGE_BYTES);
  assert.match(readlinkSync(`/proc/self/fd/${fd}`), /batchport-test/);
  const child = startFixture(t, 'lock-holder', ['/dev/null']);
  await child.line();
  const names = readdirSync(`/proc/${child.pid}/fd`).map((each) => readlinkSync(`/proc/${child.pid}/fd/${each}`));
  assert.deepEqual(
    names.filter((name) => name.includes('batchport-test')),
    [],
  );
});

test('a name that the kernel refuses is an error that says so', () => {
  assert.throws(() => memfdCreate('x'.repeat(300)), { code: 'EINVAL', syscall: 'memfd_create' });
});
