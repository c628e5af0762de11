/** The serialised form of BYTES tensors: exact bytes both ways, and no walk past the data whatever the lengths say. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  bytesTensorFault,
  decodeBytesTensor,
  encodeBytesTensor,
  skipBytesElements,
} from '../../../src/tensor/bytes-tensor.ts';

const hex = (text: string): Buffer => Buffer.from(text.replaceAll(' ', ''), 'hex');

test('elements keep zero bytes, bytes that are not UTF-8, and their emptiness', () => {
  const elements = [Buffer.from('abc\0def'), Buffer.alloc(0), hex('ff fe 41')];
  const data = encodeBytesTensor(elements);
  assert.deepEqual(Buffer.from(data), hex('07000000 61626300646566 00000000 03000000 fffe41'));
  assert.deepEqual(
    decodeBytesTensor(data, 3)?.map((element) => Buffer.from(element)),
    elements,
  );
  assert.equal(bytesTensorFault(data, 3), undefined);
});

test('decoded elements are views, not copies', () => {
  const data = encodeBytesTensor([hex('01')]);
  data[4] = 9;
  assert.equal(decodeBytesTensor(data, 1)?.[0]?.[0], 9);
});

test('skipping rows of elements finds where each begins', () => {
  const data = encodeBytesTensor([hex('01'), hex('0202'), hex(''), hex('03')]);
  assert.equal(skipBytesElements(data, 0, 0), 0);
  assert.equal(skipBytesElements(data, 0, 2), 11);
  assert.equal(skipBytesElements(data, 11, 2), data.length);
  assert.equal(skipBytesElements(data, 11, 3), -1);
});

test('a tensor that is not exactly its elements is told apart with the reason', () => {
  const cases: [string, number, RegExp][] = [
    ['', 1, /expected 1 elements, got 0/],
    ['01000000 61', 2, /expected 2 elements, got 1/],
    ['010000', 1, /element 0 has 3 of the 4 bytes/],
    ['02000000 61', 1, /element 0 says it has 2 bytes, but 1 are left/],
    ['ffffffff 61', 1, /element 0 says it has 4294967295 bytes, but 1 are left/],
    ['00000080', 1, /element 0 says it has 2147483648 bytes, but 0 are left/],
    ['00000000 01000000 61 62', 2, /1 bytes are left over after 2 elements/],
    ['61', 0, /1 bytes are left over after 0 elements/],
  ];
  for (const [bytes, count, reason] of cases) {
    assert.match(bytesTensorFault(hex(bytes), count) ?? 'none', reason);
    assert.equal(decodeBytesTensor(hex(bytes), count), undefined);
  }
  assert.equal(bytesTensorFault(hex(''), 0), undefined);
});
