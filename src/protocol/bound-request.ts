/**
 * An inference request after it has been checked against a model: everything the queue needs, in the model's own order.
 *
 * Invariant: whatever can be wrong with a request has been refused before one of these exists. Each input has the datatype and a
 * shape of the signature, `inputs[i].length === template.inputBytes[i]` (BYTES: a well-formed serialised tensor of the right
 * number of elements), and every index of `outputs` is one of the signature's.
 */

import type { TensorBytes } from '../queue/tensor-source.ts';
import type { SharedTarget } from './shared-memory.ts';

/** One output a client asked for. */
export interface OutputRequest {
  /** Index in the signature's outputs. */
  readonly index: number;
  /** As bytes after the JSON, or as numbers inside it. */
  readonly binary: boolean;
  /** How many of its highest values are asked for as texts of classes instead of the tensor; 0 for the tensor. */
  readonly classes: number;
}

/**
 * All of a request but its payload, id and deadline. Immutable and shared: requests that differ in nothing else carry the same object,
 * so it may key a cache (weakly, as templates are dropped when many different ones come).
 */
export interface RequestTemplate {
  /** Rows along the batch dimension; 1 when whole. */
  readonly rows: number;
  /** Not batched: the model has no batch dimension, or the request has 0 rows. Shapes are full shapes then. */
  readonly whole: boolean;
  /** Per signature input: the full shape if whole, else the shape of one row. */
  readonly shapes: readonly (readonly number[])[];
  /** Per signature input: bytes of the whole request; -1 for BYTES, whose length is the payload's. */
  readonly inputBytes: readonly number[];
  /** In the order in which the response lists them. */
  readonly outputs: readonly OutputRequest[];
  /** Equal exactly when the same classes of the same outputs are asked for, in whatever order; '' for none. */
  readonly classesKey: string;
  /** Equal exactly when rows may share a batch: shapes, set of outputs, whole. Rows, order of outputs and their form do not count. */
  readonly shapeKey: string;
}

/** What of a request is in regions of shared memory. */
export interface SharedTensors {
  /** All inputs in signature order, wherever they are. */
  readonly inputs: readonly TensorBytes[];
  /** Of those that are there. */
  readonly bytes: number;
  /** Places for outputs, one per entry of the template's outputs. */
  readonly targets: readonly (SharedTarget | undefined)[];
}

export interface BoundRequest {
  readonly template: RequestTemplate;
  /** To be echoed; undefined when the client gave none. */
  readonly id: string | undefined;
  /**
   * In signature order; row-major, little-endian; BYTES serialised. Inputs sent in binary are views into the request's body, at any
   * alignment: the body must stay as it is until they have been copied. Empty where `shared` has them.
   */
  readonly inputs: readonly Uint8Array[];
  /** Of a request with tensors in shared memory. */
  readonly shared?: SharedTensors;
  /** Microseconds from arrival within which the client wants its answer; undefined for the model's default. */
  readonly timeoutUs: number | undefined;
  /** 1 is the most urgent; undefined for the model's default. Not yet compared with the number of levels the model has. */
  readonly priority: number | undefined;
}
