/**
 * Fixtures that work element by element: identities of each datatype, sums and differences, casts, strings, and models whose names are traps.
 */
import { DATATYPES, type Datatype } from '../../src/tensor/datatype.ts';
import { defineFixture, type Fixture, inputOf } from './fixture.ts';
import { constant, declare, encodeModel, node, spec } from './onnx.ts';
import { stringTensor, type TestTensor, tensor } from './tensor.ts';

const decoder = new TextDecoder();

export const EVERY_DATATYPE = Object.keys(DATATYPES) as Datatype[];

/** Name of the identity `x[n] → y[n]` of a datatype. */
export function idOf(datatype: Datatype): string {
  return `id_${datatype.toLowerCase()}`;
}

/** Name of the batched identity `x[N,4] → y[N,4]` of a datatype. */
export function rowsOf(datatype: Datatype): string {
  return `rows_${datatype.toLowerCase()}`;
}

const castTo = (datatype: Datatype) => ({ to: { i: DATATYPES[datatype].ortType } });

/** One Identity node per pair of names; every tensor has the same datatype and dimensions. */
function identity(
  name: string,
  about: string,
  datatype: Datatype,
  dims: readonly (number | string)[],
  pairs: ReadonlyMap<string, string> = new Map([['x', 'y']]),
): Fixture {
  return defineFixture({
    name,
    about,
    inputs: [...pairs.keys()].map((input) => spec(input, datatype, dims)),
    outputs: [...pairs.values()].map((output) => spec(output, datatype, dims)),
    batchable: dims[0] === 'N',
    nodes: [...pairs].map(([input, output]) => node('Identity', [input], [output])),
    reference: (values) => new Map([...pairs].map(([input, output]) => [output, inputOf(values, input, datatype)])),
  });
}

const identities: Fixture[] = [
  ...EVERY_DATATYPE.map((datatype) => identity(idOf(datatype), `${datatype} identity`, datatype, ['n'])),
  ...EVERY_DATATYPE.map((datatype) => identity(rowsOf(datatype), `${datatype} identity of rows`, datatype, ['N', 4])),
  identity('rows', 'FP32 identity of rows', 'FP32', ['N', 4]),
  identity('dynamic', 'identity of rows of any length', 'FP32', ['N', 'T']),
  identity('bytes_column', 'BYTES identity, one element a row', 'BYTES', ['N', 1]),
  identity('idB', 'BYTES identity, both dimensions variable', 'BYTES', ['N', 'var'], new Map([['INPUT0', 'OUTPUT0']])),
  identity(
    'odd_names',
    'tensors named like properties of Object, with spaces, with dots',
    'FP32',
    ['N', 2],
    new Map([
      ['__proto__', 'valueOf'],
      ['constructor', 'hasOwnProperty'],
      ['my input', 'my output'],
      ['x.tmp_0', 'softmax_0.tmp_0'],
    ]),
  ),
  identity('proto_output', 'an output named __proto__', 'FP32', ['N', 2], new Map([['x', '__proto__']])),
];

const simple = defineFixture({
  name: 'simple',
  about: 'INT32 sum and difference',
  inputs: [spec('INPUT0', 'INT32', ['N', 16]), spec('INPUT1', 'INT32', ['N', 16])],
  outputs: [spec('OUTPUT0', 'INT32', ['N', 16]), spec('OUTPUT1', 'INT32', ['N', 16])],
  batchable: true,
  nodes: [node('Add', ['INPUT0', 'INPUT1'], ['OUTPUT0']), node('Sub', ['INPUT0', 'INPUT1'], ['OUTPUT1'])],
  options: { description: 'Adds and subtracts.', metadata: { author: 'batchport', über: 'größe' } },
  reference: (inputs) => {
    const a = inputOf(inputs, 'INPUT0', 'INT32');
    const b = inputOf(inputs, 'INPUT1', 'INT32').data;
    const sums = a.data.map((value, i) => value + b[i]!);
    const differences = a.data.map((value, i) => value - b[i]!);
    return new Map([
      ['OUTPUT0', tensor('INT32', a.shape, sums)],
      ['OUTPUT1', tensor('INT32', a.shape, differences)],
    ]);
  },
});

const simpleString = defineFixture({
  name: 'simple_string',
  about: 'sum and difference of whole numbers written in decimal digits',
  inputs: [spec('INPUT0', 'BYTES', ['N', 16]), spec('INPUT1', 'BYTES', ['N', 16])],
  outputs: [spec('OUTPUT0', 'BYTES', ['N', 16]), spec('OUTPUT1', 'BYTES', ['N', 16])],
  batchable: true,
  nodes: [
    node('Cast', ['INPUT0'], ['a'], castTo('INT32')),
    node('Cast', ['INPUT1'], ['b'], castTo('INT32')),
    node('Add', ['a', 'b'], ['sum']),
    node('Sub', ['a', 'b'], ['difference']),
    node('Cast', ['sum'], ['OUTPUT0'], castTo('BYTES')),
    node('Cast', ['difference'], ['OUTPUT1'], castTo('BYTES')),
  ],
  sample: (random, _input, shape) => {
    const numbers = Array.from({ length: shape[0]! * 16 }, () => random.int(-999_999, 999_999));
    return stringTensor(shape, numbers.map(String));
  },
  reference: (inputs) => {
    const shape = inputOf(inputs, 'INPUT0', 'BYTES').shape;
    const numbers = (name: string) => inputOf(inputs, name, 'BYTES').data.map((text) => Number(decoder.decode(text)));
    const a = numbers('INPUT0');
    const b = numbers('INPUT1');
    const sums = a.map((value, i) => String(value + b[i]!));
    const differences = a.map((value, i) => String(value - b[i]!));
    return new Map([
      ['OUTPUT0', stringTensor(shape, sums)],
      ['OUTPUT1', stringTensor(shape, differences)],
    ]);
  },
});

