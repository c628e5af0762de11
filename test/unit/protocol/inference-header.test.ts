/** The header that says where a body's JSON ends. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseInferenceHeaderLength } from '../../../src/protocol/inference-header.ts';
import { assertRefused } from './fixtures.ts';

test('a header that was not sent means that the whole body is JSON', () => {
  assert.equal(parseInferenceHeaderLength([], 100), undefined);
});

test('plain digits up to the size of the body pass, 0 included', () => {
  for (const [text, length] of [
    ['0', 0],
    ['1', 1],
    ['100', 100],
    ['007', 7],
  ] as const) {
    assert.equal(parseInferenceHeaderLength([text], 100), length);
  }
  assert.equal(parseInferenceHeaderLength(['0'], 0), 0);
});

test('anything but plain digits is refused', () => {
  const malformed = [
    '-1',
    '+1',
    'abc',
    '12abc',
    '0x10',
    '1e2',
    '1.5',
    '',
    ' 12',
    '12 ',
    '12, 12',
    'NaN',
    'Infinity',
    '١٢',
  ];
  for (const text of malformed) {
    assertRefused(
      () => parseInferenceHeaderLength([text], 1000),
      'BAD_REQUEST',
      'Inference-Header-Content-Length',
      'digits',
    );
  }
});

test('a length past the body is refused, however long its digits', () => {
  for (const text of ['101', '99999999999', '9'.repeat(400)]) {
    assertRefused(
      () => parseInferenceHeaderLength([text], 100),
      'BAD_REQUEST',
      'inference header size should be in range',
      '100',
    );
  }
});

test('a header sent twice is refused, equal or not', () => {
  assertRefused(() => parseInferenceHeaderLength(['12', '12'], 100), 'BAD_REQUEST', 'more than once');
  assertRefused(() => parseInferenceHeaderLength(['12', '13'], 100), 'BAD_REQUEST', 'more than once');
});
