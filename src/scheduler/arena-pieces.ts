/**
 * How much the pieces add up to that an arena has taken from the system, one for each size that was larger than all before it.
 *
 * Sizes that grow a little at a time, as they do when load comes up, each get a new piece beside those of the sizes before: batches of 1, 2, 3 … 64 rows leave thirty
 * times what the largest takes. Before they add up to many times the largest, they are given back. Where sizes that have been seen make them add up again, that is
 * how they come, and they may add up to twice as much from then on.
 *
 * Pure: states are values.
 */

export interface ArenaPieces {
  /** Since the arena last gave back: what the largest run took, and the sum of the pieces. */
  readonly largestBytes: number;
  readonly sumBytes: number;
  /** Largest run of all, and how many times as much the pieces may add up to. */
  readonly recordBytes: number;
  readonly timesMax: number;
}

const TIMES_MAX = 2;
/** With less there is nothing to give back. */
const IDLE_MIN_BYTES = 16 * 2 ** 20;

export const NO_PIECES: ArenaPieces = { largestBytes: 0, sumBytes: 0, recordBytes: 0, timesMax: TIMES_MAX };

/** A run took so much, which is more than any since the arena last gave back. */
export function notePiece(
  before: ArenaPieces,
  bytes: number,
): { readonly pieces: ArenaPieces; readonly giveBack: boolean } {
  const isRecord = bytes > before.recordBytes;
  const recordBytes = Math.max(bytes, before.recordBytes);
  const sumBytes = before.sumBytes + bytes;
  const timesMax = isRecord ? TIMES_MAX : before.timesMax;
  const giveBack = sumBytes > timesMax * recordBytes + IDLE_MIN_BYTES;
  return {
    pieces: { largestBytes: bytes, sumBytes, recordBytes, timesMax: giveBack ? 2 * timesMax : timesMax },
    giveBack,
  };
}

/** The arena has given back what it did not use. */
export function noPieces({ recordBytes, timesMax }: ArenaPieces): ArenaPieces {
  return { largestBytes: 0, sumBytes: 0, recordBytes, timesMax };
}
