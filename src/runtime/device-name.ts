/**
 * Device names: `cpu`, `cpu:0-3` or `cpu:0,2` (a set of cores), `cuda:N`, `tensorrt:N`, `webgpu:N` (N is 0 where absent).
 *
 * A name is what it says or an error; nothing falls back to another device. Parsing is pure; `checkAvailable` looks at this
 * machine and only finds out what is certainly missing; `startDevice` finds out more, in the device's process.
 */
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { BatchportError } from '../config/errors.ts';
import { nearestName } from '../config/nearest.ts';
import { formatCoreSet, getAffinity, parseCoreSet } from '../system/affinity.ts';
import { canLoadLibrary, NO_TELEMETRY } from './library.ts';
import { checkProvider, PROVIDERS, type ProviderName } from './provider.ts';

export interface Device {
  /** Also the name of the execution provider. */
  readonly kind: ProviderName;
  /** Which of the machine's devices of this kind; 0 for cpu. */
  readonly index: number;
  /** Cores the process is bound to, ascending; absent where it may use all. Only for cpu. */
  readonly cores?: readonly number[];
  /** The name in its full form: `cuda:0` for `cuda`, `cpu:0-3` for `cpu:3,0-2`. */
  readonly text: string;
}

/** What `checkAvailable` asks of the machine; replaced in tests. */
export interface DeviceProbe {
  readonly checkProvider: (provider: ProviderName) => void;
  readonly canLoadLibrary: (name: string) => boolean;
  /** Vulkan driver manifests that a Vulkan loader of this process would read. */
  readonly vulkanDrivers: () => readonly string[];
  /** Cores this process may run on. */
  readonly cores: () => readonly number[];
}

const KINDS = Object.keys(PROVIDERS) as ProviderName[];

const INDEX_MAX = 1023;

/** Names people write for a device that has another one here. */
const OTHER_NAMES: ReadonlyMap<string, ProviderName> = new Map([
  ['gpu', 'cuda'],
  ['nvidia', 'cuda'],
  ['trt', 'tensorrt'],
  ['vulkan', 'webgpu'],
]);

/** For messages and the help. */
export const DEVICE_NAMES_HELP = 'cpu, cpu:CORES (cpu:0-3, cpu:0,2), cuda:N, tensorrt:N, webgpu:N';

/** @throws BAD_REQUEST for anything else than a device name, with the known ones and the nearest. */
export function parseDeviceName(text: string): Device {
  const colon = text.indexOf(':');
  const kind = colon < 0 ? text : text.slice(0, colon);
  const detail = colon < 0 ? undefined : text.slice(colon + 1);
  if (!isKind(kind)) {
    const nearest = OTHER_NAMES.get(kind.toLowerCase()) ?? nearestName(kind, KINDS);
    const hint = nearest === undefined ? '' : ` Did you mean ${nearest}${detail === undefined ? '' : `:${detail}`}?`;
    throw new BatchportError(
      'BAD_REQUEST',
      `${JSON.stringify(text)} is not a device.${hint} Devices are ${DEVICE_NAMES_HELP}.`,
    );
  }
  if (kind === 'cpu') {
    return detail === undefined ? { kind, index: 0, text: 'cpu' } : cpuOn(text, detail);
  }
  const index = detail === undefined ? 0 : /^\d{1,4}$/.test(detail) ? Number(detail) : Number.NaN;
  if (!(index <= INDEX_MAX)) {
    throw new BatchportError(
      'BAD_REQUEST',
      `${JSON.stringify(text)} is not a device: after "${kind}:" comes a number from 0 to ${INDEX_MAX}.`,
    );
  }
  return { kind, index, text: `${kind}:${index}` };
}

/** Kinds that a `gpu` of a model's configuration may be. */
const GPU_KINDS: readonly ProviderName[] = ['cuda', 'tensorrt'];

/**
 * The devices that a name in a model's configuration means: those of that name; `cpu` where there is none of it, every CPU device; `gpu` and `gpu:N`, CUDA and TensorRT.
 */
export function meantDevices(name: string, devices: readonly Device[]): Device[] {
  const gpu = /^gpu(?::(\d{1,4}))?$/.exec(name);
  if (gpu !== null) {
    return devices.filter(({ kind, index }) => {
      return GPU_KINDS.includes(kind) && (gpu[1] === undefined || Number(gpu[1]) === index);
    });
  }
  const full = fullName(name);
  const named = devices.filter(({ text }) => text === full);
  return named.length === 0 && name === 'cpu' ? devices.filter(({ kind }) => kind === 'cpu') : named;
}

function fullName(name: string): string {
  try {
    return parseDeviceName(name).text;
  } catch {
    return name;
  }
}

/**
 * Variables to set in the environment of the device's process, over those it inherits. There a CUDA or TensorRT device has the number 0, since the
 * process sees no other.
 *
 * @param parent environment the process would inherit; a list in its CUDA_VISIBLE_DEVICES is what N counts through
 * @throws NOT_SUPPORTED when that list has no N-th device
 */
