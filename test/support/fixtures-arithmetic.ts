/** Fixtures that compute in each datatype, `x[N,4] → y[N,4]`: what an identity lets pass, such as a wrong width or a wrong sign, shows here. */
import { DATATYPES, type Datatype } from '../../src/tensor/datatype.ts';
import { defineFixture, type Fixture } from './fixture.ts';
import { EVERY_DATATYPE } from './fixtures-elementwise.ts';
import { node, spec } from './onnx.ts';
import { Random } from './random.ts';
import { fromWire, stringTensor, type TestTensor, tensor } from './tensor.ts';

type Nodes = ReturnType<typeof node>[];

interface Arithmetic {
  readonly about: string;
  readonly nodes: Nodes;
  readonly constants: Readonly<Record<string, TestTensor>>;
  readonly sample?: NonNullable<Fixture['sample']>;
}

const SIZE = 4;
const castTo = (datatype: Datatype) => ({ to: { i: DATATYPES[datatype].ortType } });

/** Sums of products: the order of additions shows in the last bits. */
function product(datatype: 'FP32' | 'FP64'): Arithmetic {
  const random = new Random(11);
  const values = Array.from({ length: SIZE * SIZE }, () => random.float() - 0.5);
  const w =
    datatype === 'FP32'
      ? tensor('FP32', [SIZE, SIZE], Float32Array.from(values))
      : tensor('FP64', [SIZE, SIZE], Float64Array.from(values));
  const nodes = [node('MatMul', ['x', 'w'], ['products']), node('Softmax', ['products'], ['y'], { axis: { i: -1 } })];
  return { about: 'softmax of a matrix product', nodes, constants: { w } };
}

/** Element by element and rounded once, so that a row gives the same bits in any batch. */
function half(datatype: 'FP16' | 'BF16'): Arithmetic {
  return {
    about: '3 x in FP32, rounded back',
    nodes: [
      node('Cast', ['x'], ['wide'], castTo('FP32')),
      node('Mul', ['wide', 'factor'], ['tripled']),
      node('Cast', ['tripled'], ['y'], castTo(datatype)),
    ],
    constants: { factor: tensor('FP32', [], Float32Array.of(3)) },
    // Ordinary numbers only: what a conversion does to the payload of a NaN is not defined.
    sample: (random, _input, shape) => {
      const bits = Array.from(
        { length: shape[0]! * SIZE },
        () => random.int(0x3c00, 0x4600) | (random.int(0, 1) << 15),
      );
      return tensor(datatype, shape, Uint16Array.from(bits));
    },
  };
}

function remainder(datatype: Exclude<Datatype, 'BYTES'>): Arithmetic {
  const bytes = new Uint8Array(DATATYPES[datatype].elementBytes);
  bytes[0] = 97;
  return {
    about: 'x modulo 97',
    nodes: [node('Mod', ['x', 'divisor'], ['y'])],
    constants: { divisor: fromWire(datatype, [], bytes) },
  };
}

function arithmeticIn(datatype: Datatype): Arithmetic {
  switch (datatype) {
    case 'FP32':
    case 'FP64':
      return product(datatype);
    case 'FP16':
    case 'BF16':
      return half(datatype);
    case 'BOOL':
      return {
        about: 'not (x xor true, false, true, false)',
        nodes: [node('Xor', ['x', 'pattern'], ['changed']), node('Not', ['changed'], ['y'])],
        constants: { pattern: fromWire('BOOL', [SIZE], Uint8Array.of(1, 0, 1, 0)) },
      };
    case 'BYTES':
      return {
        about: 'whole numbers in decimal digits, plus one',
        nodes: [
          node('Cast', ['x'], ['numbers'], castTo('INT64')),
          node('Add', ['numbers', 'one'], ['sums']),
          node('Cast', ['sums'], ['y'], castTo('BYTES')),
        ],
        constants: { one: tensor('INT64', [], BigInt64Array.of(1n)) },
        sample: (random, _input, shape) =>
          stringTensor(
            shape,
            Array.from({ length: shape[0]! * SIZE }, () => String(random.int(-999_999, 999_999))),
          ),
      };
    default:
      return remainder(datatype);
  }
}

/** Name of the arithmetic fixture of a datatype. */
export function arithmeticOf(datatype: Datatype): string {
  return `arithmetic_${datatype.toLowerCase()}`;
}

export const ARITHMETIC: readonly Fixture[] = EVERY_DATATYPE.map((datatype) =>
  defineFixture({
    name: arithmeticOf(datatype),
    inputs: [spec('x', datatype, ['N', SIZE])],
    outputs: [spec('y', datatype, ['N', SIZE])],
    batchable: true,
    ...arithmeticIn(datatype),
  }),
);
