/**
 * A growing buffer of JSON text that is used again for each response.
 *
 * Callers reserve what they are about to write and then write to `bytes` at `at` themselves. What a large response made it grow to is
 * given back when the text is taken, so that an idle encoder holds at most `KEEP_BYTES`.
 */

const INITIAL_BYTES = 4096;
const KEEP_BYTES = 256 * 1024;

export class JsonWriter {
  bytes: Buffer = Buffer.allocUnsafeSlow(INITIAL_BYTES);
  at = 0;

  /** Makes room for `count` more bytes. */
  reserve(count: number): void {
    const needed = this.at + count;
    if (needed <= this.bytes.length) return;
    const grown = Buffer.allocUnsafeSlow(Math.max(needed, 2 * this.bytes.length));
    this.bytes.copy(grown, 0, 0, this.at);
    this.bytes = grown;
  }

  writeText(text: string): void {
    this.reserve(3 * text.length);
    this.at += this.bytes.write(text, this.at);
  }

  writeByte(byte: number): void {
    this.reserve(1);
    this.bytes[this.at++] = byte;
  }

  /** A copy of the text so far with `extra` bytes of room behind it; the writer starts anew. */
  take(extra: number): Buffer {
    const text = Buffer.allocUnsafe(this.at + extra);
    this.bytes.copy(text, 0, 0, this.at);
    this.reset();
    return text;
  }

  /** Drops what has been written. */
  reset(): void {
    this.at = 0;
    if (this.bytes.length > KEEP_BYTES) this.bytes = Buffer.allocUnsafeSlow(INITIAL_BYTES);
  }
}