export function childEnvironment(
  device: Device,
  parent: Readonly<Record<string, string | undefined>> = process.env,
): Record<string, string> {
  const common = { [NO_TELEMETRY.name]: parent[NO_TELEMETRY.name] ?? NO_TELEMETRY.value };
  if (device.kind !== 'cuda' && device.kind !== 'tensorrt') {
    return common;
  }
  const list = parent.CUDA_VISIBLE_DEVICES;
  if (list === undefined) {
    // The order that nvidia-smi and NVML count in; CUDA's own puts the fastest device first.
    const order = parent.CUDA_DEVICE_ORDER ?? 'PCI_BUS_ID';
    return { ...common, CUDA_VISIBLE_DEVICES: String(device.index), CUDA_DEVICE_ORDER: order };
  }
  const visible = list
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '');
  const chosen = visible[device.index];
  if (chosen === undefined) {
    throw new BatchportError(
      'NOT_SUPPORTED',
      `Device ${device.text} is not there: CUDA_VISIBLE_DEVICES=${JSON.stringify(list)} leaves ${visible.length} device(s), ` +
        'counted from 0.',
    );
  }
  return { ...common, CUDA_VISIBLE_DEVICES: chosen };
}

/**
 * Checks that nothing this device needs is certainly missing. Call it with the environment that the device's process will have.
 *
 * @throws NOT_SUPPORTED naming the device, all that is missing, and how to get it.
 */
export function checkAvailable(device: Device, probe: DeviceProbe = machineProbe): void {
  const missing: string[] = [];
  try {
    probe.checkProvider(device.kind);
  } catch (error) {
    if (!(error instanceof BatchportError)) {
      throw error;
    }
    missing.push(error.message);
  }
  switch (device.kind) {
    case 'cpu': {
      const usable = probe.cores();
      const others = device.cores?.filter((core) => !usable.includes(core)) ?? [];
      if (others.length > 0) {
        missing.push(
          `${others.length === 1 ? 'Core' : 'Cores'} ${formatCoreSet(others)} ${others.length === 1 ? 'is' : 'are'} not there or not allowed for ` +
            `this process, which may use ${formatCoreSet(usable)}.`,
        );
      }
      break;
    }
    case 'cuda':
    case 'tensorrt':
      if (!probe.canLoadLibrary('libcuda.so.1')) {
        missing.push(
          'The NVIDIA driver is missing (libcuda.so.1): install it, or in a container start that with access to the GPU ' +
            '(docker run --gpus).',
        );
      }
      if (device.kind === 'tensorrt' && !probe.canLoadLibrary('libnvinfer.so.10')) {
        missing.push('TensorRT 10 is missing (libnvinfer.so.10): install it, or add its folder to LD_LIBRARY_PATH.');
      }
      break;
    case 'webgpu':
      if (device.index !== 0) {
        missing.push('ONNX Runtime chooses the WebGPU adapter itself: only webgpu:0 exists.');
      }
      if (!probe.canLoadLibrary('libvulkan.so.1')) {
        missing.push('The Vulkan loader is missing (libvulkan.so.1): install the package libvulkan1.');
      } else if (probe.vulkanDrivers().length === 0) {
        missing.push(
          "There is no Vulkan driver: install the GPU's, or name the manifest of one in VK_DRIVER_FILES (a software driver " +
            "is in Debian's package chromium: /usr/lib/chromium/vk_swiftshader_icd.json).",
        );
      }
      break;
  }
  if (missing.length > 0) {
    throw new BatchportError('NOT_SUPPORTED', `Device ${device.text} is not available. ${missing.join(' ')}`);
  }
}

const machineProbe: DeviceProbe = {
  checkProvider,
  canLoadLibrary,
  vulkanDrivers: () => findVulkanDrivers(process.env),
  cores: getAffinity,
};

/** Vulkan driver manifests, by the rules of the Vulkan loader: named files replace the search of the system's folders. */
export function findVulkanDrivers(environment: Readonly<Record<string, string | undefined>>): string[] {
  const named = environment.VK_DRIVER_FILES ?? environment.VK_ICD_FILENAMES;
  const folders = [
    ...(environment.XDG_DATA_DIRS ?? '/usr/local/share:/usr/share')
      .split(':')
      .map((dir) => path.join(dir, 'vulkan/icd.d')),
    '/etc/vulkan/icd.d',
  ];
  const entries =
    named === undefined ? [...folders, ...(environment.VK_ADD_DRIVER_FILES?.split(':') ?? [])] : named.split(':');
  return entries.flatMap((entry) => {
    if (entry.endsWith('.json')) {
      return existsSync(entry) ? [entry] : [];
    }
    return manifestsIn(entry);
  });
}

function manifestsIn(folder: string): string[] {
  try {
    return readdirSync(folder)
      .filter((name) => name.endsWith('.json'))
      .map((name) => path.join(folder, name));
  } catch {
    // A folder that is not there or may not be read holds no driver for us.
    return [];
  }
}

function isKind(text: string): text is ProviderName {
  return Object.hasOwn(PROVIDERS, text);
}

function cpuOn(text: string, detail: string): Device {
  let cores: number[];
  try {
    cores = parseCoreSet(detail);
  } catch (cause) {
    throw new BatchportError('BAD_REQUEST', `${JSON.stringify(text)} is not a device: ${(cause as Error).message}.`, {
      cause,
    });
  }
  return { kind: 'cpu', index: 0, cores, text: `cpu:${formatCoreSet(cores)}` };
}
