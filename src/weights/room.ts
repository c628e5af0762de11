/**
 * Makes room in the cache: what has not been wanted for longest goes first, and what is in use never goes.
 *
 * Two limits: --weight-cache-max-bytes for all that the cache holds, and the disk, on which DISK_RESERVE_SHARE is left to others. Parts that nobody writes to go before whole files.
 * A file is in use while anybody has a shared lock on it; whoever removes it has the exclusive one, takes away the model directories with links to it, and then the file.
 */
import { closeSync, constants as fs, fstatSync, openSync, readdirSync, rmSync, type Stats, statSync } from 'node:fs';
import { join } from 'node:path';
import { roundSizeBytes } from '../config/size.ts';
import { isSha256 } from '../config/weight-url.ts';
import { diskRoom } from '../system/disk.ts';
import { isStillAt, tryLock } from '../system/flock.ts';
import type { WeightCache } from './cache.ts';
import { diskFault, WeightFault } from './fault.ts';
import { removeForgotten } from './partial.ts';
import { Pauses } from './pauses.ts';

/** Of the disk, and no more than the other: room that is left for everything else. */
const DISK_RESERVE_SHARE = 0.02;
const DISK_RESERVE_BYTES_MAX = 2 ** 30;
/** A part that nobody has continued for so long will not be. */
const FORGOTTEN_MS = 7 * 24 * 3600 * 1000;
/** A block of stat(2). */
const BLOCK_BYTES = 512;

interface Entry {
  readonly path: string;
  readonly bytes: number;
  readonly usedMs: number;
  readonly kind: 'part' | 'file';
}

export interface CacheUse {
  readonly files: number;
  readonly usedBytes: number;
}

/** What the cache holds, parts included. Blocks for a system call per file. */
export function cacheUse(cache: WeightCache): CacheUse {
  const all = entries(cache);
  return { files: all.filter(({ kind }) => kind === 'file').length, usedBytes: sum(all) };
}

/**
 * Removes what has to go before `wantedBytes` more are there.
 *
 * @param part the part that they are for, which counts with what it has
 * @throws WeightFault CACHE_FULL, DISK_FULL, CACHE_UNUSABLE
 */
export function makeRoom(cache: WeightCache, wantedBytes: number, part: string): void {
  try {
    const held = entries(cache);
    let usedBytes = sum(held);
    const own = held.find(({ path }) => path === part)?.bytes ?? 0;
    const missingBytes = Math.max(0, wantedBytes - own);
    const candidates = held.filter(({ path }) => path !== part).sort(inOrderOfRemoval);
    const overCap = () => (cache.maxBytes === undefined ? 0 : usedBytes + missingBytes - cache.maxBytes);
    const overDisk = () => {
      const { freeBytes, totalBytes } = diskRoom(cache.partial);
      return missingBytes - (freeBytes - Math.min(DISK_RESERVE_BYTES_MAX, totalBytes * DISK_RESERVE_SHARE));
    };
    // What cannot be made to fit takes nothing away with it.
    const removable = sum(candidates);
    if (Math.max(overCap(), overDisk()) > removable)
      throw noRoom(cache, wantedBytes, overCap() > removable, usedBytes - own);
    while (overCap() > 0 || (missingBytes > 0 && overDisk() > 0)) {
      const next = candidates.shift();
      if (next === undefined) throw noRoom(cache, wantedBytes, overCap() > 0, usedBytes - own);
      const gone = next.kind === 'part' ? removeForgotten(next.path) : removeUnused(cache, next.path);
      if (gone) usedBytes -= next.bytes;
    }
  } catch (error) {
    throw diskFault(error, 'cannot make room in the cache');
  }
}

