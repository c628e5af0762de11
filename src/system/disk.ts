/**
 * Room on a disk: how much there is, and taking some of it before it is written to.
 */
import { statfsSync } from 'node:fs';
import { constants } from 'node:os';
import { SystemError } from './errno.ts';
import { allocate, FALLOC_FL_KEEP_SIZE } from './memory.ts';

/** What the file system of `path` has for ordinary users, and its size. @throws Error of statfs(2) */
export function diskRoom(path: string): { readonly freeBytes: number; readonly totalBytes: number } {
  const { bavail, blocks, bsize } = statfsSync(path);
  return { freeBytes: bavail * bsize, totalBytes: blocks * bsize };
}

/**
 * Takes room for a range of a file without changing its size, so that a disk that is too small shows now and not in the middle of writing.
 *
 * @returns false where the file system cannot do that
 * @throws SystemError ENOSPC, EDQUOT: there is no room; EFBIG
 */
export function reserveRoom(fd: number, offsetBytes: number, lengthBytes: number): boolean {
  if (lengthBytes === 0) return true;
  try {
    allocate(fd, FALLOC_FL_KEEP_SIZE, offsetBytes, lengthBytes, 'reserve');
    return true;
  } catch (error) {
    if (error instanceof SystemError && error.errno === constants.errno.EOPNOTSUPP) return false;
    throw error;
  }
}
