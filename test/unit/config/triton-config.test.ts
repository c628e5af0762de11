import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { DEFAULT_MODEL_CONFIG as DEFAULTS, type ModelConfig } from '../../../src/config/model-config.ts';
import { parseTritonConfig } from '../../../src/config/triton-config.ts';

function read(text: string) {
  const { result, warnings } = parseTritonConfig(Buffer.from(text), 'densenet');
  const problems = result.ok ? [] : result.problems.map(({ line, column, message }) => `${line}:${column}: ${message}`);
  const told = warnings.map(({ line, message }) => `${line}: ${message}`);
  return { config: result.ok ? result.config : undefined, problems, warnings: told };
}

const WHOLE = `
name: "densenet"
platform: "onnxruntime_onnx"
max_batch_size : 8
input [
  { name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] }
]
output [ { name: "fc6_1" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" } ]
version_policy: { specific: { versions: [1, 3] } }
default_model_filename: "net.onnx"
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { max_queue_size: 64 default_timeout_microseconds: 250000 timeout_action: REJECT }
}
response_cache { enable: true }
optimization { graph { level: -1 } execution_accelerators { gpu_execution_accelerator : [ { name : "tensorrt" } ] } }
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
parameters { key: "other" value: { string_value: "x" } }
`;

test('a configuration of Triton is taken over as far as it can be, and the rest is told', () => {
  const { config, problems, warnings } = read(WHOLE);
  assert.deepEqual(problems, []);
  assert.deepEqual(config, {
    ...DEFAULTS,
    maxBatchSize: 8,
    maxQueueDelayUs: 100,
    instances: { min: 2, max: 2, targetRows: undefined },
    devices: ['gpu:0', 'gpu:1'],
    sloMs: 250,
    priorities: { levels: 3, default: 2 },
    queue: { ...DEFAULTS.queue, maxRows: 64 },
    responseCache: { maxBytes: 64 * 2 ** 20, ttlS: undefined },
    versionPolicy: { kind: 'specific', versions: ['1', '3'] },
    modelFilename: 'net.onnx',
    outputs: [{ name: 'fc6_1', labels: 'labels.txt', postprocess: [] }],
    tensors: [
      { kind: 'input', name: 'data_0', datatype: 'FP32' },
      { kind: 'output', name: 'fc6_1', datatype: 'FP32' },
    ],
    runtime: { ...DEFAULTS.runtime, intraOpThreads: 2, graphOptimization: 'basic' },
  } satisfies ModelConfig);
  assert.deepEqual(warnings, [
    '13: dynamic_batching.preferred_batch_size is passed over: batches are as large as pays, by measured costs',
    '17: dynamic_batching.default_queue_policy.timeout_action is passed over: what is late is answered 504',
    '20: optimization.execution_accelerators is passed over: choose the device, such as --device tensorrt:0',
    '22: the parameter "other" is passed over',
  ]);
});

test('an empty file is that of the defaults', () => {
  assert.deepEqual(read(''), { config: DEFAULTS, problems: [], warnings: [] });
});

for (const [text, expected] of [
  ['version_policy { all {} }', { kind: 'all' }],
  ['version_policy { latest { num_versions: 2 } }', { kind: 'latest', count: 2 }],
  ['version_policy { latest {} }', { kind: 'latest', count: 1 }],
] as const) {
  test(`${text} is the same policy here`, () => assert.deepEqual(read(text).config?.versionPolicy, expected));
}

for (const [group, devices] of [
  ['', undefined],
  ['count: 2', undefined],
  ['kind: KIND_AUTO', undefined],
  ['kind: KIND_CPU', ['cpu']],
  ['kind: KIND_GPU', ['gpu']],
  ['kind: KIND_GPU gpus: [ 1 ]', ['gpu:1']],
  ['gpus: 0', ['gpu:0']],
] as const) {
  test(`an instance_group of "${group}" runs on ${devices ?? 'every device'}`, () => {
    const { config, problems } = read(`instance_group [ { ${group} } ]`);
    assert.deepEqual(problems, []);
    assert.deepEqual(config?.devices, devices);
  });
}

test('the types of tensors are those of the protocol', () => {
  const types = ['BOOL', 'UINT8', 'INT8', 'UINT64', 'FP16', 'FP64', 'BF16', 'STRING', 'INVALID'];
  const { config } = read(types.map((type) => `input { name: "${type}" data_type: TYPE_${type} }`).join('\n'));
  assert.deepEqual(
    config?.tensors.map(({ datatype }) => datatype),
    ['BOOL', 'UINT8', 'INT8', 'UINT64', 'FP16', 'FP64', 'BF16', 'BYTES', undefined],
  );
});

