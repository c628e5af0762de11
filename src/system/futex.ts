/**
 * Sleep and wake-up on a 32-bit word of shared memory: futex(2), FUTEX_WAIT and FUTEX_WAKE without the PRIVATE flag, so
 * that they work between processes.
 *
 * The waker stores the new value with Atomics before `futexWake`; the waiter loads it, decides to sleep and passes the
 * value it saw: the kernel puts it to sleep only if the word still has that value, so no wake-up between the two is
 * lost. Every return from `futexWait` may be spurious: load the word again.
 *
 * `futexWait` blocks its whole thread: never call it on an event loop that serves anything. It cannot be interrupted by
 * `worker.terminate()`, hence the cap on its timeout. Both functions take addresses as numbers and allocate nothing;
 * neither looks at what lies behind an address.
 */
import { EAGAIN, EINTR, ETIMEDOUT, SystemError } from './errno.ts';
import { addressOf, lastErrno, libc } from './libc.ts';

/** Woken, or told so without a cause. */
export const FUTEX_WOKEN = 0;
/** The word did not have the expected value: nothing was waited for. */
export const FUTEX_CHANGED = 1;
export const FUTEX_TIMEOUT = 2;
/** A signal arrived. */
export const FUTEX_INTERRUPTED = 3;

/** Longer waits end after this time with FUTEX_TIMEOUT. */
export const FUTEX_TIMEOUT_MAX_US = 60_000_000;

const FUTEX_WAIT = 0;
const FUTEX_WAKE = 1;
const SYS_FUTEX = syscallNumber(process.arch);

const wait: (call: number, address: number, op: number, expected: number, timeout: number) => number = libc.func(
  'int syscall(long call, int64_t address, int op, int expected, int64_t timeout)',
);
const wake: (call: number, address: number, op: number, count: number) => number = libc.func(
  'int syscall(long call, int64_t address, int op, int count)',
);

/**
 * struct timespec {int64 seconds, int64 nanoseconds}, little-endian; each thread has its own copy of this module and so
 * its own buffer.
 */
const timespec = new Int32Array(new ArrayBuffer(16));
const timespecAddress = addressOf(timespec.buffer);

/**
 * Sleeps while the word at `address` equals `expected`, at most `timeoutUs` (and the timer slack of the thread, 50 µs
 * unless changed; even a timeout of 0 costs that).
 * @param address of the word, 4-byte aligned
 * @param expected as a signed or an unsigned 32-bit number
 * @returns FUTEX_WOKEN, FUTEX_CHANGED, FUTEX_TIMEOUT or FUTEX_INTERRUPTED
 * @throws SystemError EFAULT or EINVAL for a bad address
 */
export function futexWait(address: number, expected: number, timeoutUs: number): number {
  // Written so that NaN gives 0.
  const us = timeoutUs > 0 ? Math.min(timeoutUs, FUTEX_TIMEOUT_MAX_US) : 0;
  const seconds = (us / 1_000_000) | 0;
  timespec[0] = seconds;
  timespec[2] = (us - seconds * 1_000_000) * 1000;
  if (wait(SYS_FUTEX, address, FUTEX_WAIT, expected | 0, timespecAddress) === 0) return FUTEX_WOKEN;
  const errno = lastErrno();
  if (errno === EAGAIN) return FUTEX_CHANGED;
  if (errno === ETIMEDOUT) return FUTEX_TIMEOUT;
  if (errno === EINTR) return FUTEX_INTERRUPTED;
  throw new SystemError('futex', errno, 'wait');
}

/**
 * Wakes up to `count` sleepers of the word at `address`.
 * @returns how many were woken
 * @throws SystemError EFAULT or EINVAL for a bad address
 */
export function futexWake(address: number, count: number): number {
  const woken = wake(SYS_FUTEX, address, FUTEX_WAKE, count);
  if (woken < 0) throw new SystemError('futex', lastErrno(), 'wake');
  return woken;
}

function syscallNumber(arch: string): number {
  if (arch === 'x64') return 202;
  if (arch === 'arm64') return 98;
  throw new Error(`Processor architecture "${arch}" is not supported: only x64 and arm64 are`);
}
