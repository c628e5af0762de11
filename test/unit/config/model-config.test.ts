/** A model's config.json: what is accepted, what is refused and where, and that the published JSON Schema agrees. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DEFAULT_MODEL_CONFIG, formatModelConfigProblem, parseModelConfig } from '../../../src/config/model-config.ts';
import { modelConfigJsonSchema } from '../../../src/config/model-config-schema.ts';
import { acceptsJson } from './json-schema.ts';

const MIB = 2 ** 20;

function problemsOf(text: string | Uint8Array): string[] {
  const result = parseModelConfig(typeof text === 'string' ? Buffer.from(text) : text);
  return result.ok ? [] : result.problems.map((problem) => formatModelConfigProblem('config.json', problem));
}

function configOf(value: unknown) {
  const result = parseModelConfig(Buffer.from(JSON.stringify(value)));
  assert.ok(result.ok, JSON.stringify(result));
  return result.config;
}

const accepted: readonly unknown[] = [
  {},
  { $schema: '../../config/model.schema.json' },
  { max_batch_size: 0 },
  { max_batch_size: 4096 },
  { max_queue_delay_us: 0 },
  { max_queue_delay_us: 10_000_000 },
  { instances: {} },
  { instances: { min: 1, max: 64 } },
  { devices: ['cpu', 'cpu:0-3', 'cuda:0'] },
  { slo_ms: 1 },
  { run_timeout_ms: 100 },
  { queue: { max_rows: 1, max_bytes: 4096 } },
  { queue: { max_bytes: '64MiB' } },
  { queue: { max_bytes: '1 GB' } },
  { response_cache: {} },
  { response_cache: { enable: false, max_bytes: '64KiB', ttl_s: 1 } },
  { memory_budget_bytes: '1048576' },
  { version_policy: 'all' },
  { version_policy: { latest: 1 } },
  { version_policy: { specific: [3, '5'] } },
  { outputs: [] },
  { outputs: [{ name: '__proto__' }, { name: 'y', labels: 'labels.txt' }] },
  { outputs: [{ name: 'y', postprocess: [] }] },
  { outputs: [{ name: 'y', postprocess: [{ op: 'softmax' }, { op: 'top_k', k: 10_000 }] }] },
  { outputs: [{ name: 'y', postprocess: [{ op: 'ctc_decode', dictionary: 'keys.txt', blank: -1, space: true }] }] },
  { outputs: [{ name: 'y', postprocess: [{ op: 'mean_pool' }, { op: 'normalize', axis: -1 }, { op: 'sigmoid' }] }] },
  {
    outputs: [
      {
        name: 'y',
        postprocess: [
          { op: 'dequantize', scale: 0.1 },
          { op: 'argmax', axis: -64 },
        ],
      },
    ],
  },
  { warmup: [] },
  { warmup: [{ request: 'one.json' }, { request: 'one.json', runs: 1000 }] },
  { warmup: [{ data: 'zeros' }, { data: 'random', rows: 4096, runs: 1, inputs: [] }] },
  {
    warmup: [
      {
        data: 'zeros',
        inputs: [
          { name: '__proto__', dims: [0, 224], data: 'random' },
          { name: 'x', file: 'x' },
        ],
      },
    ],
  },
  { runtime: {} },
  { runtime: { intra_op_threads: 1, graph_optimization: 'disable' } },
  { runtime: { session: { 'session.intra_op.allow_spinning': '0', constructor: 'x' }, provider: { device_id: 0 } } },
];

for (const value of accepted) {
  test(`the configuration ${JSON.stringify(value)} is accepted by the parser and by the schema`, () => {
    assert.deepEqual(problemsOf(JSON.stringify(value)), []);
    assert.ok(acceptsJson(modelConfigJsonSchema(), value));
  });
}

/** Text of the file, the one expected message, and whether JSON Schema has no words for the fault. */
const refused: readonly (readonly [string, string, 'beyond the schema'?])[] = [
  ['[]', '1:1: the content is []; it must be an object {…}'],
  ['null', '1:1: the content is null; it must be an object {…}'],
  ['{"max_batch_size": 4097}', '1:20: max_batch_size is 4097; it must be an integer from 0 to 4096'],
  ['{"max_batch_size": -1}', '1:20: max_batch_size is -1; it must be an integer from 0 to 4096'],
  ['{"max_batch_size": 1.5}', '1:20: max_batch_size is 1.5; it must be an integer from 0 to 4096'],
  ['{"max_batch_size": "8"}', '1:20: max_batch_size is "8"; it must be an integer from 0 to 4096'],
  ['{"max_batch_size": null}', '1:20: max_batch_size is null; it must be an integer from 0 to 4096'],
  ['{"max_batch_size": true}', '1:20: max_batch_size is true; it must be an integer from 0 to 4096'],
  [
    '{"max_queue_delay_us": 10000001}',
    '1:24: max_queue_delay_us is 10000001; it must be an integer number of microseconds from 0 to 10000000',
  ],
  ['{"instances": 2}', '1:15: instances is 2; it must be an object {…}'],
  ['{"instances": {"min": 0}}', '1:23: instances.min is 0; it must be an integer from 1 to 64'],
  ['{"instances": {"max": 65}}', '1:23: instances.max is 65; it must be an integer from 1 to 64'],
  [
    '{"instances": {"min": 3, "max": 2}}',
    '1:23: instances.min is 3 and instances.max 2; min must not be above max',
    'beyond the schema',
  ],
  ['{"devices": "cpu"}', '1:13: devices is "cpu"; it must be a list of device names, such as ["cpu"]'],
  ['{"devices": []}', '1:13: devices is []; it must be a list of at least one device name'],
  ['{"devices": [""]}', '1:14: devices[0] is ""; it must be the name of a device, such as "cpu" or "cuda:0"'],
  ['{"devices": ["cpu", "cpu"]}', '1:13: devices is ["cpu","cpu"]; it must be a list that names each device once'],
  ['{"slo_ms": 0}', '1:12: slo_ms is 0; it must be an integer number of milliseconds from 1 to 86400000'],
  [
    '{"run_timeout_ms": 99}',
    '1:20: run_timeout_ms is 99; it must be an integer number of milliseconds from 100 to 86400000',
  ],
  ['{"queue": {"max_rows": 0}}', '1:24: queue.max_rows is 0; it must be an integer from 1 to 1048576'],
  [
    '{"max_batch_size": 64, "queue": {"max_rows": 32}}',
    '1:46: queue.max_rows is 32 and max_batch_size 64; the queue must hold a full batch',
    'beyond the schema',
  ],
  [
    '{"queue": {"max_bytes": "64 mebi"}}',
    '1:25: queue.max_bytes is "64 mebi"; it must be a number of bytes or a string such as "64MiB" or "2GB", from 4KiB to 1TiB',
  ],
  [
    '{"queue": {"max_bytes": "1.5GB"}}',
    '1:25: queue.max_bytes is "1.5GB"; it must be a number of bytes or a string such as "64MiB" or "2GB", from 4KiB to 1TiB',
  ],
  [
    '{"queue": {"max_bytes": "2TiB"}}',
    '1:25: queue.max_bytes is "2TiB"; it must be a number of bytes or a string such as "64MiB" or "2GB", from 4KiB to 1TiB',
    'beyond the schema',
  ],
  ['{"response_cache": true}', '1:20: response_cache is true; it must be an object {…}'],
  [
    '{"response_cache": {"ttl_s": 0}}',
    '1:30: response_cache.ttl_s is 0; it must be an integer number of seconds from 1 to 2592000',
  ],
  [
    '{"memory_budget_bytes": 1000}',
    '1:25: memory_budget_bytes is 1000; it must be a number of bytes or a string such as "64MiB" or "2GB", from 1MiB to 16TiB',
  ],
  [
    '{"version_policy": "newest"}',
    '1:20: version_policy is "newest"; it must be {"latest": 2}, "all" or {"specific": [3, 5]}',
  ],
  ['{"version_policy": {"latest": 0}}', '1:31: version_policy.latest is 0; it must be an integer from 1 to 1000'],
  [
    '{"version_policy": {"specific": []}}',
    '1:33: version_policy.specific is []; it must be a list of 1 to 1000 versions',
  ],
  [
    '{"version_policy": {"specific": ["01"]}}',
    '1:34: version_policy.specific[0] is "01"; it must be a version such as 3 or "3"',
  ],
  [
    '{"version_policy": {"specific": ["9999999999999999"]}}',
    '1:34: version_policy.specific[0] is "9999999999999999"; it must be a version such as 3 or "3"',
    'beyond the schema',
  ],
  ['{"version_policy": {"latest": 1, "x": 1}}', '1:34: unknown key "x" in version_policy'],
  ['{"runtime": {"intra_op_threads": 0}}', '1:34: runtime.intra_op_threads is 0; it must be an integer from 1 to 1024'],
  [
    '{"runtime": {"graph_optimization": "max"}}',
    '1:36: runtime.graph_optimization is "max"; it must be one of "disable", "basic", "extended", "all"',
  ],
  [
    '{"runtime": {"session": {"a": true}}}',
    '1:31: runtime.session.a is true; it must be a string of at most 4096 characters or an integer; ONNX Runtime writes true and false as "1" and "0"',
  ],
  ['{"runtime": {"session": []}}', '1:25: runtime.session is []; it must be an object of option names and values'],
  [
    '{"runtime": {"provider": {"a b": "1"}}}',
    '1:27: "a b" in runtime.provider cannot be the name of an option: letters, digits and "_.:-", a letter first',
  ],
  [
    '{"runtime": {"session": {"__proto__": "1"}}}',
    '1:26: "__proto__" in runtime.session cannot be the name of an option: letters, digits and "_.:-", a letter first',
  ],
  ['{"max_batch_siz": 8}', '1:2: unknown key "max_batch_siz" (did you mean "max_batch_size"?)'],
  ['{"Max-Batch-Size": 8}', '1:2: unknown key "Max-Batch-Size" (did you mean "max_batch_size"?)'],
  ['{"slo": 8}', '1:2: unknown key "slo" (did you mean "slo_ms"?)'],
  ['{"queue": {"max_row": 8}}', '1:12: unknown key "max_row" in queue (did you mean "max_rows"?)'],
  ['{"queue": {"size": 8}}', '1:12: unknown key "size" in queue; known are max_rows, max_bytes'],
  ['{"queue": {"__proto__": 8}}', '1:12: unknown key "__proto__" in queue; known are max_rows, max_bytes'],
  [
    '{"default_model_filename": "../x.onnx"}',
    '1:28: default_model_filename is "../x.onnx"; it must be the name of an .onnx file, without a directory',
  ],
  ['{"split_large_requests": 1}', '1:26: split_large_requests is 1; it must be true or false'],
  ['{"priority_levels": 17}', '1:21: priority_levels is 17; it must be an integer from 0 to 16'],
  ['{"default_priority_level": 0}', '1:28: default_priority_level is 0; it must be an integer from 1 to 16'],
  ['{"inputs": []}', '1:2: inputs is not supported by this version; remove it'],
  ['{"inputs": []}', '1:2: inputs is not supported by this version; remove it'],
  [
    '{"outputs": {}}',
    '1:13: outputs is {}; it must be a list of at most 256 entries such as {"name": "scores", "labels": "labels.txt"}',
  ],
  ['{"outputs": [{"name": ""}]}', '1:23: outputs[0].name is ""; it must be the name of an output of the model'],
  [
    '{"outputs": [{"name": "y", "labels": "../x"}]}',
    '1:38: outputs[0].labels is "../x"; it must be the name of a file in the directory of the model',
  ],
  [
    '{"outputs": [{"name": "y", "postprocess": [{"op": "softmx"}]}]}',
    '1:51: outputs[0].postprocess[0].op is "softmx"; it must be a step such as {"op": "softmax"}, with its own keys; ops are softmax, sigmoid, argmax, top_k, normalize, mean_pool, dequantize, ctc_decode',
  ],
  [
    '{"outputs": [{"name": "y", "postprocess": [{"op": "top_k"}]}]}',
    '1:44: outputs[0].postprocess[0].k is missing; it must be an integer from 1 to 10000',
  ],
  [
    '{"outputs": [{"name": "y", "postprocess": [{"op": "top_k", "k": 3}, {"op": "softmax"}]}]}',
    '1:69: outputs[0].postprocess goes on behind top_k, which gives texts; it must be the last step',
    'beyond the schema',
  ],
  [
    '{"outputs": [{"name": "y", "postprocess": [{"op": "softmax", "axes": 1}]}]}',
    '1:62: unknown key "axes" in outputs[0].postprocess[0]',
  ],
  [
    '{"outputs": [{"name": "y"}, {"name": "y"}]}',
    '1:13: outputs is [{"name":"y"},{"name":"y"}]; it must be a list that names each output once',
    'beyond the schema',
  ],
  ['{"outputs": [{"name": "y", "label": "x"}]}', '1:28: unknown key "label" in outputs[0] (did you mean "labels"?)'],
  [
    '{"transform": {}}',
    '1:15: transform.module is missing; it must be the name of an ES module (.mjs, .js) in the directory of the model',
  ],
  [
    '{"transform": {"module": "../t.mjs", "inputs": [{"name": "x", "datatype": "FP32", "shape": []}]}}',
    '1:26: transform.module is "../t.mjs"; it must be the name of an ES module (.mjs, .js) in the directory of the model',
  ],
  [
    '{"transform": {"module": "t.mjs"}}',
    '1:15: transform is {"module":"t.mjs"}; it must be an object with inputs, outputs or both',
    'beyond the schema',
  ],
  [
    '{"transform": {"module": "t.mjs", "inputs": [{"name": "x", "datatype": "STRING", "shape": [1]}]}}',
    '1:72: transform.inputs[0].datatype is "STRING"; it must be a datatype: BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16, BYTES',
  ],
  [
    '{"response_cache": {"enable": true}, "transform": {"module": "t.js", "outputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}}',
    '1:20: response_cache cannot be used with transform; remove one of them',
    'beyond the schema',
  ],
  [
    '{"warmup": true}',
    '1:12: warmup is true; it must be a list of at most 32 entries such as {"data": "zeros", "rows": 4} or {"request": "one.json"}',
  ],
  [
    '{"warmup": [{"request": "../x"}]}',
    '1:25: warmup[0].request is "../x"; it must be the name of a file in the directory "warmup" of the model',
  ],
  [
    '{"warmup": [{"data": "ones"}]}',
    '1:13: warmup[0] is {"data":"ones"}; it must be an entry such as {"data": "zeros", "rows": 4} or {"request": "one.json"}',
  ],
  ['{"source": {}}', '1:2: source is not supported by this version; remove it'],
  ['{"instances": {"target_rows": 0}}', '1:31: instances.target_rows is 0; it must be an integer from 1 to 4096'],
];

