/**
 * Tensors in tests: values, their bytes on the wire, random data, rows cut out and put together, and comparisons.
 *
 * Data has the client's representation (src/client/data.ts), so that an answer, an oracle's output and a reference's output compare directly.
 */
import assert from 'node:assert/strict';
import { type AnyData, ARRAYS, type DataOf } from '../../src/client/data.ts';
import { encodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import { type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import { elementCount, formatShape } from '../../src/tensor/shape.ts';
import type { Random } from './random.ts';

export type TestTensor = {
  [D in Datatype]: {
    readonly datatype: D;
    readonly shape: readonly number[];
    readonly data: DataOf[D];
  };
}[Datatype];

/** Tensors by name; a Map, since `__proto__` is a legal name. */
export type TensorMap = ReadonlyMap<string, TestTensor>;

const encoder = new TextEncoder();

/** A tensor from data that already has its final form. */
export function tensor<D extends Datatype>(datatype: D, shape: readonly number[], data: DataOf[D]): TestTensor {
  assert.equal(data.length, elementCount(shape), `${data.length} elements for shape ${formatShape(shape)}`);
  return { datatype, shape, data } as TestTensor;
}

/** A BYTES tensor from strings. */
export function stringTensor(shape: readonly number[], values: readonly string[]): TestTensor {
  return tensor(
    'BYTES',
    shape,
    values.map((value) => encoder.encode(value)),
  );
}

/** Little-endian bytes of a tensor as the binary form has them: a BYTES element is preceded by its length in four bytes. */
export function wireBytes(value: TestTensor): Uint8Array {
  if (value.datatype !== 'BYTES')
    return new Uint8Array(value.data.buffer, value.data.byteOffset, value.data.byteLength);
  return encodeBytesTensor(value.data);
}

/**
 * Random data. Integers and bit patterns cover their whole range; FP32 and FP64 are finite, from −8 to 8, since a NaN's bits do not survive
 * every operation; BYTES elements have 0 to 12 printable characters.
 */
export function randomTensor(random: Random, datatype: Datatype, shape: readonly number[]): TestTensor {
  const count = elementCount(shape);
  assert(count !== undefined, `not a shape: ${formatShape(shape)}`);
  if (datatype === 'BYTES') {
    const text = () =>
      Array.from({ length: random.int(0, 12) }, () => String.fromCharCode(random.int(32, 126))).join('');
    return stringTensor(shape, Array.from({ length: count }, text));
  }
  if (datatype === 'FP32' || datatype === 'FP64') {
    const data = new ARRAYS[datatype](count);
    for (let i = 0; i < count; i++) data[i] = (random.float() - 0.5) * 16;
    return { datatype, shape, data } as TestTensor;
  }
  const bytes = random.bytes(count * datatypeInfo(datatype).elementBytes);
  if (datatype === 'BOOL') for (let i = 0; i < count; i++) bytes[i]! &= 1;
  return fromWire(datatype, shape, bytes);
}

/** A fixed-size tensor from its bytes. */
export function fromWire(
  datatype: Exclude<Datatype, 'BYTES'>,
  shape: readonly number[],
  bytes: Uint8Array,
): TestTensor {
  const copy = new Uint8Array(bytes); // A Buffer's own slice would be a view.
  const data = new ARRAYS[datatype](copy.buffer as ArrayBuffer & number);
  return tensor(datatype, shape, data as never);
}

/** Rows [from, to) along the first dimension, as a copy. */
export function sliceRows(value: TestTensor, from: number, to: number): TestTensor {
  const rowElements = elementCount(value.shape.slice(1))!;
  const data = value.data.slice(from * rowElements, to * rowElements);
  return {
    datatype: value.datatype,
    shape: [to - from, ...value.shape.slice(1)],
    data,
  } as TestTensor;
}

/** Tensors of one datatype joined along the first dimension. */
export function concatRows(values: readonly TestTensor[]): TestTensor {
  const first = values[0];
  assert(first !== undefined, 'nothing to join');
  const rows = values.reduce((sum, value) => sum + value.shape[0]!, 0);
  const shape = [rows, ...first.shape.slice(1)];
  for (const value of values) {
    assert.equal(value.datatype, first.datatype);
    assert.deepEqual(value.shape.slice(1), first.shape.slice(1));
  }
  if (first.datatype === 'BYTES')
    return tensor(
      'BYTES',
      shape,
      values.flatMap((value) => value.data as Uint8Array[]),
    );
  return fromWire(first.datatype, shape, Buffer.concat(values.map(wireBytes)));
}

/** Fails unless datatype, shape and every bit of the data agree. */
export function assertSameTensor(actual: TestTensor | undefined, expected: TestTensor, what = 'tensor'): void {
  assert(actual !== undefined, `${what} is missing`);
  assert.equal(actual.datatype, expected.datatype, `datatype of ${what}`);
  assert.deepEqual([...actual.shape], [...expected.shape], `shape of ${what}`);
  const got: Buffer = Buffer.from(wireBytes(actual));
  const want: Buffer = Buffer.from(wireBytes(expected));
  if (got.equals(want)) return;
  const at = firstDifference(actual.data, expected.data);
  assert.fail(`${what} differs at element ${at}: got ${show(actual.data[at])}, expected ${show(expected.data[at])}`);
}

/**
 * Fails unless two tensors agree: FP32 and FP64 within `tolerance × max(floor, |expected|)` in every element, other datatypes bit for bit.
 *
 * @param floor size below which the tolerance is absolute; 0 makes it relative everywhere.
 */
export function assertCloseTensor(
  actual: TestTensor | undefined,
  expected: TestTensor,
  tolerance: number,
  what = 'tensor',
  floor = 1,
): void {
  assert(actual !== undefined, `${what} is missing`);
  assert.equal(actual.datatype, expected.datatype, `datatype of ${what}`);
  assert.deepEqual([...actual.shape], [...expected.shape], `shape of ${what}`);
  if (expected.datatype !== 'FP32' && expected.datatype !== 'FP64') {
    assertSameTensor(actual, expected, what);
    return;
  }
  for (let i = 0; i < expected.data.length; i++) {
    const got: number = Number(actual.data[i]);
    const want: number = Number(expected.data[i]);
    if (Object.is(got, want)) continue;
    // Written so that a NaN on one side only fails.
    if (!(Math.abs(got - want) <= tolerance * Math.max(floor, Math.abs(want)))) {
      assert.fail(`${what} differs at element ${i}: got ${got}, expected ${want} within ${tolerance}`);
    }
  }
}

/** Fails unless both maps hold the same names and tensors, bit for bit. */
export function assertSameTensors(actual: TensorMap, expected: TensorMap): void {
  assert.deepEqual([...actual.keys()].sort(), [...expected.keys()].sort(), 'names');
  for (const [name, value] of expected) assertSameTensor(actual.get(name), value, JSON.stringify(name));
}

function firstDifference(a: AnyData, b: AnyData): number {
  for (let i = 0; i < a.length; i++) if (show(a[i]) !== show(b[i])) return i;
  return 0;
}

function show(element: number | bigint | Uint8Array | undefined): string {
  if (element instanceof Uint8Array) return JSON.stringify(Buffer.from(element).toString('latin1'));
  return Object.is(element, -0) ? '-0' : String(element);
}
