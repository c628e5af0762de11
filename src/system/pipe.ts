/**
 * A pipe used as a doorbell: one end is written a byte at a time, the other is watched by an event loop.
 *
 * Both ends are non-blocking and closed on exec. A full pipe counts as rung: its reader has bytes to wake up for.
 * Whoever creates a pipe closes both ends.
 */
import { EAGAIN, EINTR, EPIPE, throwLastError } from './errno.ts';
import { addressOf, lastErrno, libc } from './libc.ts';

const O_NONBLOCK = 0o4000;
const O_CLOEXEC = 0o2000000;

const pipe2: (fds: number, flags: number) => number = libc.func('int pipe2(int64_t fds, int flags)');
const write: (fd: number, bytes: number, byteLength: number) => number = libc.func(
  'int64_t write(int fd, int64_t bytes, size_t length)',
);

const byte = new Uint8Array(new ArrayBuffer(1)).fill(1);
const byteAddress = addressOf(byte.buffer);

export interface Pipe {
  readonly readFd: number;
  readonly writeFd: number;
}

/** @throws SystemError EMFILE, ENFILE */
export function createPipe(): Pipe {
  const fds = new Int32Array(new ArrayBuffer(8));
  if (pipe2(addressOf(fds.buffer), O_NONBLOCK | O_CLOEXEC) < 0) throwLastError('pipe2');
  return { readFd: fds[0]!, writeFd: fds[1]! };
}

/**
 * Rings: writes one byte, never blocks, allocates nothing.
 * @returns true when a byte is pending (written now, or the pipe is full of them), false when no process holds the read
 * end any more
 * @throws SystemError EBADF
 */
export function writeByte(fd: number): boolean {
  if (write(fd, byteAddress, 1) === 1) return true;
  const errno = lastErrno();
  if (errno === EAGAIN) return true;
  if (errno === EPIPE) return false; // Node ignores SIGPIPE, so the error is all that happens.
  // A write that would not block is not interrupted; the second try is for blocking descriptors that others made.
  if (errno === EINTR && write(fd, byteAddress, 1) === 1) return true;
  return throwLastError('write', `ring the pipe of descriptor ${fd}`);
}
