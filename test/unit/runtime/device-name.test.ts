import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import {
  checkAvailable,
  childEnvironment,
  type DeviceProbe,
  findVulkanDrivers,
  meantDevices,
  parseDeviceName,
} from '../../../src/runtime/device-name.ts';

const refusal =
  (code: string, ...patterns: RegExp[]) =>
  (error: unknown) =>
    error instanceof BatchportError && error.code === code && patterns.every((pattern) => pattern.test(error.message));

test('known names are read, with the full form as text', () => {
  assert.deepEqual(parseDeviceName('cpu'), { kind: 'cpu', index: 0, text: 'cpu' });
  assert.deepEqual(parseDeviceName('cpu:0-3'), { kind: 'cpu', index: 0, cores: [0, 1, 2, 3], text: 'cpu:0-3' });
  assert.deepEqual(parseDeviceName('cpu:2,0'), { kind: 'cpu', index: 0, cores: [0, 2], text: 'cpu:0,2' });
  assert.deepEqual(parseDeviceName('cpu:3,0-2'), { kind: 'cpu', index: 0, cores: [0, 1, 2, 3], text: 'cpu:0-3' });
  assert.deepEqual(parseDeviceName('cuda'), { kind: 'cuda', index: 0, text: 'cuda:0' });
  assert.deepEqual(parseDeviceName('cuda:7'), { kind: 'cuda', index: 7, text: 'cuda:7' });
  assert.deepEqual(parseDeviceName('tensorrt:1'), { kind: 'tensorrt', index: 1, text: 'tensorrt:1' });
  assert.deepEqual(parseDeviceName('webgpu'), { kind: 'webgpu', index: 0, text: 'webgpu:0' });
});

test('a model means devices by their names, or all that are alike', () => {
  const devices = ['cpu', 'cpu:0-1', 'cuda:0', 'cuda:1', 'tensorrt:1', 'webgpu:0'].map(parseDeviceName);
  const meant = (name: string) => meantDevices(name, devices).map(({ text }) => text);
  assert.deepEqual(meant('cpu'), ['cpu']);
  assert.deepEqual(meantDevices('cpu', devices.slice(1)), [devices[1]]);
  assert.deepEqual(meant('cpu:1,0'), ['cpu:0-1']);
  assert.deepEqual(meant('cuda'), ['cuda:0']);
  assert.deepEqual(meant('gpu'), ['cuda:0', 'cuda:1', 'tensorrt:1']);
  assert.deepEqual(meant('gpu:1'), ['cuda:1', 'tensorrt:1']);
  for (const name of ['gpu:2', 'gpu:x', 'gpux', 'cuda:9', 'cuda:x', 'nope', '__proto__', '']) {
    assert.deepEqual(meant(name), [], name);
  }
});

test('a name that is not one lists the known ones and never falls back', () => {
  for (const name of ['nope', '', 'CPU:0', 'cpux', '__proto__', 'constructor', ':0', 'cuda 0', 'gpu:1']) {
    assert.throws(
      () => parseDeviceName(name),
      refusal('BAD_REQUEST', /cpu, cpu:CORES.*cuda:N, tensorrt:N, webgpu:N/),
      name,
    );
  }
});

test('a misspelt name is answered with the nearest', () => {
  for (const [name, meant] of [
    ['CUDA', /Did you mean cuda\?/],
    ['cdua:1', /Did you mean cuda:1\?/],
    ['Tensor-RT', /Did you mean tensorrt\?/],
    ['trt:2', /Did you mean tensorrt:2\?/],
    ['gpu', /Did you mean cuda\?/],
    ['web-gpu', /Did you mean webgpu\?/],
  ] as const) {
    assert.throws(() => parseDeviceName(name), refusal('BAD_REQUEST', meant), name);
  }
});

test('a number or a set of cores that is not one is refused', () => {
  for (const name of ['cuda:', 'cuda:-1', 'cuda:x', 'cuda:1.5', 'cuda:0x1', 'cuda:99999', 'tensorrt:1,2']) {
    assert.throws(() => parseDeviceName(name), refusal('BAD_REQUEST', /a number from 0 to/), name);
  }
  for (const name of ['cpu:', 'cpu:3-1', 'cpu:a', 'cpu:0-', 'cpu:0,,1', 'cpu:100000']) {
    assert.throws(() => parseDeviceName(name), refusal('BAD_REQUEST', /is not a device/), name);
  }
});

