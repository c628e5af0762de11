/**
 * What has come of a file so far. It outlives its process: the next one that fetches the file goes on with it.
 *
 * Owner: the process that has the turn to fetch the file, and the exclusive lock on the part itself, so that not even a process without a turn (of another host, say, on a shared
 * disk without working locks) writes into it: each makes a part of its own name. What the part cannot show by itself lies beside it: where it came from, and by which mark the server
 * knows the file. After `kill -9` at any point there is a part that can be continued, or one that its hash gives away, and the next fetch takes it or removes it.
 */
import { createHash, type Hash, randomUUID } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  constants as fs,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  openSync,
  read,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  write,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { isSha256 } from '../config/weight-url.ts';
import { reserveRoom } from '../system/disk.ts';
import { isStillAt, tryLock } from '../system/flock.ts';
import type { WeightCache } from './cache.ts';
import { diskFault } from './fault.ts';

const READ_BYTES = 2 ** 20;
/** A part that was just made may be taken for a forgotten one before it is locked. */
const MAKE_TRIES_MAX = 10;

const readAt = promisify(read);
const writeAt = promisify(write);

/** Where the bytes came from. */
export interface PartialOrigin {
  /** Of the URL without its query, as a hash. */
  readonly source: string;
  /** For If-Range: a strong entity tag, or a date. */
  readonly validator: string | undefined;
  /** Of the whole file, where the server told it. */
  readonly sizeBytes: number | undefined;
}

export class Partial {
  readonly #cache: WeightCache;
  readonly #sha256: string;
  readonly #path: string;
  readonly #fd: number;
  #hash: Hash = createHash('sha256');
  #bytes = 0;
  #origin: PartialOrigin | undefined;
  #closed = false;

  private constructor(cache: WeightCache, sha256: string, path: string, fd: number) {
    this.#cache = cache;
    this.#sha256 = sha256;
    this.#path = path;
    this.#fd = fd;
  }

  /**
   * The longest part that somebody left, else a new one; others that nobody writes to are removed. Reads what is there, for its hash.
   *
   * @throws WeightFault CACHE_UNUSABLE, DISK_FULL; the reason of `signal`
   */
  static async open(cache: WeightCache, sha256: string, signal: AbortSignal): Promise<Partial> {
    try {
      const { path, fd } = adopt(cache, sha256) ?? make(cache, sha256);
      const partial = new Partial(cache, sha256, path, fd);
      try {
        await partial.#readBack(signal);
      } catch (error) {
        partial.close();
        throw error;
      }
      return partial;
    } catch (error) {
      signal.throwIfAborted();
      throw diskFault(error, 'cannot keep what comes of a file');
    }
  }

  /** Of the file that have come. */
  get bytes(): number {
    return this.#bytes;
  }

  get origin(): PartialOrigin | undefined {
    return this.#origin;
  }

  get path(): string {
    return this.#path;
  }

  /** The hash of what has come. */
  digest(): string {
    return this.#hash.copy().digest('hex');
  }

