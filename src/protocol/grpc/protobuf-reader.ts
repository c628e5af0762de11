/**
 * Reads the protocol buffer wire format, field by field, without making an object of it: lengths stay positions in the message, and 64-bit integers
 * stay two halves until somebody wants them.
 *
 * Own code instead of a library's because ModelInferRequest is the hot path: what a library decodes into objects, this leaves where it lies, so that tensors go
 * from the message to the slab in one copy, and no 64-bit field passes through a double.
 *
 * Every read is bounded by the innermost message that has been entered. Source: protobuf.dev, "Encoding".
 */
import { isUtf8 } from 'node:buffer';
import { BatchportError } from '../../config/errors.ts';

export const VARINT = 0;
export const FIXED64 = 1;
export const BYTES = 2;
export const FIXED32 = 5;

/** Bytes of the longest varint. */
const VARINT_BYTES_MAX = 10;

export class ProtobufReader {
  readonly buffer: Buffer;
  /** Where the next byte is read. */
  at: number;
  /** Where the message ends that is being read. */
  end: number;
  /** Number and wire type of the field that next() has found. */
  field = 0;
  wireType = 0;
  /** Halves of the last varint; `high` is signed or not as it came. */
  low = 0;
  high = 0;
  /** The last length-delimited value: from `start` up to `at`. */
  start = 0;

  constructor(buffer: Buffer, at = 0, end = buffer.length) {
    this.buffer = buffer;
    this.at = at;
    this.end = end;
  }

  /** Goes to the next field of the message; false at its end. @throws BAD_REQUEST */
  next(): boolean {
    if (this.at >= this.end) return false;
    this.varint();
    if (this.high !== 0 || this.low >>> 3 === 0) malformed('a field has no valid number');
    this.field = this.low >>> 3;
    this.wireType = this.low & 7;
    return true;
  }

  /** Reads a varint into `low` and `high`. */
  varint(): void {
    const { buffer, end } = this;
    let at = this.at;
    let byte = at < end ? buffer[at++]! : truncated();
    let low = byte & 0x7f;
    let high = 0;
    for (let shift = 7; byte >= 0x80; shift += 7) {
      if (shift === 7 * VARINT_BYTES_MAX) malformed('a varint is too long');
      byte = at < end ? buffer[at++]! : truncated();
      const bits = byte & 0x7f;
      if (shift < 28) low |= bits << shift;
      else if (shift === 28) {
        low |= bits << 28;
        high = bits >>> 4;
      } else if (shift < 63) high |= bits << (shift - 32);
      else high |= (bits & 1) << 31;
    }
    this.low = low;
    this.high = high;
    this.at = at;
  }

  /** The last varint as a signed 64-bit integer; exact, or infinite where a double is not. */
  get signed(): number {
    const value = (this.high | 0) * 2 ** 32 + (this.low >>> 0);
    if (Number.isSafeInteger(value)) return value;
    return value < 0 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  }

  /** The last varint's exact value, for messages. */
  exact(signed: boolean): bigint {
    const bits = (BigInt(this.high >>> 0) << 32n) | BigInt(this.low >>> 0);
    return signed ? BigInt.asIntN(64, bits) : bits;
  }

  /** Reads a varint that must be one, as protocol buffers take any for a boolean. */
  bool(): boolean {
    this.expect(VARINT);
    this.varint();
    return this.low !== 0 || this.high !== 0;
  }

  /** Reads the length of a length-delimited field and goes behind it: its bytes are [start, at). */
  bytes(): void {
    this.expect(BYTES);
    this.varint();
    const length = this.low >>> 0;
    if (this.high !== 0 || length > this.end - this.at) truncated();
    this.start = this.at;
    this.at += length;
  }

  /** Reads a text. @throws BAD_REQUEST when it is not UTF-8. */
  string(): string {
    this.bytes();
    const text = this.buffer.toString('utf8', this.start, this.at);
    // U+FFFD is what anything malformed is read as; it may also stand there itself.
    if (text.includes('\ufffd') && !isUtf8(this.buffer.subarray(this.start, this.at))) malformed('a text is not UTF-8');
    return text;
  }

  /** Reads the length of a message field and enters it. @returns the end of the outer message, for leave(). */
  enter(): number {
    this.bytes();
    const outer = this.end;
    this.end = this.at;
    this.at = this.start;
    return outer;
  }

  /** Goes behind the message that has been entered. */
  leave(outer: number): void {
    this.at = this.end;
    this.end = outer;
  }

  /** Goes behind the value of a field that nobody knows. */
  skip(): void {
    switch (this.wireType) {
      case VARINT:
        this.varint();
        return;
      case FIXED64:
        this.forward(8);
        return;
      case BYTES:
        this.bytes();
        return;
      case FIXED32:
        this.forward(4);
        return;
      default:
        malformed(`field ${this.field} has the wire type ${this.wireType}`);
    }
  }

  forward(bytes: number): void {
    if (bytes > this.end - this.at) truncated();
    this.at += bytes;
  }

  /** @throws BAD_REQUEST when the field has another wire type. */
  expect(wireType: number): void {
    if (this.wireType !== wireType) malformed(`field ${this.field} has the wire type ${this.wireType}`);
  }
}

function truncated(): never {
  malformed('it ends within a field');
}

export function malformed(why: string): never {
  throw new BatchportError('BAD_REQUEST', `The request is not a valid protocol buffer message: ${why}.`);
}
