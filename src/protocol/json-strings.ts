/**
 * Reads JSON strings into the serialised form of a BYTES tensor, and `true`/`false` into BOOL storage.
 *
 * A string becomes its UTF-8 bytes, `\u0000` included. BOOL takes the two literals only: 0 and 1 are numbers, and a client that sends
 * them is more likely to have the wrong datatype than to mean it.
 */
import { BYTES_LENGTH_BYTES, writeBytesElementLength } from '../tensor/bytes-tensor.ts';
import type { JsonCursor } from './json-cursor.ts';
import { endElement, failElement, type JsonTensorLabel } from './json-elements.ts';
import { unescapeInto } from './json-escapes.ts';

const QUOTE = 0x22;

/** Serialised elements as they are gathered. */
export interface BytesSink {
  /** Large enough for every element the text can hold. */
  readonly data: Uint8Array;
  /** Bytes written so far. */
  at: number;
}

/**
 * Bytes that `count` strings in `textBytes` of JSON can need in serialised form: a string's own bytes never grow, and its two quotes and
 * the comma or bracket behind it give back three of the four bytes of its length.
 */
export function serialisedBytesMax(textBytes: number, count: number): number {
  return textBytes + (BYTES_LENGTH_BYTES - 3) * count;
}

/** Reads a run of BYTES elements and appends them to the sink. */
export function readStringRun(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  sink: BytesSink,
  from: number,
  count: number,
): void {
  const last = from + count - 1;
  for (let i = from; i <= last; i++) {
    if (cursor.peek() !== QUOTE) failElement(cursor, tensor, i, cursor.pos);
    const start = cursor.pos + 1;
    const escaped = cursor.skipString();
    const end = cursor.pos - 1;
    const content = sink.at + BYTES_LENGTH_BYTES;
    if (escaped) sink.at = unescapeInto(cursor.bytes, start, end, sink.data, content);
    else {
      cursor.bytes.copy(sink.data, content, start, end);
      sink.at = content + (end - start);
    }
    writeBytesElementLength(sink.data, content - BYTES_LENGTH_BYTES, sink.at - content);
    cursor.pos = endElement(cursor, tensor, cursor.pos, i, last - i);
  }
}

/** Reads a run of BOOL elements into `out[from, from + count)`, one byte each, 0 or 1. */
export function readBooleanRun(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  out: Uint8Array,
  from: number,
  count: number,
): void {
  const last = from + count - 1;
  for (let i = from; i <= last; i++) {
    if (cursor.kind() !== 'boolean') failElement(cursor, tensor, i, cursor.pos);
    out[i] = cursor.readBoolean() ? 1 : 0;
    cursor.pos = endElement(cursor, tensor, cursor.pos, i, last - i);
  }
}
