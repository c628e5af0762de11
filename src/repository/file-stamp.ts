import { statSync } from 'node:fs';

/** Another text when the file has been replaced or written to. */
export function fileStamp(path: string): string {
  try {
    const { ino, size, mtimeMs } = statSync(path);
    return `${ino} ${size} ${mtimeMs}`;
  } catch {
    return 'none';
  }
}
