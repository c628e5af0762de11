/** Directories of our own on disk. */
import { mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Makes a directory and those above it, unless they are there. Not with Node's own `recursive`, which never returns where the file system answers ENOENT for
 * whatever is to be made, as /proc does.
 *
 * @throws Error of mkdir(2).
 */
export function makeDirectory(path: string, mode: number): void {
  try {
    mkdirSync(path, { mode });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' && dirname(path) !== path) {
      makeDirectory(dirname(path), mode);
      mkdirIfMissing(path, mode);
    } else if (!isDirectory(path)) throw error;
  }
}

/** Another process may make it at the same time. */
function mkdirIfMissing(path: string, mode: number): void {
  try {
    mkdirSync(path, { mode });
  } catch (error) {
    if (!isDirectory(path)) throw error;
  }
}

function isDirectory(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}
