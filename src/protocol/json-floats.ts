/**
 * Reads JSON numbers into FP32 and FP64 storage.
 *
 * FP64 is the double nearest to the decimal; FP32 is that double rounded once more (`Math.fround`), which is what a client gets that
 * parses JSON into doubles and casts. Values beyond the largest finite number are refused, values below the smallest become 0.
 *
 * Method: digits are gathered into two exact integers of nine digits each. Up to 2^53 and with a power of ten up to 10^22 the one
 * multiplication or division rounds correctly (W. Clinger, "How to read floating point numbers accurately", 1990). For FP32 the
 * longer decimals need no more: the double is then off by two units at most, and unless an FP32 rounding boundary lies that near,
 * the FP32 is the right one. What remains is left to `Number`.
 */
import { isDigit, type JsonCursor } from './json-cursor.ts';
import { endElement, failElement, type JsonTensorLabel, NUMBER_BYTES_MAX } from './json-elements.ts';

const COMMA = 0x2c;
const MINUS = 0x2d;
const DOT = 0x2e;
const ZERO = 0x30;

/** Largest power of ten that a double holds exactly. */
const EXACT_POWER_MAX = 22;
const POWER_MAX = 80;
/** Powers of ten, each the nearest double. */
const POWERS = Float64Array.from({ length: POWER_MAX + 1 }, (_, exponent) => Number(`1e${exponent}`));

/** Digits that two integers of nine hold; more than that goes to `Number`. */
const DIGITS_MAX = 18;
/** Bound on the exponent while it is read, far outside any result, so that it cannot overflow. */
const EXPONENT_MAX = 100_000;

/** Result of `scanDecimal`: typed arrays, as a double in a variable of the module would be boxed on each call. */
const mantissa = new Float64Array(1);
const scanned = new Int32Array(2);
const EXPONENT = 0;
const DIGITS = 1;

/**
 * Reads the unsigned decimal at `pos`: `mantissa[0] × 10^scanned[EXPONENT]`, from `scanned[DIGITS]` significant digits.
 *
 * @returns position behind it, or -1 when it breaks JSON's grammar.
 */
function scanDecimal(bytes: Uint8Array, start: number): number {
  let pos = start;
  let upper = 0;
  let lower = 0;
  let digits = 0;
  let exponent = 0;
  let digit = bytes[pos]! - ZERO;
  if (!(digit >= 0 && digit <= 9)) return -1;
  do {
    if (digits < 9) upper = upper * 10 + digit;
    else if (digits < DIGITS_MAX) lower = lower * 10 + digit;
    if (digits > 0 || digit > 0) digits++;
    digit = bytes[++pos]! - ZERO;
  } while (digit >= 0 && digit <= 9);
  if (bytes[start] === ZERO && pos > start + 1) return -1;
  if (bytes[pos] === DOT) {
    const point = ++pos;
    digit = bytes[pos]! - ZERO;
    while (digit >= 0 && digit <= 9) {
      if (digits < 9) upper = upper * 10 + digit;
      else if (digits < DIGITS_MAX) lower = lower * 10 + digit;
      if (digits > 0 || digit > 0) digits++;
      digit = bytes[++pos]! - ZERO;
    }
    if (pos === point) return -1;
    exponent = point - pos;
  }
  const letter = bytes[pos]! | 0x20;
  if (letter === 0x65) {
    let sign = bytes[++pos];
    let negative = false;
    if (sign === MINUS || sign === 0x2b) {
      negative = sign === MINUS;
      sign = bytes[++pos];
    }
    if (!isDigit(sign ?? 0)) return -1;
    let power = 0;
    for (; isDigit(bytes[pos] ?? 0); pos++) if (power < EXPONENT_MAX) power = power * 10 + (bytes[pos]! - ZERO);
    exponent += negative ? -power : power;
  }
  mantissa[0] = digits <= 9 ? upper : upper * POWERS[Math.min(digits, DIGITS_MAX) - 9]! + lower;
  scanned[EXPONENT] = exponent;
  scanned[DIGITS] = digits;
  return pos;
}

/** The double nearest to the unsigned decimal in `bytes[start, end)` that was just scanned; infinity when it is out of range or too long. */
function scannedDouble(bytes: Buffer, start: number, end: number): number {
  const digits = mantissa[0]!;
  const exponent = scanned[EXPONENT]!;
  if (digits <= Number.MAX_SAFE_INTEGER && scanned[DIGITS]! <= DIGITS_MAX) {
    if (exponent === 0) return digits;
    if (exponent < 0 && exponent >= -EXACT_POWER_MAX) return digits / POWERS[-exponent]!;
    if (exponent > 0 && exponent <= EXACT_POWER_MAX) return digits * POWERS[exponent]!;
  }
  if (end - start > NUMBER_BYTES_MAX) return Number.POSITIVE_INFINITY;
  return Number(bytes.toString('latin1', start, end));
}

/** `Math.fround` of the double nearest to the unsigned decimal in `bytes[start, end)` that was just scanned. */
function scannedSingle(bytes: Buffer, start: number, end: number): number {
  const digits = mantissa[0]!;
  const exponent = scanned[EXPONENT]!;
  if (scanned[DIGITS]! <= DIGITS_MAX && exponent >= -POWER_MAX && exponent <= POWER_MAX) {
    const value = exponent < 0 ? digits / POWERS[-exponent]! : digits * POWERS[exponent]!;
    // Mantissa, power and their product or quotient add up to a relative error below 2^-51.
    const single = Math.fround(value * (1 + 2 ** -50));
    if (single === Math.fround(value * (1 - 2 ** -50))) return single;
  }
  return Math.fround(scannedDouble(bytes, start, end));
}

/** Reads a run of FP32 or FP64 elements into `out[from, from + count)`. */
export function readFloatRun(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  out: Float32Array | Float64Array,
  from: number,
  count: number,
): void {
  const bytes = cursor.bytes;
  const single = out.BYTES_PER_ELEMENT === Float32Array.BYTES_PER_ELEMENT;
  const last = from + count - 1;
  let pos = cursor.pos;
  for (let i = from; i <= last; i++) {
    let byte = bytes[pos];
    while (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) byte = bytes[++pos];
    const start = pos;
    if (byte === MINUS) pos++;
    const digits = pos;
    pos = scanDecimal(bytes, digits);
    if (pos < 0) failElement(cursor, tensor, i, start);
    const value = single ? scannedSingle(bytes, digits, pos) : scannedDouble(bytes, digits, pos);
    if (value === Number.POSITIVE_INFINITY) failElement(cursor, tensor, i, start);
    out[i] = byte === MINUS ? -value : value;
    if (bytes[pos] === COMMA && i < last) pos++;
    else pos = endElement(cursor, tensor, pos, i, last - i);
  }
  cursor.pos = pos;
}
