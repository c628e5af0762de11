/**
 * Writes the protocol buffer wire format. Lengths stand before what they count, so whoever writes a message counts first: each function here that writes
 * has one that says how many bytes it will take.
 */
import { BYTES } from './protobuf-reader.ts';

/** Tag byte of a length-delimited field; the fields of the protocol are all below 16. */
export function bytesTag(field: number): number {
  if (field < 1 || field > 15) throw new RangeError(`Field ${field} takes a longer tag: this is a bug`);
  return (field << 3) | BYTES;
}

/** Bytes of a varint of a whole number of 0 or more, up to 2^53. */
export function varintBytes(value: number): number {
  let bytes = 1;
  for (let rest = value; rest >= 128; rest = Math.floor(rest / 128)) bytes++;
  return bytes;
}

/** Writes a varint of a whole number of 0 or more, up to 2^53. @returns the offset behind it. */
export function writeVarint(buffer: Uint8Array, at: number, value: number): number {
  let rest = value;
  while (rest >= 128) {
    buffer[at++] = (rest % 128) | 128;
    rest = Math.floor(rest / 128);
  }
  buffer[at++] = rest;
  return at;
}

/** A length-delimited field, tag and length included. */
export function bytesField(field: number, value: Uint8Array): Buffer {
  const buffer = Buffer.allocUnsafe(1 + varintBytes(value.length) + value.length);
  buffer[0] = bytesTag(field);
  buffer.set(value, writeVarint(buffer, 1, value.length));
  return buffer;
}

/** A text field, tag and length included; nothing for an empty text, which is how the format says it. */
export function stringField(field: number, text: string): Buffer {
  return text === '' ? Buffer.alloc(0) : bytesField(field, Buffer.from(text, 'utf8'));
}
