/**
 * Metadata of a server and of its models, checked as far as a caller relies on it.
 */
import { asObject, optionalString, own, requiredString } from './answer.ts';
import { badResponse } from './errors.ts';
import { showValue } from './json.ts';

export interface ServerMetadata {
  readonly name: string;
  readonly version: string;
  readonly extensions: readonly string[];
}

export interface TensorMetadata {
  readonly name: string;
  /** A datatype of the protocol; a string, since a server may know more of them than this client. */
  readonly datatype: string;
  /** -1 where a dimension varies. */
  readonly shape: readonly number[];
}

export interface ModelMetadata {
  readonly name: string;
  readonly versions: readonly string[];
  readonly platform: string;
  readonly inputs: readonly TensorMetadata[];
  readonly outputs: readonly TensorMetadata[];
}

export function decodeServerMetadata(body: Record<string, unknown>): ServerMetadata {
  return {
    name: requiredString(body, 'name'),
    version: optionalString(body, 'version') ?? '',
    extensions: strings(body, 'extensions'),
  };
}

export function decodeModelMetadata(body: Record<string, unknown>): ModelMetadata {
  return {
    name: requiredString(body, 'name'),
    versions: strings(body, 'versions'),
    platform: optionalString(body, 'platform') ?? '',
    inputs: list(body, 'inputs').map(tensorMetadata),
    outputs: list(body, 'outputs').map(tensorMetadata),
  };
}

function tensorMetadata(value: unknown): TensorMetadata {
  const tensor = asObject(value, 'a tensor of the metadata');
  const shape = list(tensor, 'shape');
  if (!shape.every((dim) => Number.isSafeInteger(dim) && (dim as number) >= -1)) {
    throw badResponse(`"shape" of the metadata is ${shape.map(showValue).join()}`);
  }
  return {
    name: requiredString(tensor, 'name'),
    datatype: requiredString(tensor, 'datatype'),
    shape: shape as number[],
  };
}

/** An array, empty where the server leaves it out. */
function list(object: Record<string, unknown>, key: string): unknown[] {
  const value = own(object, key);
  if (value === undefined || value === null) return [];
  if (!Array.isArray(value)) throw badResponse(`"${key}" of the answer is not an array`);
  return value;
}

function strings(object: Record<string, unknown>, key: string): string[] {
  const values = list(object, key);
  if (!values.every((value) => typeof value === 'string'))
    throw badResponse(`"${key}" of the answer holds more than strings`);
  return values;
}
