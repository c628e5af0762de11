/** Places in a text that people write, as messages tell them. */

export interface TextPosition {
  /** From 1. */
  readonly line: number;
  /** From 1, in characters. */
  readonly column: number;
}

/** Finds lines and columns. Goes on from the place that was asked for last: places in the order of the text cost one pass over it together. */
export class TextPositions {
  readonly #text: string;
  #at = 0;
  #line = 1;
  #column = 1;

  constructor(text: string) {
    this.#text = text;
  }

  /** @param offset in units of UTF-16, at the start of a character or at the end of the text */
  of(offset: number): TextPosition {
    if (offset < this.#at) {
      this.#at = 0;
      this.#line = 1;
      this.#column = 1;
    }
    while (this.#at < offset) {
      const code = this.#text.codePointAt(this.#at)!;
      this.#at += code > 0xffff ? 2 : 1;
      if (code === 0x0a) {
        this.#line++;
        this.#column = 1;
      } else this.#column++;
    }
    return { line: this.#line, column: this.#column };
  }
}
