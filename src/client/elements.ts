/**
 * Elements of input tensors: checks of what the caller gave, and their two forms on the wire. Nothing is narrowed, rounded or replaced silently:
 * what a datatype cannot hold is a RangeError, a wrong kind of array a TypeError.
 */
import { encodeBytesTensor } from '../tensor/bytes-tensor.ts';
import { DATATYPES, type Datatype } from '../tensor/datatype.ts';
import { type AnyData, ARRAYS } from './data.ts';
import { scalarJson, showValue } from './json.ts';

type FixedDatatype = Exclude<Datatype, 'BYTES'>;
type Element = number | bigint;

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const BYTES_ELEMENT_MAX = 0xffff_ffff;

/** Smallest and largest value of each integer datatype; bigints for those of 64 bits. */
const INTEGER_RANGES = new Map<Datatype, readonly [min: Element, max: Element]>(
  (Object.keys(DATATYPES) as Datatype[]).flatMap((datatype) => {
    const { kind, elementBytes } = DATATYPES[datatype];
    if (kind !== 'uint' && kind !== 'int') return [];
    const bits = BigInt(elementBytes * 8);
    const range = kind === 'uint' ? [0n, 2n ** bits - 1n] : [-(2n ** (bits - 1n)), 2n ** (bits - 1n) - 1n];
    const [min, max] = elementBytes === 8 ? range : range.map(Number);
    return [[datatype, [min!, max!]] as const];
  }),
);

/**
 * An integer as the array of its datatype takes it: a bigint for 64 bits, otherwise a number.
 *
 * @throws RangeError when it is not a whole number of the datatype's range, or may have lost digits as a number.
 */
function checkInteger(datatype: Datatype, value: unknown): Element {
  if (typeof value !== 'bigint' && !Number.isInteger(value)) {
    throw new RangeError(`${showValue(value)} is not a whole number`);
  }
  const [min, max] = INTEGER_RANGES.get(datatype)!;
  const wide = typeof min === 'bigint';
  if (wide && typeof value === 'number' && !Number.isSafeInteger(value)) {
    throw new RangeError(`${value} may have lost digits as a number; give a bigint`);
  }
  // A bigint and a number compare by their mathematical values.
  const integer = value as Element;
  if (integer < min || integer > max) throw new RangeError(`${integer} is outside the range of ${datatype}`);
  return wide ? BigInt(integer) : Number(integer);
}

/** @throws RangeError when the value is not a number, or is finite but too large for the datatype. */
function checkFloat(datatype: 'FP32' | 'FP64', value: unknown): number {
  if (typeof value !== 'number') throw new RangeError(`${showValue(value)} is not a number`);
  if (datatype === 'FP32' && Number.isFinite(value) && !Number.isFinite(Math.fround(value))) {
    throw new RangeError(`${value} is outside the range of FP32`);
  }
  return value;
}

/** @throws RangeError when the value is not a boolean, 0 or 1. */
export function checkBool(value: unknown): number {
  if (value === true || value === 1) return 1;
  if (value === false || value === 0) return 0;
  throw new RangeError(`${showValue(value)} is not a boolean`);
}

/** Data of a fixed-size input as the array of its datatype; the caller's own array when it is one already. */
export function toArray(datatype: FixedDatatype, data: unknown): AnyData & ArrayBufferView {
  const ArrayOf = ARRAYS[datatype];
  if (data instanceof ArrayOf) {
    if (datatype === 'BOOL') for (const value of data as Uint8Array) checkBool(value);
    return data;
  }
  if (!Array.isArray(data) || datatype === 'FP16' || datatype === 'BF16') {
    throw new TypeError(`${datatype} data must be a ${ArrayOf.name}, not ${kindOf(data)}`);
  }
  return fromValues(datatype, data);
}

/** An array of the datatype from single values, each of them checked. */
export function fromValues(datatype: FixedDatatype, values: readonly unknown[]): AnyData & ArrayBufferView {
  const array = new ARRAYS[datatype](values.length) as unknown as Element[];
  const check = elementCheck(datatype);
  for (let i = 0; i < values.length; i++) array[i] = check(values[i]);
  return array as unknown as AnyData & ArrayBufferView;
}

function elementCheck(datatype: FixedDatatype): (value: unknown) => Element {
  if (datatype === 'BOOL') return checkBool;
  if (datatype === 'FP32' || datatype === 'FP64') return (value) => checkFloat(datatype, value);
  return (value) => checkInteger(datatype, value);
}

/** Elements of a BYTES input as bytes. */
export function toBytesElements(data: unknown): Uint8Array[] {
  if (!Array.isArray(data)) throw new TypeError(`BYTES data must be an array, not ${kindOf(data)}`);
  return data.map((element: unknown) => {
    if (typeof element === 'string') return encoder.encode(wellFormed(element));
    if (!(element instanceof Uint8Array))
      throw new TypeError(`a BYTES element must be a string or Uint8Array, not ${kindOf(element)}`);
    if (element.length > BYTES_ELEMENT_MAX) throw new RangeError('a BYTES element must be shorter than 4 GiB');
    return element;
  });
}

/** Binary form: little-endian elements one after another, each BYTES element after its length. A view of the caller's array where it can be. */
export function binaryForm(datatype: Datatype, data: unknown): Uint8Array {
  if (datatype === 'BYTES') return encodeBytesTensor(toBytesElements(data));
  const array = toArray(datatype, data);
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/** JSON form: the text of a flat array. @throws RangeError when the data has no JSON form. */
export function jsonForm(datatype: Datatype, data: unknown): string {
  if (datatype === 'BYTES')
    return `[${toBytesElements(data)
      .map((element) => JSON.stringify(utf8(element)))
      .join(',')}]`;
  const { json, kind } = DATATYPES[datatype];
  if (!json) throw new RangeError(`${datatype} has no JSON form; send it in binary`);
  const array = toArray(datatype, data);
  // Integers print exactly, 64-bit ones too.
  if (kind !== 'float' && kind !== 'bool') return `[${(array as Uint8Array).join(',')}]`;
  const texts: string[] = [];
  for (const value of array as Float64Array) texts.push(kind === 'bool' ? String(value === 1) : scalarJson(value));
  return `[${texts.join(',')}]`;
}

/** UTF-8 text of bytes. @throws RangeError when they are not UTF-8. */
function utf8(bytes: Uint8Array): string {
  try {
    return decoder.decode(bytes);
  } catch (cause) {
    throw new RangeError('a BYTES element is not UTF-8 and has no JSON form; send it in binary', { cause });
  }
}

/** Half of a surrogate pair has no UTF-8 form, and the encoder would put U+FFFD in its place. */
function wellFormed(text: string): string {
  if (/\p{Surrogate}/u.test(text)) throw new RangeError('a BYTES string has half of a surrogate pair');
  return text;
}

function kindOf(value: unknown): string {
  if (typeof value !== 'object' || value === null) return value === null ? 'null' : typeof value;
  return value.constructor?.name ?? 'object';
}
