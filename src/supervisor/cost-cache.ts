/**
 * Keeps what runs cost (src/queue/cost-table.ts) across restarts of the server, in the cache directory: by the model's fingerprint, device and runtime settings. Of the
 * instances on a device the one that has run most is kept.
 */
import type { Logger } from '../config/log.ts';
import { type CostEntry, costVersion, readCosts, writeCost } from '../queue/cost-table.ts';
import { COST_KEYS, COST_POINTS } from '../queue/geometry.ts';
import type { Segment } from '../queue/segment.ts';
import { CacheFolder } from './cache-folder.ts';
import type { Placement, ServedVersion } from './served-version.ts';

export class CostCache {
  readonly #folder: CacheFolder<CostEntry[]>;
  /** Versions of the tables that have been kept. */
  readonly #kept = new WeakMap<Placement, number>();

  constructor(cacheDirectory: string, log: Logger) {
    this.#folder = new CacheFolder(cacheDirectory, 'costs', log, checkCosts);
  }

  /** Fills the tables of slots that know nothing yet, before an instance runs there. */
  seed(version: ServedVersion, placement: Placement): void {
    const { segment } = version;
    const identity = identityOf(version, placement);
    if (segment === undefined || identity === undefined) return;
    const unknowing = placement.slots.filter((slot) => costVersion(segment, slot) === 0);
    if (unknowing.length === 0) return;
    const entries = this.#folder.get(identity) ?? [];
    for (const slot of unknowing) {
      for (const [index, entry] of entries.entries()) writeCost(segment, slot, index, entry);
    }
  }

  /** Writes what has changed. */
  keep(versions: readonly ServedVersion[]): void {
    for (const version of versions) {
      const { segment } = version;
      if (segment === undefined) continue;
      for (const placement of version.placements) {
        const identity = identityOf(version, placement);
        if (identity === undefined) continue;
        const stamp = placement.slots.reduce((sum, slot) => sum + costVersion(segment, slot), 0);
        if (stamp === (this.#kept.get(placement) ?? 0)) continue;
        this.#kept.set(placement, stamp);
        const entries = mostRun(segment, placement);
        if (entries.length === 0) continue;
        this.#folder.put(identity, entries);
      }
    }
  }
}

function mostRun(segment: Segment, { slots }: Placement): CostEntry[] {
  const runs = (entries: readonly CostEntry[]) => entries.reduce((sum, entry) => sum + entry.runs, 0);
  return slots.map((slot) => readCosts(segment, slot)).reduce((best, own) => (runs(own) > runs(best) ? own : best), []);
}

/** Undefined where it is not known which model it is. */
function identityOf({ fingerprint, config }: ServedVersion, { device }: Placement): string | undefined {
  if (fingerprint === undefined) return undefined;
  return JSON.stringify([fingerprint, device, config.runtime, config.maxBatchSize]);
}

function checkCosts(fact: unknown): CostEntry[] | undefined {
  if (!Array.isArray(fact)) return undefined;
  const entries: CostEntry[] = [];
  for (const one of fact.slice(0, COST_KEYS)) {
    const { hash, rowBytes, us: table, seen, sure, runs, errorRatio } = (one ?? {}) as Record<string, unknown>;
    const numbers = [hash, rowBytes, seen, sure, runs, errorRatio];
    // A Float64Array is an object of numbered keys in JSON.
    const us = Object.values(table ?? {});
    if (!numbers.every(Number.isFinite) || us.length !== COST_POINTS) continue;
    if (!us.every((value) => Number.isFinite(value) && value > 0)) continue;
    const [ownHash, bytes, seenBits, sureBits, count, error] = numbers as [
      number,
      number,
      number,
      number,
      number,
      number,
    ];
    entries.push({
      hash: ownHash,
      rowBytes: bytes,
      us: Float64Array.from(us as number[]),
      seen: seenBits,
      sure: sureBits,
      runs: count,
      errorRatio: error,
    });
  }
  return entries;
}
