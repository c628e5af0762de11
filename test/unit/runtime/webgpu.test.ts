/**
 * ONNX Runtime's WebGPU provider for real, on the software Vulkan driver that comes with Debian's package chromium.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { missingForWebGpu, SOFTWARE_DRIVER } from '../../support/webgpu.ts';
import { modelPath } from './models.ts';

test('a model on WebGPU gives the results of the CPU within 1e-4, loaded in one thread and run in another', {
  skip: missingForWebGpu() ?? false,
}, (t) => {
  const program = fileURLToPath(new URL('./fixtures/webgpu.js', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [program, modelPath('mlp'), '64', '10'], {
    encoding: 'utf8',
    env: { ...process.env, VK_DRIVER_FILES: SOFTWARE_DRIVER },
  });
  assert.equal(status, 0, stderr);
  const difference: unknown = JSON.parse(stdout);
  t.diagnostic(`greatest difference: ${difference}`);
  assert(typeof difference === 'number' && difference < 1e-4, stdout);
});
