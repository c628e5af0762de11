/**
 * An array of C strings at a fixed address, as names and option tables are handed to C.
 *
 * Owner: whoever made it; the memory lives as long as the object. Strings are UTF-8 and end in a zero byte.
 */
import { Cells } from './cells.ts';

export class CStrings {
  readonly count: number;
  readonly #pointers: Cells;
  /** Only held, so that the characters stay where the pointers point. */
  readonly #characters: Cells;

  /** @throws RangeError for a string that holds a zero byte, which C would cut. */
  constructor(strings: readonly string[]) {
    this.count = strings.length;
    const encoded = strings.map((text) => {
      if (text.includes('\0')) {
        throw new RangeError(
          `${JSON.stringify(text)} holds a zero byte and cannot be a name or option of ONNX Runtime.`,
        );
      }
      return Buffer.from(`${text}\0`);
    });
    const characters = Buffer.concat(encoded);
    this.#characters = new Cells(Math.ceil(characters.length / 8));
    this.#characters.bytes.set(characters);
    this.#pointers = new Cells(strings.length);
    let offset = 0;
    encoded.forEach((text, index) => {
      this.#pointers.set(index, this.#characters.address + offset);
      offset += text.length;
    });
  }

  /** Address of the array of pointers (`const char* const*`). */
  get address(): number {
    return this.#pointers.address;
  }

  /** Address of string `index`. */
  pointer(index: number): number {
    return this.#pointers.get(index);
  }
}
