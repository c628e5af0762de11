/**
 * BYTES tensors in the protocol's serialised form: per element, in row-major order, a little-endian uint32 length and that many bytes.
 *
 * An element is opaque: it may hold zero bytes and need not be UTF-8. Lengths come from a client or a model and are never trusted:
 * every walk is bounded by the data it was given.
 */

/** Bytes of the length before each element. */
export const BYTES_LENGTH_BYTES = 4;

/** Length that stands at `offset`; the caller has made sure that four bytes are there. */
export function bytesElementLength(data: Uint8Array, offset: number): number {
  return (data[offset]! | (data[offset + 1]! << 8) | (data[offset + 2]! << 16) | (data[offset + 3]! << 24)) >>> 0;
}

/** Writes an element's length at `offset`. */
export function writeBytesElementLength(data: Uint8Array, offset: number, length: number): void {
  data[offset] = length;
  data[offset + 1] = length >>> 8;
  data[offset + 2] = length >>> 16;
  data[offset + 3] = length >>> 24;
}

/**
 * Offset just behind `count` elements that begin at `offset`, to cut a tensor into rows.
 *
 * @returns -1 when the data ends before the last of them does.
 */
export function skipBytesElements(data: Uint8Array, offset: number, count: number): number {
  let at = offset;
  for (let i = 0; i < count; i++) {
    if (data.length - at < BYTES_LENGTH_BYTES) return -1;
    const length = bytesElementLength(data, at);
    at += BYTES_LENGTH_BYTES;
    if (data.length - at < length) return -1;
    at += length;
  }
  return at;
}

/** What keeps `data` from being exactly `count` serialised elements, in words for an error message; undefined when nothing does. */
export function bytesTensorFault(data: Uint8Array, count: number): string | undefined {
  if (skipBytesElements(data, 0, count) === data.length) return undefined;
  let at = 0;
  for (let i = 0; i < count; i++) {
    const left = data.length - at;
    if (left === 0) return `expected ${count} elements, got ${i}`;
    if (left < BYTES_LENGTH_BYTES) return `element ${i} has ${left} of the 4 bytes of its length`;
    const length = bytesElementLength(data, at);
    if (left - BYTES_LENGTH_BYTES < length) {
      return `element ${i} says it has ${length} bytes, but ${left - BYTES_LENGTH_BYTES} are left`;
    }
    at += BYTES_LENGTH_BYTES + length;
  }
  return `${data.length - at} bytes are left over after ${count} elements`;
}

/** Serialises elements; the result is a copy. */
export function encodeBytesTensor(elements: readonly Uint8Array[]): Uint8Array {
  let size = 0;
  for (const element of elements) size += BYTES_LENGTH_BYTES + element.length;
  const data = new Uint8Array(size);
  let at = 0;
  for (const element of elements) {
    writeBytesElementLength(data, at, element.length);
    data.set(element, at + BYTES_LENGTH_BYTES);
    at += BYTES_LENGTH_BYTES + element.length;
  }
  return data;
}

/**
 * The elements of a serialised tensor, as views into `data`.
 *
 * @returns undefined when `data` is not exactly `count` elements; `bytesTensorFault` has the reason.
 */
export function decodeBytesTensor(data: Uint8Array, count: number): Uint8Array[] | undefined {
  if (skipBytesElements(data, 0, count) !== data.length) return undefined;
  const elements: Uint8Array[] = [];
  let at = 0;
  for (let i = 0; i < count; i++) {
    const start = at + BYTES_LENGTH_BYTES;
    const end = start + bytesElementLength(data, at);
    elements.push(data.subarray(start, end));
    at = end;
  }
  return elements;
}