for (const [text, message, beyond] of refused) {
  test(`the configuration ${text} is refused with its place and reason`, () => {
    assert.deepEqual(problemsOf(text), [`config.json:${message}`]);
  });
  test(`the schema ${beyond === undefined ? 'also refuses' : 'has no words to refuse'} ${text}`, () => {
    assert.equal(acceptsJson(modelConfigJsonSchema(), JSON.parse(text)), beyond !== undefined);
  });
}

test('a table of more options than the limit is refused by parser and schema', () => {
  const session = Object.fromEntries(Array.from({ length: 129 }, (_, index) => [`option_${index}`, '1']));
  const value = { runtime: { session } };
  assert.match(problemsOf(JSON.stringify(value)).join(), /it must be an object of at most 128 options$/);
  assert.equal(acceptsJson(modelConfigJsonSchema(), value), false);
});

for (const key of ['__proto__', 'constructor', 'toString', 'hasOwnProperty']) {
  test(`the key ${key} is an unknown key like any other and reaches no prototype`, () => {
    const text = `{"${key}": {"max_batch_size": 1}}`;
    assert.match(
      problemsOf(text).join(),
      new RegExp(`^config.json:1:2: unknown key "${key}"; known are max_batch_size, `),
    );
    assert.equal(acceptsJson(modelConfigJsonSchema(), JSON.parse(text)), false);
    assert.equal(Reflect.get({}, 'max_batch_size'), undefined);
  });
}

