/**
 * Remembers, in the cache directory, what a model's trial runs found about batching, so that a restarted server does not run them again.
 *
 * A fact is known by the file's path, size and time of change and the version of this program; anything else makes it unknown. Small JSON files, written
 * under another name and renamed; at most ENTRIES_MAX, the oldest go first. Of no importance to serving: what goes wrong is logged and the trial is run.
 */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../config/log.ts';
import { makeDirectory } from '../config/make-directory.ts';
import { PACKAGE_VERSION } from '../config/version.ts';
import type { Batching } from '../protocol/control.ts';

const ENTRIES_MAX = 1000;

export class BatchingCache {
  readonly #directory: string;
  readonly #log: Logger;

  constructor(cacheDirectory: string, log: Logger) {
    this.#directory = join(cacheDirectory, 'batching');
    this.#log = log;
  }

  get(modelPath: string): Batching | undefined {
    try {
      const value: unknown = JSON.parse(readFileSync(this.#fileOf(modelPath), 'utf8'));
      const { maxBatchSize, reason } = value as Partial<Batching>;
      if (Number.isInteger(maxBatchSize) && typeof reason === 'string') return { maxBatchSize: maxBatchSize!, reason };
    } catch {
      // Not there, or not readable: as good as not there.
    }
    return undefined;
  }

  put(modelPath: string, batching: Batching): void {
    try {
      makeDirectory(this.#directory, 0o700);
      const file = this.#fileOf(modelPath);
      const temporary = `${file}.${process.pid}`;
      writeFileSync(temporary, JSON.stringify(batching), { mode: 0o600 });
      renameSync(temporary, file);
      this.#prune();
    } catch (error) {
      this.#log.warn({ err: error, directory: this.#directory }, 'the cache directory cannot be used');
    }
  }

  #fileOf(modelPath: string): string {
    const { size, mtimeMs } = statSync(modelPath);
    const identity = JSON.stringify([PACKAGE_VERSION, modelPath, size, mtimeMs]);
    return join(this.#directory, `${createHash('sha256').update(identity).digest('hex')}.json`);
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
