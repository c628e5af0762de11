import { type Stats, statSync } from 'node:fs';

/** Another text when the file has been replaced or written to. */
export function fileStamp(path: string): string {
  try {
    return stampOf(statSync(path));
  } catch {
    return 'none';
  }
}

export function stampOf({ ino, size, mtimeMs }: Stats): string {
  return `${ino} ${size} ${mtimeMs}`;
}