test('all faults of a file are told in the order of its lines', () => {
  const text = '{\n  "source": 1,\n  "max_batch_size": 1e999,\n  "queue": {\n    "max_rowz": 1\n  }\n}\n';
  assert.deepEqual(problemsOf(text), [
    'config.json:2:3: source is not supported by this version; remove it',
    'config.json:3:21: max_batch_size is Infinity; it must be an integer from 0 to 4096',
    'config.json:5:5: unknown key "max_rowz" in queue (did you mean "max_rows"?)',
  ]);
});

test('a file of nothing but faults is answered with the first twenty, each of bounded length', () => {
  const keys = Array.from({ length: 5000 }, (_, index) => `"${'k'.repeat(100)}${index}": 0`);
  const problems = problemsOf(`{${keys.join(',')}}`);
  assert.equal(problems.length, 20);
  assert.ok(problems.every((problem) => problem.length < 500));
});

test('a file over 1 MiB is refused without being read as JSON', () => {
  const bytes = Buffer.alloc(MIB + 1, ' ');
  assert.deepEqual(problemsOf(bytes), ['config.json:1:1: is 1048577 bytes long; at most 1048576 are read']);
});

test('without a file, and with an empty object, every default that needs no signature is there', () => {
  assert.deepEqual(configOf({}), {
    maxBatchSize: undefined,
    splitLargeRequests: true,
    maxQueueDelayUs: 0,
    instances: { min: 1, max: 1, targetRows: undefined },
    devices: undefined,
    sloMs: undefined,
    priorities: undefined,
    idleUnloadS: undefined,
    runTimeoutMs: undefined,
    queue: { maxRows: 1024, maxBytes: 256 * MIB },
    responseCache: undefined,
    memoryBudgetBytes: undefined,
    versionPolicy: { kind: 'latest', count: 1 },
    modelFilename: 'model.onnx',
    outputs: [],
    transform: undefined,
    warmUps: [],
    tensors: [],
    runtime: { intraOpThreads: undefined, graphOptimization: 'all', session: {}, provider: {} },
  });
  assert.deepEqual(DEFAULT_MODEL_CONFIG, configOf({}));
});