test('warm-ups are taken over', () => {
  const { config, problems, warnings } = read(`
model_warmup [
  { name: "zeros" batch_size: 2 inputs { key: "a" value: { data_type: TYPE_FP32 dims: [ 3, 4 ] zero_data: true } } },
  { name: "mixed" count: 5
    inputs [ { key: "a" value: { dims: 3 dims: 4 random_data: true } }, { key: "b" value: { dims: [ 1 ] input_data_file: "raw" } } ] }
]`);
  assert.deepEqual([problems, warnings], [[], []]);
  assert.deepEqual(config?.warmUps, [
    {
      kind: 'made',
      data: 'zeros',
      rows: 2,
      runs: 1,
      inputs: [{ name: 'a', dims: [3, 4], data: 'zeros', file: undefined }],
    },
    {
      kind: 'made',
      data: 'zeros',
      rows: 1,
      runs: 5,
      inputs: [
        { name: 'a', dims: [3, 4], data: 'random', file: undefined },
        { name: 'b', dims: [1], data: undefined, file: 'raw' },
      ],
    },
  ]);
});

test('what is switched off asks for nothing', () => {
  for (const text of ['', 'decoupled: false', 'decoupled: False'])
    assert.deepEqual(read(`model_transaction_policy { ${text} }`).problems, []);
  for (const text of ['', 'enable: false']) assert.deepEqual(read(`response_cache { ${text} }`).config, DEFAULTS);
});

describe('what would change answers, or is wrong, is refused with its place', () => {
  for (const [text, problem] of [
    ['name: "resnet"', '1:7: name is "resnet"; it must be "densenet"'],
    ['backend: "pytorch"', '1:10: backend is "pytorch"; it must be "onnxruntime"'],
    ['platform: "ensemble"', '1:11: platform is "ensemble"; it must be "onnxruntime_onnx"'],
    [
      'ensemble_scheduling { step [ { model_name: "a" } ] }',
      '1:1: ensemble_scheduling is not supported: a model is one ONNX file',
    ],
    [
      'sequence_batching { direct { minimum_slot_utilization: 0.5 } }',
      '1:1: sequence_batching is not supported: models here keep no state between requests',
    ],
    [
      'model_transaction_policy { decoupled: true }',
      '1:28: model_transaction_policy.decoupled is not supported: a request has one answer',
    ],
    [
      'input { name: "x" reshape { shape: [ 1 ] } }',
      '1:19: input.reshape is not supported: tensors keep the shapes that the model file says',
    ],
    // Story: what asks for something by being there was passed over in silence when there was nothing in it.
    ['sequence_batching {}', '1:1: sequence_batching is not supported: models here keep no state between requests'],
    [
      'input { name: "x" reshape { shape: [] } }',
      '1:19: input.reshape is not supported: tensors keep the shapes that the model file says',
    ],
    ['max_batch_siz: 8', '1:1: unknown field "max_batch_siz" (did you mean "max_batch_size"?)'],
    ['max_batch_size: eight', '1:17: max_batch_size must be an integer'],
    ['max_batch_size: 8\ndynamic_batching: 1', '2:19: dynamic_batching must be a message in "{}"'],
    [
      'instance_group { kind: KIND_MODEL }',
      '1:24: instance_group.kind is "KIND_MODEL"; it must be KIND_AUTO, KIND_CPU or KIND_GPU',
    ],
    ['default_model_filename: "../model.onnx"', 'must be the name of an .onnx file, without a directory'],
    ['max_batch_size: 100000', 'must be an integer from 0 to 4096'],
    ['input { name: "x" data_type: TYPE_FP31 }', '1:30: data_type is "TYPE_FP31"; it must be a type such as TYPE_FP32'],
    ['output { name: "x" data_type: FP32 }', '1:31: data_type is "FP32"; it must be a type such as TYPE_FP32'],
    ['name "densenet"', '1:6: ":" or a message in "{}" is expected'],
  ] as const) {
    test(text, () => {
      const { config, problems } = read(text);
      assert.equal(config, undefined);
      assert.equal(problems.length, 1);
      assert(problems[0]!.includes(problem), problems[0]);
    });
  }

  test('bytes that are no text', () => {
    const { result } = parseTritonConfig(Buffer.from([0xff, 0xfe]), 'densenet');
    assert.deepEqual(result, { ok: false, problems: [{ line: 1, column: 1, message: 'is not UTF-8' }] });
  });
});
