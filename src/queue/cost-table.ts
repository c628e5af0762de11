/**
 * The cost tables of a segment: what runs cost on each instance, by shape key, as published by the instance for whoever predicts.
 *
 * One writer per table, its instance; before it starts, the supervisor. An entry is the hash of the key (0: unused), the bytes of a row, and the figures of
 * a curve. Doubles are written whole, so a reader may meet an entry half old and half new, which is still two good guesses, and never a torn number. The version
 * grows after each change, so that readers need not read again what they know.
 */
import { COST_ENTRY_WORDS, COST_HEAD_WORDS, COST_KEYS, COST_POINTS, costTableOffset } from './geometry.ts';
import type { Segment } from './segment.ts';

export interface CostEntry {
  /** Of the shape key, as SlabLayout.hash. */
  readonly hash: number;
  readonly rowBytes: number;
  /** µs at 1, 2, 4 … rows, COST_POINTS of them. */
  readonly us: Float64Array;
  /** Bit n: a run of 2^n rows or a little more has been seen. */
  readonly seen: number;
  /** Of these, bits of the sizes that have been seen more than a few times. */
  readonly sure: number;
  readonly runs: number;
  readonly errorRatio: number;
}

const HASH = 0;
const ROW_BYTES = 1;
const SEEN = 2;
const RUNS = 3;
const ERROR = 4;
const SURE = 5;
const US = COST_HEAD_WORDS;

function tableAt(segment: Segment, slot: number): number {
  return costTableOffset(segment.geometry, slot) / 8;
}

/** Grows with every change of the table. */
export function costVersion(segment: Segment, slot: number): number {
  return segment.f64[tableAt(segment, slot)]!;
}

/** For the table's writer. `index` below COST_KEYS. */
export function writeCost(segment: Segment, slot: number, index: number, entry: CostEntry): void {
  const { f64 } = segment;
  const table = tableAt(segment, slot);
  const at = table + 1 + index * COST_ENTRY_WORDS;
  f64[at + ROW_BYTES] = entry.rowBytes;
  f64[at + SEEN] = entry.seen;
  f64[at + SURE] = entry.sure;
  f64[at + RUNS] = entry.runs;
  f64[at + ERROR] = entry.errorRatio;
  f64.set(entry.us, at + US);
  f64[at + HASH] = entry.hash;
  f64[table]!++;
}

/** Entries of a table that make sense. */
export function readCosts(segment: Segment, slot: number): CostEntry[] {
  const { f64 } = segment;
  const entries: CostEntry[] = [];
  for (let index = 0; index < COST_KEYS; index++) {
    const at = tableAt(segment, slot) + 1 + index * COST_ENTRY_WORDS;
    const us = f64.slice(at + US, at + US + COST_POINTS);
    if (f64[at + HASH] === 0 || !us.every((value) => value > 0 && value < Number.POSITIVE_INFINITY)) continue;
    entries.push({
      hash: f64[at + HASH]!,
      rowBytes: f64[at + ROW_BYTES]!,
      us,
      seen: f64[at + SEEN]!,
      sure: f64[at + SURE]!,
      runs: f64[at + RUNS]!,
      errorRatio: f64[at + ERROR]!,
    });
  }
  return entries;
}