const masked = defineFixture({
  name: 'masked',
  about: 'identity of a list of vectors for each row, beside a mask of which it only says what it is',
  inputs: [spec('x', 'FP32', ['N', 'T', 3]), spec('mask', 'INT64', ['N', 'T'])],
  outputs: [spec('y', 'FP32', ['N', 'T', 3]), spec('m', 'INT64', ['N', 'T'])],
  batchable: true,
  nodes: [node('Identity', ['x'], ['y']), node('Identity', ['mask'], ['m'])],
  reference: (inputs) =>
    new Map<string, TestTensor>([
      ['y', inputOf(inputs, 'x', 'FP32')],
      ['m', inputOf(inputs, 'mask', 'INT64')],
    ]),
});

const noBatch = defineFixture({
  name: 'no_batch',
  about: 'fixed shapes without a batch axis; the output has another datatype',
  inputs: [spec('INPUT0', 'INT32', [16]), spec('INPUT1', 'INT32', [16])],
  outputs: [spec('OUTPUT0', 'INT8', [16])],
  batchable: false,
  nodes: [node('Add', ['INPUT0', 'INPUT1'], ['sum']), node('Cast', ['sum'], ['OUTPUT0'], castTo('INT8'))],
  reference: (inputs) => {
    const a = inputOf(inputs, 'INPUT0', 'INT32').data;
    const b = inputOf(inputs, 'INPUT1', 'INT32').data;
    const sums = Int8Array.from(a, (value, i) => value + b[i]!);
    return new Map([['OUTPUT0', tensor('INT8', [16], sums)]]);
  },
});

const multitype = defineFixture({
  name: 'multitype',
  about: 'four datatypes in one model',
  inputs: [spec('a', 'UINT8', ['N', 2]), spec('b', 'FP64', ['N', 3])],
  outputs: [spec('c', 'INT16', ['N', 2]), spec('d', 'INT64', ['N', 3])],
  batchable: true,
  nodes: [node('Cast', ['a'], ['c'], castTo('INT16')), node('Cast', ['b'], ['d'], castTo('INT64'))],
  reference: (inputs) => {
    const a = inputOf(inputs, 'a', 'UINT8');
    const b = inputOf(inputs, 'b', 'FP64');
    const whole = [...b.data].map((value) => BigInt(Math.trunc(value)));
    return new Map<string, TestTensor>([
      ['c', tensor('INT16', a.shape, Int16Array.from(a.data))],
      ['d', tensor('INT64', b.shape, BigInt64Array.from(whole))],
    ]);
  },
});

const bf16ToFp32 = defineFixture({
  name: 'bf16_in',
  about: 'BF16 in, FP32 out',
  inputs: [spec('x', 'BF16', ['N', 4])],
  outputs: [spec('y', 'FP32', ['N', 4])],
  batchable: true,
  nodes: [node('Cast', ['x'], ['y'], castTo('FP32'))],
  // Ordinary numbers only: what a conversion does to the payload of a NaN is not defined.
  sample: (random, _input, shape) => {
    const bits = Array.from({ length: shape[0]! * 4 }, () => random.int(0x3c00, 0x4600) | (random.int(0, 1) << 15));
    return tensor('BF16', shape, Uint16Array.from(bits));
  },
  reference: (inputs) => {
    const x = inputOf(inputs, 'x', 'BF16');
    const bits = Uint32Array.from(x.data, (value) => value << 16);
    return new Map([['y', tensor('FP32', x.shape, new Float32Array(bits.buffer))]]);
  },
});

const halfToBf16 = defineFixture({
  name: 'half_to_bf16',
  about: 'FP16 in, BF16 out',
  inputs: [spec('x', 'FP16', ['n'])],
  outputs: [spec('y', 'BF16', ['n'])],
  batchable: false,
  nodes: [node('Cast', ['x'], ['y'], castTo('BF16'))],
});

const addWithInitializer: Fixture = {
  name: 'add_with_initializer',
  about: 'a second input that has a default, 0 to 24, and may be left out',
  inputs: [spec('INPUT', 'FP32', [5, 5])],
  outputs: [spec('OUTPUT', 'FP32', [5, 5])],
  batchable: false,
  build: () => {
    const defaults = Float32Array.from({ length: 25 }, (_, i) => i);
    const model = encodeModel({
      nodes: [node('Add', ['INPUT', 'INITIALIZER'], ['OUTPUT'])],
      constants: [constant('INITIALIZER', tensor('FP32', [5, 5], defaults))],
      // Listed as an input too: that is what makes a constant a default.
      inputs: ['INPUT', 'INITIALIZER'].map((name) => declare(spec(name, 'FP32', [5, 5]))),
      outputs: [declare(spec('OUTPUT', 'FP32', [5, 5]))],
    });
    return { model };
  },
  reference: (inputs) => {
    const x = inputOf(inputs, 'INPUT', 'FP32');
    const sums = x.data.map((value, i) => value + i);
    return new Map([['OUTPUT', tensor('FP32', x.shape, sums)]]);
  },
};

export const ELEMENTWISE: readonly Fixture[] = [
  ...identities,
  simple,
  simpleString,
  masked,
  noBatch,
  multitype,
  bf16ToFp32,
  halfToBf16,
  addWithInitializer,
];
