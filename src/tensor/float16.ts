/**
 * The two 16-bit floats, FP16 (IEEE 754 binary16) and BF16 (the upper half of an FP32), to and from numbers.
 *
 * Conversions to 16 bits go straight from the double, rounding once, to nearest even; a detour over FP32 would round twice.
 * NaN becomes the quiet NaN of its sign-less pattern: payloads are not kept.
 */

const doubleView = new Float64Array(1);
const doubleWords = new Uint32Array(doubleView.buffer);
const singleView = new Float32Array(1);
const singleWord = new Uint32Array(singleView.buffer);

/** Adding and taking away 2^52 rounds a double in [0, 2^51) to an integer, ties to even. */
const ROUNDER = 2 ** 52;

/** Binary exponent of a positive, normal double: floor(log2(x)). */
function exponentOf(x: number): number {
  doubleView[0] = x;
  return ((doubleWords[1]! >>> 20) & 0x7ff) - 1023;
}

/** Bit pattern of the FP16 nearest to `x`; infinity from 65520 on. */
export function float16Bits(x: number): number {
  if (Number.isNaN(x)) return 0x7e00;
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(x);
  if (magnitude >= 65520) return sign | 0x7c00;
  // Below 2^-14 the unit is fixed at 2^-24; a carry to 1024 is the smallest normal number, as it should be.
  if (magnitude < 2 ** -14) return sign | (magnitude * 2 ** 24 + ROUNDER - ROUNDER);
  const exponent = exponentOf(magnitude);
  const significand = magnitude * 2 ** (10 - exponent) + ROUNDER - ROUNDER;
  return sign | (((exponent + 15) << 10) + (significand - 1024));
}

/** Value of an FP16 bit pattern; exact. */
export function float16Value(bits: number): number {
  const sign = (bits & 0x8000) === 0 ? 1 : -1;
  const exponent = (bits >>> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/** Bit pattern of the BF16 nearest to `x`; infinity from half a unit above the largest finite value on. */
export function bfloat16Bits(x: number): number {
  if (Number.isNaN(x)) return 0x7fc0;
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(x);
  if (magnitude >= 2 ** 128) return sign | 0x7f80;
  if (magnitude < 2 ** -126) return sign | (magnitude * 2 ** 133 + ROUNDER - ROUNDER);
  const exponent = exponentOf(magnitude);
  const significand = magnitude * 2 ** (7 - exponent) + ROUNDER - ROUNDER;
  // A carry out of the largest exponent lands on 0x7f80, which is infinity.
  return sign | (((exponent + 127) << 7) + (significand - 128));
}

/** Value of a BF16 bit pattern; exact. */
export function bfloat16Value(bits: number): number {
  singleWord[0] = bits << 16;
  return singleView[0]!;
}