test('every key of the file arrives in its field', () => {
  const config = configOf({
    max_batch_size: 32,
    split_large_requests: false,
    max_queue_delay_us: 500,
    instances: { min: 2, max: 4, target_rows: 16 },
    devices: ['cpu'],
    slo_ms: 250,
    priority_levels: 4,
    default_priority_level: 2,
    idle_unload_s: 600,
    run_timeout_ms: 1500,
    queue: { max_rows: 128, max_bytes: '64MiB' },
    response_cache: { enable: true, max_bytes: '1MiB', ttl_s: 60 },
    memory_budget_bytes: '2GB',
    version_policy: { specific: [10, '9', 10] },
    default_model_filename: 'net.onnx',
    outputs: [{ name: 'y', labels: 'labels.txt', postprocess: [{ op: 'softmax' }] }, { name: 'z' }],
    warmup: [{ request: 'one.json' }, { data: 'random', rows: 2, runs: 3, inputs: [{ name: 'x', dims: [4] }] }],
    runtime: { intra_op_threads: 2, graph_optimization: 'basic', session: { a: '1' }, provider: { b: 2 } },
  });
  assert.deepEqual(config, {
    maxBatchSize: 32,
    splitLargeRequests: false,
    maxQueueDelayUs: 500,
    instances: { min: 2, max: 4, targetRows: 16 },
    devices: ['cpu'],
    sloMs: 250,
    priorities: { levels: 4, default: 2 },
    idleUnloadS: 600,
    runTimeoutMs: 1500,
    queue: { maxRows: 128, maxBytes: 64 * MIB },
    responseCache: { maxBytes: MIB, ttlS: 60 },
    memoryBudgetBytes: 2e9,
    versionPolicy: { kind: 'specific', versions: ['10', '9'] },
    modelFilename: 'net.onnx',
    outputs: [
      { name: 'y', labels: 'labels.txt', postprocess: [{ op: 'softmax', axis: -1 }] },
      { name: 'z', labels: undefined, postprocess: [] },
    ],
    transform: undefined,
    warmUps: [
      { kind: 'request', file: 'one.json', runs: 1 },
      {
        kind: 'made',
        data: 'random',
        rows: 2,
        runs: 3,
        inputs: [{ name: 'x', dims: [4], data: undefined, file: undefined }],
      },
    ],
    tensors: [],
    runtime: { intraOpThreads: 2, graphOptimization: 'basic', session: { a: '1' }, provider: { b: '2' } },
  });
});

