import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { BATCH_ROWS_MAX } from '../../../src/config/model-config-schema.ts';
import { BatchingCache } from '../../../src/supervisor/batching-cache.ts';
import { temporaryDirectory } from '../../support/repository.ts';

test('batch sizes that no trial can have found are as good as unknown', (t) => {
  const dir = temporaryDirectory(t, 'cache');
  const cache = new BatchingCache(dir, createLogger('test', 'fatal'));
  const kept = (maxBatchSize: number) => {
    cache.put('a model', { maxBatchSize, reason: 'a trial' });
    return cache.get('a model')?.maxBatchSize;
  };
  assert.deepEqual([0, 64, BATCH_ROWS_MAX].map(kept), [0, 64, BATCH_ROWS_MAX]);
  assert.deepEqual([-5, 1.5, BATCH_ROWS_MAX + 1, 1e12].map(kept), [undefined, undefined, undefined, undefined]);
});
