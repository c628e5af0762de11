import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import { libraryDirectory } from '../../../src/runtime/library.ts';
import { checkProvider, type ProviderRequest, providerSteps } from '../../../src/runtime/provider.ts';
import { sessionConfigEntries, withSessionOptions } from '../../../src/runtime/session-options.ts';
import { CPU } from './models.ts';

const refusal = (code: string, pattern: RegExp) => (error: unknown) =>
  error instanceof BatchportError && error.code === code && pattern.test(error.message);

const request = (rest: Partial<ProviderRequest> & Pick<ProviderRequest, 'provider'>): ProviderRequest => ({
  deviceId: 0,
  ...rest,
});

test('the CPU needs no provider to be appended', () => {
  assert.deepEqual(providerSteps(request({ provider: 'cpu', arenaMaxBytes: 1000 })), []);
});

test('CUDA gets its device, an arena that grows as asked, and a search for convolutions that does not stall on new shapes', () => {
  assert.deepEqual(providerSteps(request({ provider: 'cuda', deviceId: 3 })), [
    {
      provider: 'cuda',
      options: { arena_extend_strategy: 'kSameAsRequested', cudnn_conv_algo_search: 'HEURISTIC', device_id: '3' },
    },
  ]);
});

test('a memory limit becomes gpu_mem_limit', () => {
  const [step] = providerSteps(request({ provider: 'cuda', arenaMaxBytes: 6 * 2 ** 30 }));
  assert.equal(step?.options.gpu_mem_limit, '6442450944');
});

test('given options go over the defaults', () => {
  const providerOptions = { cudnn_conv_algo_search: 'EXHAUSTIVE', enable_cuda_graph: '1' };
  const [step] = providerSteps(request({ provider: 'cuda', providerOptions }));
  assert.equal(step?.options.cudnn_conv_algo_search, 'EXHAUSTIVE');
  assert.equal(step?.options.enable_cuda_graph, '1');
});

test('TensorRT comes before CUDA on the same device, and each gets its own options', () => {
  const providerOptions = {
    trt_engine_cache_enable: '1',
    trt_engine_cache_path: '/cache',
    trt_fp16_enable: '1',
    trt_profile_min_shapes: 'x:1x3',
    prefer_nhwc: '1',
  };
  const steps = providerSteps(request({ provider: 'tensorrt', deviceId: 1, arenaMaxBytes: 4096, providerOptions }));
  assert.deepEqual(steps, [
    {
      provider: 'tensorrt',
      options: {
        trt_engine_cache_enable: '1',
        trt_engine_cache_path: '/cache',
        trt_fp16_enable: '1',
        trt_profile_min_shapes: 'x:1x3',
        device_id: '1',
      },
    },
    {
      provider: 'cuda',
      options: {
        arena_extend_strategy: 'kSameAsRequested',
        cudnn_conv_algo_search: 'HEURISTIC',
        prefer_nhwc: '1',
        device_id: '1',
        gpu_mem_limit: '4096',
      },
    },
  ]);
});

test('options that other settings decide are refused, naming the setting', () => {
  for (const [key, setting] of [
    ['device_id', /the device name/],
    ['gpu_mem_limit', /memory_budget_bytes/],
  ] as const) {
    assert.throws(
      () => providerSteps(request({ provider: 'cuda', providerOptions: { [key]: '1' } })),
      refusal('BAD_REQUEST', setting),
    );
  }
});

test('options that a provider has no use for are refused, naming them', () => {
  assert.throws(
    () => providerSteps(request({ provider: 'cpu', providerOptions: { trt_fp16_enable: '1' } })),
    refusal('NOT_SUPPORTED', /trt_fp16_enable/),
  );
  assert.throws(
    () => providerSteps(request({ provider: 'cuda', providerOptions: { trt_fp16_enable: '1' } })),
    refusal('NOT_SUPPORTED', /trt_fp16_enable.*TensorRT/),
  );
  assert.throws(
    () => providerSteps(request({ provider: 'webgpu', arenaMaxBytes: 1 })),
    refusal('NOT_SUPPORTED', /WebGPU.*memory_budget_bytes/),
  );
});

test('WebGPU gets the options given', () => {
  const providerOptions = { 'ep.webgpuexecutionprovider.validationMode': 'full' };
  assert.deepEqual(providerSteps(request({ provider: 'webgpu', providerOptions })), [
    { provider: 'webgpu', options: providerOptions },
  ]);
});

test('a provider whose files are missing is refused, naming the files and how to get them', (t) => {
  if (existsSync(path.join(libraryDirectory(), 'libonnxruntime_providers_cuda.so'))) {
    t.skip('the CUDA provider is installed');
    return;
  }
  assert.throws(
    () => checkProvider('cuda'),
    refusal(
      'NOT_SUPPORTED',
      /libonnxruntime_providers_cuda\.so.*(ONNXRUNTIME_NODE_INSTALL=cuda12 node \/.*\/install\.js.*)?BATCHPORT_ONNXRUNTIME_DIR/,
    ),
  );
  assert.throws(() => checkProvider('tensorrt'), refusal('NOT_SUPPORTED', /libonnxruntime_providers_tensorrt\.so/));
  checkProvider('cpu');
});

test('threads do not spin unless they are told to', () => {
  const entries = sessionConfigEntries(CPU);
  assert.equal(entries['session.intra_op.allow_spinning'], '0');
  assert.equal(entries['session.inter_op.allow_spinning'], '0');
  const spinning = sessionConfigEntries({ ...CPU, sessionConfig: { 'session.intra_op.allow_spinning': '1' } });
  assert.equal(spinning['session.intra_op.allow_spinning'], '1');
});

test('on the CPU a session takes the arena of its environment, with a limit or without', () => {
  for (const limit of [{}, { arenaMaxBytes: 1 }]) {
    assert.equal(sessionConfigEntries({ ...CPU, ...limit })['session.use_env_allocators'], '1');
  }
});

test('a number of threads that is not one is refused', () => {
  for (const intraOpThreads of [0, -1, 1.5, Number.NaN, 100_000]) {
    assert.throws(
      () => withSessionOptions({ ...CPU, intraOpThreads }, () => undefined),
      refusal('BAD_REQUEST', /intra_op_threads/),
    );
  }
});
