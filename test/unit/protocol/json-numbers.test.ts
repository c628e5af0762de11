/** JSON numbers into typed storage: correctly rounded floats, exact integers, and nothing let through that is neither. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { integerOfDecimal } from '../../../src/protocol/json-integers.ts';
import type { Datatype } from '../../../src/tensor/datatype.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';
import { assertRefused, decodeData } from './fixtures.ts';

function floats(datatype: 'FP32' | 'FP64', texts: readonly string[]): number[] {
  const bytes = decodeData(datatype, `[${texts.join(',')}]`, [texts.length]);
  return texts.map((_, i) => (datatype === 'FP32' ? bytes.readFloatLE(4 * i) : bytes.readDoubleLE(8 * i)));
}

function integers(datatype: 'INT64' | 'UINT64', texts: readonly string[]): bigint[] {
  const bytes = decodeData(datatype, `[${texts.join(',')}]`, [texts.length]);
  return texts.map((_, i) => (datatype === 'INT64' ? bytes.readBigInt64LE(8 * i) : bytes.readBigUInt64LE(8 * i)));
}

/** Decimal strings of every length and form, with a leaning to what is hard to round. */
function randomDecimal(random: Random): string {
  const digits = (count: number): string => Array.from({ length: count }, () => random.int(0, 9)).join('');
  const kind = random.float();
  const sign = random.chance(0.3) ? '-' : '';
  if (kind < 0.25) return String((random.float() - 0.5) * 10 ** random.int(-20, 20));
  if (kind < 0.4) return String(Math.fround((random.float() - 0.5) * 10 ** random.int(-30, 30)));
  if (kind < 0.5) {
    // At, or close to, the middle between two FP32 neighbours.
    const single = Math.fround(random.float() * 2 ** random.int(-20, 20));
    const half = single + single * 2 ** -25;
    return (random.chance(0.5) ? half : half + (random.float() - 0.5) * single * 2 ** -48).toPrecision(17);
  }
  const whole = random.chance(0.4) ? '0' : String(random.int(1, 9)) + digits(random.int(0, 21));
  const fraction = random.chance(0.7) ? `.${digits(random.int(1, 25))}` : '';
  const exponent = random.pick(['e', 'E']) + random.pick(['', '+', '-']) + digits(random.int(1, 2));
  return sign + whole + fraction + (random.chance(0.4) ? exponent : '');
}

test('random decimals give the double that JSON.parse gives, and the FP32 that Math.fround makes of it', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 40; round++) {
    const texts = Array.from({ length: 1000 }, () => randomDecimal(random));
    const expected = texts.map((text) => JSON.parse(text) as number);
    const doubles = floats('FP64', texts);
    for (const [i, text] of texts.entries()) assert.ok(Object.is(doubles[i], expected[i]), `${text}: ${doubles[i]}`);
    const small = texts.filter((_, i) => Number.isFinite(Math.fround(expected[i]!)));
    const singles = floats('FP32', small);
    for (const [i, text] of small.entries()) {
      assert.ok(Object.is(singles[i], Math.fround(JSON.parse(text))), `${text}: ${singles[i]}`);
    }
  }
});

test('decimals that are hard to round come out right', () => {
  const texts = [
    ...[
      '0',
      '-0',
      '-0.0',
      '0.0',
      '0e5',
      '-0e-5',
      '1',
      '-1',
      '0.1',
      '123456789012345678',
      '9007199254740993',
      '9007199254740992.5',
    ],
    ...[
      '1e22',
      '1e23',
      '1e-22',
      '1e-23',
      '8.5e22',
      '2.2250738585072011e-308',
      '2.2250738585072014e-308',
      '5e-324',
      '2e-324',
      '3e-324',
      '1e-400',
    ],
    ...[
      '1.7976931348623157e308',
      '17976931348623157000e289',
      '0.000000000000000000000000000000000000000000001',
      `0.${'0'.repeat(400)}1e401`,
    ],
    ...[
      `1${'0'.repeat(300)}`,
      `${'1'.repeat(40)}.${'7'.repeat(40)}`,
      `1${'0'.repeat(40)}e-40`,
      '1e0000000000000000000005',
      '1e-0000000000000000000005',
    ],
    ...[
      '4.35',
      '0.30000000000000004',
      '16777217',
      '16777219',
      '7.038531e-26',
      '1.00000005960464477539062500001',
      '1.000000059604644775390625',
    ],
  ];
  const doubles = floats('FP64', texts);
  for (const [i, text] of texts.entries()) assert.ok(Object.is(doubles[i], JSON.parse(text)), `${text}: ${doubles[i]}`);
  const small = texts.filter((text) => Number.isFinite(Math.fround(JSON.parse(text))));
  const singles = floats('FP32', small);
  for (const [i, text] of small.entries())
    assert.ok(Object.is(singles[i], Math.fround(JSON.parse(text))), `${text}: ${singles[i]}`);
});

