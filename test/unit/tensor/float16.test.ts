/** 16-bit floats against independent references: every bit pattern, and the halfway points between neighbours. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bfloat16Bits, bfloat16Value, float16Bits, float16Value } from '../../../src/tensor/float16.ts';

test('FP16 rounds to the nearest value, ties to even', () => {
  const cases: [number, number][] = [
    [0, 0x0000],
    [-0, 0x8000],
    [1, 0x3c00],
    [-2, 0xc000],
    [2049, 0x6800],
    [2051, 0x6802],
    [65504, 0x7bff],
    [65519, 0x7bff],
    [65519.99999999, 0x7bff],
    [65520, 0x7c00],
    [-65520, 0xfc00],
    [1e300, 0x7c00],
    [Number.POSITIVE_INFINITY, 0x7c00],
    [Number.NEGATIVE_INFINITY, 0xfc00],
    [5.96e-8, 0x0001],
    [2 ** -24, 0x0001],
    [2 ** -25, 0x0000],
    [2 ** -25 * (1 + 2 ** -40), 0x0001],
    [3 * 2 ** -25, 0x0002],
    [2 ** -14, 0x0400],
    [2 ** -14 - 2 ** -25, 0x0400],
    [5e-324, 0x0000],
    [-5e-324, 0x8000],
    // Rounding by way of an FP32 would give 0x3c00: the tie appears only once the last bits are gone.
    [1 + 2 ** -11 + 2 ** -40, 0x3c01],
    [0.1, 0x2e66],
  ];
  for (const [value, bits] of cases) assert.equal(float16Bits(value), bits, `${value}`);
  assert.equal(float16Value(float16Bits(2049)), 2048);
  assert.equal(float16Value(float16Bits(65519)), 65504);
  assert.equal(float16Value(float16Bits(65520)), Number.POSITIVE_INFINITY);
});

test('every FP16 value survives the way to a number and back', () => {
  for (let bits = 0; bits < 0x10000; bits++) {
    const value = float16Value(bits);
    if (Number.isNaN(value)) {
      assert.equal(bits & 0x7c00, 0x7c00);
      assert.notEqual(bits & 0x3ff, 0);
      assert.ok(Number.isNaN(float16Value(float16Bits(value))));
    } else assert.equal(float16Bits(value), bits);
  }
});

test('between any two FP16 neighbours the halfway point goes to the even one', () => {
  for (let bits = 0; bits < 0x7bff; bits++) {
    const low = float16Value(bits);
    const high = float16Value(bits + 1);
    const half = low + (high - low) / 2;
    const nudge = (high - low) * 2 ** -30;
    assert.equal(float16Bits(half), bits % 2 === 0 ? bits : bits + 1);
    assert.equal(float16Bits(half - nudge), bits);
    assert.equal(float16Bits(half + nudge), bits + 1);
    assert.equal(float16Bits(-half - nudge), 0x8000 | (bits + 1));
  }
});

test('BF16 is the upper half of an FP32, rounded to nearest even', () => {
  const cases: [number, number][] = [
    [1, 0x3f80],
    [-0, 0x8000],
    [1 + 2 ** -8, 0x3f80],
    [1 + 3 * 2 ** -8, 0x3f82],
    [1 + 2 ** -8 + 2 ** -40, 0x3f81],
    [3.3895313892515355e38, 0x7f7f],
    [3.4e38, 0x7f80],
    [3.39e38, 0x7f7f],
    [-1e300, 0xff80],
    [2 ** -133, 0x0001],
    [2 ** -134, 0x0000],
    [3 * 2 ** -134, 0x0002],
    [2 ** -126, 0x0080],
  ];
  for (const [value, bits] of cases) assert.equal(bfloat16Bits(value), bits, `${value}`);
  assert.ok(Number.isNaN(bfloat16Value(bfloat16Bits(Number.NaN))));
  for (let bits = 0; bits < 0x10000; bits++) {
    const value = bfloat16Value(bits);
    if (!Number.isNaN(value)) assert.equal(bfloat16Bits(value), bits);
  }
});
