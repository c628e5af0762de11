/**
 * Execution providers: which ones ONNX Runtime is given for a device, in which order and with which options.
 *
 * `providerSteps` is pure. A provider that is asked for is used or the load fails; nothing falls back to another device.
 * (Single operators without a kernel on the device run on the CPU: that is ONNX Runtime's rule for every provider.)
 */
import { existsSync } from 'node:fs';
import path from 'node:path';
import { BatchportError } from '../config/errors.ts';
import { CStrings } from './c-strings.ts';
import { Cells } from './cells.ts';
import { LIBRARY_VERSION } from './functions.ts';
import { ortLibrary, readPointer, readText } from './library.ts';

export type ProviderName = 'cpu' | 'cuda' | 'tensorrt' | 'webgpu';

interface ProviderInfo {
  /** As ONNX Runtime lists it among its available providers. */
  readonly ortName: string;
  /** Files that must lie beside libonnxruntime. */
  readonly files: readonly string[];
  /** OrtMemoryInfo name of the memory that the provider's tensors live in. */
  readonly memory: string;
}

export const PROVIDERS = {
  cpu: { ortName: 'CPUExecutionProvider', files: [], memory: 'Cpu' },
  cuda: {
    ortName: 'CUDAExecutionProvider',
    files: ['libonnxruntime_providers_shared.so', 'libonnxruntime_providers_cuda.so'],
    memory: 'Cuda',
  },
  tensorrt: {
    ortName: 'TensorrtExecutionProvider',
    files: [
      'libonnxruntime_providers_shared.so',
      'libonnxruntime_providers_cuda.so',
      'libonnxruntime_providers_tensorrt.so',
    ],
    memory: 'Cuda',
  },
  webgpu: {
    ortName: 'WebGpuExecutionProvider',
    files: [],
    memory: 'WebGPU_Buf',
  },
} as const satisfies Record<ProviderName, ProviderInfo>;

export interface ProviderRequest {
  readonly provider: ProviderName;
  readonly deviceId: number;
  /** Limit of the arena that runs of the session allocate from. */
  readonly arenaMaxBytes?: number;
  /** More options, over the defaults; those batchport sets itself are refused. */
  readonly providerOptions?: Readonly<Record<string, string>>;
}

/** One provider to append to the session options. The CPU provider comes last by itself and has no step. */
export interface ProviderStep {
  readonly provider: 'cuda' | 'tensorrt' | 'webgpu';
  readonly options: Readonly<Record<string, string>>;
}

const CUDA_DEFAULTS = {
  // Doubling would pass a budget long before it is used up.
  arena_extend_strategy: 'kSameAsRequested',
  // The exhaustive search (ONNX Runtime's default) runs anew for each new shape, and every batch size is one.
  cudnn_conv_algo_search: 'HEURISTIC',
};

/** Options that follow from other settings, and which setting that is. */
const OWNED_OPTIONS: Readonly<Record<string, string>> = {
  device_id: 'the device name',
  deviceId: 'the device name',
  gpu_mem_limit: 'memory_budget_bytes',
};

/**
 * The providers for a device, best first.
 *
 * TensorRT is followed by CUDA for the operators it lacks; options that start with `trt_` are TensorRT's, others CUDA's.
 *
 * @throws BAD_REQUEST for an option that another setting decides; NOT_SUPPORTED for an option or a limit the provider has no use for.
 */
export function providerSteps(request: ProviderRequest): readonly ProviderStep[] {
  const { provider, deviceId, arenaMaxBytes } = request;
  const extra = Object.entries(request.providerOptions ?? {});
  for (const [key] of extra) {
    if (Object.hasOwn(OWNED_OPTIONS, key)) {
      throw new BatchportError('BAD_REQUEST', `Provider option ${key} is set through ${OWNED_OPTIONS[key]}.`);
    }
  }
  switch (provider) {
    case 'cpu':
      if (extra.length > 0) {
        throw new BatchportError('NOT_SUPPORTED', `The CPU provider has no options; remove ${quoted(extra)}.`);
      }
      return [];
    case 'webgpu':
      if (arenaMaxBytes !== undefined) {
        throw new BatchportError(
          'NOT_SUPPORTED',
          "ONNX Runtime's WebGPU provider has no memory limit; remove memory_budget_bytes.",
        );
      }
      return [{ provider, options: Object.fromEntries(extra) }];
    case 'cuda':
    case 'tensorrt': {
      const device = { device_id: String(deviceId) };
      const limit = arenaMaxBytes === undefined ? {} : { gpu_mem_limit: String(arenaMaxBytes) };
      const trt = extra.filter(([key]) => key.startsWith('trt_'));
      if (provider === 'cuda' && trt.length > 0) {
        throw new BatchportError('NOT_SUPPORTED', `${quoted(trt)}: options of TensorRT, but the device is CUDA.`);
      }
      const others = extra.filter(([key]) => !key.startsWith('trt_'));
      const cuda: ProviderStep = {
        provider: 'cuda',
        options: {
          ...CUDA_DEFAULTS,
          ...Object.fromEntries(others),
          ...device,
          ...limit,
        },
      };
      return provider === 'cuda'
        ? [cuda]
        : [
            {
              provider: 'tensorrt',
              options: { ...Object.fromEntries(trt), ...device },
            },
            cuda,
          ];
    }
  }
}

