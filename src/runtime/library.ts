/**
 * Finds and loads `libonnxruntime`, and turns its function table into functions of JavaScript.
 *
 * The library is the one that the npm package onnxruntime-node carries, or the one in the folder BATCHPORT_ONNXRUNTIME_DIR names
 * (a build of the same version with CUDA, say). It is loaded once per thread that asks and stays until the process ends;
 * all threads share the same library and so the same pointers. This file and `cells.ts` alone know koffi here.
 */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import koffi, { type LibraryHandle } from 'koffi';
import { BatchportError } from '../config/errors.ts';
import { Cells } from './cells.ts';
import {
  API_VERSION,
  FUNCTIONS,
  type FunctionShape,
  LIBRARY_VERSION,
  type OrtApi,
  type ParameterKind,
} from './functions.ts';
import { takeError } from './ort-error.ts';

const LIBRARY_FILE = 'libonnxruntime.so.1';
const POINTER_BYTES = 8;

const C_TYPES = { pointer: 'uintptr_t', size: 'size_t', int: 'int', text: 'const char *', bytes: 'void *' } as const;
const C_RESULTS = { status: 'uintptr_t', void: 'void', int: 'int', text: 'const char *' } as const;

export interface OrtLibrary {
  readonly api: OrtApi;
  /** As the library itself says, `1.30.0`. */
  readonly version: string;
  readonly directory: string;
  /** Throws OrtError for a status other than success, and releases it. */
  readonly check: (status: number) => void;
  /** Copies memory; both ranges must be valid. `from` may be the memory of an array. */
  readonly copyTo: (to: number, from: Uint8Array, byteLength: number) => void;
  readonly copyFrom: (to: Uint8Array, from: number, byteLength: number) => void;
  /** Pointer that `call` writes to its out-parameter. The call's status is checked. */
  readonly out: (call: (cell: number) => number) => number;
}

let loaded: OrtLibrary | undefined;

/**
 * Environment variable and value that keep ONNX Runtime from reporting to Microsoft. It must be set before the first session.
 *
 * Without it the library keeps a database in the user's cache folder, writes a log into /tmp, and sends events about models and
 * failures; each failed run also costs some 300 us and keeps 3.6 KB. A value that the user has set is left alone.
 */
export const NO_TELEMETRY = { name: 'ORT_DISABLE_TELEMETRY', value: '1' } as const;

/** Folder of the library; provider libraries are looked for beside it. */
export function libraryDirectory(): string {
  const override = process.env.BATCHPORT_ONNXRUNTIME_DIR;
  if (override !== undefined && override !== '') {
    return path.resolve(override);
  }
  const packageFile = createRequire(import.meta.url).resolve('onnxruntime-node/package.json');
  return path.join(path.dirname(packageFile), 'bin', 'napi-v6', process.platform, process.arch);
}

/**
 * The library, loaded on first use in this thread.
 *
 * @throws NOT_SUPPORTED when the file is missing, cannot be loaded or is of another version.
 */
export function ortLibrary(): OrtLibrary {
  loaded ??= load(libraryDirectory());
  return loaded;
}

/** Whether the dynamic linker finds and can load a shared library, `libvulkan.so.1` say. It stays loaded. */
export function canLoadLibrary(name: string): boolean {
  try {
    koffi.load(name);
    return true;
  } catch {
    return false;
  }
}

/** The C string at an address, read as UTF-8; '' for a null pointer. */
export function readText(address: number): string {
  return address === 0 ? '' : koffi.decode.string(BigInt(address));
}

/** Word `index` of the array of pointers at `address`. */
export function readPointer(address: number, index: number): number {
  return Number(koffi.decode.uint64(BigInt(address + index * POINTER_BYTES)));
}

function load(directory: string): OrtLibrary {
  const file = path.join(directory, LIBRARY_FILE);
  if (!existsSync(file)) {
    throw new BatchportError(
      'NOT_SUPPORTED',
      `ONNX Runtime is missing: there is no ${file}. Install the package onnxruntime-node ${LIBRARY_VERSION} for ` +
        `${process.platform} ${process.arch}, or set BATCHPORT_ONNXRUNTIME_DIR to the folder of ${LIBRARY_FILE}.`,
    );
  }
  let library: LibraryHandle;
  try {
    library = koffi.load(file);
  } catch (cause) {
    throw new BatchportError('NOT_SUPPORTED', `ONNX Runtime cannot be loaded: ${(cause as Error).message}`, { cause });
  }
  // Through C, since a worker thread's process.env is a copy; where the parent has set it, nothing changes.
  library.func('setenv', 'int', ['const char *', 'const char *', 'int'])(NO_TELEMETRY.name, NO_TELEMETRY.value, 0);
  // OrtApiBase: { GetApi(version), GetVersionString() }
  const base = library.func('OrtGetApiBase', 'uintptr_t', [])() as number;
  const version = functionAt(readPointer(base, 1), 'const char *', [])() as string;
  if (version !== LIBRARY_VERSION) {
    throw new BatchportError(
      'NOT_SUPPORTED',
      `ONNX Runtime in ${directory} has version ${version}; batchport needs exactly ${LIBRARY_VERSION}.`,
    );
  }
  const table = functionAt(readPointer(base, 0), 'uintptr_t', ['uint32_t'])(API_VERSION) as number;
  if (table === 0) {
    throw new Error(`ONNX Runtime ${version} gives no API ${API_VERSION}. This is a bug.`);
  }
  const functions: Record<string, unknown> = {};
  for (const [name, shape] of Object.entries<FunctionShape>(FUNCTIONS)) {
    functions[name] = functionAt(readPointer(table, shape.at), C_RESULTS[shape.gives], shape.takes.map(cType));
  }
  const api = functions as unknown as OrtApi;
  const check = (status: number): void => {
    if (status !== 0) {
      throw takeError(api, status);
    }
  };
  const cell = new Cells(1);
  // The C library's functions as the library itself resolves them.
  return {
    api,
    version,
    directory,
    check,
    copyTo: library.func('memcpy', 'void', ['uintptr_t', 'const void *', 'size_t']),
    copyFrom: library.func('memcpy', 'void', ['void *', 'uintptr_t', 'size_t']),
    out: (call) => {
      cell.set(0, 0);
      check(call(cell.address));
      return cell.get(0);
    },
  };
}

function cType(kind: ParameterKind): string {
  return C_TYPES[kind];
}

function functionAt(address: number, result: string, parameters: string[]): (...parameters: number[]) => unknown {
  return koffi.decode(BigInt(address), koffi.proto(result, parameters));
}
