/**
 * The files of a model under their own names: hard links into the cache, so that the file of a model and those beside it that it names ("external data") lie in one directory.
 *
 * The directory is named by a hash over the names and hashes of the files, so the same files have the same directory, whoever wants them. Owner: whoever holds the
 * leases of all files; while they are held nobody removes it. Hard links and not symbolic ones: ONNX Runtime takes no file that lies elsewhere.
 */

import { createHash, randomUUID } from 'node:crypto';
import { linkSync, renameSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { makeDirectory } from '../config/make-directory.ts';
import type { WeightFile } from '../config/weight-url.ts';
import { DIRECTORY_MODE, type WeightCache } from './cache.ts';
import { diskFault } from './fault.ts';

/** Names a model's files for good: other content, another key. */
function filesKey(files: readonly WeightFile[]): string {
  const named = files.map(({ path, sha256 }) => [path, sha256]).sort(([a], [b]) => (a! < b! ? -1 : 1));
  return createHash('sha256').update(JSON.stringify(named)).digest('hex');
}

/** Where the files of a model are to be found once they are linked. */
export function filesDirectory(cache: WeightCache, files: readonly WeightFile[]): string {
  return join(cache.models, filesKey(files));
}

/** Links the files, all of which are leased. @throws WeightFault CACHE_UNUSABLE, DISK_FULL */
export function linkFiles(cache: WeightCache, files: readonly WeightFile[]): void {
  const directory = filesDirectory(cache, files);
  for (const { path, sha256 } of files) {
    const [from, to] = [cache.blobPath(sha256), join(directory, path)];
    try {
      if (statSync(to, { throwIfNoEntry: false })?.ino === statSync(from).ino) continue;
      makeDirectory(dirname(to), DIRECTORY_MODE);
      const temporary = `${to}.${randomUUID()}`;
      linkSync(from, temporary);
      renameSync(temporary, to);
      // Where another process has just made the same link, a rename does nothing.
      rmSync(temporary, { force: true });
    } catch (error) {
      throw diskFault(error, `cannot link ${path} in ${directory}`);
    }
  }
}
