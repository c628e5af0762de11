/**
 * All files of a model: into the cache, and linked under their own names.
 */
import type { WeightFile } from '../config/weight-url.ts';
import type { Lease, WeightCache } from './cache.ts';
import type { Fetcher } from './fetcher.ts';
import { linkFiles } from './model-files.ts';
import type { Tracker } from './tracker.ts';

/**
 * Leases of all files, which are in `filesDirectory` as long as these are held. The first that cannot be had ends the others; what has come of them is kept.
 *
 * @param trackers one for each file
 * @throws WeightFault
 */
export async function fetchModel(
  fetcher: Fetcher,
  cache: WeightCache,
  files: readonly WeightFile[],
  trackers: readonly Tracker[],
  signal: AbortSignal,
): Promise<Lease[]> {
  const failed = new AbortController();
  const either = AbortSignal.any([signal, failed.signal]);
  const leases: Lease[] = [];
  let reason: unknown;
  const fetchOne = async (file: WeightFile, n: number): Promise<void> => {
    try {
      leases.push(await fetcher.fetch(file, trackers[n]!, either));
    } catch (error) {
      reason ??= error;
      failed.abort();
    }
  };
  await Promise.all(files.map(fetchOne));
  try {
    if (reason !== undefined) throw reason;
    linkFiles(cache, files);
    return leases;
  } catch (error) {
    for (const lease of leases) lease.release();
    throw error;
  }
}
