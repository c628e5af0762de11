/** Printed numbers: they read back as the same bits, with as few digits as that takes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  FLOAT32_TEXT_MAX,
  INTEGER_TEXT_MAX,
  writeDigits,
  writeFloat32,
  writeInteger64,
} from '../../../src/tensor/number-text.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';

const single = new Float32Array(1);
const word = new Int32Array(single.buffer);

function printWord(bits: number): string {
  word[0] = bits;
  const out = Buffer.alloc(64, '#');
  const end = writeFloat32(out, 3, single[0]!, word[0]!);
  assert.ok(end - 3 <= FLOAT32_TEXT_MAX, 'longer than room is made for');
  assert.equal(out.toString('latin1', end), '#'.repeat(64 - end), 'wrote behind the end');
  return out.toString('latin1', 3, end);
}

function print(value: number): string {
  single[0] = value;
  return printWord(word[0]!);
}

function readsBack(text: string, bits: number): boolean {
  const parsed = JSON.parse(text) as number;
  word[0] = bits;
  return Object.is(Math.fround(parsed), single[0]) || (text === '-0.0' && Object.is(parsed, -0));
}

/** Significant digits of a printed number. */
function digitsOf(text: string): number {
  return text.replace(/e.*/, '').replace(/[-.]/g, '').replace(/^0+/, '').replace(/0+$/, '').length;
}

/** Whether a decimal of fewer digits lies strictly between the halfway points to the neighbours of a positive FP32. */
function shorterExists(value: number, below: number, above: number, digits: number): boolean {
  const low = (value + below) / 2;
  const high = (value + above) / 2;
  for (let precision = 1; precision < digits; precision++) {
    const text = value.toExponential(precision - 1);
    const [mantissa, exponent] = text.split('e') as [string, string];
    for (const step of [-1, 0, 1]) {
      const scaled = Number(mantissa.replace('.', '')) + step;
      const candidate = Number(`${scaled}e${Number(exponent) - precision + 1}`);
      if (candidate > low && candidate < high) return true;
    }
  }
  return false;
}

function randomFinite(random: Random): number {
  for (;;) {
    const bits = random.uint32() | 0;
    if ((bits & 0x7f800000) !== 0x7f800000) return bits;
  }
}

test('an FP32 is printed as JavaScript would print it, were it to know of FP32', () => {
  const cases: [number, string][] = [
    [0, '0'],
    [-0, '-0.0'],
    [1, '1'],
    [-1, '-1'],
    [0.1, '0.1'],
    [0.5, '0.5'],
    [1 / 3, '0.33333334'],
    [Math.PI, '3.1415927'],
    [123456.789, '123456.79'],
    [16777215, '16777215'],
    [16777216, '16777216'],
    [1e-5, '0.00001'],
    [1e-7, '1e-7'],
    [1.5e-7, '1.5e-7'],
    [1e20, '100000000000000000000'],
    [1e21, '1e+21'],
    [3.4028234663852886e38, '3.4028235e+38'],
    [-3.4028234663852886e38, '-3.4028235e+38'],
    [1.1754943508222875e-38, '1.1754944e-38'],
    [1e-45, '1e-45'],
    [0.30000001192092896, '0.3'],
    [9.999999e-8, '9.999999e-8'],
    [99999992, '99999990'],
  ];
  for (const [value, text] of cases) assert.equal(print(value), text);
});

test('every exponent and the neighbours of every power of two and of ten read back as the same bits', () => {
  const check = (bits: number): void => {
    const text = printWord(bits);
    assert.ok(readsBack(text, bits), `${text} for ${(bits >>> 0).toString(16)}`);
  };
  for (let exponent = 0; exponent < 255; exponent++) {
    for (const fraction of [0, 1, 2, 0x400000, 0x7ffffe, 0x7fffff]) {
      check((exponent << 23) | fraction);
      check((1 << 31) | (exponent << 23) | fraction);
    }
  }
  for (let power = -45; power <= 38; power++) {
    single[0] = Number(`1e${power}`);
    const bits = word[0]!;
    for (let step = -3; step <= 3; step++) if (bits + step >= 0) check(bits + step);
  }
});

test('random FP32 read back as the same bits, and no shorter decimal would', () => {
  const random = seedFromEnv();
  for (let i = 0; i < 200_000; i++) {
    const bits = randomFinite(random);
    const text = printWord(bits);
    assert.ok(readsBack(text, bits), `${text} for ${(bits >>> 0).toString(16)}`);
    if (i % 20 !== 0) continue;
    const magnitude = bits & 0x7fffffff;
    if (magnitude < 2) continue;
    const [below, value, above] = [-1, 0, 1].map((step) => {
      word[0] = magnitude + step;
      return single[0]!;
    }) as [number, number, number];
    if (Number.isFinite(above))
      assert.ok(!shorterExists(value, below, above, digitsOf(text)), `${text} could be shorter`);
  }
});

test('integers up to 2^53 are printed digit by digit', () => {
  const random = seedFromEnv();
  const values = [0, 9, 10, 99, 100, 999999999, 1e9, 1e9 + 1, 1e15, 4294967295, Number.MAX_SAFE_INTEGER];
  for (let i = 0; i < 20_000; i++) values.push(Math.floor(random.float() * 2 ** random.int(1, 53)));
  const out = Buffer.alloc(32);
  for (const value of values) assert.equal(out.toString('latin1', 1, writeDigits(out, 1, value)), String(value));
});

test('64-bit integers are printed exactly, signed and unsigned', () => {
  const random = seedFromEnv();
  const values = [
    0n,
    1n,
    2n ** 53n,
    2n ** 53n + 1n,
    2n ** 63n - 1n,
    2n ** 63n,
    2n ** 63n + 1n,
    2n ** 64n - 1n,
    2n ** 32n,
    2n ** 64n - 2n ** 32n,
  ];
  for (let i = 0; i < 20_000; i++) values.push(random.uint64() >> BigInt(random.int(0, 63)));
  const out = Buffer.alloc(32);
  for (const value of values) {
    const low = Number(value & 0xffffffffn);
    const high = Number(value >> 32n);
    assert.equal(out.toString('latin1', 0, writeInteger64(out, 0, low, high, false)), String(value));
    const end = writeInteger64(out, 0, low, high, true);
    assert.equal(out.toString('latin1', 0, end), String(BigInt.asIntN(64, value)));
    assert.ok(end <= INTEGER_TEXT_MAX);
  }
});
