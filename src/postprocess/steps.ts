/**
 * What each step of a `postprocess` does to a tensor. Sums are made in FP64. The shapes have been checked when the model was loaded; what only a run can show is checked
 * here.
 *
 * A tensor is looked at as `[outer, length, inner]` around the axis of the step: element `(o, a, i)` lies at `(o × length + a) × inner + i`.
 */
import type { PostprocessStep } from '../config/model-config.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';
import { highestOne } from './classes.ts';
import { ElementWriter } from './element-writer.ts';
import { bytesOf, numbersOf, type Tensor } from './numbers.ts';
import { lineAt, lineCount, type TextLines } from './text-lines.ts';

/** A tensor of a run is not what the step needs; the message goes behind the name of the output. */
export class StepFailed extends Error {}

type StepOf<Op extends PostprocessStep['op']> = Extract<PostprocessStep, { op: Op }>;

type Floats = Float32Array<ArrayBuffer> | Float64Array<ArrayBuffer>;

interface View {
  readonly outer: number;
  readonly length: number;
  readonly inner: number;
}

/** Index of an axis that may be counted from the end. */
export function axisOf(axis: number, rank: number): number {
  return axis < 0 ? axis + rank : axis;
}

function viewOf(shape: readonly number[], axis: number): View {
  return {
    outer: elementCount(shape.slice(0, axis))!,
    length: shape[axis]!,
    inner: elementCount(shape.slice(axis + 1))!,
  };
}

/** Floats of a tensor, and room for as many results; FP16 and BF16 become FP32. */
function floatsOf({ datatype, data }: Tensor): Float32Array | Float64Array {
  const values = numbersOf(datatype, data);
  if (values instanceof Float32Array || values instanceof Float64Array) return values;
  throw new Error(`a step for floats got ${datatype}: this is a bug`);
}

function roomLike(values: Float32Array | Float64Array, length: number): Floats {
  return values instanceof Float64Array ? new Float64Array(length) : new Float32Array(length);
}

function tensorOf(values: Floats, shape: readonly number[]): Tensor {
  return { datatype: values instanceof Float64Array ? 'FP64' : 'FP32', shape, data: bytesOf(values) };
}

export function softmax(tensor: Tensor, step: StepOf<'softmax'>): Tensor {
  const values = floatsOf(tensor);
  const { outer, length, inner } = viewOf(tensor.shape, axisOf(step.axis, tensor.shape.length));
  const results = roomLike(values, values.length);
  const powers = new Float64Array(length);
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      const start = o * length * inner + i;
      const end = start + length * inner;
      let most = Number.NEGATIVE_INFINITY;
      for (let at = start; at < end; at += inner) if (values[at]! > most) most = values[at]!;
      let sum = 0;
      for (let a = 0; a < length; a++) {
        const power = Math.exp(values[start + a * inner]! - most);
        powers[a] = power;
        sum += power;
      }
      for (let a = 0; a < length; a++) results[start + a * inner] = powers[a]! / sum;
    }
  }
  return tensorOf(results, tensor.shape);
}

export function sigmoid(tensor: Tensor): Tensor {
  const values = floatsOf(tensor);
  const results = roomLike(values, values.length);
  for (let at = 0; at < values.length; at++) {
    // The exponential of a number below 0 alone, which cannot pass what a double holds.
    const small = Math.exp(-Math.abs(values[at]!));
    results[at] = values[at]! < 0 ? small / (1 + small) : 1 / (1 + small);
  }
  return tensorOf(results, tensor.shape);
}

/** INT64: where along the axis the highest value is, of several the first; NaN is lower than every number. */
export function argmax(tensor: Tensor, step: StepOf<'argmax'>): Tensor {
  const values = numbersOf(tensor.datatype, tensor.data);
  const axis = axisOf(step.axis, tensor.shape.length);
  const { outer, length, inner } = viewOf(tensor.shape, axis);
  if (length === 0 && outer * inner > 0) throw new StepFailed('argmax has nothing to choose from: the axis is empty');
  const results = new BigInt64Array(outer * inner);
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      results[o * inner + i] = BigInt(highestOne(values, o * length * inner + i, length, inner));
    }
  }
  return { datatype: 'INT64', shape: tensor.shape.filter((_, n) => n !== axis), data: bytesOf(results) };
}

