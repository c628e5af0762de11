/**
 * Writes the elements of a BYTES tensor, one after the other, into a buffer that grows with them.
 */
import { BYTES_LENGTH_BYTES, writeBytesElementLength } from '../tensor/bytes-tensor.ts';

const INITIAL_BYTES = 1024;

export class ElementWriter {
  #bytes = Buffer.allocUnsafeSlow(INITIAL_BYTES);
  /** Start of the element that is being written, with its length, and its end so far. */
  #start = 0;
  #at = BYTES_LENGTH_BYTES;

  /** Adds to the element. @param text of ASCII alone */
  addText(text: string): void {
    this.#reserve(text.length);
    this.#at += this.#bytes.write(text, this.#at, 'latin1');
  }

  add(bytes: Uint8Array): void {
    this.#reserve(bytes.length);
    this.#bytes.set(bytes, this.#at);
    this.#at += bytes.length;
  }

  /** The element is whole: the next one begins. */
  end(): void {
    this.#reserve(BYTES_LENGTH_BYTES);
    writeBytesElementLength(this.#bytes, this.#start, this.#at - this.#start - BYTES_LENGTH_BYTES);
    this.#start = this.#at;
    this.#at += BYTES_LENGTH_BYTES;
  }

  /** The tensor of all elements that have been ended, as a view. */
  taken(): Uint8Array {
    return this.#bytes.subarray(0, this.#start);
  }

  #reserve(count: number): void {
    // The length of the next element has its place too.
    const needed = this.#at + count + BYTES_LENGTH_BYTES;
    if (needed <= this.#bytes.length) return;
    const grown = Buffer.allocUnsafeSlow(Math.max(needed, 2 * this.#bytes.length));
    this.#bytes.copy(grown, 0, 0, this.#at);
    this.#bytes = grown;
  }
}
