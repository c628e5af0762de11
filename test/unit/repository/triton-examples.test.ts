/** A folder of models as people have them for Triton: which settings each has here, what is passed over with a warning, and which are not served and why. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DEFAULT_MODEL_CONFIG, type ModelConfig } from '../../../src/config/model-config.ts';
import { scanRepository } from '../../../src/repository/repository.ts';
import { plusModel } from '../../support/fixtures-faults.ts';
import { makeRepository } from '../../support/repository.ts';

interface Example {
  readonly config: string;
  /** Directories of versions; 1 where none are given. */
  readonly versions?: readonly string[];
  readonly file?: string;
  /** Further files of the model, by name. */
  readonly beside?: Readonly<Record<string, string>>;
  readonly served?: readonly string[];
  readonly settings?: Partial<ModelConfig>;
  readonly warnings?: readonly RegExp[];
  readonly problem?: RegExp;
}

const tensors = (...all: [kind: 'input' | 'output', name: string, datatype: 'FP32' | 'INT64' | 'BYTES'][]) =>
  all.map(([kind, name, datatype]) => ({ kind, name, datatype }));

const EXAMPLES: Readonly<Record<string, Example>> = {
  // Nothing but a name: everything else is read off the model.
  minimal: { config: 'name: "minimal"\nbackend: "onnxruntime"\n' },
  image_classifier: {
    config: `
name: "image_classifier"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [
  {
    name: "data"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]
  }
]
output [
  {
    name: "prob"
    data_type: TYPE_FP32
    dims: [ 1000 ]
    label_filename: "labels.txt"
  }
]
dynamic_batching {
  preferred_batch_size: [ 8, 16 ]
  max_queue_delay_microseconds: 500
}
instance_group [
  {
    count: 2
    kind: KIND_CPU
  }
]
`,
    settings: {
      maxBatchSize: 32,
      maxQueueDelayUs: 500,
      instances: { min: 2, max: 2, targetRows: undefined },
      devices: ['cpu'],
      outputs: [{ name: 'prob', labels: 'labels.txt', postprocess: [] }],
      tensors: tensors(['input', 'data', 'FP32'], ['output', 'prob', 'FP32']),
    },
    beside: { 'labels.txt': 'cat\ndog\n' },
    warnings: [/preferred_batch_size/],
  },
  // Everything on one line, with commas, semicolons and angle brackets, as generators write it.
  one_line: {
    config:
      'name: "one_line", max_batch_size: 4; input: [{name: "ids", data_type: TYPE_INT64, dims: [-1]}] output < name: "y" data_type: TYPE_STRING dims: 1 > dynamic_batching {}',
    settings: { maxBatchSize: 4, tensors: tensors(['input', 'ids', 'INT64'], ['output', 'y', 'BYTES']) },
  },
  several_versions: {
    config: 'version_policy: { latest: { num_versions: 2 }}',
    versions: ['1', '9', '10'],
    served: ['10', '9'],
    settings: { versionPolicy: { kind: 'latest', count: 2 } },
  },
  chosen_versions: {
    config: 'version_policy: { specific: { versions: [1, 9] }}',
    versions: ['1', '9', '10'],
    served: ['9', '1'],
    settings: { versionPolicy: { kind: 'specific', versions: ['1', '9'] } },
  },
  own_file: {
    config: 'default_model_filename: "net.onnx" max_batch_size: 0',
    file: 'net.onnx',
    settings: { modelFilename: 'net.onnx', maxBatchSize: 0 },
  },
  in_time: {
    config: `
dynamic_batching {
  priority_levels: 2 default_priority_level: 2
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 50000 max_queue_size: 128 }
}
response_cache { enable: True }
parameters: { key: "intra_op_thread_count", value: { string_value: "4" } }
optimization { graph : { level : 1 } }
`,
    settings: {
      sloMs: 50,
      priorities: { levels: 2, default: 2 },
      queue: { ...DEFAULT_MODEL_CONFIG.queue, maxRows: 128 },
      responseCache: { maxBytes: 64 * 2 ** 20, ttlS: undefined },
      runtime: { ...DEFAULT_MODEL_CONFIG.runtime, intraOpThreads: 4, graphOptimization: 'extended' },
    },
    warnings: [/timeout_action/],
  },
  tensorrt_by_provider: {
    config: `
optimization { execution_accelerators {
  gpu_execution_accelerator : [ {
    name : "tensorrt"
    parameters { key: "precision_mode" value: "FP16" }
  } ]
}}
instance_group [ { kind: KIND_GPU gpus: [ 1 ] } ]
`,
    settings: { devices: ['gpu:1'] },
    warnings: [/execution_accelerators.*--device tensorrt/],
  },
  plan: { config: 'platform: "tensorrt_plan" max_batch_size: 8', problem: /platform is "tensorrt_plan"/ },
  python_code: { config: 'backend: "python"', problem: /backend is "python"/ },
  pipeline: {
    config: 'ensemble_scheduling { step [ { model_name: "a" model_version: -1 } ] }',
    problem: /config\.pbtxt:1:1: ensemble_scheduling is not supported/,
  },
  stateful: { config: '\n  sequence_batching { oldest { } }', problem: /config\.pbtxt:2:3: sequence_batching/ },
  streaming: { config: 'model_transaction_policy { decoupled: True }', problem: /decoupled|transaction/ },
  renamed: { config: 'name: "what_it_was_called_before"', problem: /name is "what_it_was_called_before"/ },
};

test('each has the meaning here that it has there, or says why it is not served', (t) => {
  const repository = makeRepository(t, {});
  for (const [name, { config, versions = ['1'], file = 'model.onnx', beside = {} }] of Object.entries(EXAMPLES)) {
    for (const version of versions) repository.writeFile([name, version, file], plusModel(1));
    for (const [other, content] of Object.entries(beside)) repository.writeFile([name, other], content);
    repository.writeFile([name, 'config.pbtxt'], config);
  }
  const { models, problems } = scanRepository(repository.dir);
  assert.deepEqual(problems, []);
  assert.deepEqual(models.map(({ name }) => name).sort(), Object.keys(EXAMPLES).sort());
  for (const { name, config, versions, ignored, problem } of models) {
    const { served = ['1'], settings = {}, warnings = [], problem: expected } = EXAMPLES[name]!;
    if (expected !== undefined) {
      assert.match(problem ?? '', expected, name);
      continue;
    }
    assert.equal(problem, undefined, name);
    assert.deepEqual(config, { ...DEFAULT_MODEL_CONFIG, ...settings }, name);
    assert.deepEqual(
      versions.map(({ version }) => version),
      served,
      name,
    );
    const told = ignored.map(({ name: entry, reason }) => `${entry}:${reason}`);
    assert.equal(told.length, warnings.length, told.join('\n'));
    for (const [n, warning] of warnings.entries()) assert.match(told[n]!, warning, name);
  }
});
