/** What a model's postprocess makes of its signature, and what does not fit it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PostprocessStep } from '../../../src/config/model-config.ts';
import { OutputMismatch, planOutputs } from '../../../src/postprocess/planned-outputs.ts';
import { type OutputJob, processOutput } from '../../../src/postprocess/process.ts';
import { readLines, type TextLines } from '../../../src/postprocess/text-lines.ts';
import { type Datatype, datatypeInfo } from '../../../src/tensor/datatype.ts';
import { elementCount } from '../../../src/tensor/shape.ts';
import { seedFromEnv } from '../../support/random.ts';
import { model, tensor } from '../protocol/fixtures.ts';

type Shape = readonly number[];

const MASK = tensor('mask', 'INT64', [-1, -1]);

function planned(datatype: Datatype, shape: Shape, steps: readonly PostprocessStep[], batched = true, lines = 3) {
  const { signature } = model(
    'm',
    [MASK, tensor('words', 'BYTES', [-1, -1])],
    [tensor('y', datatype, shape), tensor('z', 'FP32', [-1])],
  );
  const context = { signature, batched, lines: () => lines };
  return planOutputs(context, [{ name: 'y', labels: undefined, postprocess: steps }]);
}

const ctc = (rest: object = {}): PostprocessStep => {
  return { op: 'ctc_decode', dictionary: 'keys.txt', blank: 0, space: false, ...rest } as PostprocessStep;
};

for (const [datatype, shape, steps, expected] of [
  ['FP32', [-1, 10], [{ op: 'softmax', axis: -1 }], ['FP32', [-1, 10]]],
  ['FP16', [-1, 10], [{ op: 'softmax', axis: 1 }], ['FP32', [-1, 10]]],
  ['FP64', [-1, 10], [{ op: 'normalize', axis: -1 }], ['FP64', [-1, 10]]],
  ['BF16', [-1], [{ op: 'sigmoid' }], ['FP32', [-1]]],
  ['INT32', [-1, 7, -1], [{ op: 'argmax', axis: 1 }], ['INT64', [-1, -1]]],
  ['FP32', [-1, 10], [{ op: 'top_k', k: 5 }], ['BYTES', [-1, 5]]],
  ['FP32', [-1, 3], [{ op: 'top_k', k: 5 }], ['BYTES', [-1, 3]]],
  ['FP32', [-1, -1], [{ op: 'top_k', k: 5 }], ['BYTES', [-1, -1]]],
  [
    'FP32',
    [-1, -1, 384],
    [
      { op: 'mean_pool', axis: 1, mask: 'mask' },
      { op: 'normalize', axis: -1 },
    ],
    ['FP32', [-1, 384]],
  ],
  ['FP32', [-1, 384], [{ op: 'mean_pool', axis: -1 }], ['FP32', [-1]]],
  [
    'UINT8',
    [-1, 4],
    [
      { op: 'dequantize', scale: 0.5, zero_point: 3 },
      { op: 'softmax', axis: -1 },
    ],
    ['FP32', [-1, 4]],
  ],
  ['FP32', [-1, -1, 4], [ctc()], ['BYTES', [-1]]],
  ['FP32', [-1, 40, 5], [ctc({ space: true, blank: -1 })], ['BYTES', [-1]]],
] as const satisfies readonly (readonly [Datatype, Shape, readonly PostprocessStep[], readonly [Datatype, Shape]])[]) {
  test(`${datatype} [${shape}] by ${steps.map(({ op }) => op).join(', ')} is ${expected[0]} [${expected[1]}]`, () => {
    const [y, z] = planned(datatype, shape, steps);
    assert.deepEqual([y!.spec.datatype, y!.spec.shape], expected);
    assert.equal(y!.spec.symbols.length, y!.spec.shape.length);
    // Others stay as they are.
    assert.deepEqual([z!.spec.shape, z!.steps], [[-1], []]);
    assertRunAgrees(datatype, shape, steps, expected);
  });
}

/** A run of made-up values gives what was planned. */
function assertRunAgrees(
  datatype: Datatype,
  shape: Shape,
  steps: readonly PostprocessStep[],
  [type, dims]: readonly [Datatype, Shape],
): void {
  const dictionary = readLines(Buffer.from('a\nb\nc')) as TextLines;
  const concrete = shape.map((dim) => (dim === -1 ? 2 : dim));
  const data = seedFromEnv().bytes(elementCount(concrete)! * datatypeInfo(datatype).elementBytes);
  const weights = { datatype: 'INT64' as const, shape: [2, 2], data: new Uint8Array(32).fill(1) };
  const job: OutputJob = {
    name: 'y',
    tensor: { datatype, shape: concrete, data },
    steps,
    masks: steps.map((step) => ('mask' in step && step.mask !== undefined ? weights : undefined)),
    dictionaries: steps.map(() => dictionary),
    rowDims: 1,
    classes: 0,
    labels: undefined,
  };
  const answer = processOutput(job);
  assert.equal(answer.datatype, type);
  assert.equal(answer.shape.length, dims.length);
  for (const [n, dim] of dims.entries()) if (dim !== -1) assert.equal(answer.shape[n], dim);
  const { elementBytes } = datatypeInfo(type);
  if (elementBytes > 0) assert.equal(answer.data.length, elementCount(answer.shape)! * elementBytes);
}

