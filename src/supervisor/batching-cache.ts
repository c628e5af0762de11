/**
 * Remembers, in the cache directory, what a model's trial runs found about batching, so that a restarted server does not run them again.
 *
 * A fact is known by the model's fingerprint (model-weights.ts), so that a copied, moved or touched file is the same model, and another one in its place is not.
 */
import type { Logger } from '../config/log.ts';
import { BATCH_ROWS_MAX } from '../config/model-config-schema.ts';
import type { Batching } from '../protocol/control.ts';
import { CacheFolder } from './cache-folder.ts';

export class BatchingCache {
  readonly #folder: CacheFolder<Batching>;

  constructor(cacheDirectory: string, log: Logger) {
    this.#folder = new CacheFolder(cacheDirectory, 'batching', log, checkBatching);
  }

  get(fingerprint: string): Batching | undefined {
    return this.#folder.get(fingerprint);
  }

  put(fingerprint: string, batching: Batching): void {
    this.#folder.put(fingerprint, batching);
  }
}

function checkBatching(value: unknown): Batching | undefined {
  const { maxBatchSize, reason } = (value ?? {}) as Partial<Batching>;
  if (typeof maxBatchSize !== 'number' || !Number.isInteger(maxBatchSize) || typeof reason !== 'string')
    return undefined;
  if (maxBatchSize < 0 || maxBatchSize > BATCH_ROWS_MAX) return undefined;
  return { maxBatchSize, reason };
}
