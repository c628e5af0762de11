/**
 * Reads what a loaded session takes and gives: names, datatypes, shapes, metadata.
 *
 * Everything read is copied into JavaScript values; no pointer outlives the call.
 */
import { BatchportError } from '../config/errors.ts';
import { datatypeOfOrt } from '../tensor/datatype.ts';
import type { ModelMetadata, ModelSignature, SkippedOutput, TensorSpec } from '../tensor/signature.ts';
import { Cells } from './cells.ts';
import { ortLibrary, readPointer, readText } from './library.ts';

/** ONNXType, in order. */
const ONNX_TYPES = ['value of unknown type', 'tensor', 'sequence', 'map', 'opaque value', 'sparse tensor', 'optional'];
const TENSOR = 1;

/** ONNXTensorElementDataType of those the protocol has no name for. */
const ELEMENT_TYPES: Readonly<Record<number, string>> = {
  14: 'complex64',
  15: 'complex128',
  17: 'float8e4m3fn',
  18: 'float8e4m3fnuz',
  19: 'float8e5m2',
  20: 'float8e5m2fnuz',
  21: 'uint4',
  22: 'int4',
  23: 'float4e2m1',
  24: 'uint2',
  25: 'int2',
};

/** Version number that ONNX Runtime gives for a model without one. */
const NO_VERSION = 9_223_372_036_854_775_807n;

/**
 * Signature of an OrtSession*.
 *
 * A tensor whose rank the model leaves open reads as a scalar (`[]`): ONNX Runtime's C API does not tell the two apart.
 *
 * @throws NOT_SUPPORTED for an input that the protocol cannot carry, naming it. Such outputs are listed as skipped.
 */
export function readSignature(session: number): ModelSignature {
  const { api, out } = ortLibrary();
  const allocator = out((cell) => api.GetAllocatorWithDefaultOptions(cell));
  const inputs: TensorSpec[] = [];
  const inputCount = out((cell) => api.SessionGetInputCount(session, cell));
  for (let index = 0; index < inputCount; index++) {
    const name = takeText(allocator, (cell) => api.SessionGetInputName(session, index, allocator, cell));
    const spec = readSpec(
      name,
      out((cell) => api.SessionGetInputTypeInfo(session, index, cell)),
    );
    if ('reason' in spec) {
      throw new BatchportError(
        'NOT_SUPPORTED',
        `Input ${JSON.stringify(name)} is a ${spec.reason}; only tensors of a datatype of the protocol can be sent.`,
      );
    }
    inputs.push(spec);
  }
  const outputs: TensorSpec[] = [];
  const skippedOutputs: SkippedOutput[] = [];
  const outputCount = out((cell) => api.SessionGetOutputCount(session, cell));
  for (let index = 0; index < outputCount; index++) {
    const name = takeText(allocator, (cell) => api.SessionGetOutputName(session, index, allocator, cell));
    const spec = readSpec(
      name,
      out((cell) => api.SessionGetOutputTypeInfo(session, index, cell)),
    );
    if ('reason' in spec) {
      skippedOutputs.push(spec);
    } else {
      outputs.push(spec);
    }
  }
  return {
    inputs,
    outputs,
    skippedOutputs,
    metadata: readMetadata(session, allocator),
  };
}

/** Reads an OrtTypeInfo* and releases it. */
function readSpec(name: string, typeInfo: number): TensorSpec | SkippedOutput {
  const { api, check, out } = ortLibrary();
  try {
    const onnxType = out((cell) => api.GetOnnxTypeFromTypeInfo(typeInfo, cell));
    if (onnxType !== TENSOR) {
      return {
        name,
        reason: ONNX_TYPES[onnxType] ?? `value of ONNX type ${onnxType}`,
      };
    }
    // Owned by the type info.
    const tensorInfo = out((cell) => api.CastTypeInfoToTensorInfo(typeInfo, cell));
    const elementType = out((cell) => api.GetTensorElementType(tensorInfo, cell));
    const datatype = datatypeOfOrt(elementType);
    if (datatype === undefined) {
      return {
        name,
        reason: `tensor of ${ELEMENT_TYPES[elementType] ?? `element type ${elementType}`}`,
      };
    }
    const rank = out((cell) => api.GetDimensionsCount(tensorInfo, cell));
    const dims = new Cells(rank);
    check(api.GetDimensions(tensorInfo, dims.address, rank));
    const texts = new Cells(rank);
    check(api.GetSymbolicDimensions(tensorInfo, texts.address, rank));
    const shape: number[] = [];
    const symbols: string[] = [];
    for (let axis = 0; axis < rank; axis++) {
      const dim = dims.get(axis);
      shape.push(dim < 0 ? -1 : dim);
      symbols.push(dim < 0 ? readText(texts.get(axis)) : '');
    }
    return { name, datatype, shape, symbols };
  } finally {
    api.ReleaseTypeInfo(typeInfo);
  }
}

function readMetadata(session: number, allocator: number): ModelMetadata {
  const { api, check, out } = ortLibrary();
  const metadata = out((cell) => api.SessionGetModelMetadata(session, cell));
  try {
    const version = new Cells(1);
    check(api.ModelMetadataGetVersion(metadata, version.address));
    const versionNumber = new BigInt64Array(version.bytes.buffer)[0]!;
    return {
      producer: takeText(allocator, (cell) => api.ModelMetadataGetProducerName(metadata, allocator, cell)),
      graphName: takeText(allocator, (cell) => api.ModelMetadataGetGraphName(metadata, allocator, cell)),
      description: takeText(allocator, (cell) => api.ModelMetadataGetDescription(metadata, allocator, cell)),
      version: versionNumber === NO_VERSION ? '' : String(versionNumber),
      custom: readCustomMetadata(metadata, allocator),
    };
  } finally {
    api.ReleaseModelMetadata(metadata);
  }
}

function readCustomMetadata(metadata: number, allocator: number): Readonly<Record<string, string>> {
  const { api, check } = ortLibrary();
  const cells = new Cells(2);
  check(api.ModelMetadataGetCustomMetadataMapKeys(metadata, allocator, cells.at(0), cells.at(1)));
  const list = cells.get(0);
  const count = cells.get(1);
  const keys: string[] = [];
  try {
    for (let index = 0; index < count; index++) {
      const text = readPointer(list, index);
      keys.push(readText(text));
      check(api.AllocatorFree(allocator, text));
    }
  } finally {
    if (list !== 0) {
      check(api.AllocatorFree(allocator, list));
    }
  }
  // fromEntries defines properties, so that a key `__proto__` is a key like any other.
  return Object.fromEntries(
    keys.map((key) => [
      key,
      takeText(allocator, (cell) => api.ModelMetadataLookupCustomMetadataMap(metadata, allocator, key, cell)),
    ]),
  );
}

/** Text that `call` allocates with `allocator`; freed once read. */
function takeText(allocator: number, call: (cell: number) => number): string {
  const { api, check, out } = ortLibrary();
  const text = out(call);
  if (text === 0) {
    return '';
  }
  try {
    return readText(text);
  } finally {
    check(api.AllocatorFree(allocator, text));
  }
}
