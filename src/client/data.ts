/**
 * How a tensor's elements look in JavaScript, for each datatype of the protocol.
 *
 * What comes out is always a fresh array that belongs to the caller. What goes in may also be a plain array where that is handy; the encoder
 * checks its values and never narrows one silently.
 */
import type { Datatype } from '../tensor/datatype.ts';

/** Data of an output, flat and row-major. BOOL holds 0 or 1; FP16 and BF16 hold raw bits; BYTES holds one array per element. */
export interface DataOf {
  BOOL: Uint8Array;
  UINT8: Uint8Array;
  UINT16: Uint16Array;
  UINT32: Uint32Array;
  UINT64: BigUint64Array;
  INT8: Int8Array;
  INT16: Int16Array;
  INT32: Int32Array;
  INT64: BigInt64Array;
  FP16: Uint16Array;
  FP32: Float32Array;
  FP64: Float64Array;
  BF16: Uint16Array;
  BYTES: Uint8Array[];
}

/** Data of an input: what an output gives, or a plain array. A string stands for its UTF-8 bytes. */
export interface InputDataOf {
  BOOL: Uint8Array | readonly boolean[];
  UINT8: Uint8Array | readonly number[];
  UINT16: Uint16Array | readonly number[];
  UINT32: Uint32Array | readonly number[];
  UINT64: BigUint64Array | readonly (bigint | number)[];
  INT8: Int8Array | readonly number[];
  INT16: Int16Array | readonly number[];
  INT32: Int32Array | readonly number[];
  INT64: BigInt64Array | readonly (bigint | number)[];
  FP16: Uint16Array;
  FP32: Float32Array | readonly number[];
  FP64: Float64Array | readonly number[];
  BF16: Uint16Array;
  BYTES: readonly (string | Uint8Array)[];
}

/** Data of any output. */
export type AnyData = DataOf[Datatype];

/** Constructor of the array that holds a fixed-size datatype's elements; its little-endian bytes are the binary form on the wire. */
export const ARRAYS = {
  BOOL: Uint8Array,
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  FP16: Uint16Array,
  FP32: Float32Array,
  FP64: Float64Array,
  BF16: Uint16Array,
} as const satisfies {
  [D in Exclude<Datatype, 'BYTES'>]: new (
    length: number,
  ) => DataOf[D];
};
