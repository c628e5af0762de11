/**
 * Remembers, in the cache directory, how much memory a model took, so that the next start knows it before it loads.
 *
 * A measurement is known by the model's fingerprint (model-weights.ts) and by everything else that it depends on: the device and its provider, ONNX Runtime's version,
 * and the options the model is loaded with.
 */
import type { Logger } from '../config/log.ts';
import type { LoadOrder, MemoryReport } from '../protocol/control.ts';
import { LIBRARY_VERSION } from '../runtime/functions.ts';
import { KEYS_MAX, type KeyPoints, POINTS_MAX } from '../scheduler/memory-fit.ts';
import { CacheFolder } from './cache-folder.ts';

export class MemoryCache {
  readonly #folder: CacheFolder<MemoryReport>;

  constructor(cacheDirectory: string, log: Logger) {
    this.#folder = new CacheFolder(cacheDirectory, 'memory', log, checkReport);
  }

  get(identity: string): MemoryReport | undefined {
    return this.#folder.get(identity);
  }

  put(identity: string, report: MemoryReport): void {
    this.#folder.put(identity, report);
  }
}

/** @param hardware what tells one device from another of its kind. */
export function memoryIdentity(fingerprint: string, hardware: string, order: LoadOrder): string {
  const { provider, intraOpThreads, graphOptimization, sessionConfig, providerOptions } = order;
  const options = [intraOpThreads, graphOptimization, sortedEntries(sessionConfig), sortedEntries(providerOptions)];
  return JSON.stringify([fingerprint, provider, hardware, LIBRARY_VERSION, options]);
}

function sortedEntries(table: Readonly<Record<string, string>> = {}): (readonly [string, string])[] {
  return Object.entries(table).sort(([a], [b]) => (a < b ? -1 : 1));
}

function checkReport(value: unknown): MemoryReport | undefined {
  const { weightsBytes, outsideBytes, loadPeakBytes, fixedShape, keys } = (value ?? {}) as Partial<MemoryReport>;
  if (![weightsBytes, loadPeakBytes].every((bytes) => bytes === undefined || isBytes(bytes))) return undefined;
  if (typeof fixedShape !== 'boolean' || !isBytes(outsideBytes)) return undefined;
  if (!Array.isArray(keys) || keys.length > KEYS_MAX || !keys.every(isKeyPoints)) return undefined;
  return { weightsBytes, outsideBytes, loadPeakBytes, fixedShape, keys };
}

function isKeyPoints(value: unknown): value is KeyPoints {
  const { key, elements, points } = (value ?? {}) as Partial<KeyPoints>;
  if (typeof key !== 'string' || !isBytes(elements) || !Array.isArray(points)) return false;
  if (points.length < 1 || points.length > POINTS_MAX) return false;
  return points.every(
    ({ rows, bytes }, n) => Number.isInteger(rows) && rows > (points[n - 1]?.rows ?? 0) && isBytes(bytes),
  );
}

function isBytes(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0;
}
