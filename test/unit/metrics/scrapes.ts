/** Scrapes of a registry, read back. */
import assert from 'node:assert/strict';
import { createRegistry } from '../../../src/metrics/prometheus.ts';
import type { MetricsSnapshot } from '../../../src/metrics/snapshot.ts';
import { type Family, parseExposition, type Series } from './exposition.ts';

export type Exposition = ReadonlyMap<string, Family>;

export async function scrape(snapshot: MetricsSnapshot): Promise<Exposition> {
  return parseExposition(await createRegistry(() => snapshot).metrics());
}

/** The values of a metric's series that have these labels and any others; `name` without the prefix, of a histogram with `_bucket`, `_sum` or `_count`. */
export function values(exposition: Exposition, name: string, labels: Record<string, string> = {}): number[] {
  const base = exposition.get(`batchport_${name.replace(/_(bucket|sum|count)$/, '')}`);
  const family = exposition.get(`batchport_${name}`) ?? base;
  assert.ok(family, `there is a metric ${name}`);
  return family.series
    .filter((series) => series.name === `batchport_${name}`)
    .filter((series) => Object.entries(labels).every(([label, value]) => series.labels.get(label) === value))
    .map(({ value }) => value);
}

export function allSeries(exposition: Exposition): Series[] {
  return [...exposition.values()].flatMap(({ series }) => series);
}
