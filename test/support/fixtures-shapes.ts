/**
 * Fixtures about shapes: no batch axis where one seems to be, scalars, empty tensors, outputs whose shape only the run tells, images, and an
 * output that is not a tensor.
 */
import { DATATYPES } from '../../src/tensor/datatype.ts';
import { defineFixture, type Fixture, inputOf } from './fixture.ts';
import { declare, declareMapSequence, encodeModel, node, spec } from './onnx.ts';
import { type TestTensor, tensor } from './tensor.ts';

const int64s = (...values: number[]) => tensor('INT64', [values.length], BigInt64Array.from(values, BigInt));

const reduceBatch = defineFixture({
  name: 'reduce_batch',
  about: 'the sum over all rows: the output has no batch axis',
  inputs: [spec('x', 'INT64', ['N', 10])],
  outputs: [spec('y', 'INT64', [1])],
  batchable: false,
  constants: { one: int64s(1) },
  nodes: [node('ReduceSum', ['x'], ['sum'], { keepdims: { i: 0 } }), node('Reshape', ['sum', 'one'], ['y'])],
  // ONNX Runtime sums 64-bit integers as doubles: exact only while every partial sum stays below 2^53.
  sample: (random, _input, shape) =>
    tensor(
      'INT64',
      shape,
      BigInt64Array.from({ length: shape[0]! * 10 }, () => BigInt(random.int(-1e9, 1e9))),
    ),
  reference: (inputs) => {
    const sum = inputOf(inputs, 'x', 'INT64').data.reduce((total, value) => BigInt.asIntN(64, total + value), 0n);
    return new Map([['y', tensor('INT64', [1], BigInt64Array.of(sum))]]);
  },
});

const batchSoftmax = defineFixture({
  name: 'batch_softmax',
  about: 'a softmax over the first axis: it looks like a batch axis, yet rows depend on one another',
  inputs: [spec('x', 'FP32', ['N', 4])],
  outputs: [spec('y', 'FP32', ['N', 4])],
  batchable: false,
  nodes: [node('Softmax', ['x'], ['y'], { axis: { i: 0 } })],
});

const scalar = defineFixture({
  name: 'scalar',
  about: 'a scalar input and a scalar output',
  inputs: [spec('x', 'FP32', ['n']), spec('factor', 'FP32', [])],
  outputs: [spec('y', 'FP32', ['n']), spec('factor_out', 'FP32', [])],
  batchable: false,
  nodes: [node('Mul', ['x', 'factor'], ['y']), node('Identity', ['factor'], ['factor_out'])],
  reference: (inputs) => {
    const x = inputOf(inputs, 'x', 'FP32');
    const factor = inputOf(inputs, 'factor', 'FP32');
    return new Map([
      [
        'y',
        tensor(
          'FP32',
          x.shape,
          x.data.map((value) => value * factor.data[0]!),
        ),
      ],
      ['factor_out', factor],
    ]);
  },
});

const recurrent = defineFixture({
  name: 'recurrent',
  about: 'a state whose batch axis is the second one, and a scalar, as voice activity detectors have',
  inputs: [spec('input', 'FP32', ['N', 4]), spec('state', 'FP32', [2, 'N', 4]), spec('sr', 'INT64', [])],
  outputs: [spec('output', 'FP32', ['N', 4]), spec('stateN', 'FP32', [2, 'N', 4])],
  batchable: false,
  constants: { zero: int64s(0) },
  nodes: [
    node('Cast', ['sr'], ['rate'], { to: { i: DATATYPES.FP32.ortType } }),
    node('Add', ['state', 'input'], ['stateN']),
    node('Gather', ['stateN', 'zero'], ['first'], { axis: { i: 0 } }),
    node('Squeeze', ['first', 'zero'], ['row']),
    node('Mul', ['row', 'rate'], ['output']),
  ],
  sample: (random, input, shape) => {
    if (input.name === 'sr') return tensor('INT64', [], BigInt64Array.of(random.pick([8000n, 16000n])));
    if (input.name !== 'state') return undefined;
    return tensor(
      'FP32',
      shape,
      Float32Array.from({ length: 2 * shape[1]! * 4 }, () => random.float()),
    );
  },
  reference: (inputs) => {
    const input = inputOf(inputs, 'input', 'FP32');
    const state = inputOf(inputs, 'state', 'FP32');
    const rate = Math.fround(Number(inputOf(inputs, 'sr', 'INT64').data[0]));
    const next = state.data.map((value, i) => value + input.data[i % input.data.length]!);
    const output = next.slice(0, input.data.length).map((value) => value * rate);
    return new Map([
      ['output', tensor('FP32', input.shape, output)],
      ['stateN', tensor('FP32', state.shape, next)],
    ]);
  },
});

