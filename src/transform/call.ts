/**
 * What runs in a thread of a transform: a call of its module, from bytes to tensors and back.
 *
 * Whatever the module does becomes an outcome that says whose fault it is, unless it ends its thread, which the other side sees.
 */
import { type AnyData, ARRAYS } from '../client/data.ts';
import { BatchportError, type ErrorCode } from '../config/errors.ts';
import { decodeBytesTensor, encodeBytesTensor } from '../tensor/bytes-tensor.ts';
import { isDatatype } from '../tensor/datatype.ts';
import { elementCount, formatShape, shapeFits } from '../tensor/shape.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import { type After, type Before, ClientError, type Tensor, type Tensors } from './transform.ts';

const MESSAGE_MAX = 1000;

export type TransformStep = 'before' | 'after';

export interface TransformModule {
  readonly before?: unknown;
  readonly after?: unknown;
}

/** Part of a tensor that its spec does not say. */
export interface TensorBody {
  readonly shape: readonly number[];
  readonly data: Uint8Array;
}

export interface TransformTask {
  readonly step: TransformStep;
  readonly id: string | undefined;
  /** Name and datatype of what comes; shapes and bytes are in `tensors`. */
  readonly given: readonly TensorSpec[];
  readonly tensors: readonly TensorBody[];
  /** What has to be returned. */
  readonly wanted: readonly TensorSpec[];
  /** Gets the time (ms since 1970) at which the call begins. */
  readonly begun: Float64Array;
}

export type TransformOutcome = (
  | { readonly tensors: readonly TensorBody[] }
  | { readonly refusal: { readonly code: ErrorCode; readonly message: string } }
) & {
  /** What the module has thrown outside of its calls since the one before. */
  readonly late?: string;
};

/** Never throws but for what is a bug of ours. */
export async function callTransform(module: Promise<TransformModule>, task: TransformTask): Promise<TransformOutcome> {
  try {
    const loaded = await module;
    task.begun[0] = Date.now();
    const tensors = tensorsOf(task);
    const tools = { ClientError };
    const answer =
      task.step === 'before'
        ? await (loaded.before as Before)({ id: task.id, inputs: tensors }, tools)
        : await (loaded.after as After)(tensors, { id: task.id }, tools);
    return { tensors: task.wanted.map((spec) => bodyOf(answer, spec, task)) };
  } catch (error) {
    if (error instanceof BatchportError) return { refusal: { code: error.code, message: error.message } };
    return { refusal: refusalOf(error, task.step) };
  }
}

function refusalOf(error: unknown, step: TransformStep): { code: ErrorCode; message: string } {
  const message = String(error instanceof Error ? error.message : error).slice(0, MESSAGE_MAX);
  // By name too: it may be that of another installation of the package.
  const clients = error instanceof ClientError || (error instanceof Error && error.name === 'ClientError');
  if (clients) return { code: 'BAD_TENSOR', message };
  const name = error instanceof Error ? error.name : 'something that is no Error';
  return { code: 'TRANSFORM_FAILED', message: `${step}() of the model's transform threw ${name}: ${message}` };
}

function tensorsOf({ given, tensors }: TransformTask): Tensors {
  const named: Record<string, Tensor> = Object.create(null);
  for (const [n, { name, datatype }] of given.entries()) {
    const { shape, data } = tensors[n]!;
    named[name] = { datatype, shape, data: dataOf(datatype, data, elementCount(shape)!) } as Tensor;
  }
  return named;
}

function dataOf(datatype: TensorSpec['datatype'], bytes: Uint8Array, count: number): AnyData {
  if (datatype === 'BYTES') {
    const elements = decodeBytesTensor(bytes, count);
    if (elements === undefined) throw new Error('a tensor of BYTES is malformed: this is a bug');
    return elements;
  }
  const View = ARRAYS[datatype];
  // In memory of its own, at a place for any element.
  const own = bytes.byteOffset % 8 === 0 ? bytes : new Uint8Array(bytes);
  return new View(own.buffer as never, own.byteOffset as never, count as never);
}

function bodyOf(answer: unknown, spec: TensorSpec, { step }: TransformTask): TensorBody {
  const { name, datatype } = spec;
  const fail = (what: string): never => {
    throw new BatchportError('TRANSFORM_FAILED', `${step}() of the model's transform ${what}`);
  };
  if (typeof answer !== 'object' || answer === null)
    return fail(`must return an object of tensors, got ${typeof answer}`);
  const tensor = Object.hasOwn(answer, name) ? (answer as Record<string, unknown>)[name] : undefined;
  if (typeof tensor !== 'object' || tensor === null) return fail(`returned no tensor '${name}'`);
  const { datatype: got, shape, data } = tensor as Partial<Tensor>;
  if (!isDatatype(got) || got !== datatype) return fail(`returned '${name}' as ${String(got)}; it is ${datatype}`);
  const dims = Array.isArray(shape) ? [...(shape as number[])] : [];
  const count = Array.isArray(shape) ? elementCount(dims) : undefined;
  if (count === undefined || !shapeFits(dims, spec.shape)) {
    return fail(`returned '${name}' with the shape ${JSON.stringify(shape)}; it must be ${formatShape(spec.shape)}`);
  }
  if (datatype === 'BYTES') {
    const elements = Array.isArray(data) && data.every((one) => one instanceof Uint8Array) ? data : undefined;
    if (elements === undefined) return fail(`returned '${name}' with data that is no array of Uint8Array`);
    if (elements.length !== count)
      return fail(`returned '${name}' with ${elements.length} elements for ${formatShape(dims)}`);
    return { shape: dims, data: encodeBytesTensor(elements) };
  }
  const View = ARRAYS[datatype];
  if (!(data instanceof View)) return fail(`returned '${name}' with data that is no ${View.name}`);
  if (data.length !== count) return fail(`returned '${name}' with ${data.length} elements for ${formatShape(dims)}`);
  return { shape: dims, data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice() };
}

/** What is wrong with a module that was to have these functions; undefined for nothing. */
export function moduleProblem(module: TransformModule, steps: readonly TransformStep[]): string | undefined {
  for (const step of steps) {
    if (typeof module[step] !== 'function') {
      return `exports no function ${step}, which transform.${step === 'before' ? 'inputs' : 'outputs'} is for`;
    }
  }
  return undefined;
}
