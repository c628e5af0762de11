/**
 * Reads JSON numbers into integer storage of 8 to 64 bits, exactly.
 *
 * Rule, the same for every integer type: a number counts by its value, so `3.0` and `3e2` are integers, `1.5` is not, and `-0` is 0.
 * A value outside the type's range is refused, never wrapped or cut.
 *
 * Method: up to 15 digits a double is exact. A longer integer is taken as `upper × 10^k + lower` and multiplied out in pieces that
 * each stay below 2^53. Fractions and exponents, which are rare, go through a BigInt of at most 20 digits.
 */
import type { JsonCursor } from './json-cursor.ts';
import { endElement, failElement, type JsonTensorLabel, NUMBER_BYTES_MAX } from './json-elements.ts';

const COMMA = 0x2c;
const MINUS = 0x2d;
const DOT = 0x2e;
const ZERO = 0x30;

/** Digits that a double holds exactly. */
const DOUBLE_DIGITS_MAX = 15;
/** Digits of 2^64 − 1. */
const INTEGER_DIGITS_MAX = 20;
/** Digits of the upper piece of a long integer; the lower one has at most nine. */
const UPPER_DIGITS = 11;
const POWERS = Float64Array.from({ length: INTEGER_DIGITS_MAX - UPPER_DIGITS + 1 }, (_, exponent) => 10 ** exponent);
const WORD = 2 ** 32;

export type NarrowIntegers = Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array;

const DECIMAL = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/;

/** Value of a JSON number when it is an integer of at most 20 digits, else undefined. */
export function integerOfDecimal(text: string): bigint | undefined {
  const parts = DECIMAL.exec(text);
  if (parts === null) return undefined;
  const fraction = parts[3] ?? '';
  const digits = (parts[2]! + fraction).replace(/^0+/, '');
  if (digits === '') return 0n;
  let end = digits.length;
  while (digits[end - 1] === '0') end--;
  const zeros = Number(parts[4] ?? '0') - fraction.length + (digits.length - end);
  if (zeros < 0 || end + zeros > INTEGER_DIGITS_MAX) return undefined;
  const magnitude = BigInt(digits.slice(0, end) + '0'.repeat(zeros));
  return parts[1] === '-' ? -magnitude : magnitude;
}

/** The slow way to read an integer, in any form; undefined when it is none. Leaves the cursor behind it. */
function readIntegerForm(cursor: JsonCursor, start: number): bigint | undefined {
  cursor.pos = start;
  cursor.skipNumber();
  if (cursor.pos - start > NUMBER_BYTES_MAX) return undefined;
  return integerOfDecimal(cursor.bytes.toString('latin1', start, cursor.pos));
}

/** Whether the byte behind some digits carries the number on. */
function numberGoesOn(byte: number | undefined): boolean {
  return byte === DOT || byte === 0x65 || byte === 0x45;
}

/** Reads a run of elements of at most 32 bits into `out[from, from + count)`; `min` and `max` are the type's. */
export function readIntegerRun(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  out: NarrowIntegers,
  min: number,
  max: number,
  from: number,
  count: number,
): void {
  const bytes = cursor.bytes;
  const last = from + count - 1;
  let pos = cursor.pos;
  for (let i = from; i <= last; i++) {
    let byte = bytes[pos];
    while (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) byte = bytes[++pos];
    const start = pos;
    const first = byte === MINUS ? pos + 1 : pos;
    let value = 0;
    let digit = bytes[first]! - ZERO;
    for (pos = first; digit >= 0 && digit <= 9; digit = bytes[++pos]! - ZERO) value = value * 10 + digit;
    if (pos === first || (bytes[first] === ZERO && pos > first + 1)) failElement(cursor, tensor, i, start);
    if (byte === MINUS) value = -value;
    if (numberGoesOn(bytes[pos])) {
      // Out of range stands for "no integer" too: both end in the same message.
      value = Number(readIntegerForm(cursor, start) ?? Number.NaN);
      pos = cursor.pos;
    }
    // Past 15 digits the value is inexact, but then it is out of these types' range in any case.
    if (!(value >= min && value <= max)) failElement(cursor, tensor, i, start);
    out[i] = value;
    if (bytes[pos] === COMMA && i < last) pos++;
    else pos = endElement(cursor, tensor, pos, i, last - i);
  }
  cursor.pos = pos;
}

/** Reads a run of 64-bit elements into the pairs of `words` (low word first) that belong to elements `[from, from + count)`. */
export function readInteger64Run(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  words: Uint32Array,
  signed: boolean,
  from: number,
  count: number,
): void {
  const bytes = cursor.bytes;
  const last = from + count - 1;
  let pos = cursor.pos;
  for (let i = from; i <= last; i++) {
    let byte = bytes[pos];
    while (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) byte = bytes[++pos];
    const start = pos;
    const negative = byte === MINUS;
    const first = negative ? pos + 1 : pos;
    let upper = 0;
    let digit = bytes[first]! - ZERO;
    for (pos = first; digit >= 0 && digit <= 9 && pos - first < DOUBLE_DIGITS_MAX; digit = bytes[++pos]! - ZERO) {
      upper = upper * 10 + digit;
    }
    if (pos === first || (bytes[first] === ZERO && pos > first + 1)) failElement(cursor, tensor, i, start);
    let low = upper >>> 0;
    let high = Math.floor(upper / WORD);
    if (digit >= 0 && digit <= 9) {
      upper = 0;
      for (pos = first; pos < first + UPPER_DIGITS; pos++) upper = upper * 10 + (bytes[pos]! - ZERO);
      let lower = 0;
      digit = bytes[pos]! - ZERO;
      for (; digit >= 0 && digit <= 9 && pos - first < INTEGER_DIGITS_MAX; digit = bytes[++pos]! - ZERO) {
        lower = lower * 10 + digit;
      }
      const power = POWERS[pos - first - UPPER_DIGITS]!;
      // upper = a × 2^20 + b; a × power < 2^47 and b × power + lower < 2^51, so both are exact.
      const a = Math.floor(upper / 2 ** 20);
      const product = a * power;
      const rest = (upper - a * 2 ** 20) * power + lower;
      const sum = (product % 4096) * 2 ** 20 + (rest % WORD);
      low = sum >>> 0;
      high = Math.floor(product / 4096) + Math.floor(rest / WORD) + Math.floor(sum / WORD);
      if (digit >= 0 && digit <= 9) high = Number.POSITIVE_INFINITY;
    }
    if (high === Number.POSITIVE_INFINITY || numberGoesOn(bytes[pos])) {
      const value = readIntegerForm(cursor, start);
      pos = cursor.pos;
      if (value === undefined) failElement(cursor, tensor, i, start);
      const magnitude = value < 0n ? -value : value;
      low = Number(BigInt.asUintN(32, magnitude));
      high = Number(magnitude >> 32n);
    }
    if (negative) {
      const inRange = signed ? high < 2 ** 31 || (high === 2 ** 31 && low === 0) : high === 0 && low === 0;
      if (!inRange) failElement(cursor, tensor, i, start);
      high = low === 0 ? -high : ~high;
      low = -low;
    } else if (high >= (signed ? 2 ** 31 : WORD)) failElement(cursor, tensor, i, start);
    words[2 * i] = low;
    words[2 * i + 1] = high;
    if (bytes[pos] === COMMA && i < last) pos++;
    else pos = endElement(cursor, tensor, pos, i, last - i);
  }
  cursor.pos = pos;
}