test('a float beyond the largest finite value is refused, below the smallest it is 0', () => {
  for (const text of ['1e400', '-1e400', '1.8e308', `1${'0'.repeat(309)}`, '1e99999999999999999999']) {
    assertRefused(
      () => floats('FP64', ['1', text]),
      'BAD_TENSOR',
      "input 'x': element 1 is",
      'FP64',
      text.slice(0, 20),
    );
    assertRefused(() => floats('FP32', [text]), 'BAD_TENSOR', 'element 0 is');
  }
  for (const text of ['1e39', '-3.5e38', '3.4028235677973366e38']) {
    assertRefused(() => floats('FP32', [text]), 'BAD_TENSOR', `element 0 is ${text}`, 'FP32');
  }
  assert.deepEqual(
    floats('FP32', ['3.4028234663852886e38', '3.40282356e38', '1e-46', '-1e-99999999999']),
    [3.4028234663852886e38, 3.4028234663852886e38, 0, -0],
  );
});

test('a decimal of any sane length is read, an endless one refused', () => {
  assert.deepEqual(floats('FP64', [`1.${'0'.repeat(60_000)}1`]), [1]);
  assert.deepEqual(integers('INT64', [`7.${'0'.repeat(60_000)}`]), [7n]);
  for (const datatype of ['FP32', 'FP64', 'INT8', 'INT64'] as const) {
    for (const text of [`1.${'0'.repeat(70_000)}`, `0.${'0'.repeat(70_000)}e1`]) {
      assertRefused(() => decodeData(datatype, `[${text}]`, [1]), 'BAD_TENSOR', "input 'x': element 0", 'digits');
    }
  }
});

test('NaN and the infinities are no JSON, and the message points to the binary form', () => {
  for (const text of ['NaN', 'Infinity', '-Infinity', 'nan', 'inf']) {
    assertRefused(() => floats('FP32', ['1', text]), 'BAD_REQUEST', `JSON has no ${text}`, 'binary');
  }
});

test('64-bit integers keep every digit', () => {
  const signed = [
    '9007199254740993',
    '-9223372036854775808',
    '9223372036854775807',
    '-1',
    '0',
    '-0',
    '-9007199254740993',
    '999999999999999',
    '1000000000000000',
  ];
  assert.deepEqual(integers('INT64', signed), signed.map(BigInt));
  const unsigned = [
    '18446744073709551615',
    '9223372036854775808',
    '0',
    '-0',
    '10000000000000000000',
    '4294967296',
    '4294967295',
  ];
  assert.deepEqual(integers('UINT64', unsigned), unsigned.map(BigInt));
});

test('random 64-bit integers of every length are exact', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 10; round++) {
    const unsigned = Array.from({ length: 1000 }, () => random.uint64() >> BigInt(random.int(0, 63)));
    assert.deepEqual(integers('UINT64', unsigned.map(String)), unsigned);
    const signed = unsigned.map((value) => BigInt.asIntN(64, value));
    assert.deepEqual(integers('INT64', signed.map(String)), signed);
  }
});

const RANGES: [Datatype, bigint, bigint][] = [
  ['INT8', -128n, 127n],
  ['UINT8', 0n, 255n],
  ['INT16', -32768n, 32767n],
  ['UINT16', 0n, 65535n],
  ['INT32', -(2n ** 31n), 2n ** 31n - 1n],
  ['UINT32', 0n, 2n ** 32n - 1n],
  ['INT64', -(2n ** 63n), 2n ** 63n - 1n],
  ['UINT64', 0n, 2n ** 64n - 1n],
];

