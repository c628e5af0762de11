/**
 * Escapes in JSON strings: checking them, and turning an escaped string into UTF-8.
 *
 * Surrogates must come in pairs: a lone one is no character and has no UTF-8, so it is refused rather than replaced.
 */

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const LETTER_U = 0x75;

/** Byte that each one-letter escape stands for, by its letter; -1 for a letter that is none. */
const ESCAPED_BYTE = new Int8Array(128).fill(-1);
for (const [letter, byte] of ['""', '\\\\', '//', 'b\b', 'f\f', 'n\n', 'r\r', 't\t'].map((pair) => [
  ...Buffer.from(pair),
])) {
  ESCAPED_BYTE[letter!] = byte!;
}

/**
 * Position behind the escape that begins at `pos`, a surrogate pair counting as one.
 *
 * @returns -1 when it is malformed.
 */
export function skipEscape(bytes: Uint8Array, pos: number): number {
  const letter = bytes[pos + 1] ?? QUOTE + 0x80;
  if (letter !== LETTER_U) return (ESCAPED_BYTE[letter] ?? -1) < 0 ? -1 : pos + 2;
  const unit = hexUnit(bytes, pos + 2);
  if (unit < 0 || (unit >= 0xdc00 && unit <= 0xdfff)) return -1;
  if (unit < 0xd800 || unit > 0xdbff) return pos + 6;
  if (bytes[pos + 6] !== BACKSLASH || bytes[pos + 7] !== LETTER_U) return -1;
  const low = hexUnit(bytes, pos + 8);
  return low >= 0xdc00 && low <= 0xdfff ? pos + 12 : -1;
}

/** Value of the four hexadecimal digits at `pos`, or -1. */
function hexUnit(bytes: Uint8Array, pos: number): number {
  let unit = 0;
  for (let i = pos; i < pos + 4; i++) {
    const byte = bytes[i] ?? 0;
    const letter = byte | 0x20;
    if (byte >= 0x30 && byte <= 0x39) unit = unit * 16 + byte - 0x30;
    else if (letter >= 0x61 && letter <= 0x66) unit = unit * 16 + letter - 0x57;
    else return -1;
  }
  return unit;
}

/**
 * Writes the UTF-8 of a string whose escapes have been checked, `bytes[start, end)` without its quotes, to `out` from `at` on. It never
 * takes more than `end - start` bytes.
 *
 * @returns the offset behind the last byte written.
 */
export function unescapeInto(bytes: Uint8Array, start: number, end: number, out: Uint8Array, at: number): number {
  let to = at;
  let pos = start;
  while (pos < end) {
    const byte = bytes[pos]!;
    if (byte !== BACKSLASH) {
      out[to++] = byte;
      pos++;
      continue;
    }
    const letter = bytes[pos + 1]!;
    if (letter !== LETTER_U) {
      out[to++] = ESCAPED_BYTE[letter]!;
      pos += 2;
      continue;
    }
    let point = hexUnit(bytes, pos + 2);
    pos += 6;
    if (point >= 0xd800 && point <= 0xdbff) {
      point = 0x10000 + ((point - 0xd800) << 10) + (hexUnit(bytes, pos + 2) - 0xdc00);
      pos += 6;
    }
    to = writeUtf8(point, out, to);
  }
  return to;
}

function writeUtf8(point: number, out: Uint8Array, at: number): number {
  let to = at;
  if (point < 0x80) {
    out[to++] = point;
    return to;
  }
  if (point < 0x800) out[to++] = 0xc0 | (point >> 6);
  else {
    if (point < 0x10000) out[to++] = 0xe0 | (point >> 12);
    else {
      out[to++] = 0xf0 | (point >> 18);
      out[to++] = 0x80 | ((point >> 12) & 0x3f);
    }
    out[to++] = 0x80 | ((point >> 6) & 0x3f);
  }
  out[to++] = 0x80 | (point & 0x3f);
  return to;
}
