/**
 * Fixtures that cost something: two perceptrons, a stack of convolutions, a run of chosen length, big outputs, much memory, weights in a file of
 * their own, and a run that ends its process.
 */
import { DATATYPES } from '../../src/tensor/datatype.ts';
import { defineFixture, type Fixture, inputOf } from './fixture.ts';
import { constant, declare, encodeModel, externalConstant, node, spec } from './onnx.ts';
import { Random } from './random.ts';
import { type TestTensor, tensor, wireBytes } from './tensor.ts';

const int64s = (...values: number[]) => tensor('INT64', [values.length], BigInt64Array.from(values, BigInt));

/** FP32 weights from −spread / 2 to spread / 2, the same in every build. */
function weights(shape: readonly number[], seed: number, spread = 0.2): TestTensor {
  const random = new Random(seed);
  const data = new Float32Array(shape.reduce((a, b) => a * b, 1));
  for (let i = 0; i < data.length; i++) data[i] = (random.float() - 0.5) * spread;
  return tensor('FP32', shape, data);
}

/** Built late: the weights of the big one take a while to make. */
function perceptron(name: string, inputSize: number, hiddenSize: number, outputSize: number): Fixture {
  const signature = {
    name,
    about: `perceptron ${inputSize} → ${hiddenSize} → ${outputSize} with softmax`,
    inputs: [spec('x', 'FP32', ['N', inputSize])],
    outputs: [spec('y', 'FP32', ['N', outputSize])],
    batchable: true,
  };
  const nodes = [
    node('MatMul', ['x', 'w1'], ['hidden']),
    node('Relu', ['hidden'], ['active']),
    node('MatMul', ['active', 'w2'], ['logits']),
    node('Softmax', ['logits'], ['y'], { axis: { i: -1 } }),
  ];
  const constants = () => ({
    w1: weights([inputSize, hiddenSize], 1),
    w2: weights([hiddenSize, outputSize], 2),
  });
  return { ...signature, build: () => defineFixture({ ...signature, nodes, constants: constants() }).build() };
}

const CONV_LAYERS = 120;

const conv: Fixture = {
  name: 'conv',
  about: 'a stack of convolutions: milliseconds a row, cost linear in rows',
  inputs: [spec('x', 'FP32', ['N', 64])],
  outputs: [spec('y', 'FP32', ['N', 64])],
  batchable: true,
  build: () => {
    const pads = { pads: { ints: [1, 1, 1, 1] } };
    const nodes = [node('Reshape', ['x', 'shape'], ['image']), node('Conv', ['image', 'k0'], ['layer0'], pads)];
    const constants = [constant('shape', int64s(-1, 1, 8, 8)), constant('k0', weights([64, 1, 3, 3], 3))];
    for (let layer = 1; layer <= CONV_LAYERS; layer++) {
      nodes.push(
        node('Conv', [`layer${layer - 1}`, `k${layer}`], [`linear${layer}`], pads),
        node('Relu', [`linear${layer}`], [`layer${layer}`]),
      );
      constants.push(constant(`k${layer}`, weights([64, 64, 3, 3], 3 + layer, 0.08)));
    }
    nodes.push(node('ReduceMean', [`layer${CONV_LAYERS}`], ['y'], { axes: { ints: [2, 3] }, keepdims: { i: 0 } }));
    const { inputs, outputs } = conv;
    return { model: encodeModel({ nodes, constants, inputs: inputs.map(declare), outputs: outputs.map(declare) }) };
  },
};

const SLOW_SIZE = 128;
const slowMatrix = (name: string) => spec(name, 'FP32', [SLOW_SIZE, SLOW_SIZE]);

