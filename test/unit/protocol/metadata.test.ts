/** The bodies that describe a server, a model and an error. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import { errorBody, modelMetadata, serverMetadata } from '../../../src/protocol/metadata.ts';
import { model, SIMPLE, tensor } from './fixtures.ts';

test('model metadata lists versions as strings and shapes with -1 where variable', () => {
  assert.deepEqual(modelMetadata(SIMPLE, ['9', '10'], 'onnxruntime_onnx'), {
    name: 'simple',
    versions: ['9', '10'],
    platform: 'onnxruntime_onnx',
    inputs: [
      { name: 'INPUT0', datatype: 'INT32', shape: [-1, 16] },
      { name: 'INPUT1', datatype: 'INT32', shape: [-1, 16] },
    ],
    outputs: [
      { name: 'OUTPUT0', datatype: 'INT32', shape: [-1, 16] },
      { name: 'OUTPUT1', datatype: 'INT32', shape: [-1, 16] },
    ],
  });
});

test('model metadata shows a scalar as [] and leaves out what is no tensor', () => {
  const target = model('__proto__', [tensor('sr', 'INT64', [])], [tensor('__proto__', 'FP32', [-1])], {
    skippedOutputs: [{ name: 'map', reason: 'a map' }],
  });
  const body = JSON.parse(JSON.stringify(modelMetadata(target, ['1'], 'p')));
  assert.deepEqual(body.inputs, [{ name: 'sr', datatype: 'INT64', shape: [] }]);
  assert.deepEqual(body.outputs, [{ name: '__proto__', datatype: 'FP32', shape: [-1] }]);
  assert.equal(body.name, '__proto__');
});

test('server metadata has name, version and extensions', () => {
  assert.deepEqual(serverMetadata('batchport', '0.1.0', ['binary_tensor_data']), {
    name: 'batchport',
    version: '0.1.0',
    extensions: ['binary_tensor_data'],
  });
});

test('an error’s body has its message and its stable code', () => {
  const body = errorBody(new BatchportError('BAD_TENSOR', 'input "x"\nis odd'));
  assert.deepEqual(JSON.parse(JSON.stringify(body)), { error: 'input "x"\nis odd', code: 'BAD_TENSOR' });
});
