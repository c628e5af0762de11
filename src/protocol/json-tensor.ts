/**
 * Reads the `data` of a JSON tensor straight into storage of its datatype.
 *
 * Data is one flat array, or nested in some regular way: as the shape, as nearly all clients send it, or otherwise with the same number of
 * elements, as the protocol allows. Ragged data is refused even where the number of elements would do.
 *
 * Bound: storage is allocated only when the text left could hold that many elements, so it is at most four times the text.
 */
import { BatchportError } from '../config/errors.ts';
import { type Datatype, datatypeInfo } from '../tensor/datatype.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';
import type { JsonCursor } from './json-cursor.ts';
import { endElement, failArray, failSurplus, type JsonTensorLabel } from './json-elements.ts';
import { readFloatRun } from './json-floats.ts';
import { type NarrowIntegers, readInteger64Run, readIntegerRun } from './json-integers.ts';
import { type BytesSink, readBooleanRun, readStringRun, serialisedBytesMax } from './json-strings.ts';

const RANK_MAX = 64;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;

/** Arrays and objects open around the data of an input: the request, its inputs, the input. */
export const INPUT_DEPTH = 3;

/** Reads elements `[from, from + count)` of the tensor, `count > 0`, as `json-elements.ts` defines a run. */
type RunReader = (from: number, count: number) => void;

/**
 * Reads the array at the cursor.
 *
 * @param shape full shape of the tensor; `count` its number of elements.
 * @returns row-major, little-endian; BYTES serialised. Owned by the caller.
 * @throws BAD_TENSOR, BAD_REQUEST
 */
export function readJsonTensor(
  cursor: JsonCursor,
  name: string,
  datatype: Datatype,
  shape: readonly number[],
  count: number,
): Uint8Array {
  if (cursor.kind() !== 'array') {
    throw new BatchportError(
      'BAD_REQUEST',
      `'data' of input '${name}' must be an array, got ${cursor.excerpt(cursor.pos)}`,
    );
  }
  if (!datatypeInfo(datatype).json) {
    throw new BatchportError(
      'BAD_TENSOR',
      `input '${name}': ${datatype} has no JSON form; send it in binary (binary_data_size and Inference-Header-Content-Length)`,
    );
  }
  const start = cursor.pos;
  // The shortest element is one digit and the comma or bracket behind it.
  if (count > (cursor.bytes.length - start) / 2) {
    throw new BatchportError(
      'BAD_TENSOR',
      `input '${name}': expected ${count} elements for the shape ${formatShape(shape)}, more than the request's JSON can hold`,
    );
  }
  cursor.openArray();
  const nested = cursor.peek() === OPEN_BRACKET && shape.length > 1;
  const label: JsonTensorLabel = { name, datatype, shape, nested };
  if (datatype === 'BYTES') {
    cursor.pos = start;
    cursor.skipValue(INPUT_DEPTH);
    const sink: BytesSink = { data: Buffer.allocUnsafe(serialisedBytesMax(cursor.pos - start, count)), at: 0 };
    readEitherWay(cursor, label, start, count, (tensor) => {
      sink.at = 0;
      return (from, n) => readStringRun(cursor, tensor, sink, from, n);
    });
    return sink.data.subarray(0, sink.at);
  }
  const storage = allocateAligned(count * datatypeInfo(datatype).elementBytes);
  readEitherWay(cursor, label, start, count, (tensor) => runReader(cursor, tensor, storage, count));
  return storage;
}

/**
 * Reads the array that begins at `start`: nested as the shape, or, where that fails, as it is nested itself. So only data that is nested otherwise is
 * looked at twice.
 */
function readEitherWay(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  start: number,
  count: number,
  reader: (tensor: JsonTensorLabel) => RunReader,
): void {
  try {
    cursor.pos = start + 1;
    readArray(cursor, tensor, reader(tensor), count);
  } catch (error) {
    if (!(error instanceof BatchportError) || error.code !== 'BAD_TENSOR') throw error;
    if (count === 0 || tensor.shape.length === 0) throw error;
    try {
      cursor.pos = start;
      const dims = nestingOf(cursor, INPUT_DEPTH);
      if (dims.length === 1 || elementCount(dims) !== count || dims.join() === tensor.shape.join()) throw error;
      const relabelled = { ...tensor, shape: dims, nested: true };
      cursor.pos = start + 1;
      readArray(cursor, relabelled, reader(relabelled), count);
    } catch {
      throw error; // ragged, or worse: what was said of the shape is the more useful thing
    }
  }
}