/** The loop carries a matrix, so that no step can be left out, and adds nothing but zero to the answer. */
const slow = defineFixture({
  name: 'slow',
  about: 'echoes `steps` after max(steps) small matrix products, about 35 µs each; a run can be cancelled between two',
  inputs: [spec('steps', 'INT64', ['N', 1])],
  outputs: [spec('y', 'INT64', ['N', 1])],
  batchable: true,
  constants: {
    start: weights([SLOW_SIZE, SLOW_SIZE], 5),
    w: weights([SLOW_SIZE, SLOW_SIZE], 6),
    half: tensor('FP32', [], Float32Array.of(0.5)),
  },
  nodes: [
    node('ReduceMax', ['steps'], ['count'], { keepdims: { i: 0 } }),
    node('Loop', ['count', '', 'start'], ['end'], {
      body: {
        graph: {
          nodes: [
            node('MatMul', ['carried', 'w'], ['product']),
            node('Softmax', ['product'], ['next'], { axis: { i: -1 } }),
            node('Identity', ['condition'], ['goOn']),
          ],
          inputs: [spec('step', 'INT64', []), spec('condition', 'BOOL', []), slowMatrix('carried')].map(declare),
          outputs: [spec('goOn', 'BOOL', []), slowMatrix('next')].map(declare),
        },
      },
    }),
    // A softmax lies in [0, 1], so half its least element is cast to 0.
    node('ReduceMin', ['end'], ['least'], { keepdims: { i: 0 } }),
    node('Mul', ['least', 'half'], ['fraction']),
    node('Cast', ['fraction'], ['zero'], { to: { i: DATATYPES.INT64.ortType } }),
    node('Add', ['steps', 'zero'], ['y']),
  ],
  sample: (random, _input, shape) =>
    tensor(
      'INT64',
      shape,
      BigInt64Array.from({ length: shape[0]! }, () => BigInt(random.int(1, 20))),
    ),
  reference: (inputs) => new Map([['y', inputOf(inputs, 'steps', 'INT64')]]),
});

/** Elements in a row of the `wide` fixture's output: 1 MiB. */
export const WIDE_COLUMNS = 262_144;

const wide = defineFixture({
  name: 'wide',
  about: 'repeats its only column: 4 bytes a row in, 1 MiB a row out',
  inputs: [spec('x', 'FP32', ['N', 1])],
  outputs: [spec('y', 'FP32', ['N', WIDE_COLUMNS])],
  batchable: true,
  constants: { repeats: int64s(1, WIDE_COLUMNS) },
  nodes: [node('Tile', ['x', 'repeats'], ['y'])],
  reference: (inputs) => {
    const x = inputOf(inputs, 'x', 'FP32').data;
    const data = new Float32Array(x.length * WIDE_COLUMNS);
    for (const [row, value] of x.entries()) data.fill(value, row * WIDE_COLUMNS, (row + 1) * WIDE_COLUMNS);
    return new Map([['y', tensor('FP32', [x.length, WIDE_COLUMNS], data)]]);
  },
});

/** Memory that the `bulge` fixture needs for one row while it runs. */
export const BULGE_ROW_BYTES = 16 * 2 ** 20;

const bulge = defineFixture({
  name: 'bulge',
  about: 'echoes x, and needs 16 MiB a row in between: for memory limits',
  inputs: [spec('x', 'FP32', ['N', 1])],
  outputs: [spec('y', 'FP32', ['N', 1])],
  batchable: true,
  constants: { repeats: int64s(1, BULGE_ROW_BYTES / 4) },
  nodes: [
    node('Tile', ['x', 'repeats'], ['big']),
    node('ReduceMax', ['big'], ['y'], { axes: { ints: [1] }, keepdims: { i: 1 } }),
  ],
  reference: (inputs) => new Map([['y', inputOf(inputs, 'x', 'FP32')]]),
});

