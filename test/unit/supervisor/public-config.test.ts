/** The configuration in force as it is shown: what a client reads there is a config.json that gives the same configuration. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ModelConfig, parseModelConfig } from '../../../src/config/model-config.ts';
import { modelConfigSchema } from '../../../src/config/model-config-schema.ts';
import { publicConfig } from '../../../src/supervisor/served-version.ts';

/** Every key, with a value that no default has. */
const EVERYTHING = {
  $schema: 'any',
  max_batch_size: 8,
  split_large_requests: false,
  max_queue_delay_us: 100,
  instances: { min: 2, max: 4, target_rows: 3 },
  devices: ['cpu:0'],
  slo_ms: 250,
  priority_levels: 3,
  default_priority_level: 1,
  idle_unload_s: 60,
  run_timeout_ms: 5000,
  queue: { max_rows: 77, max_bytes: '1MiB' },
  response_cache: { enable: false },
  transform: {
    module: 't.mjs',
    inputs: [{ name: 'i', datatype: 'BYTES', shape: [1] }],
    outputs: [{ name: 'o', datatype: 'FP32', shape: [-1, 2] }],
    timeout_ms: 77,
    threads: 2,
  },
  memory_budget_bytes: '64MiB',
  default_model_filename: 'other.onnx',
  version_policy: { specific: ['2', '5'] },
  outputs: [
    {
      name: 'y',
      labels: 'labels.txt',
      postprocess: [
        { op: 'dequantize', scale: 0.5, zero_point: 3 },
        { op: 'softmax', axis: 2 },
        { op: 'sigmoid' },
        { op: 'normalize', axis: 1 },
        { op: 'mean_pool', axis: 2, mask: 'm' },
        { op: 'argmax', axis: 1 },
        { op: 'top_k', k: 7 },
      ],
    },
    { name: 'z', postprocess: [{ op: 'ctc_decode', dictionary: 'keys.txt', blank: -1, space: true }] },
  ],
  warmup: [
    { request: 'one.json', runs: 2 },
    {
      data: 'random',
      rows: 4,
      inputs: [
        { name: 'x', dims: [3] },
        { name: 'y', file: 'y.raw' },
      ],
    },
  ],
  runtime: {
    intra_op_threads: 2,
    graph_optimization: 'basic',
    session: { 'session.intra_op.allow_spinning': '0' },
    provider: { cudnn_conv_algo_search: 'HEURISTIC' },
  },
};

function read(file: object): ModelConfig {
  const result = parseModelConfig(Buffer.from(JSON.stringify(file)));
  assert(result.ok, JSON.stringify(result));
  return result.config;
}

test('the sample has every key there is', () => {
  assert.deepEqual(Object.keys(EVERYTHING).toSorted(), Object.keys(modelConfigSchema.shape).toSorted());
});

for (const [what, file] of [
  ['nothing set', {}],
  ['everything set', EVERYTHING],
  ['a response cache', { response_cache: { enable: true, max_bytes: '1MiB', ttl_s: 60 } }],
  ['all versions', { version_policy: 'all' }],
  ['the latest versions', { version_policy: { latest: 3 } }],
] as const) {
  test(`with ${what}, the shown configuration gives the one in force`, () => {
    const config = read(file);
    const { maxBatchSize } = config;
    const shown = { ...publicConfig(config), ...(maxBatchSize === undefined ? {} : { max_batch_size: maxBatchSize }) };
    assert.deepEqual(read(shown), config);
  });
}
