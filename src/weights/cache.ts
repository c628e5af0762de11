/**
 * The cache of weights: files known by the hash of their content, shared by every process and server of the user that is given the same --cache-dir.
 *
 *     <cache-dir>/weights/blobs/<sha256>            whole and checked; read-only; its access time is when it was last wanted
 *                         partial/<sha256>.<id>.part  what has come of a file, and .json: from where (partial.ts)
 *                         locks/<sha256>            whoever fetches that file holds it (turn.ts)
 *                         models/<key>/…            a model's files under their own names, hard links (model-files.ts)
 *                         pauses/<hash of an origin>  its modification time: not to be asked before (pauses.ts)
 *
 * Invariant: a file under its final name is whole and has that hash. Whoever uses one holds a lease, a shared kernel lock on it; whoever removes one holds the exclusive lock
 * and takes its links away with it. Both vanish with their process, so nothing is ever stale.
 */
import { closeSync, constants as fs, fstatSync, futimesSync, openSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { makeDirectory } from '../config/make-directory.ts';
import { isSha256 } from '../config/weight-url.ts';
import { isStillAt, tryLock } from '../system/flock.ts';
import { diskFault } from './fault.ts';

export const DIRECTORY_MODE = 0o700;

/** A file of the cache that stays there until this is given back. */
export interface Lease {
  readonly path: string;
  readonly sizeBytes: number;
  /** To be read from; closed by `release`. */
  readonly fd: number;
  release(): void;
}

export class WeightCache {
  readonly blobs: string;
  readonly partial: string;
  readonly locks: string;
  readonly models: string;
  readonly pauses: string;
  /** Most bytes that it may hold; undefined = what the disk has, less a reserve. */
  readonly maxBytes: number | undefined;

  constructor(cacheDirectory: string, maxBytes?: number) {
    const root = join(cacheDirectory, 'weights');
    this.blobs = join(root, 'blobs');
    this.partial = join(root, 'partial');
    this.locks = join(root, 'locks');
    this.models = join(root, 'models');
    this.pauses = join(root, 'pauses');
    this.maxBytes = maxBytes;
  }

  /** Makes the directories. @throws WeightFault CACHE_UNUSABLE, DISK_FULL */
  prepare(): void {
    for (const directory of [this.blobs, this.partial, this.locks, this.models, this.pauses]) {
      try {
        makeDirectory(directory, DIRECTORY_MODE);
      } catch (error) {
        throw diskFault(error, `cannot make ${directory}`);
      }
    }
  }

  blobPath(sha256: string): string {
    if (!isSha256(sha256)) throw new Error(`This is a bug: ${JSON.stringify(sha256)} is not a sha256.`);
    return join(this.blobs, sha256);
  }

  /** Takes a file into use, which also counts as wanting it. Undefined where it is not there, or just goes. @throws WeightFault CACHE_UNUSABLE */
  lease(sha256: string): Lease | undefined {
    const path = this.blobPath(sha256);
    let fd: number;
    try {
      fd = openSync(path, fs.O_RDONLY | fs.O_NOFOLLOW);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw diskFault(error, `cannot open ${path}`);
    }
    try {
      const { size, mtime } = fstatSync(fd);
      // Between the open and the lock it may have been removed, and even have come back as another file.
      if (tryLock(fd, 'shared') && isStillAt(path, fd)) {
        touch(fd, mtime);
        return { path, sizeBytes: size, fd, release: () => closeSync(fd) };
      }
    } catch (error) {
      closeSync(fd);
      throw diskFault(error, `cannot lock ${path}`);
    }
    closeSync(fd);
    return undefined;
  }

  /** Size of a file that is there; a look, without a promise. */
  sizeOf(sha256: string): number | undefined {
    return statSync(this.blobPath(sha256), { throwIfNoEntry: false })?.size;
  }
}

/** The modification time is kept: by it, it is seen that a file is the same. */
function touch(fd: number, mtime: Date): void {
  try {
    futimesSync(fd, new Date(), mtime);
  } catch {
    // It belongs to another user: it goes by whatever time it has.
  }
}
