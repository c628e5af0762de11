/**
 * A few 8-byte words of memory at a fixed address, for out-parameters, pointer arrays and shapes handed to C.
 *
 * Owner: whoever made it; the memory lives as long as the object (an ArrayBuffer's memory never moves), so keep the object
 * in a field while C may use an address of it. Not for memory that C keeps longer than the owner lives.
 */
import koffi from 'koffi';

const WORD_BYTES = 8;
const TWO_32 = 4_294_967_296;

export class Cells {
  /** Address of cell 0. */
  readonly address: number;
  readonly count: number;
  readonly bytes: Uint8Array;
  readonly #low: Uint32Array;
  readonly #high: Int32Array;

  constructor(count: number) {
    const memory = new ArrayBuffer(Math.max(1, count) * WORD_BYTES);
    this.address = Number(koffi.address(memory));
    this.count = count;
    this.bytes = new Uint8Array(memory);
    this.#low = new Uint32Array(memory);
    this.#high = new Int32Array(memory);
  }

  /** Address of cell `index`. */
  at(index: number): number {
    return this.address + index * WORD_BYTES;
  }

  /** The cell as a signed 64-bit integer, which must fit 53 bits; pointers do. */
  get(index: number): number {
    return this.#high[2 * index + 1]! * TWO_32 + this.#low[2 * index]!;
  }

  /** Writes a signed integer of at most 53 bits. */
  set(index: number, value: number): void {
    const low = value >>> 0;
    this.#low[2 * index] = low;
    this.#high[2 * index + 1] = (value - low) / TWO_32;
  }

  /** The lower half of a cell, for out-parameters of type int. */
  int(index: number): number {
    return this.#high[2 * index]!;
  }

  clear(): void {
    this.bytes.fill(0);
  }
}
