/**
 * The outputs of a model as clients get them: what its configuration says about them, held against its signature when it is loaded.
 */
import type { OutputConfig, PostprocessStep } from '../config/model-config.ts';
import { type Datatype, datatypeInfo } from '../tensor/datatype.ts';
import { formatShape } from '../tensor/shape.ts';
import type { ModelSignature, TensorSpec } from '../tensor/signature.ts';
import { axisOf, ctcClasses } from './steps.ts';

/** What the configuration says does not fit the model; the message is for whoever wrote it. */
export class OutputMismatch extends Error {}

/** One output of the signature. */
export interface PlannedOutput {
  /** As clients get it. */
  readonly spec: TensorSpec;
  readonly steps: readonly PostprocessStep[];
  /** Name of the file with the names of its classes. */
  readonly labels: string | undefined;
}

export interface PlanContext {
  readonly signature: ModelSignature;
  /** Whether the first dimension is the batch. */
  readonly batched: boolean;
  /** Lines of a text file; undefined where they are not known here. */
  readonly lines: (file: string) => number | undefined;
}

/**
 * Parallel to the outputs of the signature.
 *
 * @throws OutputMismatch
 */
export function planOutputs(context: PlanContext, configs: readonly OutputConfig[]): PlannedOutput[] {
  const { outputs } = context.signature;
  for (const { name } of configs) {
    if (outputs.some((output) => output.name === name)) continue;
    throw new OutputMismatch(
      `its configuration has an output ${JSON.stringify(name)}, which the model does not have; it has ${quoted(outputs)}`,
    );
  }
  return outputs.map((raw) => {
    const config = configs.find(({ name }) => name === raw.name);
    const steps = config?.postprocess ?? [];
    let spec = raw;
    for (const [n, step] of steps.entries()) {
      try {
        spec = specAfter(step, spec, context);
      } catch (error) {
        if (!(error instanceof OutputMismatch)) throw error;
        const where = steps.length > 1 ? `step ${n + 1} of ` : '';
        throw new OutputMismatch(
          `${where}postprocess of output ${JSON.stringify(raw.name)} does not fit: ${error.message}`,
        );
      }
    }
    return { spec, steps, labels: config?.labels };
  });
}

/** A signature whose outputs are those that clients get. */
export function clientSignature(signature: ModelSignature, planned: readonly PlannedOutput[]): ModelSignature {
  return { ...signature, outputs: planned.map(({ spec }) => spec) };
}

/** What a step makes of an output. @throws OutputMismatch */
function specAfter(step: PostprocessStep, spec: TensorSpec, context: PlanContext): TensorSpec {
  switch (step.op) {
    case 'softmax':
    case 'normalize':
      requireAxis(step.op, step.axis, spec, context.batched);
      return { ...spec, datatype: floatType(step.op, spec) };
    case 'sigmoid':
      return { ...spec, datatype: floatType(step.op, spec) };
    case 'argmax': {
      const axis = requireAxis(step.op, step.axis, spec, context.batched);
      requireNumbers(step.op, spec);
      if (spec.shape[axis] === 0) throw new OutputMismatch('argmax has nothing to choose from: the axis is empty');
      return without(axis, { ...spec, datatype: 'INT64' });
    }
    case 'top_k': {
      const axis = requireAxis(step.op, -1, spec, context.batched);
      requireNumbers(step.op, spec);
      const { shape, symbols } = spec;
      // As many as there are, where those are fewer.
      const count = shape[axis] === -1 ? -1 : Math.min(step.k, shape[axis]!);
      const leading = { shape: shape.slice(0, axis), symbols: symbols.slice(0, axis) };
      return { ...spec, datatype: 'BYTES', shape: [...leading.shape, count], symbols: [...leading.symbols, ''] };
    }
    case 'mean_pool': {
      const datatype = floatType(step.op, spec);
      const axis = requireAxis(step.op, step.axis, spec, context.batched);
      if (step.mask !== undefined) requireMask(step.mask, spec, axis, context.signature.inputs);
      return without(axis, { ...spec, datatype });
    }
    case 'dequantize':
      if (!DEQUANTIZED.has(spec.datatype)) {
        throw new OutputMismatch(`dequantize takes ${[...DEQUANTIZED].join(', ')}, and the output is ${spec.datatype}`);
      }
      return { ...spec, datatype: 'FP32' };
    case 'ctc_decode':
      return specOfText(step, spec, context);
  }
}

