/**
 * Memory of NVIDIA GPUs as their management library tells it (libnvidia-ml, part of the driver): how much there is, how much is free, which process has how much.
 *
 * No library, no driver, no such device, a call that fails: values, never exceptions. Calls run on libuv's threads, because a driver in trouble can keep one for
 * seconds, and the event loop that asks must not stand still for it. Owner: who opens it; the library stays loaded, nothing else is held. Bounds: PROCESSES_MAX
 * processes a device, DEVICES_MAX devices.
 *
 * Source: nvml.h of the driver API, version 12. The layouts used here have not changed since driver 450.
 */
import koffi, { type LibraryHandle } from 'koffi';
import { addressOf } from './libc.ts';

const LIBRARY_FILE = 'libnvidia-ml.so.1';
const SUCCESS = 0;
const UUID_BYTES = 96;
/** nvmlMemory_t: total, free and used as 64-bit numbers. */
const MEMORY_WORDS = 3;
/** nvmlProcessInfo_t: pid (32 bits, padded), used memory (64 bits), two numbers about MIG. */
const PROCESS_BYTES = 24;
const PROCESSES_MAX = 256;
const DEVICES_MAX = 1024;
/** Used memory of a process where the driver does not tell it. */
const NOT_AVAILABLE = 2n ** 64n - 1n;

/** Parameters of the functions that are used; pointers are plain numbers, as everywhere in this folder. */
const FUNCTIONS = {
  nvmlInit_v2: [],
  nvmlDeviceGetCount_v2: ['int64_t'],
  nvmlDeviceGetHandleByIndex_v2: ['unsigned int', 'int64_t'],
  nvmlDeviceGetUUID: ['int64_t', 'int64_t', 'unsigned int'],
  nvmlDeviceGetMemoryInfo: ['int64_t', 'int64_t'],
  nvmlDeviceGetComputeRunningProcesses_v3: ['int64_t', 'int64_t', 'int64_t'],
} as const;

/** A device by its number in the order of the PCI bus, or by its UUID or the beginning of one. */
export type GpuSelector = { readonly index: number } | { readonly uuid: string };

export interface GpuMemory {
  readonly totalBytes: number;
  readonly freeBytes: number;
  readonly usedBytes: number;
  /** Bytes by process id, 0 where the driver does not tell; undefined where it lists no processes. In a container the ids may be the host's. */
  readonly processes: ReadonlyMap<number, number> | undefined;
}

/** Why something is not known, in words. */
export interface Unknown {
  readonly unknown: string;
}

type Call = (...values: number[]) => Promise<number>;

export class Nvml {
  readonly #library: LibraryHandle;
  readonly #errorString: (code: number) => string;
  readonly #calls = new Map<string, Call | undefined>();

  private constructor(library: LibraryHandle) {
    this.#library = library;
    this.#errorString = library.func('const char *nvmlErrorString(int code)');
  }

  /** Loads and initialises the library; `file` as the dynamic linker looks for it. */
  static async open(file: string = LIBRARY_FILE): Promise<Nvml | Unknown> {
    try {
      const nvml = new Nvml(koffi.load(file));
      const failure = await nvml.#call('nvmlInit_v2');
      return failure === undefined ? nvml : { unknown: failure };
    } catch (error) {
      return { unknown: `${file} cannot be used: ${(error as Error).message}` };
    }
  }

  /** Memory of a device now. */
  async memory(selector: GpuSelector): Promise<GpuMemory | Unknown> {
    const device = await ('index' in selector ? this.#deviceAt(selector.index) : this.#deviceOf(selector.uuid));
    if (typeof device !== 'number') return device;
    const words = new BigUint64Array(MEMORY_WORDS);
    const failure = await this.#call('nvmlDeviceGetMemoryInfo', device, addressOf(words.buffer));
    if (failure !== undefined) return { unknown: failure };
    const [totalBytes, freeBytes, usedBytes] = Array.from(words, Number) as [number, number, number];
    return { totalBytes, freeBytes, usedBytes, processes: await this.#processes(device) };
  }

  async #deviceAt(index: number): Promise<number | Unknown> {
    const handle = new BigUint64Array(1);
    const failure = await this.#call('nvmlDeviceGetHandleByIndex_v2', index, addressOf(handle.buffer));
    return failure === undefined ? Number(handle[0]!) : { unknown: failure };
  }

  async #deviceOf(uuidStart: string): Promise<number | Unknown> {
    const count = new Uint32Array(2);
    const failure = await this.#call('nvmlDeviceGetCount_v2', addressOf(count.buffer));
    if (failure !== undefined) return { unknown: failure };
    const text = new Uint8Array(UUID_BYTES);
    for (let index = 0; index < Math.min(count[0]!, DEVICES_MAX); index++) {
      const device = await this.#deviceAt(index);
      if (typeof device !== 'number') continue;
      if ((await this.#call('nvmlDeviceGetUUID', device, addressOf(text.buffer), UUID_BYTES)) !== undefined) continue;
      const uuid = Buffer.from(text.subarray(0, text.indexOf(0))).toString('latin1');
      if (uuid.startsWith(uuidStart)) return device;
    }
    return { unknown: `there is no GPU ${uuidStart}` };
  }

  async #processes(device: number): Promise<ReadonlyMap<number, number> | undefined> {
    const count = Uint32Array.of(PROCESSES_MAX, 0);
    const infos = new DataView(new ArrayBuffer(PROCESSES_MAX * PROCESS_BYTES));
    const name = 'nvmlDeviceGetComputeRunningProcesses_v3';
    const failure = await this.#call(name, device, addressOf(count.buffer), addressOf(infos.buffer));
    if (failure !== undefined) return undefined;
    const processes = new Map<number, number>();
    for (let n = 0; n < Math.min(count[0]!, PROCESSES_MAX); n++) {
      const bytes = infos.getBigUint64(n * PROCESS_BYTES + 8, true);
      processes.set(infos.getUint32(n * PROCESS_BYTES, true), bytes === NOT_AVAILABLE ? 0 : Number(bytes));
    }
    return processes;
  }

  /** Calls a function on another thread; what it writes to has to be kept until it is done. @returns why it failed, undefined on success. */
  async #call(name: keyof typeof FUNCTIONS, ...values: number[]): Promise<string | undefined> {
    if (!this.#calls.has(name)) this.#calls.set(name, bind(this.#library, name));
    const call = this.#calls.get(name);
    if (call === undefined) return `the driver has no ${name}`;
    const code = await call(...values);
    return code === SUCCESS ? undefined : `${name}: ${this.#errorString(code)} (${code})`;
  }
}

/** Undefined where the library lacks the function. */
function bind(library: LibraryHandle, name: keyof typeof FUNCTIONS): Call | undefined {
  let start: (...values: unknown[]) => void;
  try {
    start = library.func(name, 'int', [...FUNCTIONS[name]]).async;
  } catch {
    return undefined;
  }
  return (...values) =>
    new Promise((resolve, reject) => {
      start(...values, (error: unknown, code: number) => (error ? reject(error) : resolve(code)));
    });
}
