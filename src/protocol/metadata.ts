/**
 * The protocol's descriptive bodies: server metadata, model metadata and errors, as plain objects to be printed by `JSON.stringify`.
 */
import type { BatchportError } from '../config/errors.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import type { ModelInterface } from './model-interface.ts';

export interface TensorMetadata {
  readonly name: string;
  readonly datatype: string;
  /** -1 where variable. */
  readonly shape: readonly number[];
}

export interface ModelMetadataBody {
  readonly name: string;
  readonly versions: readonly string[];
  readonly platform: string;
  readonly inputs: readonly TensorMetadata[];
  /** Outputs that the protocol cannot carry are left out. */
  readonly outputs: readonly TensorMetadata[];
}

export interface ServerMetadataBody {
  readonly name: string;
  readonly version: string;
  readonly extensions: readonly string[];
}

export interface ErrorBody {
  readonly error: string;
  readonly code: string;
}

/**
 * @param versions every version that is served, as strings.
 * @param platform such as `onnxruntime_onnx`.
 */
export function modelMetadata(model: ModelInterface, versions: readonly string[], platform: string): ModelMetadataBody {
  const { inputs, outputs } = model.signature;
  return {
    name: model.name,
    versions: [...versions],
    platform,
    inputs: inputs.map(tensorMetadata),
    outputs: outputs.map(tensorMetadata),
  };
}

function tensorMetadata({ name, datatype, shape }: TensorSpec): TensorMetadata {
  return { name, datatype, shape: [...shape] };
}

/** @param extensions names of the protocol's extensions that the server has. */
export function serverMetadata(name: string, version: string, extensions: readonly string[]): ServerMetadataBody {
  return { name, version, extensions: [...extensions] };
}

/** The body of every answer that is not a success. */
export function errorBody(error: BatchportError): ErrorBody {
  return { error: error.message, code: error.code };
}
