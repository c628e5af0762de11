/**
 * Remembers, in the cache directory, what a model's trial runs found about batching, so that a restarted server does not run them again.
 *
 * A fact is known by the file's path, size and time of change.
 */
import { statSync } from 'node:fs';
import type { Logger } from '../config/log.ts';
import { BATCH_ROWS_MAX } from '../config/model-config-schema.ts';
import type { Batching } from '../protocol/control.ts';
import { CacheFolder } from './cache-folder.ts';

export class BatchingCache {
  readonly #folder: CacheFolder<Batching>;

  constructor(cacheDirectory: string, log: Logger) {
    this.#folder = new CacheFolder(cacheDirectory, 'batching', log, checkBatching);
  }

  get(modelPath: string): Batching | undefined {
    const identity = identityOf(modelPath);
    return identity === undefined ? undefined : this.#folder.get(identity);
  }

  put(modelPath: string, batching: Batching): void {
    const identity = identityOf(modelPath);
    if (identity !== undefined) this.#folder.put(identity, batching);
  }
}

/** Undefined when the file is gone. */
function identityOf(modelPath: string): string | undefined {
  const stat = statSync(modelPath, { throwIfNoEntry: false });
  return stat === undefined ? undefined : JSON.stringify([modelPath, stat.size, stat.mtimeMs]);
}

function checkBatching(value: unknown): Batching | undefined {
  const { maxBatchSize, reason } = (value ?? {}) as Partial<Batching>;
  if (typeof maxBatchSize !== 'number' || !Number.isInteger(maxBatchSize) || typeof reason !== 'string')
    return undefined;
  if (maxBatchSize < 0 || maxBatchSize > BATCH_ROWS_MAX) return undefined;
  return { maxBatchSize, reason };
}