const empty = defineFixture({
  name: 'empty_output',
  about: 'an output that always has no elements',
  inputs: [spec('x', 'FP32', [2, 4, 8])],
  outputs: [spec('y', 'FP32', [2, 0, 8])],
  batchable: false,
  constants: { start: int64s(0), end: int64s(0), axis: int64s(1) },
  nodes: [node('Slice', ['x', 'start', 'end', 'axis'], ['y'])],
  reference: () => new Map([['y', tensor('FP32', [2, 0, 8], new Float32Array(0))]]),
});

const corner = defineFixture({
  name: 'corner',
  about: 'the first four values of rows of any length: large inputs, small outputs, hardly any work',
  inputs: [spec('x', 'FP32', ['N', 'T'])],
  outputs: [spec('y', 'FP32', ['N', 4])],
  batchable: true,
  constants: { start: int64s(0), end: int64s(4), axis: int64s(1) },
  nodes: [node('Slice', ['x', 'start', 'end', 'axis'], ['y'])],
});

const emptyRows = defineFixture({
  name: 'empty_rows',
  about: 'a batched output whose rows have no elements, beside one whose rows have',
  inputs: [spec('x', 'FP32', ['N', 4])],
  outputs: [spec('none', 'FP32', ['N', 0]), spec('y', 'FP32', ['N', 4])],
  batchable: true,
  constants: { start: int64s(0), end: int64s(0), axis: int64s(1) },
  nodes: [node('Slice', ['x', 'start', 'end', 'axis'], ['none']), node('Identity', ['x'], ['y'])],
  reference: (inputs) => {
    const x = inputOf(inputs, 'x', 'FP32');
    return new Map<string, TestTensor>([
      ['none', tensor('FP32', [x.shape[0]!, 0], new Float32Array(0))],
      ['y', x],
    ]);
  },
});

const nonzero = defineFixture({
  name: 'nonzero',
  about: 'positions of the elements that are not zero: the output shape depends on the data',
  inputs: [spec('x', 'FP32', ['n'])],
  outputs: [spec('y', 'INT64', [1, 'k'])],
  batchable: false,
  nodes: [node('NonZero', ['x'], ['y'])],
  sample: (random, _input, shape) =>
    tensor(
      'FP32',
      shape,
      Float32Array.from({ length: shape[0]! }, () => random.int(0, 1)),
    ),
  reference: (inputs) => {
    const x = inputOf(inputs, 'x', 'FP32').data;
    const at = [...x.keys()].filter((i) => x[i] !== 0);
    return new Map([['y', tensor('INT64', [1, at.length], BigInt64Array.from(at, BigInt))]]);
  },
});

const halved = defineFixture({
  name: 'halved',
  about: 'every second column: rows are independent, yet the output shape is not written in the signature',
  inputs: [spec('x', 'FP32', ['N', 'T'])],
  outputs: [spec('y', 'FP32', ['N', 'half'])],
  batchable: true,
  constants: {
    start: int64s(0),
    end: int64s(2 ** 31),
    axis: int64s(1),
    step: int64s(2),
  },
  nodes: [node('Slice', ['x', 'start', 'end', 'axis', 'step'], ['y'])],
  reference: (inputs) => {
    const x = inputOf(inputs, 'x', 'FP32');
    const [rows, columns] = x.shape as [number, number];
    const half = Math.ceil(columns / 2);
    const data = new Float32Array(rows * half);
    for (let i = 0; i < data.length; i++) data[i] = x.data[Math.floor(i / half) * columns + (i % half) * 2]!;
    return new Map([['y', tensor('FP32', [rows, half], data)]]);
  },
});

