/**
 * ONNX Runtime's WebGPU provider for real, on the software Vulkan driver that comes with Debian's package chromium.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { canLoadLibrary } from '../../../src/runtime/library.ts';
import { modelPath } from './models.ts';

const DRIVER = '/usr/lib/chromium/vk_swiftshader_icd.json';

test('a model on WebGPU gives the results of the CPU within 1e-4, loaded in one thread and run in another', (t) => {
  const missing = [
    ...(existsSync(DRIVER) ? [] : [`${DRIVER} (package chromium)`]),
    ...(canLoadLibrary('libvulkan.so.1') ? [] : ['libvulkan.so.1 (package libvulkan1)']),
  ];
  if (missing.length > 0) {
    t.skip(`missing: ${missing.join(', ')}`);
    return;
  }
  const program = fileURLToPath(new URL('./fixtures/webgpu.js', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [program, modelPath('mlp'), '64', '10'], {
    encoding: 'utf8',
    env: { ...process.env, VK_DRIVER_FILES: DRIVER },
  });
  assert.equal(status, 0, stderr);
  const difference: unknown = JSON.parse(stdout);
  t.diagnostic(`greatest difference: ${difference}`);
  assert(typeof difference === 'number' && difference < 1e-4, stdout);
});
