/**
 * Compares elements for the batchability probe: floats within a tolerance, everything else exactly.
 *
 * A model may sum in another order when rows run together, which moves the last bits; mixing rows moves far more.
 */
import type { Datatype } from '../tensor/datatype.ts';
import { bfloat16Value, float16Value } from '../tensor/float16.ts';

/** Relative difference that is still the same value; 16-bit floats have less digits to begin with. */
const TOLERANCE = { FP64: 1e-3, FP32: 1e-3, FP16: 1e-2, BF16: 4e-2 } as const;

/** Difference that is still the same value, as a part of the largest finite element: where large terms cancel. */
const ABSOLUTE_PART = 1e-2;

/**
 * The first element that differs between two tensors of one datatype, in words, or undefined when none does.
 * NaN equals NaN.
 *
 * @param expected,actual elements, BYTES in the protocol's form; aligned for the datatype or copied
 */
export function rowDifference(datatype: Datatype, expected: Uint8Array, actual: Uint8Array): string | undefined {
  if (expected.byteLength !== actual.byteLength) {
    return `${actual.byteLength} bytes instead of ${expected.byteLength}`;
  }
  if (!isFloat(datatype)) {
    const at = expected.findIndex((byte, i) => byte !== actual[i]);
    return at < 0 ? undefined : `byte ${at} is ${actual[at]} instead of ${expected[at]}`;
  }
  const want = floats(datatype, expected);
  const got = floats(datatype, actual);
  let largest = 0;
  for (const value of want) {
    if (Number.isFinite(value)) {
      largest = Math.max(largest, Math.abs(value));
    }
  }
  const relative = TOLERANCE[datatype];
  for (let i = 0; i < want.length; i++) {
    const a = want[i]!;
    const b = got[i]!;
    const allowed = relative * Math.max(Math.abs(a), Math.abs(b), ABSOLUTE_PART * largest);
    // Infinities and NaN are equal only to themselves; a difference that is NaN fails as well.
    if (!Object.is(a, b) && a !== b && !(Math.abs(a - b) <= allowed && Number.isFinite(a) && Number.isFinite(b))) {
      return `element ${i} is ${b} instead of ${a}`;
    }
  }
  return undefined;
}

function isFloat(datatype: Datatype): datatype is keyof typeof TOLERANCE {
  return Object.hasOwn(TOLERANCE, datatype);
}

function floats(datatype: keyof typeof TOLERANCE, bytes: Uint8Array): ArrayLike<number> & Iterable<number> {
  // A copy starts at an address that suits every width. (Not slice: that of a Buffer copies nothing.)
  const copy = new Uint8Array(bytes);
  switch (datatype) {
    case 'FP64':
      return new Float64Array(copy.buffer);
    case 'FP32':
      return new Float32Array(copy.buffer);
    case 'FP16':
      return Float32Array.from(new Uint16Array(copy.buffer), float16Value);
    case 'BF16':
      return Float32Array.from(new Uint16Array(copy.buffer), bfloat16Value);
  }
}