test('a process of a CUDA device sees that device alone', () => {
  const cuda = childEnvironment(parseDeviceName('cuda:3'), {});
  assert.equal(cuda.CUDA_VISIBLE_DEVICES, '3');
  assert.equal(cuda.CUDA_DEVICE_ORDER, 'PCI_BUS_ID');
  const chosen = childEnvironment(parseDeviceName('tensorrt:1'), { CUDA_VISIBLE_DEVICES: '4, GPU-0123' });
  assert.equal(chosen.CUDA_VISIBLE_DEVICES, 'GPU-0123');
  assert.equal(chosen.CUDA_DEVICE_ORDER, undefined, "the list's order stays that of its writer");
  assert.equal(childEnvironment(parseDeviceName('cpu'), {}).CUDA_VISIBLE_DEVICES, undefined);
});

test('a CUDA device beyond CUDA_VISIBLE_DEVICES is refused', () => {
  assert.throws(
    () => childEnvironment(parseDeviceName('cuda:2'), { CUDA_VISIBLE_DEVICES: '0,1' }),
    refusal('NOT_SUPPORTED', /cuda:2/, /leaves 2/),
  );
  assert.throws(
    () => childEnvironment(parseDeviceName('cuda'), { CUDA_VISIBLE_DEVICES: '' }),
    refusal('NOT_SUPPORTED', /leaves 0/),
  );
});

test("ONNX Runtime's reports are off in every device's process unless the user decides otherwise", () => {
  for (const name of ['cpu', 'cuda:0', 'webgpu:0']) {
    assert.equal(childEnvironment(parseDeviceName(name), {}).ORT_DISABLE_TELEMETRY, '1');
  }
  assert.equal(childEnvironment(parseDeviceName('cpu'), { ORT_DISABLE_TELEMETRY: '0' }).ORT_DISABLE_TELEMETRY, '0');
});

/** A machine that has everything. */
const complete: DeviceProbe = {
  checkProvider: () => undefined,
  canLoadLibrary: () => true,
  vulkanDrivers: () => ['driver.json'],
  cores: () => [0, 1, 2, 3],
};

test('a device of a machine that has everything is available', () => {
  for (const name of ['cpu', 'cpu:0-3', 'cuda:0', 'tensorrt:0', 'webgpu:0']) {
    checkAvailable(parseDeviceName(name), complete);
  }
});

test('what a device lacks is named all at once, with how to get it', () => {
  const bare: DeviceProbe = {
    checkProvider: (provider) => {
      throw new BatchportError('NOT_SUPPORTED', `${provider} needs its library.`);
    },
    canLoadLibrary: () => false,
    vulkanDrivers: () => [],
    cores: () => [0, 1],
  };
  const check = (name: string) => () => checkAvailable(parseDeviceName(name), bare);
  assert.throws(
    check('cuda:7'),
    refusal('NOT_SUPPORTED', /^Device cuda:7 /, /cuda needs its library/, /libcuda\.so\.1.*install/),
  );
  assert.throws(
    check('tensorrt'),
    refusal('NOT_SUPPORTED', /^Device tensorrt:0 /, /libcuda\.so\.1/, /libnvinfer\.so\.10.*install/),
  );
  assert.throws(check('webgpu'), refusal('NOT_SUPPORTED', /libvulkan\.so\.1.*libvulkan1/));
  assert.throws(
    () => checkAvailable(parseDeviceName('webgpu'), { ...complete, vulkanDrivers: () => [] }),
    refusal('NOT_SUPPORTED', /no Vulkan driver/, /VK_DRIVER_FILES/),
  );
  assert.throws(() => checkAvailable(parseDeviceName('webgpu:1'), complete), refusal('NOT_SUPPORTED', /only webgpu:0/));
});

test('cores that the process may not use are named', () => {
  assert.throws(
    () => checkAvailable(parseDeviceName('cpu:2-5'), complete),
    refusal('NOT_SUPPORTED', /Cores 4-5 are not there.*0-3/),
  );
});

test('the CPU of this machine is available', () => {
  checkAvailable(parseDeviceName('cpu'));
});

test('Vulkan drivers are those named in the environment, else those of the data folders', (t) => {
  const root = mkdtempSync(path.join(tmpdir(), 'batchport-vulkan-'));
  t.after(() => rmSync(root, { recursive: true }));
  const folder = path.join(root, 'vulkan/icd.d');
  mkdirSync(folder, { recursive: true });
  const driver = path.join(folder, 'one.json');
  writeFileSync(driver, '{}');
  writeFileSync(path.join(folder, 'notes.txt'), '');
  assert.deepEqual(findVulkanDrivers({ VK_DRIVER_FILES: `${driver}:${root}/absent.json` }), [driver]);
  assert.deepEqual(findVulkanDrivers({ VK_ICD_FILENAMES: driver }), [driver]);
  assert.deepEqual(findVulkanDrivers({ VK_DRIVER_FILES: folder }), [driver]);
  assert(findVulkanDrivers({ XDG_DATA_DIRS: root }).includes(driver));
  assert.deepEqual(findVulkanDrivers({ XDG_DATA_DIRS: root, VK_DRIVER_FILES: `${root}/absent.json` }), []);
});