/** To a Euclidean length of 1 along the axis; what has no length stays 0. */
export function normalize(tensor: Tensor, step: StepOf<'normalize'>): Tensor {
  const values = floatsOf(tensor);
  const { outer, length, inner } = viewOf(tensor.shape, axisOf(step.axis, tensor.shape.length));
  const results = roomLike(values, values.length);
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      const start = o * length * inner + i;
      const end = start + length * inner;
      // By the largest first, so that no square passes what a double holds.
      let most = 0;
      for (let at = start; at < end; at += inner) most = Math.max(most, Math.abs(values[at]!));
      let sum = 0;
      for (let at = start; at < end; at += inner) sum += (values[at]! / most) ** 2;
      const norm = most * Math.sqrt(sum);
      for (let at = start; at < end; at += inner) results[at] = norm === 0 || most === 0 ? 0 : values[at]! / norm;
    }
  }
  return tensorOf(results, tensor.shape);
}

/** The mean along the axis, weighted by the mask where there is one; 0 where all weights are. */
export function meanPool(tensor: Tensor, step: StepOf<'mean_pool'>, mask: Tensor | undefined): Tensor {
  const values = floatsOf(tensor);
  const axis = axisOf(step.axis, tensor.shape.length);
  const { outer, length, inner } = viewOf(tensor.shape, axis);
  const expected = tensor.shape.slice(0, axis + 1);
  if (mask !== undefined && mask.shape.join() !== expected.join()) {
    throw new StepFailed(
      `mean_pool needs a mask ${formatShape(expected)} for the shape ${formatShape(tensor.shape)}; the input ${JSON.stringify(step.mask)} has ${formatShape(mask.shape)}`,
    );
  }
  const weights = mask === undefined ? undefined : numbersOf(mask.datatype, mask.data);
  const results = roomLike(values, outer * inner);
  const sums = new Float64Array(inner);
  for (let o = 0; o < outer; o++) {
    sums.fill(0);
    let total = 0;
    for (let a = 0; a < length; a++) {
      const weight = weights === undefined ? 1 : Number(weights[o * length + a]);
      // Padding may hold anything, NaN too.
      if (weight === 0) continue;
      total += weight;
      const start = (o * length + a) * inner;
      for (let i = 0; i < inner; i++) sums[i]! += weight * values[start + i]!;
    }
    for (let i = 0; i < inner; i++) results[o * inner + i] = total === 0 ? 0 : sums[i]! / total;
  }
  return tensorOf(
    results,
    tensor.shape.filter((_, n) => n !== axis),
  );
}

/** FP32: (value − zero point) × scale. */
export function dequantize(
  { datatype, shape, data }: Tensor,
  { scale, zero_point: zero }: StepOf<'dequantize'>,
): Tensor {
  const values = numbersOf(datatype, data);
  const results = new Float32Array(values.length);
  for (let at = 0; at < values.length; at++) results[at] = (Number(values[at]) - zero) * scale;
  return tensorOf(results, shape);
}

/**
 * BYTES: the text of the likeliest path through `[…, steps, classes]`. Equal neighbours are one, the blank is left out.
 *
 * Source: best-path decoding of Graves et al., "Connectionist Temporal Classification", 2006.
 */
export function ctcDecode(tensor: Tensor, step: StepOf<'ctc_decode'>, dictionary: TextLines): Tensor {
  const values = numbersOf(tensor.datatype, tensor.data);
  const [steps, classes] = tensor.shape.slice(-2) as [number, number];
  const leading = tensor.shape.slice(0, -2);
  const expected = ctcClasses(step, lineCount(dictionary));
  if (classes !== expected) {
    throw new StepFailed(`ctc_decode has a dictionary for ${expected} classes, and there are ${classes}`);
  }
  const blank = step.blank < 0 ? classes - 1 : step.blank;
  const lines = lineCount(dictionary);
  const writer = new ElementWriter();
  for (let text = 0; text < elementCount(leading)!; text++) {
    let before = blank;
    for (let n = 0; n < steps; n++) {
      const best = highestOne(values, (text * steps + n) * classes, classes, 1);
      if (best !== before && best !== blank) {
        const line = best > blank ? best - 1 : best;
        // Behind the dictionary there is the space at most.
        if (line < lines) writer.add(lineAt(dictionary, line));
        else writer.addText(' ');
      }
      before = best;
    }
    writer.end();
  }
  return { datatype: 'BYTES', shape: leading, data: writer.taken() };
}

/** Classes that a model has for a dictionary of so many lines. */
export function ctcClasses({ space }: StepOf<'ctc_decode'>, lines: number): number {
  return lines + 1 + (space ? 1 : 0);
}