/** Takes away what was left behind long ago. Bound: one look at each name. @throws WeightFault CACHE_UNUSABLE */
export function sweep(cache: WeightCache, nowMs: number): void {
  try {
    const parts = readdirSync(cache.partial);
    for (const name of parts) {
      const path = join(cache.partial, name);
      const isForgotten = nowMs - (stat(path)?.mtimeMs ?? nowMs) > FORGOTTEN_MS;
      if (name.endsWith('.part') && isForgotten) removeForgotten(path);
      else if (isForgotten && !parts.includes(name.replace(/\.json$/, '.part'))) rmSync(path, { force: true });
    }
    for (const name of readdirSync(cache.locks)) {
      const path = join(cache.locks, name);
      if (nowMs - (stat(path)?.mtimeMs ?? nowMs) > FORGOTTEN_MS) removeUnlocked(path, () => rmSync(path));
    }
    Pauses.sweep(cache, readdirSync(cache.pauses), nowMs);
  } catch (error) {
    throw diskFault(error, 'cannot look through the cache');
  }
}

/** Removes a file of the cache that nobody uses, and the links to it. @returns whether it is gone */
export function removeUnused(cache: WeightCache, path: string): boolean {
  return removeUnlocked(path, ({ ino, nlink }) => {
    if (nlink > 1) {
      for (const name of readdirSync(cache.models)) {
        const directory = join(cache.models, name);
        if (holds(directory, ino)) rmSync(directory, { recursive: true, force: true });
      }
    }
    rmSync(path);
  });
}

function removeUnlocked(path: string, remove: (stats: Stats) => void): boolean {
  let fd: number;
  try {
    fd = openSync(path, fs.O_RDONLY | fs.O_NOFOLLOW);
  } catch {
    return true; // somebody else was faster
  }
  try {
    if (!tryLock(fd, 'exclusive')) return false;
    if (isStillAt(path, fd)) remove(fstatSync(fd));
    return true;
  } finally {
    closeSync(fd);
  }
}

function holds(directory: string, ino: number): boolean {
  return readdirSync(directory, { withFileTypes: true }).some((entry) => {
    const path = join(directory, entry.name);
    return entry.isDirectory() ? holds(path, ino) : stat(path)?.ino === ino;
  });
}

function entries(cache: WeightCache): Entry[] {
  const files = readdirSync(cache.blobs)
    .filter(isSha256)
    .map((name) => entry(join(cache.blobs, name), 'file'));
  const parts = readdirSync(cache.partial)
    .filter((name) => name.endsWith('.part'))
    .map((name) => entry(join(cache.partial, name), 'part'));
  return [...parts, ...files].filter((one) => one !== undefined);
}

function entry(path: string, kind: Entry['kind']): Entry | undefined {
  const stats = stat(path);
  if (stats === undefined) return undefined;
  // Room that was taken beyond the end of a part is held too.
  const bytes = kind === 'part' ? Math.max(stats.size, stats.blocks * BLOCK_BYTES) : stats.size;
  return { path, bytes, usedMs: kind === 'part' ? stats.mtimeMs : stats.atimeMs, kind };
}

function inOrderOfRemoval(one: Entry, other: Entry): number {
  if (one.kind !== other.kind) return one.kind === 'part' ? -1 : 1;
  return one.usedMs - other.usedMs;
}

function noRoom(cache: WeightCache, wantedBytes: number, isCap: boolean, inUseBytes: number): WeightFault {
  const wanted = roundSizeBytes(wantedBytes);
  const inUse = `${roundSizeBytes(inUseBytes)} of the cache are in use`;
  if (isCap) {
    const cap = roundSizeBytes(cache.maxBytes ?? 0);
    return new WeightFault('CACHE_FULL', `the file has ${wanted}, the cache may hold ${cap}, and ${inUse}`);
  }
  const { freeBytes } = diskRoom(cache.partial);
  const free = `${roundSizeBytes(freeBytes)} are free on the disk of ${cache.partial}`;
  return new WeightFault('DISK_FULL', `the file has ${wanted}, ${free}, and ${inUse}`);
}

function stat(path: string): Stats | undefined {
  return statSync(path, { throwIfNoEntry: false });
}

function sum(all: readonly Entry[]): number {
  return all.reduce((bytes, one) => bytes + one.bytes, 0);
}