test('every integer type takes its whole range and nothing beyond it', () => {
  for (const [datatype, min, max] of RANGES) {
    const bits = datatype.endsWith('64') ? 64 : Number(datatype.replace(/\D+/, ''));
    const bytes = decodeData(datatype, `[${min},${max}]`, [2]);
    const value = (index: number): bigint => {
      let word = 0n;
      for (let i = bits / 8 - 1; i >= 0; i--) word = (word << 8n) | BigInt(bytes[(index * bits) / 8 + i]!);
      return min < 0n ? BigInt.asIntN(bits, word) : word;
    };
    assert.equal(value(0), min, datatype);
    assert.equal(value(1), max, datatype);
    const far = [
      '99999999999999999999',
      '100000000000000000000',
      '-99999999999999999999',
      '1e19999999999',
      `${'9'.repeat(500)}`,
    ];
    for (const text of [String(min - 1n), String(max + 1n), `${max + 1n}.0`, `${max + 1n}e0`, ...far]) {
      if (text === '-1e0') continue;
      assertRefused(
        () => decodeData(datatype, `[0,${text}]`, [2]),
        'BAD_TENSOR',
        "input 'x': element 1 is",
        text.slice(0, 40),
        datatype,
      );
    }
  }
});

test('a number counts by its value for every integer type: 1.0 and 1e1 pass, 1.5 does not', () => {
  for (const [datatype] of RANGES) {
    const plain = decodeData(datatype, '[1,10,0,120,7]', [5]);
    assert.deepEqual(decodeData(datatype, '[1.0,1e1,-0.0,1.2E+2,70e-1]', [5]), plain, datatype);
    for (const text of ['1.5', '1e-1', '0.1', '1.0000000000000000000000001', '15e-1']) {
      assertRefused(
        () => decodeData(datatype, `[${text}]`, [1]),
        'BAD_TENSOR',
        `element 0 is ${text}`,
        'integers from',
      );
    }
  }
  assert.equal(decodeData('INT64', '[9007199254740993.0]', [1]).readBigInt64LE(), 9007199254740993n);
  assert.equal(decodeData('INT64', '[922337203685477580.7e1]', [1]).readBigInt64LE(), 9223372036854775807n);
  assert.equal(decodeData('UINT64', '[1844674407370955161500000e-5]', [1]).readBigUInt64LE(), 2n ** 64n - 1n);
});

test('strings, booleans, null, arrays and objects are no numbers, for any number type', () => {
  for (const datatype of ['FP32', 'FP64', ...RANGES.map(([name]) => name)] as Datatype[]) {
    for (const text of ['"1"', 'true', 'false', 'null', '""']) {
      assertRefused(
        () => decodeData(datatype, `[0,${text}]`, [2]),
        'BAD_TENSOR',
        "input 'x'",
        `element 1 is ${text}`,
        datatype,
      );
    }
    assertRefused(() => decodeData(datatype, '[0,[1]]', [2]), 'BAD_TENSOR', 'element 1 is an array');
    assertRefused(() => decodeData(datatype, '[0,{}]', [2]), 'BAD_TENSOR', 'element 1 is an object');
    for (const text of ['01', '-01', '1.', '.5', '-', '+1', '1e', '0x10', '1_0', 'x', '-a', '00', '1.e1']) {
      assertRefused(() => decodeData(datatype, `[0,${text}]`, [2]), 'BAD_REQUEST', 'not valid JSON');
      assertRefused(() => decodeData(datatype, `[${text},0]`, [2]), 'BAD_REQUEST', 'not valid JSON');
    }
  }
});

test('integerOfDecimal reads any form of an integer of up to 20 digits', () => {
  const cases: [string, bigint | undefined][] = [
    ['0', 0n],
    ['-0.000e99999', 0n],
    ['12', 12n],
    ['-12.50e1', -125n],
    ['1.5', undefined],
    ['1e20', undefined],
    ['1e19', 10n ** 19n],
    ['1e-99999999999999', undefined],
    ['1e99999999999999', undefined],
    ['000', 0n],
    ['x', undefined],
  ];
  for (const [text, value] of cases) assert.equal(integerOfDecimal(text), value, text);
});
