/**
 * Writes ONNX model files from plain descriptions, over the protobuf classes of onnx-proto (IR version 8).
 *
 * ONNX's element types carry the same numbers as ONNX Runtime's, so src/tensor/datatype.ts serves both.
 */
import { createRequire } from 'node:module';
import type { onnx as Onnx } from 'onnx-proto';
import { type Datatype, datatypeInfo } from '../../src/tensor/datatype.ts';
import type { TensorSpec } from '../../src/tensor/signature.ts';
import { type TestTensor, wireBytes } from './tensor.ts';

// The package is CommonJS and hides its exports from the ES module loader.
const { onnx } = createRequire(import.meta.url)('onnx-proto') as {
  onnx: typeof Onnx;
};

/** An attribute of a node, by kind: the file format needs the kind even where the value leaves no doubt. */
export type Attribute =
  | { readonly i: number }
  | { readonly f: number }
  | { readonly s: string }
  | { readonly ints: readonly number[] }
  | { readonly floats: readonly number[] }
  | { readonly graph: Graph };

export interface Graph {
  readonly nodes: readonly Onnx.INodeProto[];
  readonly constants?: readonly Onnx.ITensorProto[];
  readonly inputs: readonly Onnx.IValueInfoProto[];
  readonly outputs: readonly Onnx.IValueInfoProto[];
}

export interface ModelOptions {
  /** Adds the operator set ai.onnx.ml. */
  readonly ml?: boolean;
  readonly description?: string;
  readonly metadata?: Readonly<Record<string, string>>;
}

/** Version of the default operator set in every model written here. */
const OPSET = 13;

/** A tensor of a signature: numbers are fixed dimensions, a string names a variable one. */
export function spec(name: string, datatype: Datatype, dims: readonly (number | string)[]): TensorSpec {
  return {
    name,
    datatype,
    shape: dims.map((dim) => (typeof dim === 'string' ? -1 : dim)),
    symbols: dims.map((dim) => (typeof dim === 'string' ? dim : '')),
  };
}

/** Declares a tensor of a signature as a graph's input or output. */
export function declare({ name, datatype, shape, symbols }: TensorSpec): Onnx.IValueInfoProto {
  const dim = shape.map((size, axis) => (size === -1 ? { dimParam: symbols[axis] ?? '' } : { dimValue: size }));
  return {
    name,
    type: {
      tensorType: { elemType: datatypeInfo(datatype).ortType, shape: { dim } },
    },
  };
}

/** Declares an output that is a sequence of maps from INT64 to FP32, as classifiers of scikit-learn have. */
export function declareMapSequence(name: string): Onnx.IValueInfoProto {
  const float = { tensorType: { elemType: datatypeInfo('FP32').ortType } };
  const mapType = { keyType: datatypeInfo('INT64').ortType, valueType: float };
  return { name, type: { sequenceType: { elemType: { mapType } } } };
}

export function node(
  opType: string,
  input: readonly string[],
  output: readonly string[],
  attributes: Readonly<Record<string, Attribute>> = {},
  domain = '',
): Onnx.INodeProto {
  const attribute = Object.entries(attributes).map(([name, value]) => encodeAttribute(name, value));
  return { opType, input: [...input], output: [...output], attribute, domain };
}

/** A constant of a graph. */
export function constant(name: string, value: TestTensor): Onnx.ITensorProto {
  const dataType = datatypeInfo(value.datatype).ortType;
  const dims = [...value.shape];
  if (value.datatype === 'BYTES') return { name, dataType, dims, stringData: value.data };
  return { name, dataType, dims, rawData: wireBytes(value) };
}

/** A constant whose bytes lie in another file beside the model, at [offset, offset + length). */
export function externalConstant(
  name: string,
  datatype: Datatype,
  shape: readonly number[],
  file: {
    readonly location: string;
    readonly offset: number;
    readonly length: number;
  },
): Onnx.ITensorProto {
  const externalData = Object.entries(file).map(([key, value]) => ({
    key,
    value: String(value),
  }));
  const dataLocation = onnx.TensorProto.DataLocation.EXTERNAL;
  return {
    name,
    dataType: datatypeInfo(datatype).ortType,
    dims: [...shape],
    externalData,
    dataLocation,
  };
}

/** The bytes of a model file. */
export function encodeModel(graph: Graph, options: ModelOptions = {}): Uint8Array {
  const opsetImport = [{ domain: '', version: OPSET }];
  if (options.ml) opsetImport.push({ domain: 'ai.onnx.ml', version: 1 });
  const model = onnx.ModelProto.fromObject({
    irVersion: 8,
    producerName: 'batchport tests',
    docString: options.description ?? '',
    modelVersion: 1,
    opsetImport,
    graph: encodeGraph(graph),
    metadataProps: Object.entries(options.metadata ?? {}).map(([key, value]) => ({ key, value })),
  });
  return onnx.ModelProto.encode(model).finish();
}

function encodeGraph(graph: Graph): Onnx.IGraphProto {
  return {
    name: 'main',
    node: [...graph.nodes],
    initializer: [...(graph.constants ?? [])],
    input: [...graph.inputs],
    output: [...graph.outputs],
  };
}

function encodeAttribute(name: string, value: Attribute): Onnx.IAttributeProto {
  const kind = onnx.AttributeProto.AttributeType;
  if ('i' in value) return { name, type: kind.INT, i: value.i };
  if ('f' in value) return { name, type: kind.FLOAT, f: value.f };
  if ('s' in value) return { name, type: kind.STRING, s: Buffer.from(value.s) };
  if ('ints' in value) return { name, type: kind.INTS, ints: [...value.ints] };
  if ('floats' in value) return { name, type: kind.FLOATS, floats: [...value.floats] };
  return { name, type: kind.GRAPH, g: encodeGraph(value.graph) };
}
