/**
 * Memory shared between processes: an unnamed file in memory (memfd), reserved, mapped and opened by other processes.
 *
 * The process that calls `memfdCreate` owns the segment: it keeps the descriptor open for as long as others may open it
 * through `openProcessFd`. When the last descriptor and the last mapping are gone, whoever died, the kernel frees the
 * pages: there is no name and so nothing stale.
 *
 * Order of use: create, setSize, reserve, mapShared. Without `reserve`, lack of memory appears as SIGBUS at some later
 * store. The kernel hands out pages to `fallocate` until it must kill a process for more, so `reserve` refuses
 * beforehand what is more than the machine and the control groups have left.
 *
 * After `unmap()` the old ArrayBuffer reads as zeroes and stores into it reach nobody. Its addresses are returned to
 * the kernel once the garbage collector has found the buffer unreachable, and so can never come to belong to another
 * mapping while some typed array still points at them.
 */
import { constants, fstatSync, openSync } from 'node:fs';
import { EINTR, EINVAL, ENOMEM, SystemError, throwLastError, withSystemError } from './errno.ts';
import { availableMemory } from './host-memory.ts';
import { lastErrno, libc, viewOf } from './libc.ts';

const MFD_CLOEXEC = 1;
const MFD_NOEXEC_SEAL = 8;
export const FALLOC_FL_KEEP_SIZE = 1;
const FALLOC_FL_PUNCH_HOLE = 2;
const PROT_READ_WRITE = 1 | 2;
const MAP_SHARED = 0x01;
const MAP_PRIVATE = 0x02;
const MAP_FIXED = 0x10;
const MAP_ANONYMOUS = 0x20;
const MAP_NORESERVE = 0x4000;

/** A signal that arrives during fallocate undoes its work; with this many in a row something else is wrong. */
const FALLOCATE_TRIES_MAX = 100;

const memfd_create: (name: string, flags: number) => number = libc.func(
  'int memfd_create(const char *name, unsigned int flags)',
);
const ftruncate: (fd: number, byteLength: number) => number = libc.func('int ftruncate(int fd, int64_t length)');
const fallocate: (fd: number, mode: number, offset: number, byteLength: number) => number = libc.func(
  'int fallocate(int fd, int mode, int64_t offset, int64_t length)',
);
const mmap: (address: number, byteLength: number, prot: number, flags: number, fd: number, offset: number) => number =
  libc.func('int64_t mmap(int64_t address, size_t length, int prot, int flags, int fd, int64_t offset)');
const munmap: (address: number, byteLength: number) => number = libc.func('int munmap(int64_t address, size_t length)');

export interface Mapping {
  /** The segment itself, not a copy. Atomics on views of it work between processes. */
  readonly buffer: ArrayBuffer;
  /** Where this process sees it; other processes see it elsewhere. */
  readonly address: bigint;
  readonly byteLength: number;
  /**
   * Ends the mapping; the caller has stopped native code and other threads from using its addresses. A second call does
   * nothing.
   */
  unmap(): void;
}

const retired = new FinalizationRegistry<{
  address: number;
  byteLength: number;
}>(({ address, byteLength }) => {
  munmap(address, byteLength);
});

/**
 * New empty segment, closed on exec.
 * @param name at most 249 bytes; seen in /proc/PID/maps only, need not be unique
 * @throws SystemError EMFILE, ENFILE, EINVAL (name too long)
 */
export function memfdCreate(name: string): number {
  // Not executable where the kernel knows the flag (6.3); some are set up to refuse any other kind.
  let fd = memfd_create(name, MFD_CLOEXEC | MFD_NOEXEC_SEAL);
  if (fd < 0 && lastErrno() === EINVAL) fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) throwLastError('memfd_create', `create the shared-memory segment "${name}"`);
  return fd;
}

/**
 * Sets the size of a segment; new bytes are zero and not yet backed by memory.
 * @throws SystemError EFBIG, EINVAL
 */
export function setSize(fd: number, byteLength: number): void {
  if (ftruncate(fd, checkBytes(byteLength)) < 0) {
    throwLastError('ftruncate', `set the size of descriptor ${fd} to ${byteLength} bytes`);
  }
}

/**
 * Backs a range of a segment with memory now, growing the segment where the range passes its end.
 * @throws SystemError ENOSPC, ENOMEM, EFBIG: the memory is not there and nothing of this call was kept. ENOMEM also
 * when the range is larger than the available memory, whatever part of it is backed already
 */
export function reserve(fd: number, offsetBytes: number, lengthBytes: number): void {
  const { availableBytes, source } = availableMemory();
  if (lengthBytes > availableBytes) {
    const detail = `reserve ${lengthBytes} bytes: ${source} leaves ${availableBytes}`;
    throw new SystemError('fallocate', ENOMEM, detail);
  }
  allocate(fd, 0, offsetBytes, lengthBytes, 'reserve');
}

/** Returns the whole pages of a range to the kernel; the range reads as zeroes and the size stays. */
export function punchHole(fd: number, offsetBytes: number, lengthBytes: number): void {
  allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offsetBytes, lengthBytes, 'free');
}

/**
 * Maps the first `byteLength` bytes of a segment, readable and writable. The descriptor may be closed afterwards.
 * @throws RangeError when the segment is shorter (a store past its end would be SIGBUS); SystemError ENOMEM
 */
export function mapShared(fd: number, byteLength: number): Mapping {
  checkBytes(byteLength);
  const { size } = withSystemError(`map descriptor ${fd}`, () => fstatSync(fd));
  if (size < byteLength) throw new RangeError(`Cannot map ${byteLength} bytes: the segment has only ${size}`);
  const address = mmap(0, byteLength, PROT_READ_WRITE, MAP_SHARED, fd, 0);
  if (address < 0) throwLastError('mmap', `map ${byteLength} bytes of descriptor ${fd}`);
  const buffer = viewOf(address, byteLength);
  let mapped = true;
  return {
    buffer,
    address: BigInt(address),
    byteLength,
    unmap() {
      if (!mapped) return;
      const flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
      if (mmap(address, byteLength, PROT_READ_WRITE, flags, -1, 0) < 0) throwLastError('mmap', 'end a mapping');
      mapped = false;
      retired.register(buffer, { address, byteLength });
    },
  };
}

/**
 * Opens another process's descriptor for reading and writing, closed on exec and non-blocking. The two share the file but
 * nothing of its open description (offset, locks, O_NONBLOCK). The process must belong to the same user; no further
 * privilege is needed.
 * @throws SystemError ENOENT (no such process or descriptor), EACCES
 */
export function openProcessFd(pid: number, fd: number): number {
  return withSystemError(`open descriptor ${fd} of process ${pid}`, () =>
    openSync(`/proc/${pid}/fd/${fd}`, constants.O_RDWR | constants.O_NONBLOCK),
  );
}

/** fallocate(2) on a range of a file. @throws SystemError */
export function allocate(fd: number, mode: number, offsetBytes: number, lengthBytes: number, verb: string): void {
  checkBytes(offsetBytes);
  checkBytes(lengthBytes);
  for (let attempt = 1; fallocate(fd, mode, offsetBytes, lengthBytes) < 0; attempt += 1) {
    const errno = lastErrno();
    if (errno === EINTR && attempt < FALLOCATE_TRIES_MAX) continue;
    throw new SystemError('fallocate', errno, `${verb} ${lengthBytes} bytes of descriptor ${fd} at ${offsetBytes}`);
  }
}

function checkBytes(bytes: number): number {
  if (!Number.isSafeInteger(bytes) || bytes < 0) throw new RangeError(`Not a number of bytes: ${bytes}`);
  return bytes;
}
