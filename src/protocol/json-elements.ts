/**
 * What the readers of JSON tensor data share: the tensor they fill, the commas and brackets between elements, and the errors.
 *
 * A "run" is one innermost array: the reader of a datatype is called behind its opening bracket with the number of elements the shape
 * gives it, stores exactly that many, and leaves the cursor behind the closing bracket. Anything else is an error, so a tensor's
 * storage is either filled to the last element or never seen by anyone.
 *
 * The readers repeat the passing over blanks and commas: made common in functions, these cost short numbers half their speed again (INT32: 24 ns became 40 ns).
 */
import { BatchportError } from '../config/errors.ts';
import type { Datatype } from '../tensor/datatype.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';
import type { JsonCursor } from './json-cursor.ts';

/** The tensor that is being read, as far as messages need it. */
export interface JsonTensorLabel {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  /** Whether the data is nested in the form of the shape, or one flat array. */
  readonly nested: boolean;
}

/** Longest decimal that is looked at; JSON sets no limit, and no value needs a fraction of this. A longer one is refused. */
export const NUMBER_BYTES_MAX = 1 << 16;

const COMMA = 0x2c;
const CLOSE_BRACKET = 0x5d;

const TAKES: Record<Datatype, string> = {
  BOOL: 'true or false',
  UINT8: 'integers from 0 to 255',
  UINT16: 'integers from 0 to 65535',
  UINT32: 'integers from 0 to 4294967295',
  UINT64: 'integers from 0 to 18446744073709551615',
  INT8: 'integers from -128 to 127',
  INT16: 'integers from -32768 to 32767',
  INT32: 'integers from -2147483648 to 2147483647',
  INT64: 'integers from -9223372036854775808 to 9223372036854775807',
  FP16: 'no JSON form',
  FP32: 'numbers up to 3.4028235e38',
  FP64: 'numbers up to 1.7976931348623157e308',
  BF16: 'no JSON form',
  BYTES: 'strings',
};

/**
 * Moves from the end of an element to the next one or behind the run.
 *
 * @param index of the element just read, in the tensor; `left` elements of the run are still to come.
 * @returns position of the next element (white space may come first), or behind the closing bracket.
 */
export function endElement(
  cursor: JsonCursor,
  tensor: JsonTensorLabel,
  pos: number,
  index: number,
  left: number,
): number {
  cursor.pos = pos;
  const byte = cursor.peek();
  if (left > 0) {
    if (byte === COMMA) return cursor.pos + 1;
    if (byte === CLOSE_BRACKET) failShort(tensor, index + 1);
  } else {
    if (byte === CLOSE_BRACKET) return cursor.pos + 1;
    if (byte === COMMA) failSurplus(tensor, index + 1);
  }
  return cursor.fail(`expected ',' or ']' in the data of input '${tensor.name}'`);
}

/** @throws BAD_TENSOR for an array that ends when only `read` elements of the tensor have come. */
function failShort(tensor: JsonTensorLabel, read: number): never {
  const shape = formatShape(tensor.shape);
  throw new BatchportError(
    'BAD_TENSOR',
    tensor.nested
      ? `input '${tensor.name}': a nested array ends too early for the shape ${shape}, before element ${read}; nest the data exactly as the shape, or send it flat`
      : `input '${tensor.name}': expected ${elementCount(tensor.shape)} elements for the shape ${shape}, got ${read}`,
  );
}

/** @throws BAD_TENSOR for an element behind the last one that the shape has room for. */
export function failSurplus(tensor: JsonTensorLabel, index: number): never {
  const shape = formatShape(tensor.shape);
  throw new BatchportError(
    'BAD_TENSOR',
    tensor.nested
      ? `input '${tensor.name}': a nested array has more elements than the shape ${shape} gives it, at element ${index}; nest the data exactly as the shape, or send it flat`
      : `input '${tensor.name}': expected ${index} elements for the shape ${shape}, got more`,
  );
}

/**
 * Explains why the value at `start` cannot be the array of the next dimension, with element `index` as its first.
 *
 * @throws BAD_TENSOR, or BAD_REQUEST when it is not even JSON.
 */
export function failArray(cursor: JsonCursor, tensor: JsonTensorLabel, index: number, start: number): never {
  cursor.pos = start;
  const kind = cursor.kind();
  const at = cursor.pos;
  if (kind === 'object' || cursor.peek() === CLOSE_BRACKET) failElement(cursor, tensor, index, start);
  cursor.skipValue(1);
  throw new BatchportError(
    'BAD_TENSOR',
    `input '${tensor.name}': ${cursor.excerpt(at)} stands where an array must begin, at element ${index}; nest the data exactly as the shape ${formatShape(tensor.shape)}, or send it flat`,
  );
}

/**
 * Explains why the value at `start` cannot be element `index`.
 *
 * @throws BAD_TENSOR, or BAD_REQUEST when it is not even JSON.
 */
export function failElement(cursor: JsonCursor, tensor: JsonTensorLabel, index: number, start: number): never {
  cursor.pos = start;
  const kind = cursor.kind();
  const at = cursor.pos;
  if (kind === 'array' || kind === 'object') {
    throw new BatchportError(
      'BAD_TENSOR',
      `input '${tensor.name}': element ${index} is an ${kind}; nest the data exactly as the shape ${formatShape(tensor.shape)}, or send it flat`,
    );
  }
  // `[]`, or a comma with nothing behind it.
  if (cursor.peek() === CLOSE_BRACKET) failShort(tensor, index);
  // Throws when the text is not JSON.
  cursor.skipValue(1);
  if (kind === 'number' && cursor.pos - at > NUMBER_BYTES_MAX) {
    throw new BatchportError(
      'BAD_TENSOR',
      `input '${tensor.name}': element ${index} is a number of ${cursor.pos - at} digits; at most ${NUMBER_BYTES_MAX} are read`,
    );
  }
  throw new BatchportError(
    'BAD_TENSOR',
    `input '${tensor.name}': element ${index} is ${cursor.excerpt(at)}, but ${tensor.datatype} takes ${TAKES[tensor.datatype]}`,
  );
}
