/**
 * A failed system call as an exception.
 *
 * Positive numbers of errno(3), as C has them (Node's own errors carry the negative ones); names from `os.constants`,
 * texts from libuv.
 */
import { constants } from 'node:os';
import { getSystemErrorMap } from 'node:util';
import { lastErrno } from './libc.ts';

export const EINTR = constants.errno.EINTR;
export const EAGAIN = constants.errno.EAGAIN;
export const EINVAL = constants.errno.EINVAL;
export const ENOMEM = constants.errno.ENOMEM;
export const EPIPE = constants.errno.EPIPE;
export const ESRCH = constants.errno.ESRCH;
export const ETIMEDOUT = constants.errno.ETIMEDOUT;

const NAMES = new Map<number, string>();
for (const [name, number] of Object.entries(constants.errno)) {
  // Aliases (EWOULDBLOCK, EOPNOTSUPP) come after the name that people search for.
  if (!NAMES.has(number)) NAMES.set(number, name);
}

export class SystemError extends Error {
  readonly syscall: string;
  /** Positive number of errno(3); 0 where another layer than the kernel failed (name resolution). */
  readonly errno: number;
  /** Name of the error, such as 'ENOSPC'. */
  readonly code: string;

  /** @param detail what was being done to what, such as "reserve 4096 bytes of descriptor 7" */
  constructor(syscall: string, errno: number, detail?: string, code = errnoName(errno)) {
    super(`${detail === undefined ? '' : `${detail}: `}${syscall}: ${code}${describe(errno)}`);
    this.name = 'SystemError';
    this.syscall = syscall;
    this.errno = errno;
    this.code = code;
  }
}

/** Name of an error number: 28 → 'ENOSPC'; an unknown number keeps its digits: 'E4095'. */
export function errnoName(errno: number): string {
  return NAMES.get(errno) ?? `E${errno}`;
}

/**
 * Throws the error of the call that has just failed on this thread.
 * @throws SystemError always
 */
export function throwLastError(syscall: string, detail?: string): never {
  throw new SystemError(syscall, lastErrno(), detail);
}

/** Runs a function of `node:fs` and gives its failures the same form as those of this folder. */
export function withSystemError<T>(detail: string, action: () => T): T {
  try {
    return action();
  } catch (error) {
    if (error instanceof Error && 'errno' in error && typeof error.errno === 'number') {
      const { syscall } = error as NodeJS.ErrnoException;
      throw new SystemError(syscall ?? 'unknown', Math.abs(error.errno), detail);
    }
    throw error;
  }
}

function describe(errno: number): string {
  const text = getSystemErrorMap().get(-errno)?.[1];
  return text === undefined ? '' : ` (${text})`;
}
