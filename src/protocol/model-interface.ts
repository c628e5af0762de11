/**
 * A model as requests see it, and the checks of names, datatypes, shapes and sizes that do not depend on how a request was encoded.
 *
 * Names come from clients and may be `__proto__` or `constructor`: they are looked up in Maps only.
 */
import { BatchportError } from '../config/errors.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import { elementCount, formatShape, shapeFits } from '../tensor/shape.ts';
import type { ModelSignature, TensorSpec } from '../tensor/signature.ts';
import { JsonKeys } from './json-keys.ts';

export interface ModelInterface {
  readonly name: string;
  readonly version: string;
  readonly signature: ModelSignature;
  /** Whether rows of several requests may run together: then the first dimension of every input is the batch, -1 in the signature. */
  readonly batching: boolean;
  readonly maxBatchSize: number;
  /** Most rows of one request when batching: more than a batch has, where requests are split. */
  readonly maxRows: number;
}

/** Bounds on one tensor of a request, checked before anything is allocated for it. */
export interface RequestLimits {
  readonly maxElements: number;
  /** Bytes in the datatype's own storage, which can be several times the JSON they are written in. */
  readonly maxTensorBytes: number;
}

/** Size of a request's tensor, known from its shape. */
export interface TensorSize {
  readonly count: number;
  /** -1 for BYTES. */
  readonly bytes: number;
}

/** More dimensions than any model has. */
export const RANK_MAX = 64;

const NAME_MAX = 80;

/** A client's name in quotes, cut to a length fit for a message. */
export function quoteName(name: string): string {
  if (name.length <= NAME_MAX) return `'${name}'`;
  // Without the first half of a surrogate pair that the cut has split.
  return `'${name.slice(0, NAME_MAX).replace(/[\ud800-\udbff]$/, '')}…'`;
}

export class InterfaceChecks {
  readonly model: ModelInterface;
  readonly inputNames: JsonKeys;
  private readonly limits: RequestLimits;
  private readonly inputs = new Map<string, number>();
  private readonly outputs = new Map<string, number>();
  private readonly skipped = new Map<string, string>();

  constructor(model: ModelInterface, limits: RequestLimits) {
    const { inputs, outputs, skippedOutputs } = model.signature;
    if (model.batching && inputs.some((input) => input.shape[0] !== -1)) {
      throw new Error(`This is a bug: model ${model.name} batches, but an input has no variable first dimension`);
    }
    this.model = model;
    this.inputNames = new JsonKeys(inputs.map((input) => input.name));
    this.limits = limits;
    for (const [index, input] of inputs.entries()) this.inputs.set(input.name, index);
    for (const [index, output] of outputs.entries()) this.outputs.set(output.name, index);
    for (const output of skippedOutputs) this.skipped.set(output.name, output.reason);
  }

  /** @throws BAD_TENSOR when the model has no such input. */
  inputIndex(name: string): number {
    const index = this.inputs.get(name);
    if (index !== undefined) return index;
    throw new BatchportError(
      'BAD_TENSOR',
      `unexpected inference input ${quoteName(name)} for model '${this.model.name}'; its inputs are ${names(this.model.signature.inputs)}`,
    );
  }

  /** @throws BAD_TENSOR when the model has no such output, or one that the protocol cannot carry. */
  outputIndex(name: string): number {
    const index = this.outputs.get(name);
    if (index !== undefined) return index;
    const reason = this.skipped.get(name);
    throw new BatchportError(
      'BAD_TENSOR',
      reason === undefined
        ? `unexpected inference output ${quoteName(name)} for model '${this.model.name}'; its outputs are ${names(this.model.signature.outputs)}`
        : `output '${name}' of model '${this.model.name}' cannot be returned: ${reason}`,
    );
  }

  /** @throws BAD_TENSOR */
  checkDatatype(spec: TensorSpec, datatype: string): void {
    if (datatype === spec.datatype) return;
    throw new BatchportError(
      'BAD_TENSOR',
      `input '${spec.name}' has data-type ${quoteName(datatype)}, but model '${this.model.name}' expects type '${spec.datatype}'`,
    );
  }