test('defaults follow their neighbours: max instances from min, rows of the queue from a large batch, the usual priority from the levels', () => {
  assert.deepEqual(configOf({ instances: { min: 3 } }).instances, { min: 3, max: 3, targetRows: undefined });
  assert.deepEqual(configOf({ instances: { max: 3 } }).instances, { min: 1, max: 3, targetRows: undefined });
  assert.equal(configOf({ max_batch_size: 4096 }).queue.maxRows, 4096);
  const usual = [1, 2, 3, 4].map((levels) => configOf({ priority_levels: levels }).priorities?.default);
  assert.deepEqual(usual, [1, 2, 2, 3]);
  assert.equal(configOf({ priority_levels: 0 }).priorities, undefined);
});

test('a transform arrives with its time and its threads, or the usual ones', () => {
  const inputs = [{ name: 'i', datatype: 'BYTES', shape: [-1] }];
  assert.deepEqual(configOf({ transform: { module: 't.mjs', inputs, timeout_ms: 500, threads: 2 } }).transform, {
    module: 't.mjs',
    inputs,
    outputs: undefined,
    timeoutMs: 500,
    threads: 2,
  });
  const { timeoutMs, threads } = configOf({ transform: { module: 't.js', outputs: inputs } }).transform ?? {};
  assert.deepEqual([timeoutMs, threads], [10_000, 1]);
});

test('a configuration is frozen at every level', () => {
  const config = configOf({ devices: ['cpu'], runtime: { session: { a: '1' } } });
  for (const part of [
    config,
    config.instances,
    config.devices,
    config.queue,
    config.versionPolicy,
    config.runtime.session,
  ]) {
    assert.ok(Object.isFrozen(part));
  }
});

test('every key in the published schema has a description', () => {
  let keys = 0;
  const visit = (schema: unknown): void => {
    if (typeof schema !== 'object' || schema === null) {
      return;
    }
    if ('properties' in schema) {
      for (const [key, property] of Object.entries(schema.properties as Record<string, { description?: unknown }>)) {
        assert.ok(
          typeof property.description === 'string' && property.description.length > 10,
          `${key} has no description`,
        );
        keys++;
      }
    }
    Object.values(schema).forEach(visit);
  };
  visit(modelConfigJsonSchema());
  assert.equal(keys, 77);
});