  /** Begins anew: nothing has come. */
  restart(): void {
    ftruncateSync(this.#fd, 0);
    this.#bytes = 0;
    this.#hash = createHash('sha256');
    this.#origin = undefined;
    rmSync(factsPath(this.#path), { force: true });
  }

  noteOrigin(origin: PartialOrigin): void {
    this.#origin = origin;
    try {
      writeFileSync(factsPath(this.#path), JSON.stringify(origin), { mode: 0o600 });
    } catch {
      // Then the next one asks without If-Range, and the hash decides.
    }
  }

  /** Takes room on the disk for all that is still to come. @throws WeightFault DISK_FULL */
  reserve(sizeBytes: number): void {
    try {
      reserveRoom(this.#fd, this.#bytes, Math.max(0, sizeBytes - this.#bytes));
    } catch (error) {
      throw diskFault(error, `no room for ${sizeBytes} bytes`);
    }
  }

  /** Adds bytes at the end. @throws WeightFault DISK_FULL, CACHE_UNUSABLE */
  async append(bytes: Uint8Array): Promise<void> {
    try {
      for (let done = 0; done < bytes.length; ) {
        const { bytesWritten } = await writeAt(this.#fd, bytes, done, bytes.length - done, this.#bytes + done);
        done += bytesWritten;
      }
    } catch (error) {
      throw diskFault(error, `cannot write ${this.#path}`);
    }
    this.#hash.update(bytes);
    this.#bytes += bytes.length;
  }

  /** Makes it the file of the cache. It has been checked. @throws WeightFault DISK_FULL, CACHE_UNUSABLE */
  publish(): void {
    try {
      // Gives back room that was taken beyond the end.
      ftruncateSync(this.#fd, this.#bytes);
      chmodSync(this.#path, 0o444);
      fsyncSync(this.#fd);
      renameSync(this.#path, this.#cache.blobPath(this.#sha256));
      syncDirectory(this.#cache.blobs);
      rmSync(factsPath(this.#path), { force: true });
    } catch (error) {
      throw diskFault(error, `cannot put the file into ${this.#cache.blobs}`);
    } finally {
      this.close();
    }
  }

  /** Removes it. */
  discard(): void {
    removePart(this.#path);
    this.close();
  }

  /** Leaves it to whoever fetches the file next, unless nothing has come. */
  close(): void {
    if (this.#closed) return;
    if (this.#bytes === 0) removePart(this.#path);
    closeSync(this.#fd);
    this.#closed = true;
  }

  async #readBack(signal: AbortSignal): Promise<void> {
    const { size } = fstatSync(this.#fd);
    if (size === 0) return;
    this.#origin = readFacts(this.#path);
    const block = Buffer.allocUnsafe(READ_BYTES);
    while (this.#bytes < size) {
      signal.throwIfAborted();
      const { bytesRead } = await readAt(this.#fd, block, 0, READ_BYTES, this.#bytes);
      if (bytesRead === 0) break;
      this.#hash.update(block.subarray(0, bytesRead));
      this.#bytes += bytesRead;
    }
  }
}

/** Names of the parts of a file, whoever writes them. */
export function partsOf(cache: WeightCache, sha256: string): string[] {
  return readdirSync(cache.partial).filter((name) => name.startsWith(`${sha256}.`) && name.endsWith('.part'));
}

/** How much has come of a file that another process fetches: a look, without a promise. */
export function otherProgress(cache: WeightCache, sha256: string): { bytes: number; sizeBytes: number | undefined } {
  let most = { bytes: 0, sizeBytes: undefined as number | undefined };
  for (const name of partsOf(cache, sha256)) {
    const path = join(cache.partial, name);
    const bytes = statSync(path, { throwIfNoEntry: false })?.size ?? 0;
    if (bytes >= most.bytes) most = { bytes, sizeBytes: readFacts(path)?.sizeBytes };
  }
  return most;
}

/** Removes a part that nobody writes to. @returns whether it is gone */
export function removeForgotten(path: string): boolean {
  const fd = openLocked(path);
  if (fd === undefined) return false;
  removePart(path);
  closeSync(fd);
  return true;
}

function adopt(cache: WeightCache, sha256: string): { path: string; fd: number } | undefined {
  let best: { path: string; fd: number; bytes: number } | undefined;
  for (const name of partsOf(cache, sha256)) {
    const path = join(cache.partial, name);
    const fd = openLocked(path);
    if (fd === undefined) continue;
    const own = { path, fd, bytes: fstatSync(fd).size };
    const worse = best === undefined || best.bytes < own.bytes ? best : own;
    if (worse !== own) best = own;
    if (worse === undefined) continue;
    removePart(worse.path);
    closeSync(worse.fd);
  }
  return best;
}

function make(cache: WeightCache, sha256: string): { path: string; fd: number } {
  if (!isSha256(sha256)) throw new Error(`This is a bug: ${JSON.stringify(sha256)} is not a sha256.`);
  for (let tries = 1; ; tries++) {
    const path = join(cache.partial, `${sha256}.${randomUUID()}.part`);
    closeSync(openSync(path, fs.O_RDWR | fs.O_CREAT | fs.O_EXCL, 0o600));
    const fd = openLocked(path);
    if (fd !== undefined) return { path, fd };
    if (tries >= MAKE_TRIES_MAX) throw new Error('parts are removed as soon as they are made');
  }
}

/** The part, locked; undefined where somebody else has it, or it is gone. */
function openLocked(path: string): number | undefined {
  let fd: number;
  try {
    fd = openSync(path, fs.O_RDWR | fs.O_NOFOLLOW);
  } catch {
    return undefined;
  }
  if (tryLock(fd, 'exclusive') && isStillAt(path, fd)) return fd;
  closeSync(fd);
  return undefined;
}

function removePart(path: string): void {
  rmSync(factsPath(path), { force: true });
  rmSync(path, { force: true });
}

function factsPath(path: string): string {
  return `${path.slice(0, -'.part'.length)}.json`;
}

function readFacts(path: string): PartialOrigin | undefined {
  try {
    const { source, validator, sizeBytes } = JSON.parse(readFileSync(factsPath(path), 'utf8')) as Record<
      string,
      unknown
    >;
    if (typeof source !== 'string') return undefined;
    return {
      source,
      validator: typeof validator === 'string' ? validator : undefined,
      sizeBytes: Number.isSafeInteger(sizeBytes) ? (sizeBytes as number) : undefined,
    };
  } catch {
    return undefined; // none, or one that was being written when its process died
  }
}

function syncDirectory(path: string): void {
  const fd = openSync(path, fs.O_RDONLY | fs.O_DIRECTORY);
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
