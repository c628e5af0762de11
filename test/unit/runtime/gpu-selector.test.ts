import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseDeviceName } from '../../../src/runtime/device-name.ts';
import { gpuSelector } from '../../../src/runtime/gpu-selector.ts';

const selector = (name: string, visible?: string) =>
  gpuSelector(parseDeviceName(name), visible === undefined ? {} : { CUDA_VISIBLE_DEVICES: visible });

test('a GPU is the one of its number, or of the entry of that number in CUDA_VISIBLE_DEVICES', () => {
  assert.deepEqual(selector('cuda:2'), { index: 2 });
  assert.deepEqual(selector('tensorrt:0'), { index: 0 });
  assert.deepEqual(selector('cuda:1', '5, 3'), { index: 3 });
  assert.deepEqual(selector('cuda:0', 'GPU-12ab,1'), { uuid: 'GPU-12ab' });
  assert.equal(selector('cuda:2', '5,3'), undefined);
});

test('other devices are none that the driver knows', () => {
  for (const name of ['cpu', 'cpu:0', 'webgpu:0']) assert.equal(selector(name), undefined);
});
