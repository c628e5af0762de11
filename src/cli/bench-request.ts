/**
 * The request that `bench` sends over and over: made by the model's metadata, with inputs that are given or made up.
 */
import { type EncodedRequest, encodeRequest, type InferInput, requestBody } from '../client/request.ts';
import { ExitError } from '../config/exit-codes.ts';
import { nearestName } from '../config/nearest.ts';
import { madeUpInput } from '../load/made-up-inputs.ts';
import { formatShape } from '../tensor/shape.ts';
import type { RequestOptions } from './bench-options.ts';
import { type InputSpec, readGivenInputs } from './tensor-input.ts';

export interface BenchRequest {
  readonly headers: readonly (readonly [string, string])[];
  readonly body: Uint8Array;
  /** Of the first input whose first dimension is open; 1 where there is none. */
  readonly rows: number;
  readonly inputs: readonly InferInput[];
}

/** @throws ExitError USAGE where an input cannot be made as asked */
export function makeRequest(
  specs: readonly InputSpec[],
  options: RequestOptions,
  seed: number,
  cwd: string,
): BenchRequest {
  const given = readGivenInputs(options.inputs, specs, cwd);
  const shapes = readShapes(options.shapes, specs);
  const inputs = specs.map((spec, index) => {
    const tensor = given.get(spec);
    const shape = withRows(shapes.get(spec), spec, options.rows);
    if (tensor === undefined) return madeUp(spec, shape ?? openShape(spec, options.rows ?? 1), options, seed + index);
    if (shape === undefined) return tensor;
    throw new ExitError('USAGE', `input "${spec.name}" has both --input and --shape`);
  });
  const batched = inputs.find((_, index) => specs[index]!.shape[0] === -1);
  if (options.rows !== undefined && !specs.some((spec) => spec.shape[0] === -1 && !given.has(spec))) {
    throw new ExitError('USAGE', '--rows: there is no made-up input whose first dimension is open');
  }
  const parameters = options.deadlineMs === undefined ? {} : { timeout: Math.round(options.deadlineMs * 1000) };
  const { headers, body } = requestBody(encoded(inputs, options.binary, parameters), Number.POSITIVE_INFINITY);
  return {
    headers: [...Object.entries(headers), ...options.headers],
    body,
    rows: batched?.shape[0] ?? 1,
    inputs,
  };
}

function encoded(inputs: readonly InferInput[], binary: boolean, parameters: Record<string, number>): EncodedRequest {
  try {
    return encodeRequest({ inputs, parameters }, binary);
  } catch (error) {
    // FP16 in JSON, say.
    if (error instanceof TypeError || error instanceof RangeError) throw new ExitError('USAGE', error.message);
    throw error;
  }
}

function madeUp(spec: InputSpec, shape: readonly number[], { contents }: RequestOptions, seed: number): InferInput {
  try {
    return madeUpInput(spec.name, spec.datatype, shape, contents, seed);
  } catch (error) {
    if (error instanceof RangeError) throw new ExitError('USAGE', `input "${spec.name}": ${error.message}`);
    throw error;
  }
}

/** A given shape with other rows, where the model leaves them open. */
function withRows(
  shape: readonly number[] | undefined,
  spec: InputSpec,
  rows: number | undefined,
): readonly number[] | undefined {
  return shape === undefined || rows === undefined || spec.shape[0] !== -1 ? shape : [rows, ...shape.slice(1)];
}

/** The model's shape with the rows in the first dimension, where that is open. */
function openShape({ name, shape }: InputSpec, rows: number): readonly number[] {
  const filled = shape.map((dim, index) => (dim === -1 && index === 0 ? rows : dim));
  if (!filled.includes(-1)) return filled;
  const example = filled.map((dim) => (dim === -1 ? 224 : dim)).join(',');
  throw new ExitError('USAGE', `input "${name}" ${formatShape(shape)} has open dimensions`, {
    hint: `say which shape to send, such as --shape ${name}:${example}, or give --input`,
  });
}

/** Shapes by input; NAME: may be missing where the model has one input. Names may hold ":" themselves. */
function readShapes(args: readonly string[], specs: readonly InputSpec[]): Map<InputSpec, readonly number[]> {
  const shapes = new Map<InputSpec, readonly number[]>();
  for (const arg of args) {
    const colon = arg.lastIndexOf(':');
    const name = colon < 0 && specs.length === 1 ? specs[0]!.name : arg.slice(0, Math.max(0, colon));
    const spec = specs.find((one) => one.name === name);
    if (spec === undefined) {
      const names = specs.map((one) => one.name);
      const meant = nearestName(name, names);
      const hint = meant === undefined ? `its inputs: ${names.join(', ')}` : `did you mean "${meant}"?`;
      throw new ExitError('USAGE', `--shape ${arg}: the model has no input "${name}"`, { hint });
    }
    const text = arg.slice(colon + 1);
    if (!/^\d{1,12}(,\d{1,12})*$/.test(text)) {
      throw new ExitError('USAGE', `--shape ${arg}: not NAME:DIM,DIM,… such as ${name}:1,3,224,224`);
    }
    shapes.set(spec, text.split(',').map(Number));
  }
  return shapes;
}