for (const [datatype, shape, steps, message] of [
  ['INT64', [-1, 10], [{ op: 'softmax', axis: -1 }], 'softmax takes floats, and the output is INT64'],
  ['BYTES', [-1, 10], [{ op: 'argmax', axis: -1 }], 'argmax takes numbers, and the output is BYTES'],
  ['FP32', [-1, 10], [{ op: 'softmax', axis: 2 }], 'softmax works along axis 2, and the output is [-1,10]'],
  ['FP32', [-1, 10], [{ op: 'normalize', axis: -3 }], 'normalize works along axis -3, and the output is [-1,10]'],
  ['FP32', [-1], [{ op: 'softmax', axis: -1 }], 'which is the batch of the output [-1]: rows do not mix'],
  ['FP32', [-1], [{ op: 'top_k', k: 3 }], 'which is the batch of the output [-1]: rows do not mix'],
  ['FP32', [-1, 0], [{ op: 'argmax', axis: 1 }], 'argmax has nothing to choose from: the axis is empty'],
  [
    'INT64',
    [-1, 2],
    [{ op: 'dequantize', scale: 1, zero_point: 0 }],
    'dequantize takes INT8, UINT8, INT16, UINT16, INT32, and the output is INT64',
  ],
  [
    'FP32',
    [-1, 5, 2],
    [{ op: 'mean_pool', axis: 1, mask: 'no' }],
    'the mask of mean_pool is "no", and the model\'s inputs are "mask", "words"',
  ],
  ['FP32', [-1, 5, 2], [{ op: 'mean_pool', axis: 1, mask: 'words' }], 'the mask "words" is BYTES'],
  [
    'FP32',
    [-1, 5, 2],
    [{ op: 'mean_pool', axis: 2, mask: 'mask' }],
    'the mask "mask" is [-1,-1], and must be [-1,5,2]',
  ],
  ['FP32', [-1, 4], [ctc()], 'ctc_decode needs [batch, steps, classes], and the output is [-1,4]'],
  ['FP32', [-1, 9, 5], [ctc()], 'keys.txt has 3 lines, which with the blank are 4 classes, and the output has 5'],
  [
    'FP32',
    [-1, 9, 6],
    [ctc({ space: true })],
    'keys.txt has 3 lines, which with the blank and the space are 5 classes, and the output has 6',
  ],
  ['FP32', [-1, 9, -1], [ctc({ blank: 4 })], 'blank is 4, and there are 4 classes, from 0'],
] as const satisfies readonly (readonly [Datatype, Shape, readonly PostprocessStep[], string])[]) {
  test(`${datatype} [${shape}]: ${message}`, () => {
    assert.throws(
      () => planned(datatype, shape, steps),
      (error) => {
        assert.ok(error instanceof OutputMismatch);
        assert.ok(error.message.startsWith('postprocess of output "y" does not fit: '), error.message);
        assert.ok(error.message.includes(message), error.message);
        return true;
      },
    );
  });
}

test('a step that does not fit what the one before it gives is named by its number', () => {
  const steps = [
    { op: 'argmax', axis: 1 },
    { op: 'softmax', axis: -1 },
  ] as const;
  assert.throws(
    () => planned('FP32', [-1, 3, 4], steps),
    /step 2 of postprocess of output "y" does not fit: softmax takes floats, and the output is INT64/,
  );
});

test('without a batch the first axis is like any other', () => {
  assert.deepEqual(planned('FP32', [10], [{ op: 'softmax', axis: 0 }], false)[0]!.spec.shape, [10]);
  assert.deepEqual(planned('FP32', [10, 4], [ctc()], false)[0]!.spec.shape, []);
});