/** Rows of the table in the `lookup` fixture: an index from −8 to 7 is good. */
export const LOOKUP_ROWS = 8;

const lookup = defineFixture({
  name: 'lookup',
  about: 'rows of a table by index; the run fails when an index is outside −8…7',
  inputs: [spec('index', 'INT64', ['N'])],
  outputs: [spec('y', 'FP32', ['N', 4])],
  batchable: true,
  constants: {
    table: tensor(
      'FP32',
      [LOOKUP_ROWS, 4],
      Float32Array.from({ length: LOOKUP_ROWS * 4 }, (_, i) => i),
    ),
  },
  nodes: [node('Gather', ['table', 'index'], ['y'], { axis: { i: 0 } })],
  sample: (random, _input, shape) =>
    tensor(
      'INT64',
      shape,
      BigInt64Array.from({ length: shape[0]! }, () => BigInt(random.int(0, LOOKUP_ROWS - 1))),
    ),
  reference: (inputs) => {
    const index = inputOf(inputs, 'index', 'INT64').data;
    const rows = [...index].map((at) => (Number(at) + LOOKUP_ROWS) % LOOKUP_ROWS);
    const data = Float32Array.from({ length: rows.length * 4 }, (_, i) => rows[i >> 2]! * 4 + (i & 3));
    return new Map([['y', tensor('FP32', [rows.length, 4], data)]]);
  },
});

const image = defineFixture({
  name: 'image_u8',
  about: 'mean of each colour of a UINT8 image',
  inputs: [spec('image', 'UINT8', ['N', 3, 'H', 'W'])],
  outputs: [spec('mean', 'FP32', ['N', 3])],
  batchable: true,
  nodes: [
    node('Cast', ['image'], ['pixels'], { to: { i: DATATYPES.FP32.ortType } }),
    node('ReduceMean', ['pixels'], ['mean'], {
      axes: { ints: [2, 3] },
      keepdims: { i: 0 },
    }),
  ],
});

const zipmapInputs = [spec('X', 'FP32', ['N', 4])];
const zipmapOutputs = [spec('output_label', 'INT64', ['N'])];

/** Scores are the first three features, so the label is the position of the greatest of them. */
const zipmap: Fixture = {
  name: 'zipmap',
  about: 'a classifier as scikit-learn exports it: a label, and a sequence of maps that the protocol cannot carry',
  inputs: zipmapInputs,
  outputs: zipmapOutputs,
  skippedOutputs: ['output_probability'],
  batchable: true,
  build: () => ({
    model: encodeModel(
      {
        nodes: [
          node(
            'LinearClassifier',
            ['X'],
            ['output_label', 'scores'],
            {
              coefficients: { floats: [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0] },
              intercepts: { floats: [0, 0, 0] },
              classlabels_ints: { ints: [0, 1, 2] },
              multi_class: { i: 1 },
              post_transform: { s: 'NONE' },
            },
            'ai.onnx.ml',
          ),
          node('ZipMap', ['scores'], ['output_probability'], { classlabels_int64s: { ints: [0, 1, 2] } }, 'ai.onnx.ml'),
        ],
        inputs: zipmapInputs.map(declare),
        outputs: [...zipmapOutputs.map(declare), declareMapSequence('output_probability')],
      },
      { ml: true },
    ),
  }),
  reference: (inputs) => {
    const x = inputOf(inputs, 'X', 'FP32');
    const labels = Array.from({ length: x.shape[0]! }, (_, row) => {
      const scores = [...x.data.subarray(row * 4, row * 4 + 3)];
      return BigInt(scores.indexOf(Math.max(...scores)));
    });
    return new Map([['output_label', tensor('INT64', [labels.length], BigInt64Array.from(labels))]]);
  },
};

export const SHAPES: readonly Fixture[] = [
  reduceBatch,
  batchSoftmax,
  scalar,
  recurrent,
  empty,
  corner,
  emptyRows,
  nonzero,
  halved,
  lookup,
  image,
  zipmap,
];
