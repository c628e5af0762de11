/**
 * The weight lock: whoever reads a model's weights on this host holds it, so that one does at a time, of all devices of this server and of every other
 * batchport on the host. What a restart stampede costs is bounded by it.
 *
 * A kernel lock (flock) on one file: gone with the process that held it, never taken from a live one, nothing stale to clean up. The supervisor holds it while one
 * of its devices loads; if the supervisor dies, so does the load. A line in the log tells of every time it was held. Where no lock file can be had, loads of this server still come one after the other
 * (loads.ts), and the log says so. The file may be removed at any time, as by whoever tidies up a directory for temporary files: then a new one is made, or found.
 */
import { closeSync, constants as fs, fstatSync, openSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Logger } from '../config/log.ts';
import { nowUs } from '../system/clock.ts';
import { isStillAt, lock, lockHolder, unlock } from '../system/flock.ts';

const FILE_NAME = 'batchport-weights.lock';
/** Everybody on the host has to find the same file. */
const DIRECTORIES = ['/run/lock', '/var/lock', tmpdir()] as const;

export interface WeightLockStatus {
  readonly file: string | null;
  readonly state: 'free' | 'waiting' | 'holding';
  readonly for_s: number;
  /** What is loaded, or waits to be. */
  readonly model: string | null;
  /** Process that holds it while we wait. */
  readonly holder_pid: number | null;
}

export class WeightLock {
  readonly #log: Logger;
  readonly #directories: readonly string[];
  #fd: number | undefined;
  #file: string | undefined;
  #state: WeightLockStatus['state'] = 'free';
  #sinceMs = 0;
  /** On the clock of the host, for the log. */
  #takenUs = 0;
  #waitedMs = 0;
  #model: string | undefined;

  constructor(log: Logger, directories: readonly string[] = DIRECTORIES) {
    this.#log = log;
    this.#directories = directories;
    if (!this.#open()) {
      log.warn(
        { directories },
        'no lock file for weights can be opened: other servers on this host may load at the same time',
      );
    }
  }

  /** Takes the first file that can be had. @returns whether there is one; without one the file before stays */
  #open(): boolean {
    for (const directory of this.#directories) {
      const file = join(directory, FILE_NAME);
      const fd = openShared(file);
      if (fd === undefined) continue;
      this.close();
      this.#fd = fd;
      this.#file = file;
      return true;
    }
    return false;
  }

  #isInPlace(): boolean {
    return isStillAt(this.#file!, this.#fd!);
  }

  /**
   * Waits until nobody else on the host loads weights.
   *
   * @param signal ends the wait; its reason is thrown.
   */
  async acquire(model: string, signal: AbortSignal): Promise<void> {
    this.#move('waiting', model);
    const onWait = (): void =>
      this.#log.info({ model, holderPid: lockHolder(this.#fd!) }, 'waiting for the weight lock');
    try {
      // The lock of a file that was removed, perhaps during the wait, is not the one that others find.
      for (let locked = this.#fd === undefined; !locked; ) {
        const canBeFound = this.#isInPlace() || this.#open();
        await lock(this.#fd!, 'exclusive', { signal, onWait });
        locked = !canBeFound || this.#isInPlace();
      }
    } catch (error) {
      this.#move('free', undefined);
      throw error;
    }
    this.#waitedMs = performance.now() - this.#sinceMs;
    this.#takenUs = nowUs();
    this.#move('holding', model);
  }

  release(): void {
    if (this.#state !== 'holding') return;
    const model = this.#model;
    const [takenUs, givenUs] = [Math.round(this.#takenUs), Math.round(nowUs())];
    if (this.#fd !== undefined) unlock(this.#fd);
    this.#move('free', undefined);
    const heldMs = Math.round((givenUs - takenUs) / 1000);
    this.#log.info({ model, waitedMs: Math.round(this.#waitedMs), heldMs, takenUs, givenUs }, 'weight lock given back');
  }

  /** Gives the file back. A lock still held goes with it. */
  close(): void {
    if (this.#fd !== undefined) closeSync(this.#fd);
  }

  status(): WeightLockStatus {
    return {
      file: this.#file ?? null,
      state: this.#state,
      for_s: this.#state === 'free' ? 0 : Math.round((performance.now() - this.#sinceMs) / 100) / 10,
      model: this.#model ?? null,
      holder_pid: this.#state === 'waiting' && this.#fd !== undefined ? (lockHolder(this.#fd) ?? null) : null,
    };
  }

  #move(state: WeightLockStatus['state'], model: string | undefined): void {
    this.#state = state;
    this.#model = model;
    this.#sinceMs = performance.now();
  }
}

/** Opens the file, making it where it is not there yet. flock needs no more than the right to read. */
function openShared(file: string): number | undefined {
  const common = fs.O_RDONLY | fs.O_NOFOLLOW;
  for (const flags of [common, common | fs.O_CREAT, common]) {
    try {
      const fd = openSync(file, flags, 0o644);
      if (fstatSync(fd).isFile()) return fd;
      closeSync(fd);
      return undefined;
    } catch (error) {
      if (!['ENOENT', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) return undefined;
    }
  }
  return undefined;
}
