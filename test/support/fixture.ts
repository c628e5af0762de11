/**
 * What a model fixture is: a tiny ONNX model built in memory, its signature, how to make good inputs for it and, where that is simple, the right
 * answer computed in plain JavaScript.
 */
import type { Datatype } from '../../src/tensor/datatype.ts';
import type { TensorSpec } from '../../src/tensor/signature.ts';
import { constant, declare, encodeModel, type ModelOptions, type node } from './onnx.ts';
import type { Random } from './random.ts';
import { randomTensor, type TensorMap, type TestTensor } from './tensor.ts';

export interface ModelFiles {
  readonly model: Uint8Array;
  /** Files that must lie beside the model, by name. */
  readonly sideFiles?: ReadonlyMap<string, Uint8Array>;
}

export interface Fixture {
  /** Stem of the model's file, and its name in a repository unless a test chooses another. */
  readonly name: string;
  readonly about: string;
  readonly inputs: readonly TensorSpec[];
  readonly outputs: readonly TensorSpec[];
  /** Outputs that are not tensors. */
  readonly skippedOutputs?: readonly string[];
  /** Whether the first axis of every input and output is a batch axis and no row depends on another. */
  readonly batchable: boolean;
  readonly build: () => ModelFiles;
  /** The right outputs, exact to the bit. */
  readonly reference?: (inputs: TensorMap) => TensorMap;
  /** Data for an input whose random values must come from a narrower range than the datatype's. */
  readonly sample?: (random: Random, input: TensorSpec, shape: readonly number[]) => TestTensor | undefined;
}

/** A fixture described by its nodes and constants; its signature gives the rest of the graph. */
export type Definition = Omit<Fixture, 'build'> & {
  readonly nodes: readonly ReturnType<typeof node>[];
  readonly constants?: Readonly<Record<string, TestTensor>>;
  readonly options?: ModelOptions;
};

export function defineFixture({ nodes, constants = {}, options = {}, ...fixture }: Definition): Fixture {
  const graph = () => ({
    nodes,
    constants: Object.entries(constants).map(([name, value]) => constant(name, value)),
    inputs: fixture.inputs.map(declare),
    outputs: fixture.outputs.map(declare),
  });
  return { ...fixture, build: () => ({ model: encodeModel(graph(), options) }) };
}

/**
 * Random inputs that the model accepts.
 *
 * @param rows Size of a variable first dimension, and of others with its symbol.
 * @param sizes Size of each other variable dimension by its symbol; 3 where none is given.
 */
export function sampleInputs(
  fixture: Fixture,
  random: Random,
  rows: number,
  sizes: Readonly<Record<string, number>> = {},
): Map<string, TestTensor> {
  const inputs = new Map<string, TestTensor>();
  const rowSymbols = new Set(fixture.inputs.map(({ symbols }) => symbols[0]));
  for (const input of fixture.inputs) {
    const shape = input.shape.map((dim, axis) => {
      if (dim !== -1) return dim;
      const symbol = input.symbols[axis] ?? '';
      return axis === 0 || (symbol !== '' && rowSymbols.has(symbol)) ? rows : (sizes[symbol] ?? 3);
    });
    inputs.set(input.name, fixture.sample?.(random, input, shape) ?? randomTensor(random, input.datatype, shape));
  }
  return inputs;
}

/** An input by name, known to have one of the fixture's own datatypes. */
export function inputOf<D extends Datatype>(
  inputs: TensorMap,
  name: string,
  datatype: D,
): Extract<TestTensor, { datatype: D }> {
  const value = inputs.get(name);
  if (value?.datatype !== datatype) throw new Error(`the reference needs ${name} as ${datatype}`);
  return value as Extract<TestTensor, { datatype: D }>;
}
