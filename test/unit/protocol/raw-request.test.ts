/** Raw binary requests: the shape comes from the number of bytes, or there is none that fits. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { BoundRequest } from '../../../src/protocol/bound-request.ts';
import { type ModelInterface, RequestDecoder } from '../../../src/protocol/request-decoder.ts';
import { assertRefused, identity, LIMITS, model, SIMPLE, tensor } from './fixtures.ts';

function raw(target: ModelInterface, body: Buffer): BoundRequest {
  return new RequestDecoder(target, LIMITS).decode(body, 0);
}

const one = (spec: readonly number[], maxBatchSize = 0): ModelInterface =>
  model('one', [tensor('x', 'FP32', spec)], [tensor('y', 'FP32', spec)], { maxBatchSize });

test('a body of 32 bytes is eight floats, and every output is binary', () => {
  const body = Buffer.from(Float32Array.from({ length: 8 }, (_, i) => i).buffer);
  const request = raw(identity('FP32'), body);
  assert.deepEqual(request.template.shapes, [[8]]);
  assert.deepEqual(request.template.outputs, [{ index: 0, binary: true, classes: 0 }]);
  assert.equal(request.id, undefined);
  assert.deepEqual(Buffer.from(request.inputs[0]!), body);
});

test('for a model that batches the body is one row', () => {
  const wide = raw(one([-1, 8], 4), Buffer.alloc(32));
  assert.deepEqual([wide.template.rows, wide.template.whole, wide.template.shapes], [1, false, [[8]]]);
  assert.deepEqual(raw(one([-1, -1], 4), Buffer.alloc(32)).template.shapes, [[8]]);
  assert.deepEqual(raw(one([-1], 4), Buffer.alloc(4)).template.shapes, [[]]);
  assertRefused(() => raw(one([-1, 8], 4), Buffer.alloc(64)), 'BAD_TENSOR', 'expected 32 bytes, got 64');
});

test('fixed dimensions beside the variable one must divide the body', () => {
  assert.deepEqual(raw(one([2, -1, 3]), Buffer.alloc(48)).template.shapes, [[2, 2, 3]]);
  assertRefused(() => raw(one([2, -1, 3]), Buffer.alloc(50)), 'BAD_TENSOR', "'x'", 'multiple of 24 bytes', 'got 50');
  assertRefused(() => raw(one([8]), Buffer.alloc(28)), 'BAD_TENSOR', 'expected 32 bytes, got 28');
  assert.deepEqual(raw(one([]), Buffer.alloc(4)).template.shapes, [[]]);
  assertRefused(() => raw(one([]), Buffer.alloc(8)), 'BAD_TENSOR', 'expected 4 bytes, got 8');
});

test('an empty body is a tensor without elements where the model takes one', () => {
  assert.deepEqual(raw(identity('FP32'), Buffer.alloc(0)).template.shapes, [[0]]);
  assert.deepEqual(raw(one([0, -1]), Buffer.alloc(0)).template.shapes, [[0, 0]]);
  assertRefused(() => raw(one([8]), Buffer.alloc(0)), 'BAD_TENSOR', 'expected 32 bytes, got 0');
  assertRefused(() => raw(one([0, -1]), Buffer.alloc(4)), 'BAD_TENSOR', 'multiple of 0 bytes');
});

test('a model with two inputs, two variable dimensions or a BYTES input of another shape is refused with the reason', () => {
  assertRefused(() => raw(SIMPLE, Buffer.alloc(64)), 'BAD_TENSOR', "model 'simple'", 'raw binary request', '2 inputs');
  assertRefused(
    () => raw(one([-1, -1]), Buffer.alloc(64)),
    'BAD_TENSOR',
    'more than one variable dimension',
    '[-1,-1]',
  );
  for (const spec of [[2], [2, -1], [3, 1]]) {
    assertRefused(() => raw(identity('BYTES', spec), Buffer.from('abc')), 'BAD_TENSOR', 'BYTES', 'shape [1]');
  }
});

test('for a BYTES input of one element the body is that element', () => {
  const body = Buffer.from('00ff0061', 'hex');
  for (const target of [
    identity('BYTES', [1]),
    identity('BYTES', []),
    identity('BYTES', [-1]),
    model('b', [tensor('x', 'BYTES', [-1, 1])], [], { maxBatchSize: 2 }),
  ]) {
    const request = raw(target, body);
    assert.equal(Buffer.from(request.inputs[0]!).toString('hex'), '0400000000ff0061');
    assert.deepEqual(request.template.inputBytes, [-1]);
  }
});

test('contents and limits are checked as for any other request', () => {
  assertRefused(() => raw(identity('BOOL'), Buffer.from([1, 2])), 'BAD_TENSOR', 'element 1 is the byte 2');
  const decoder = new RequestDecoder(identity('FP32'), { maxElements: 4, maxTensorBytes: 100 });
  assertRefused(() => decoder.decode(Buffer.alloc(20), 0), 'BAD_TENSOR', '5 elements');
});