  /**
   * The shape that an input gets: as sent, save that `[1]` stands for a scalar too.
   *
   * @param shape non-negative safe integers.
   * @throws BAD_TENSOR
   */
  fitShape(spec: TensorSpec, shape: readonly number[]): readonly number[] {
    if (shapeFits(shape, spec.shape)) return shape;
    if (spec.shape.length === 0 && shape.length === 1 && shape[0] === 1) return spec.shape;
    const batchMissing = spec.shape[0] === -1 && shapeFits(shape, spec.shape.slice(1));
    throw new BatchportError(
      'BAD_TENSOR',
      `unexpected shape for input '${spec.name}' for model '${this.model.name}': Expected ${formatShape(spec.shape)}, got ${formatShape(shape)}${
        batchMissing ? `; the first dimension is the batch: send ${formatShape([1, ...shape])} for one row` : ''
      }`,
    );
  }

  /** @throws BAD_TENSOR when the shape is past the limits. */
  sizeOf(spec: TensorSpec, shape: readonly number[]): TensorSize {
    const count = elementCount(shape);
    if (count === undefined) {
      throw new BatchportError(
        'BAD_TENSOR',
        `invalid shape for input '${spec.name}': ${formatShape(shape)} has more elements than can be counted`,
      );
    }
    if (count > this.limits.maxElements) {
      throw new BatchportError(
        'BAD_TENSOR',
        `input '${spec.name}' has ${count} elements; this server takes at most ${this.limits.maxElements} in one tensor`,
      );
    }
    const { elementBytes } = datatypeInfo(spec.datatype);
    // Even an empty BYTES element has the four bytes of its length.
    this.checkBytes(spec, count * (elementBytes === 0 ? 4 : elementBytes));
    return { count, bytes: elementBytes === 0 ? -1 : count * elementBytes };
  }

  /** @throws BAD_TENSOR when a tensor of `bytes` is past the limit. */
  checkBytes(spec: TensorSpec, bytes: number): void {
    if (bytes <= this.limits.maxTensorBytes) return;
    throw new BatchportError(
      'BAD_TENSOR',
      `input '${spec.name}' takes ${bytes} bytes as ${spec.datatype}; this server takes at most ${this.limits.maxTensorBytes} in one tensor`,
    );
  }

  /**
   * The rows that a request has, from the full shapes of its inputs in signature order; 0 when it is to run whole.
   *
   * @throws BAD_TENSOR when the inputs disagree, or the rows are more than the model takes.
   */
  rowsOf(shapes: readonly (readonly number[])[]): number {
    if (!this.model.batching || shapes.length === 0) return 0;
    const rows = shapes[0]![0]!;
    for (let i = 1; i < shapes.length; i++) {
      if (shapes[i]![0] === rows) continue;
      const { inputs } = this.model.signature;
      throw new BatchportError(
        'BAD_TENSOR',
        `input '${inputs[i]!.name}' has ${shapes[i]![0]} rows, but input '${inputs[0]!.name}' has ${rows}; the first dimension is the batch and is the same for all inputs of model '${this.model.name}'`,
      );
    }
    const { maxRows, maxBatchSize, name } = this.model;
    if (rows > maxRows) {
      const limit = maxRows > maxBatchSize ? ', which is what its queue may hold (queue.max_rows)' : '';
      throw new BatchportError(
        'BAD_TENSOR',
        `inference request batch-size must be <= ${maxRows} for '${name}'${limit}, got ${rows}; send the rows in several requests`,
      );
    }
    return rows;
  }

  /** @throws BAD_TENSOR when not every input of the model is there. `present[i]` belongs to input `i` of the signature. */
  checkComplete(present: readonly unknown[]): void {
    const { inputs } = this.model.signature;
    const missing = inputs.filter((_, index) => present[index] === undefined);
    if (missing.length === 0) return;
    throw new BatchportError(
      'BAD_TENSOR',
      `expected ${inputs.length} inputs but got ${inputs.length - missing.length} for model '${this.model.name}'; missing ${names(missing)}`,
    );
  }
}

function names(tensors: readonly TensorSpec[]): string {
  return tensors.map((tensor) => `'${tensor.name}'`).join(', ');
}