/**
 * Lengths of the array at the cursor, of its first element, of that one's first element, and so on; empty for what is no array. Whether all elements
 * agree is found out when they are read. Moves behind the value.
 *
 * @param depth arrays and objects open around the value.
 * @throws BAD_REQUEST when it is not JSON or nested too deep
 */
export function nestingOf(cursor: JsonCursor, depth: number): number[] {
  const lengths: number[] = [];
  const descend = (level: number): void => {
    if (cursor.kind() !== 'array' || level >= RANK_MAX) {
      cursor.skipValue(depth + level);
      return;
    }
    lengths.push(0);
    cursor.openArray();
    for (let first = true; cursor.nextElement(first); first = false) {
      if (first) descend(level + 1);
      else cursor.skipValue(depth + level + 1);
      lengths[level]!++;
    }
  };
  descend(0);
  return lengths;
}

/** Uninitialised memory on an 8-byte boundary, so that every typed array can lie over it. */
function allocateAligned(bytes: number): Buffer {
  const buffer = Buffer.allocUnsafe(bytes);
  return buffer.byteOffset % 8 === 0 ? buffer : Buffer.allocUnsafeSlow(bytes);
}

/** Reads what is behind the opening bracket of the data. */
function readArray(cursor: JsonCursor, tensor: JsonTensorLabel, readRun: RunReader, count: number): void {
  if (tensor.nested) readLevel(cursor, tensor, readRun, 0, 0);
  else if (count > 0) readRun(0, count);
  else closeEmpty(cursor, tensor, 0);
}

/**
 * Reads one nested array of dimension `level`, whose bracket is open.
 *
 * @returns index of the element behind it.
 */
function readLevel(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  readRun: RunReader,
  level: number,
  from: number,
): number {
  const dim = tensor.shape[level]!;
  if (dim === 0) {
    closeEmpty(cursor, tensor, from);
    return from;
  }
  if (level === tensor.shape.length - 1) {
    readRun(from, dim);
    return from + dim;
  }
  let index = from;
  for (let left = dim - 1; left >= 0; left--) {
    if (cursor.peek() !== OPEN_BRACKET) failArray(cursor, tensor, index, cursor.pos);
    cursor.pos++;
    index = readLevel(cursor, tensor, readRun, level + 1, index);
    cursor.pos = endElement(cursor, tensor, cursor.pos, index, left);
  }
  return index;
}

function closeEmpty(cursor: JsonCursor, tensor: JsonTensorLabel, index: number): void {
  if (cursor.peek() !== CLOSE_BRACKET) {
    // Not even JSON is the more useful thing to say.
    cursor.skipValue(1);
    failSurplus(tensor, index);
  }
  cursor.pos++;
}

function runReader(cursor: JsonCursor, tensor: JsonTensorLabel, storage: Buffer, count: number): RunReader {
  const { buffer, byteOffset } = storage;
  const integers =
    (view: NarrowIntegers, min: number, max: number): RunReader =>
    (from, n) =>
      readIntegerRun(cursor, tensor, view, min, max, from, n);
  switch (tensor.datatype) {
    case 'FP32': {
      const view = new Float32Array(buffer, byteOffset, count);
      return (from, n) => readFloatRun(cursor, tensor, view, from, n);
    }
    case 'FP64': {
      const view = new Float64Array(buffer, byteOffset, count);
      return (from, n) => readFloatRun(cursor, tensor, view, from, n);
    }
    case 'INT64':
    case 'UINT64': {
      const words = new Uint32Array(buffer, byteOffset, 2 * count);
      const signed = tensor.datatype === 'INT64';
      return (from, n) => readInteger64Run(cursor, tensor, words, signed, from, n);
    }
    case 'INT32':
      return integers(new Int32Array(buffer, byteOffset, count), -(2 ** 31), 2 ** 31 - 1);
    case 'UINT32':
      return integers(new Uint32Array(buffer, byteOffset, count), 0, 2 ** 32 - 1);
    case 'INT16':
      return integers(new Int16Array(buffer, byteOffset, count), -(2 ** 15), 2 ** 15 - 1);
    case 'UINT16':
      return integers(new Uint16Array(buffer, byteOffset, count), 0, 2 ** 16 - 1);
    case 'INT8':
      return integers(new Int8Array(buffer, byteOffset, count), -128, 127);
    case 'UINT8':
      return integers(new Uint8Array(buffer, byteOffset, count), 0, 255);
    case 'BOOL':
      return (from, n) => readBooleanRun(cursor, tensor, storage, from, n);
    case 'FP16':
    case 'BF16':
    case 'BYTES':
      throw new Error(`This is a bug: ${tensor.datatype} has no typed storage for JSON data`);
  }
}
