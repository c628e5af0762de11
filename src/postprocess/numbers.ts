/**
 * Tensors as typed arrays of numbers.
 */
import type { Datatype } from '../tensor/datatype.ts';
import { bfloat16Value, float16Value } from '../tensor/float16.ts';

/** A tensor on its way from the model to the client. */
export interface Tensor {
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  /** Row-major, little-endian; BYTES serialised. */
  readonly data: Uint8Array;
}

export type Numbers =
  | Float32Array
  | Float64Array
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array;

const ARRAYS = {
  BOOL: Uint8Array,
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  FP32: Float32Array,
  FP64: Float64Array,
} as const;

/**
 * The elements of a tensor of numbers, FP16 and BF16 as FP32. A view where its bytes lie at a place for one, else a copy.
 *
 * @param datatype not BYTES
 */
export function numbersOf(datatype: Datatype, data: Uint8Array): Numbers {
  if (datatype === 'FP16') return halvesOf(data, float16Value);
  if (datatype === 'BF16') return halvesOf(data, bfloat16Value);
  if (datatype === 'BYTES') throw new Error('a tensor of BYTES has no numbers: this is a bug');
  const View = ARRAYS[datatype];
  // Not slice(), which for a Buffer is a view.
  const bytes = data.byteOffset % View.BYTES_PER_ELEMENT === 0 ? data : new Uint8Array(data);
  return new View(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.length / View.BYTES_PER_ELEMENT);
}

function halvesOf(data: Uint8Array, toValue: (bits: number) => number): Float32Array {
  const values = new Float32Array(data.length / 2);
  for (let n = 0; n < values.length; n++) values[n] = toValue(data[2 * n]! | (data[2 * n + 1]! << 8));
  return values;
}

/** The bytes of an array, as a view. */
export function bytesOf({ buffer, byteOffset, byteLength }: Numbers): Uint8Array {
  return new Uint8Array(buffer as ArrayBuffer, byteOffset, byteLength);
}
