/**
 * One fetch per file, whoever asks: the turn to fetch it is a kernel lock on a file of the cache, named by the hash.
 *
 * Whoever waited looks at the cache first when its turn comes. A turn ends with its process, so one that was killed is followed at once by a waiter, which goes on with what has
 * come. The lock file is removed by its holder; who opened it before that finds another file at the path, and tries again.
 */
import { closeSync, constants as fs, openSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { isSha256 } from '../config/weight-url.ts';
import { isStillAt, type LockOptions, lock, lockHolder } from '../system/flock.ts';
import type { WeightCache } from './cache.ts';
import { diskFault } from './fault.ts';

export interface Turn {
  release(): void;
}

export interface TurnOptions {
  readonly signal: AbortSignal;
  /** Called once, when another has the turn: its process, where that is known. */
  readonly onWait: (holderPid: number | undefined) => void;
}

/** Waits for the turn. @throws WeightFault CACHE_UNUSABLE, DISK_FULL; the reason of `signal` */
export async function takeTurn(cache: WeightCache, sha256: string, options: TurnOptions): Promise<Turn> {
  if (!isSha256(sha256)) throw new Error(`This is a bug: ${JSON.stringify(sha256)} is not a sha256.`);
  const path = join(cache.locks, sha256);
  let waiting = false;
  for (;;) {
    const fd = openLock(path);
    try {
      const onWait = (): void => {
        if (!waiting) options.onWait(lockHolder(fd));
        waiting = true;
      };
      await lock(fd, 'exclusive', { signal: options.signal, onWait } satisfies LockOptions);
      if (isStillAt(path, fd)) return turnOf(path, fd);
    } catch (error) {
      closeSync(fd);
      options.signal.throwIfAborted();
      throw diskFault(error, `cannot lock ${path}`);
    }
    closeSync(fd);
  }
}

function openLock(path: string): number {
  try {
    return openSync(path, fs.O_RDWR | fs.O_CREAT | fs.O_NOFOLLOW, 0o600);
  } catch (error) {
    throw diskFault(error, `cannot open ${path}`);
  }
}

function turnOf(path: string, fd: number): Turn {
  return {
    release: () => {
      rmSync(path, { force: true });
      closeSync(fd);
    },
  };
}
