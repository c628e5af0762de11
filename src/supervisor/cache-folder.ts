/**
 * A folder of the cache directory in which facts are kept that can be found out again: one small JSON file a fact, written under another name and renamed.
 *
 * A fact is known by a text that names all it depends on; the version of this program always counts. At most ENTRIES_MAX, the oldest go first. Of no importance to
 * serving: what goes wrong is logged, once until it goes well again, and the fact is as good as unknown.
 */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../config/log.ts';
import { makeDirectory } from '../config/make-directory.ts';
import { PACKAGE_VERSION } from '../config/version.ts';

export const ENTRIES_MAX = 1000;

export class CacheFolder<Fact> {
  readonly #directory: string;
  readonly #log: Logger;
  readonly #check: (value: unknown) => Fact | undefined;
  /** The last fact could not be kept, and that has been logged. */
  #unusable = false;

  /** @param check gives the fact that a file's content stands for, undefined where it stands for none. */
  constructor(cacheDirectory: string, name: string, log: Logger, check: (value: unknown) => Fact | undefined) {
    this.#directory = join(cacheDirectory, name);
    this.#log = log;
    this.#check = check;
  }

  get(identity: string): Fact | undefined {
    try {
      return this.#check(JSON.parse(readFileSync(this.#fileOf(identity), 'utf8')));
    } catch {
      return undefined; // not there, or not readable: as good as not there
    }
  }

  put(identity: string, fact: Fact): void {
    const file = this.#fileOf(identity);
    const temporary = `${file}.${process.pid}`;
    try {
      makeDirectory(this.#directory, 0o700);
      writeFileSync(temporary, JSON.stringify(fact), { mode: 0o600 });
      renameSync(temporary, file);
      this.#prune();
      this.#unusable = false;
    } catch (error) {
      removeQuietly(temporary);
      if (this.#unusable) return;
      this.#unusable = true;
      const { message } = error as Error;
      this.#log.warn({ directory: this.#directory, reason: message }, 'the cache directory cannot be used');
    }
  }

  #fileOf(identity: string): string {
    const name = createHash('sha256')
      .update(JSON.stringify([PACKAGE_VERSION, identity]))
      .digest('hex');
    return join(this.#directory, `${name}.json`);
  }

  #prune(): void {
    const names = readdirSync(this.#directory);
    if (names.length <= ENTRIES_MAX) return;
    const byAge = names
      .map((name) => join(this.#directory, name))
      // What another server has just removed goes first.
      .map((path) => ({ path, mtimeMs: statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0 }))
      .sort((a, b) => a.mtimeMs - b.mtimeMs);
    for (const { path } of byAge.slice(0, names.length - ENTRIES_MAX)) rmSync(path, { force: true });
  }
}

/** On a full disk the file is there, but empty. */
function removeQuietly(file: string): void {
  try {
    rmSync(file, { force: true });
  } catch {
    // Where it could not be made it cannot be removed either.
  }
}
