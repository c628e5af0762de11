/**
 * Numbers as JSON text, written straight into a buffer.
 *
 * FP32 is printed with the fewest digits that read back as the same FP32, whether a reader rounds the decimal to FP32 at once or by way
 * of a double. Method: the value and the two halfway points to its neighbours are scaled to nine digits, which always suffice, and
 * digits are dropped for as long as a shorter decimal still lies between the halfway points. The scaled numbers are doubles, off by some
 * 2^-51 of their size; the interval is narrowed by more than that, so an error can at worst cost a digit and never a value.
 */

const ZERO = 0x30;
const MINUS = 0x2d;
const PLUS = 0x2b;
const POINT = 0x2e;
const LETTER_E = 0x65;

/** Longest text of one FP32 value: a sign, and 21 digits or `0.00000` and nine digits. */
export const FLOAT32_TEXT_MAX = 24;
/** Longest text of one integer: `-9223372036854775808`. */
export const INTEGER_TEXT_MAX = 20;

/** Powers of ten up to the largest that nine digits reach. */
const POWERS = Float64Array.from({ length: 10 }, (_, exponent) => 10 ** exponent);

/** `SCALES[SCALE_ZERO + e]` is 10^e, or the double nearest to it. */
const SCALE_ZERO = 48;
const SCALES = Float64Array.from({ length: SCALE_ZERO + 60 }, (_, i) => Number(`1e${i - SCALE_ZERO}`));

/** By exponent field of an FP32: half the distance to the next larger value. Field 0, the subnormal numbers, has the unit of field 1. */
const HALF_UNITS = Float64Array.from({ length: 255 }, (_, field) => 2 ** (Math.max(field, 1) - 151));
/** By exponent field: decimal exponent of the smallest value of that field. */
const DECIMAL_EXPONENTS = Int32Array.from({ length: 255 }, (_, field) =>
  Number((field === 0 ? 2 ** -149 : 2 ** (field - 127)).toExponential().split('e')[1]),
);

/** Writes an integer from 0 to 2^53 − 1. @returns the offset behind it. */
export function writeDigits(out: Uint8Array, at: number, value: number): number {
  let to = at;
  let low = value;
  let pad = 1;
  if (value >= 1e9) {
    const high = Math.floor(value / 1e9);
    to = writeDigits(out, to, high);
    low = value - high * 1e9;
    pad = 9;
  }
  let digits = pad;
  while (digits < 9 && low >= POWERS[digits]!) digits++;
  let rest = low | 0;
  for (let i = to + digits - 1; i >= to; i--) {
    const next = (rest / 10) | 0;
    out[i] = ZERO + rest - next * 10;
    rest = next;
  }
  return to + digits;
}

/** Writes the 64-bit integer of two little-endian words. @returns the offset behind it. */
export function writeInteger64(out: Buffer, at: number, low: number, high: number, signed: boolean): number {
  const negative = signed && high >= 2 ** 31;
  // The magnitude of a negative number: two's complement.
  const lowWord = negative ? -low >>> 0 : low;
  const highWord = negative ? (low === 0 ? -high : ~high) >>> 0 : high;
  let to = at;
  if (negative) out[to++] = MINUS;
  if (highWord < 2 ** 21) return writeDigits(out, to, highWord * 2 ** 32 + lowWord);
  return to + out.write(((BigInt(highWord) << 32n) | BigInt(lowWord)).toString(), to, 'latin1');
}

/**
 * Writes a finite FP32.
 *
 * @param value the number, `word` its bit pattern.
 * @returns the offset behind it.
 */
export function writeFloat32(out: Uint8Array, at: number, value: number, word: number): number {
  let to = at;
  if (word < 0) out[to++] = MINUS;
  const magnitude = Math.abs(value);
  // Up to 2^24 every integer is an FP32, so none can do with fewer digits.
  if (magnitude < 2 ** 24 && magnitude === Math.floor(magnitude)) {
    to = writeDigits(out, to, magnitude);
    if (magnitude !== 0 || word >= 0) return to;
    // `-0` is read as an integer by some, which has no sign at zero.
    out[to] = POINT;
    out[to + 1] = ZERO;
    return to + 2;
  }
  const field = (word >>> 23) & 0xff;
  let decimalExponent = DECIMAL_EXPONENTS[field]!;
  while (magnitude >= SCALES[SCALE_ZERO + 1 + decimalExponent]!) decimalExponent++;
  const shift = 8 - decimalExponent;
  const factor = SCALES[SCALE_ZERO + shift]!;
  const scaled = magnitude * factor;
  const above = HALF_UNITS[field]! * factor;
  // Below a power of two the neighbour is half as far.
  const below = (word & 0x7fffff) === 0 && field > 1 ? above / 2 : above;
  const margin = scaled * 2 ** -50;
  // The integers strictly between the halfway points, of at most ten digits and below 2^31.
  let lowest = Math.ceil(scaled - below + margin) | 0;
  let highest = Math.floor(scaled + above - margin) | 0;
  let zeros = 0;
  for (;;) {
    const low = ((lowest + 9) / 10) | 0;
    const high = (highest / 10) | 0;
    if (low > high) break;
    lowest = low;
    highest = high;
    zeros++;
  }
  const nearest = Math.round(scaled / POWERS[zeros]!);
  return writeDecimal(out, to, Math.min(Math.max(nearest, lowest), highest), zeros - shift);
}

/** Writes `digits × 10^exponent`, where `digits` has at most nine and does not end in 0: in full from 1e-6 to 1e21, as JavaScript does. */
function writeDecimal(out: Uint8Array, at: number, digits: number, exponent: number): number {
  let length = 1;
  while (length < 10 && digits >= POWERS[length]!) length++;
  const scientific = length - 1 + exponent;
  if (scientific < -6 || scientific >= 21) {
    let to = at + 1;
    if (length > 1) {
      writeDigits(out, to, digits);
      out[at] = out[to]!;
      out[to] = POINT;
      to += length;
    } else out[at] = ZERO + digits;
    out[to++] = LETTER_E;
    out[to++] = scientific < 0 ? MINUS : PLUS;
    return writeDigits(out, to, Math.abs(scientific));
  }
  if (exponent >= 0) {
    const to = writeDigits(out, at, digits);
    out.fill(ZERO, to, to + exponent);
    return to + exponent;
  }
  if (scientific < 0) {
    out[at] = ZERO;
    out[at + 1] = POINT;
    const to = at + 1 - scientific;
    out.fill(ZERO, at + 2, to);
    return writeDigits(out, to, digits);
  }
  // The point goes behind the first `scientific + 1` digits: write all one place to the right, then move these back.
  const end = writeDigits(out, at + 1, digits);
  for (let i = at; i <= at + scientific; i++) out[i] = out[i + 1]!;
  out[at + 1 + scientific] = POINT;
  return end;
}
