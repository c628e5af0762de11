/** Tensors that a configuration names, held against those of the model. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DeclaredTensor } from '../../../src/config/model-config.ts';
import { declaredProblem } from '../../../src/repository/declared-tensors.ts';
import { spec } from '../../support/onnx.ts';

const signature = {
  inputs: [spec('a', 'FP32', ['N', 4]), spec('b', 'BYTES', ['N'])],
  outputs: [spec('y', 'INT64', ['N'])],
  skippedOutputs: [{ name: 'map', reason: 'it is no tensor' }],
  metadata: { producer: '', graphName: '', description: '', version: '', custom: {} },
};

for (const [declared, problem] of [
  [[], undefined],
  [[['input', 'b', undefined]], undefined],
  [
    [
      ['input', 'a', 'FP32'],
      ['output', 'y', 'INT64'],
      ['output', 'map', undefined],
    ],
    undefined,
  ],
  [
    [
      ['input', 'a', 'FP32'],
      ['input', 'y', 'INT64'],
    ],
    'its configuration names the input "y", but the inputs of the model are "a", "b"',
  ],
  [[['output', 'z', undefined]], 'its configuration names the output "z", but the outputs of the model are "y"'],
  [[['input', 'b', 'FP32']], 'its configuration says that the input "b" is FP32, but in the model it is BYTES'],
] as const) {
  test(`${JSON.stringify(declared)}: ${problem ?? 'as in the model'}`, () => {
    const tensors = declared.map(([kind, name, datatype]): DeclaredTensor => ({ kind, name, datatype }));
    assert.equal(declaredProblem(tensors, signature), problem);
  });
}
