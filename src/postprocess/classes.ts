/**
 * The classes of highest value, as the protocol's `classification` has them: "value:index" or "value:index:label" for each, the highest first.
 *
 * Source: the classification extension of the protocol. What it leaves open: of equal values the lower index goes first; NaN goes behind every number; values are
 * written as in JSON, with the fewest digits that read back as the same number.
 * Bound: CLASSES_MAX texts for each row.
 */
import { BYTES_LENGTH_BYTES } from '../tensor/bytes-tensor.ts';
import { FLOAT32_TEXT_MAX, writeFloat32 } from '../tensor/number-text.ts';
import { elementCount } from '../tensor/shape.ts';
import { ElementWriter } from './element-writer.ts';
import { type Numbers, numbersOf, type Tensor } from './numbers.ts';
import { lineAt, type TextLines } from './text-lines.ts';

/** Most classes that may be asked for. */
export const CLASSES_MAX = 10_000;

/** Longest "value:index:": FP64 takes 24 characters, an index 16. */
const NUMBERS_TEXT_MAX = 24 + 1 + 16 + 1;

/** Most bytes of the texts for one list of classes. @param available how many there are; undefined where that is not known. */
export function classTextBytes(classes: number, available: number | undefined, labels: TextLines | undefined): number {
  return Math.min(classes, available ?? classes) * (BYTES_LENGTH_BYTES + NUMBERS_TEXT_MAX + (labels?.longest ?? 0));
}

/**
 * The classes of each row of a tensor.
 *
 * @param lists how many leading dimensions count lists of classes; the others are the classes of a list.
 * @returns BYTES, its shape the leading dimensions and `min(classes, those of a list)`.
 */
export function classTexts(tensor: Tensor, lists: number, classes: number, labels: TextLines | undefined): Tensor {
  const values = numbersOf(tensor.datatype, tensor.data);
  const leading = tensor.shape.slice(0, lists);
  const available = elementCount(tensor.shape.slice(lists)) ?? 0;
  const count = Math.min(classes, available);
  const short = values instanceof Float32Array;
  const writer = new ElementWriter();
  for (let list = 0; list < (elementCount(leading) ?? 0) && count > 0; list++) {
    const start = list * available;
    for (const index of highest(values, start, available, count)) {
      writer.addText(`${valueText(values[start + index]!, short)}:${index}`);
      const label = labels === undefined ? undefined : lineAt(labels, index);
      if (label !== undefined && label.length > 0) {
        writer.addText(':');
        writer.add(label);
      }
      writer.end();
    }
  }
  return { datatype: 'BYTES', shape: [...leading, count], data: writer.taken() };
}

/** Indices, from 0, of the highest of `length` values from `start` on, the highest first. */
export function highest(values: Numbers, start: number, length: number, count: number): Uint32Array {
  const best = new Uint32Array(Math.min(count, length));
  if (best.length === 0) return best;
  if (best.length === 1) {
    best[0] = highestOne(values, start, length, 1);
    return best;
  }
  // A heap of the best so far, the worst of them at its root.
  let size = 0;
  for (let index = 0; index < length; index++) {
    if (size < best.length) {
      best[size] = index;
      rise(values, start, best, size++);
    } else if (goesBefore(values, start, index, best[0]!)) {
      best[0] = index;
      sink(values, start, best, size);
    }
  }
  return best.sort((a, b) => (goesBefore(values, start, a, b) ? -1 : 1));
}

/** Index of the highest of `length` values that lie `stride` apart; of several the first; 0 where all are NaN. */
export function highestOne(values: Numbers, start: number, length: number, stride: number): number {
  let best = 0;
  let most = values[start];
  for (let index = 1, at = start + stride; index < length; index++, at += stride) {
    const value = values[at]!;
    // biome-ignore lint/suspicious/noSelfCompare: true of NaN alone, also where the values are of 64 bits.
    if (value > most! || (most !== most && value === value)) {
      best = index;
      most = value;
    }
  }
  return best;
}

function goesBefore(values: Numbers, start: number, one: number, other: number): boolean {
  const a = values[start + one]!;
  const b = values[start + other]!;
  if (a > b) return true;
  if (a < b) return false;
  if (a === b) return one < other;
  // biome-ignore lint/suspicious/noSelfCompare: true of NaN alone, also where the values are of 64 bits.
  const isNumber = a === a;
  // biome-ignore lint/suspicious/noSelfCompare: as above.
  return isNumber === (b === b) ? one < other : isNumber;
}

function rise(values: Numbers, start: number, heap: Uint32Array, from: number): void {
  for (let at = from; at > 0; ) {
    const parent = (at - 1) >> 1;
    if (!goesBefore(values, start, heap[parent]!, heap[at]!)) return;
    swap(heap, at, parent);
    at = parent;
  }
}

function sink(values: Numbers, start: number, heap: Uint32Array, size: number): void {
  for (let at = 0; ; ) {
    let worst = at;
    for (let child = 2 * at + 1; child <= 2 * at + 2 && child < size; child++) {
      if (goesBefore(values, start, heap[worst]!, heap[child]!)) worst = child;
    }
    if (worst === at) return;
    swap(heap, at, worst);
    at = worst;
  }
}

function swap(heap: Uint32Array, one: number, other: number): void {
  const index = heap[one]!;
  heap[one] = heap[other]!;
  heap[other] = index;
}

const single = new Float32Array(1);
const singleWord = new Int32Array(single.buffer);
const text = Buffer.alloc(FLOAT32_TEXT_MAX);

/** @param short whether it is an FP32, of which fewer digits are needed */
function valueText(value: number | bigint, short: boolean): string {
  if (typeof value === 'bigint' || !Number.isFinite(value)) return String(value);
  if (short) {
    single[0] = value;
    return text.toString('latin1', 0, writeFloat32(text, 0, value, singleWord[0]!));
  }
  return Object.is(value, -0) ? '-0.0' : String(value);
}
