/**
 * Locks between processes: flock(2) on an open file or directory.
 *
 * The lock belongs to the open file description: the kernel releases it when the last descriptor of that description is
 * closed, so also when the holder is killed, and never takes it from a holder that lives, not even from a stopped one.
 * Nothing is left over that could be stale. Two descriptors from two `open` calls exclude each other even within one
 * process; a descriptor that a child inherits shares its parent's lock.
 *
 * Changing the mode of a lock that is held is not atomic: the old one is given up first, and is gone when the new one
 * is refused.
 */
import { fstatSync, readFileSync, statSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { EAGAIN, EINTR, SystemError, throwLastError } from './errno.ts';
import { lastErrno, libc } from './libc.ts';

const LOCK_SHARED = 1;
const LOCK_EXCLUSIVE = 2;
const LOCK_NONBLOCKING = 4;
const LOCK_UNLOCK = 8;

/** A waiting `lock` looks again after 1, 2, 4 … and finally every 50 ms. */
const POLL_FIRST_MS = 1;
const POLL_MAX_MS = 50;

const flock: (fd: number, operation: number) => number = libc.func('int flock(int fd, int operation)');

export type LockMode = 'shared' | 'exclusive';

export interface LockOptions {
  /** Ends the wait; bound it with `AbortSignal.timeout`. */
  signal?: AbortSignal;
  /** Called once, when the lock is found taken. */
  onWait?: () => void;
}

/**
 * Takes the lock if that is possible now.
 * @returns false when another holds it
 * @throws SystemError EBADF, ENOLCK, or EOPNOTSUPP where the file system has no locks
 */
export function tryLock(fd: number, mode: LockMode): boolean {
  const operation = (mode === 'shared' ? LOCK_SHARED : LOCK_EXCLUSIVE) | LOCK_NONBLOCKING;
  if (flock(fd, operation) === 0) return true;
  const errno = lastErrno();
  // EINTR can only come from a network file system; to the caller it is a lock not obtained yet.
  if (errno === EAGAIN || errno === EINTR) return false;
  throw new SystemError('flock', errno, `lock descriptor ${fd}`);
}

/** Gives the lock back; does nothing when it is not held. */
export function unlock(fd: number): void {
  if (flock(fd, LOCK_UNLOCK) < 0) throwLastError('flock', `unlock descriptor ${fd}`);
}

/** Whether the path still leads to the open file: who waited for a lock may have one on a file that was removed meanwhile. */
export function isStillAt(path: string, fd: number): boolean {
  return statSync(path, { throwIfNoEntry: false })?.ino === fstatSync(fd).ino;
}

/** The process that holds an exclusive lock on the file, as the kernel tells it; undefined where nobody does, or it cannot be told. */
export function lockHolder(fd: number): number | undefined {
  try {
    const inode = fstatSync(fd).ino;
    const line = readFileSync('/proc/locks', 'utf8')
      .split('\n')
      .find((text) => text.includes(' FLOCK ') && !text.includes('->') && text.includes(`:${inode} `));
    const pid = line?.split(/\s+/)[4];
    return pid === undefined ? undefined : Number(pid);
  } catch {
    return undefined;
  }
}

/**
 * Waits for the lock without blocking the event loop. Waiters have no order: whoever looks first after a release has
 * it. The caller keeps `fd` open until the promise is settled.
 * @throws SystemError as tryLock; the reason of `signal` when that ends the wait
 */
export async function lock(fd: number, mode: LockMode, { signal, onWait }: LockOptions = {}): Promise<void> {
  let pauseMs = POLL_FIRST_MS;
  for (let waiting = false; ; waiting = true) {
    signal?.throwIfAborted();
    if (tryLock(fd, mode)) return;
    if (!waiting) onWait?.();
    try {
      await delay(pauseMs, undefined, signal === undefined ? {} : { signal });
    } catch (error) {
      signal?.throwIfAborted();
      throw error;
    }
    pauseMs = Math.min(pauseMs * 2, POLL_MAX_MS);
  }
}