/**
 * Checks that a provider is part of the library and that its files are there. It does not start the device.
 *
 * @throws NOT_SUPPORTED naming what is missing and how to get it.
 */
export function checkProvider(provider: ProviderName): void {
  const { directory } = ortLibrary();
  const { ortName, files } = PROVIDERS[provider];
  if (!availableProviders().includes(ortName)) {
    throw new BatchportError(
      'NOT_SUPPORTED',
      `The ONNX Runtime library in ${directory} is built without ${ortName}. Set BATCHPORT_ONNXRUNTIME_DIR to the folder of a ` +
        `libonnxruntime ${LIBRARY_VERSION} that has it.`,
    );
  }
  const missing = files.filter((file) => !existsSync(path.join(directory, file)));
  if (missing.length > 0) {
    throw new BatchportError(
      'NOT_SUPPORTED',
      `${provider} needs ${missing.join(', ')} in ${directory}. They are not part of the npm package: ${howToGet(directory)}` +
        `set BATCHPORT_ONNXRUNTIME_DIR to the folder of a GPU build of ONNX Runtime ${LIBRARY_VERSION}.`,
    );
  }
}

/**
 * onnxruntime-node's own download, where the library is the one in that package and there is a download for the machine. Not `npm rebuild`: newer versions of npm
 * end without a word and without the files where install scripts are not allowed.
 */
function howToGet(directory: string): string {
  const script = path.join(directory, '../../../../script/install.js');
  if (process.arch !== 'x64' || !existsSync(script)) return '';
  return `download them from NuGet with \`ONNXRUNTIME_NODE_INSTALL=cuda12 node ${script}\`, or `;
}

/** Names of the providers the library is built with, best first. */
export function availableProviders(): string[] {
  const { api, check } = ortLibrary();
  const cells = new Cells(2);
  check(api.GetAvailableProviders(cells.at(0), cells.at(1)));
  const list = cells.get(0);
  const count = cells.int(1);
  try {
    return Array.from({ length: count }, (_, index) => readText(readPointer(list, index)));
  } finally {
    check(api.ReleaseAvailableProviders(list, count));
  }
}

/** Appends a step's provider to session options. @throws OrtError */
export function appendProvider(sessionOptions: number, step: ProviderStep): void {
  const { api, check, out } = ortLibrary();
  const keys = new CStrings(Object.keys(step.options));
  const values = new CStrings(Object.values(step.options));
  switch (step.provider) {
    case 'webgpu':
      check(
        api.SessionOptionsAppendExecutionProvider(sessionOptions, 'WebGPU', keys.address, values.address, keys.count),
      );
      return;
    case 'cuda': {
      const options = out((cell) => api.CreateCUDAProviderOptions(cell));
      try {
        check(api.UpdateCUDAProviderOptions(options, keys.address, values.address, keys.count));
        check(api.SessionOptionsAppendExecutionProvider_CUDA_V2(sessionOptions, options));
      } finally {
        api.ReleaseCUDAProviderOptions(options);
      }
      return;
    }
    case 'tensorrt': {
      const options = out((cell) => api.CreateTensorRTProviderOptions(cell));
      try {
        check(api.UpdateTensorRTProviderOptions(options, keys.address, values.address, keys.count));
        check(api.SessionOptionsAppendExecutionProvider_TensorRT_V2(sessionOptions, options));
      } finally {
        api.ReleaseTensorRTProviderOptions(options);
      }
      return;
    }
  }
}

function quoted(entries: readonly (readonly [string, string])[]): string {
  return entries.map(([key]) => key).join(', ');
}
