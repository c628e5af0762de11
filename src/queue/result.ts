/**
 * Results: how an instance leaves them and how an ingress reads them.
 *
 * Outputs of known shape were bound inside the slab. The others, and error messages, lie in result regions that the instance allocates after the run. A claim's
 * details point to a result table:
 *
 *     [number of outputs, first row, rows] then per output of the layout: [offset | 0 = bound in the slab, bytes, row offsets | 0, rank, dimensions …]
 *
 * all as doubles, offsets from the start of the segment. A batch has one table, or several when it had to be run in parts.
 */

import { SLAB_DONE_AT, SLAB_FIRST_BLOCK, SLAB_RUN_AT, SLAB_SEALED_AT } from './geometry.ts';
import type { Claim } from './producer.ts';
import type { Segment } from './segment.ts';

/** What became of a claim. */
export const STATUS_OK = 0;
export const STATUS_MODEL_FAILED = 1;
export const STATUS_OUT_OF_MEMORY = 2;
export const STATUS_WORKER_LOST = 3;
export const STATUS_DEADLINE = 4;
export const STATUS_RESULT_TOO_LARGE = 5;
export const STATUS_INTERNAL = 6;

export interface OutputView {
  /** Full shape of this request's tensor. */
  shape: number[];
  /** View into the segment; valid until the claim is released. */
  data: Uint8Array;
}

const RANK_MAX = 64;

export class ResultReader {
  readonly #segment: Segment;
  #claim: Claim<unknown> | undefined;
  #detail = 0;

  constructor(segment: Segment) {
    this.#segment = segment;
  }

  /** Moves to a claim whose slab is DONE. */
  open(claim: Claim<unknown>): void {
    this.#claim = claim;
    this.#detail = this.#segment.claimDetail(claim.slab, claim.index);
  }

  get status(): number {
    return this.#segment.i32[this.#detail / 4]!;
  }

  /** Start and end of the run and time of sealing, µs on the shared clock. */
  get sealedAtUs(): number {
    return this.#time(SLAB_SEALED_AT);
  }
  get runAtUs(): number {
    return this.#time(SLAB_RUN_AT);
  }
  get doneAtUs(): number {
    return this.#time(SLAB_DONE_AT);
  }

  #time(word: number): number {
    return this.#segment.f64[this.#segment.descriptorF64(this.#claim!.slab) + word]!;
  }

  /** The message of a failed run; empty when none could be left. */
  message(): string {
    const at = this.#segment.f64[this.#detail / 8 + 2]!;
    if (!this.#inside(at, 8)) return '';
    const bytes = this.#segment.f64[at / 8]!;
    if (!this.#inside(at + 8, bytes)) return '';
    return Buffer.from(this.#segment.u8.buffer, at + 8, bytes).toString('utf8');
  }

  /**
   * The claim's part of the layout's output number `n`.
   *
   * @throws Error when the table is damaged; the caller answers INTERNAL.
   */
  output(n: number): OutputView {
    const claim = this.#claim!;
    const { f64 } = this.#segment;
    const table = f64[this.#detail / 8 + 2]!;
    if (table !== 0) {
      const view = this.#tableOutput(table, n, claim);
      if (view !== undefined) return view;
    }
    const output = claim.layout.outputs[n];
    if (output?.tensor === undefined) throw new Error('a result is missing from its table');
    const { rowBytes, dims } = output.tensor;
    const base = this.#segment.blockOffset(this.#segment.i32[this.#segment.descriptor(claim.slab) + SLAB_FIRST_BLOCK]!);
    const start = base + claim.placement.outputs[n]! + claim.firstRow * rowBytes;
    const shape = claim.layout.whole ? dims.slice() : [claim.rows, ...dims];
    return { shape, data: this.#view(start, claim.rows * rowBytes) };
  }

  #tableOutput(table: number, n: number, claim: Claim<unknown>): OutputView | undefined {
    const { f64 } = this.#segment;
    if (!this.#inside(table, 24)) throw new Error('a result table lies outside the segment');
    let at = table / 8;
    if (n >= f64[at]!) throw new Error('a result table is too short');
    const firstRow = f64[at + 1]!;
    const rows = f64[at + 2]!;
    at += 3;
    for (let skip = 0; skip < n; skip++) at += 4 + this.#rank(at);
    const offset = f64[at]!;
    if (offset === 0) return undefined;
    const bytes = f64[at + 1]!;
    const rowOffsets = f64[at + 2]!;
    const rank = this.#rank(at);
    const shape: number[] = [];
    for (let d = 0; d < rank; d++) shape.push(f64[at + 4 + d]!);
    if (claim.layout.whole) return { shape, data: this.#view(offset, bytes) };
    const row = claim.firstRow - firstRow;
    if (row < 0 || row + claim.rows > rows || shape[0] !== rows) throw new Error('a result table has other rows');
    shape[0] = claim.rows;
    if (rowOffsets === 0) {
      const rowBytes = bytes / rows;
      return {
        shape,
        data: this.#view(offset + row * rowBytes, claim.rows * rowBytes),
      };
    }
    if (!this.#inside(rowOffsets, (rows + 1) * 8)) throw new Error('row offsets lie outside the segment');
    const start = f64[rowOffsets / 8 + row]!;
    const end = f64[rowOffsets / 8 + row + claim.rows]!;
    if (start < 0 || end > bytes) throw new Error('row offsets are out of range');
    return { shape, data: this.#view(offset + start, end - start) };
  }

  #rank(at: number): number {
    const rank = this.#segment.f64[at + 3]!;
    if (!Number.isInteger(rank) || rank < 0 || rank > RANK_MAX) throw new Error('a result table has a malformed rank');
    return rank;
  }

  #view(start: number, bytes: number): Uint8Array {
    if (!this.#inside(start, bytes)) throw new Error('a result lies outside the segment');
    return new Uint8Array(this.#segment.u8.buffer as ArrayBuffer, start, bytes);
  }

  #inside(start: number, bytes: number): boolean {
    const { blockArea, totalBytes } = this.#segment.geometry;
    return (
      Number.isSafeInteger(start) &&
      Number.isSafeInteger(bytes) &&
      start >= blockArea &&
      bytes >= 0 &&
      start + bytes <= totalBytes
    );
  }
}