const square = defineFixture({
  name: 'square',
  about:
    'the largest product of two elements of a row: what a row needs in between grows with the square of its length',
  inputs: [spec('x', 'FP32', ['N', 'T'])],
  outputs: [spec('y', 'FP32', ['N', 1])],
  batchable: true,
  constants: { one: int64s(1), two: int64s(2) },
  nodes: [
    node('Unsqueeze', ['x', 'two'], ['column']),
    node('Unsqueeze', ['x', 'one'], ['line']),
    node('Mul', ['column', 'line'], ['products']),
    node('ReduceMax', ['products'], ['largest'], { axes: { ints: [1, 2] }, keepdims: { i: 0 } }),
    node('Unsqueeze', ['largest', 'one'], ['y']),
  ],
  reference: (inputs) => {
    const { data, shape } = inputOf(inputs, 'x', 'FP32');
    const [rows, length] = shape as [number, number];
    const largest = new Float32Array(rows).fill(Number.NEGATIVE_INFINITY);
    for (let row = 0; row < rows; row++) {
      const elements = data.subarray(row * length, (row + 1) * length);
      for (const a of elements) for (const b of elements) largest[row] = Math.max(largest[row]!, a * b);
    }
    return new Map([['y', tensor('FP32', [rows, 1], largest)]]);
  },
});

/** Name of the file that holds the weights of the `external` fixture. */
export const EXTERNAL_FILE = 'external.onnx_data';

const external: Fixture = {
  name: 'external',
  about: 'eight numbers, kept in a file beside the model, added to each row',
  inputs: [spec('x', 'FP32', ['N', 8])],
  outputs: [spec('y', 'FP32', ['N', 8])],
  batchable: true,
  build: () => {
    const bias = wireBytes(weights([8], 7, 8));
    const { inputs, outputs } = external;
    const model = encodeModel({
      nodes: [node('Add', ['x', 'bias'], ['y'])],
      constants: [externalConstant('bias', 'FP32', [8], { location: EXTERNAL_FILE, offset: 0, length: bias.length })],
      inputs: inputs.map(declare),
      outputs: outputs.map(declare),
    });
    return { model, sideFiles: new Map([[EXTERNAL_FILE, bias]]) };
  },
  reference: (inputs) => {
    const bias = weights([8], 7, 8).data as Float32Array;
    const x = inputOf(inputs, 'x', 'FP32');
    const sums = x.data.map((value, i) => value + bias[i % 8]!);
    return new Map([['y', tensor('FP32', x.shape, sums)]]);
  },
};

const crash = defineFixture({
  name: 'crash',
  about:
    'a / b in INT32, row by row: a zero in b fails the run, and on x64 −2^31 / −1 ends the process with SIGFPE wherever in a batch it stands (many at once are divided by instructions that do not trap)',
  inputs: [spec('a', 'INT32', ['N', 1]), spec('b', 'INT32', ['N', 1])],
  outputs: [spec('y', 'INT32', ['N', 1])],
  batchable: true,
  nodes: [
    node('Scan', ['a', 'b'], ['y'], {
      num_scan_inputs: { i: 2 },
      body: {
        graph: {
          nodes: [node('Div', ['dividend', 'divisor'], ['quotient'])],
          inputs: [spec('dividend', 'INT32', [1]), spec('divisor', 'INT32', [1])].map(declare),
          outputs: [spec('quotient', 'INT32', [1])].map(declare),
        },
      },
    }),
  ],
  sample: (random, _input, shape) =>
    tensor(
      'INT32',
      shape,
      Int32Array.from({ length: shape[0]! }, () => random.int(1, 1000)),
    ),
  reference: (inputs) => {
    const a = inputOf(inputs, 'a', 'INT32');
    const b = inputOf(inputs, 'b', 'INT32').data;
    const quotients = a.data.map((value, i) => Math.trunc(value / b[i]!));
    return new Map([['y', tensor('INT32', a.shape, quotients)]]);
  },
});

export const COMPUTE: readonly Fixture[] = [
  perceptron('mlp', 64, 64, 10),
  perceptron('mlp_big', 1024, 4096, 1000),
  conv,
  slow,
  wide,
  bulge,
  square,
  external,
  crash,
];