const DEQUANTIZED: ReadonlySet<Datatype> = new Set(['INT8', 'UINT8', 'INT16', 'UINT16', 'INT32']);

function specOfText(
  step: Extract<PostprocessStep, { op: 'ctc_decode' }>,
  spec: TensorSpec,
  { batched, lines }: PlanContext,
): TensorSpec {
  requireNumbers(step.op, spec);
  const least = batched ? 3 : 2;
  if (spec.shape.length < least) {
    const needed = batched ? '[batch, steps, classes]' : '[steps, classes]';
    throw new OutputMismatch(`ctc_decode needs ${needed}, and the output is ${formatShape(spec.shape)}`);
  }
  const classes = spec.shape.at(-1)!;
  const known = lines(step.dictionary);
  if (known !== undefined) {
    const expected = ctcClasses(step, known);
    if (classes !== -1 && classes !== expected) {
      throw new OutputMismatch(
        `${step.dictionary} has ${known} lines, which with the blank${step.space ? ' and the space' : ''} are ${expected} classes, and the output has ${classes}`,
      );
    }
    if (step.blank >= expected) {
      throw new OutputMismatch(`blank is ${step.blank}, and there are ${expected} classes, from 0`);
    }
  }
  return { ...spec, datatype: 'BYTES', shape: spec.shape.slice(0, -2), symbols: spec.symbols.slice(0, -2) };
}

function requireNumbers(op: string, { datatype }: TensorSpec): void {
  if (datatype === 'BYTES') throw new OutputMismatch(`${op} takes numbers, and the output is BYTES`);
}

/** What a step for floats gives. @throws OutputMismatch for other datatypes */
function floatType(op: string, { datatype }: TensorSpec): Datatype {
  if (datatypeInfo(datatype).kind !== 'float') {
    throw new OutputMismatch(`${op} takes floats, and the output is ${datatype}`);
  }
  return datatype === 'FP64' ? 'FP64' : 'FP32';
}

/** @returns the axis, counted from the start. @throws OutputMismatch where there is none, or it is the batch */
function requireAxis(op: string, axis: number, { shape }: TensorSpec, batched: boolean): number {
  const index = axisOf(axis, shape.length);
  if (index < 0 || index >= shape.length) {
    throw new OutputMismatch(`${op} works along axis ${axis}, and the output is ${formatShape(shape)}`);
  }
  if (batched && index === 0) {
    throw new OutputMismatch(
      `${op} works along axis ${axis}, which is the batch of the output ${formatShape(shape)}: rows do not mix`,
    );
  }
  return index;
}

function requireMask(mask: string, { shape }: TensorSpec, axis: number, inputs: readonly TensorSpec[]): void {
  const input = inputs.find(({ name }) => name === mask);
  if (input === undefined) {
    throw new OutputMismatch(
      `the mask of mean_pool is ${JSON.stringify(mask)}, and the model's inputs are ${quoted(inputs)}`,
    );
  }
  if (input.datatype === 'BYTES') throw new OutputMismatch(`the mask ${JSON.stringify(mask)} is BYTES`);
  const wanted = shape.slice(0, axis + 1);
  const fits =
    input.shape.length === wanted.length &&
    input.shape.every((dim, n) => dim === -1 || wanted[n] === -1 || dim === wanted[n]);
  if (fits) return;
  throw new OutputMismatch(
    `the mask ${JSON.stringify(mask)} is ${formatShape(input.shape)}, and must be ${formatShape(wanted)} for the output ${formatShape(shape)}`,
  );
}

function without(axis: number, spec: TensorSpec): TensorSpec {
  const others = <T>(list: readonly T[]): T[] => list.filter((_, n) => n !== axis);
  return { ...spec, shape: others(spec.shape), symbols: others(spec.symbols) };
}

function quoted(tensors: readonly TensorSpec[]): string {
  return tensors.map(({ name }) => JSON.stringify(name)).join(', ');
}
