/**
 * Which servers have asked to be left alone, and until when: told by one transfer, obeyed by all that use the cache, also after a restart. Otherwise a server that is restarted
 * again and again would ask each time anew, and ten files of one server would have to be told one by one.
 *
 * An empty file for each origin, named by its hash, whose modification time is the end of the pause, on the clock of the host. A pause is never made shorter, and none is
 * longer than WAIT_MAX_S. Where the cache cannot be written to, pauses are known to this process only.
 */
import { createHash } from 'node:crypto';
import { closeSync, openSync, rmSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { WAIT_MAX_S } from './attempts.ts';
import type { WeightCache } from './cache.ts';

export class Pauses {
  readonly #directory: string;
  readonly #own = new Map<string, number>();

  constructor(cache: WeightCache) {
    this.#directory = cache.pauses;
  }

  /** Milliseconds until `origin` may be asked again; 0 at once. */
  leftMs(origin: string, nowMs: number): number {
    const path = this.#path(origin);
    const untilMs = Math.max(this.#own.get(origin) ?? 0, statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0);
    const leftMs = untilMs - nowMs;
    if (leftMs <= 0) {
      this.#own.delete(origin);
      return 0;
    }
    // The clock of the host has been set back.
    return leftMs > WAIT_MAX_S * 1000 ? 0 : Math.ceil(leftMs);
  }

  /** Nobody is to ask `origin` for so long, from now. */
  begin(origin: string, forS: number, nowMs: number): void {
    if (forS <= 0 || forS > WAIT_MAX_S) return;
    const untilMs = nowMs + forS * 1000;
    if (this.leftMs(origin, nowMs) >= forS * 1000) return;
    this.#own.set(origin, untilMs);
    try {
      const path = this.#path(origin);
      closeSync(openSync(path, 'a', 0o600));
      utimesSync(path, untilMs / 1000, untilMs / 1000);
    } catch {
      // It is known here all the same.
    }
  }

  /** Takes away what nobody needs any more. @param names of this directory */
  static sweep(cache: WeightCache, names: readonly string[], nowMs: number): void {
    for (const name of names) {
      const path = join(cache.pauses, name);
      if ((statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? nowMs) < nowMs) rmSync(path, { force: true });
    }
  }

  #path(origin: string): string {
    return join(this.#directory, createHash('sha256').update(origin).digest('hex'));
  }
}
