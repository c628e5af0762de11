/**
 * What a model takes and gives, as read from the model itself.
 */
import type { Datatype } from './datatype.ts';

/** One tensor of a model's signature. */
export interface TensorSpec {
  readonly name: string;
  readonly datatype: Datatype;
  /** Dimensions; -1 where variable. Empty for a scalar. */
  readonly shape: readonly number[];
  /** Symbolic name of each variable dimension (`N`, `batch`); '' where the dimension is fixed or has no name. */
  readonly symbols: readonly string[];
}

/** An output the protocol cannot carry (a sequence, a map, an unnamed element type) and why. */
export interface SkippedOutput {
  readonly name: string;
  readonly reason: string;
}

export interface ModelMetadata {
  readonly producer: string;
  readonly graphName: string;
  readonly description: string;
  readonly version: string;
  readonly custom: Readonly<Record<string, string>>;
}

export interface ModelSignature {
  /** In the model's order. */
  readonly inputs: readonly TensorSpec[];
  /** Tensor outputs only, in the model's order. */
  readonly outputs: readonly TensorSpec[];
  readonly skippedOutputs: readonly SkippedOutput[];
  readonly metadata: ModelMetadata;
}
