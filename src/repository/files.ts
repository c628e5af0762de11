/**
 * Bounded looks at the file system in which every failure is a phrase for a person, to follow the name of what was looked at.
 *
 * Links are followed. Nothing here waits for a pipe or a device: special files are told apart before they are read.
 */
import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  opendirSync,
  openSync,
  readlinkSync,
  readSync,
  statSync,
} from 'node:fs';

const TARGET_LENGTH_MAX = 200;

/** What stands at a path, after following links. */
export type FileKind = 'directory' | 'file' | 'other';

/** @returns the kind, or why it cannot be told. */
export function fileKind(path: string): { readonly kind: FileKind } | { readonly problem: string } {
  try {
    const stat = statSync(path);
    return { kind: stat.isDirectory() ? 'directory' : stat.isFile() ? 'file' : 'other' };
  } catch (error) {
    return { problem: fileProblem(error, path) };
  }
}

/** Whether something, if only a dangling link, has this path; also when it cannot be told for lack of permission. */
export function entryExists(path: string): boolean {
  try {
    lstatSync(path);
    return true;
  } catch (error) {
    return errorCode(error) !== 'ENOENT';
  }
}

/** The names in a directory that do not begin with a dot, sorted; or why there is no list. At most `namesMax` of them. */
export function listNames(path: string, namesMax: number): { readonly names: string[] } | { readonly problem: string } {
  try {
    const directory = opendirSync(path, { bufferSize: 256 });
    try {
      const names: string[] = [];
      for (let entry = directory.readSync(); entry !== null; entry = directory.readSync()) {
        if (entry.name.startsWith('.')) {
          continue;
        }
        if (names.length === namesMax) {
          return { problem: `holds more than ${namesMax} entries` };
        }
        names.push(entry.name);
      }
      return { names: names.sort() };
    } finally {
      directory.closeSync();
    }
  } catch (error) {
    return { problem: fileProblem(error, path) };
  }
}

export interface FileHead {
  /** From the start of the file, at most as many as were asked for. */
  readonly bytes: Uint8Array;
  /** Of the whole file. */
  readonly sizeBytes: number;
}

/** The first `bytesMax` bytes of a regular file and its size; or why they cannot be had. */
export function readHead(path: string, bytesMax: number): FileHead | { readonly problem: string } {
  let descriptor: number;
  try {
    // Without O_NONBLOCK, opening a named pipe blocks until somebody writes to it.
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    return { problem: fileProblem(error, path) };
  }
  try {
    const stat = fstatSync(descriptor);
    if (!stat.isFile()) {
      return { problem: stat.isDirectory() ? 'is a directory where a file must be' : 'is not a regular file' };
    }
    const bytes = new Uint8Array(Math.min(bytesMax, stat.size));
    let length = 0;
    while (length < bytes.byteLength) {
      const count = readSync(descriptor, bytes, length, bytes.byteLength - length, length);
      if (count === 0) {
        break;
      }
      length += count;
    }
    return { bytes: bytes.subarray(0, length), sizeBytes: stat.size };
  } catch (error) {
    return { problem: fileProblem(error, path) };
  } finally {
    closeSync(descriptor);
  }
}

/** The phrase for a failed call of the file system on `path`. */
function fileProblem(error: unknown, path: string): string {
  const code = errorCode(error);
  switch (code) {
    case 'ENOENT': {
      const target = linkTarget(path);
      return target === undefined ? 'does not exist' : `is a link to ${target}, which does not exist`;
    }
    case 'EACCES':
    case 'EPERM':
      return 'cannot be read: permission denied';
    case 'ENOTDIR':
      return 'is not a directory';
    case 'ELOOP':
      return 'is a link that leads back to itself';
    default:
      return `cannot be read: ${code ?? String(error)}`;
  }
}

function linkTarget(path: string): string | undefined {
  try {
    return JSON.stringify(readlinkSync(path).slice(0, TARGET_LENGTH_MAX));
  } catch {
    return undefined;
  }
}

function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}
