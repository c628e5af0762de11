/**
 * A model whose run cannot be ended but with its process: one kernel of ONNX Runtime that looks at every pair of `n` boxes, in no memory to speak of.
 */
import { defineFixture } from './fixture.ts';
import { node, spec } from './onnx.ts';
import { tensor } from './tensor.ts';

/** Boxes for about an hour. */
export const ENDLESS_BOXES = 2_000_000;

/** The bytes of `n[1] INT64 → kept[1] INT64`, how many of n equal boxes without an area are kept: all. Requests run alone. */
export function deafModel(): Uint8Array {
  return defineFixture({
    name: 'deaf',
    about: 'compares each of n boxes with all before it, in one kernel',
    inputs: [spec('n', 'INT64', [1])],
    outputs: [spec('kept', 'INT64', [1])],
    batchable: false,
    constants: {
      one: tensor('INT64', [1], BigInt64Array.of(1n)),
      four: tensor('INT64', [1], BigInt64Array.of(4n)),
      zero: tensor('INT64', [1], BigInt64Array.of(0n)),
      overlap: tensor('FP32', [1], Float32Array.of(0.5)),
      threshold: tensor('FP32', [1], Float32Array.of(-1)),
    },
    nodes: [
      node('Concat', ['one', 'n', 'four'], ['boxShape'], { axis: { i: 0 } }),
      node('Concat', ['one', 'one', 'n'], ['scoreShape'], { axis: { i: 0 } }),
      node('ConstantOfShape', ['boxShape'], ['boxes']),
      node('ConstantOfShape', ['scoreShape'], ['scores']),
      node('NonMaxSuppression', ['boxes', 'scores', 'n', 'overlap', 'threshold'], ['selected']),
      node('Shape', ['selected'], ['selectedShape']),
      node('Gather', ['selectedShape', 'zero'], ['kept']),
    ],
  }).build().model;
}
