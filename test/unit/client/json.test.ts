import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseJson, scalarJson } from '../../../src/client/json.ts';
import { seedFromEnv } from '../../support/random.ts';

test('integers that a number cannot hold keep their digits as bigints', () => {
  assert.deepEqual(parseJson('[9007199254740993,-9223372036854775808,18446744073709551615,-1]'), [
    9007199254740993n,
    -9223372036854775808n,
    18446744073709551615n,
    -1,
  ]);
  assert.equal(parseJson('9007199254740992'), 9007199254740992n);
  assert.equal(parseJson('9007199254740991'), 9007199254740991);
  assert.deepEqual(
    parseJson('{"a": -12345678901234567890 }'),
    Object.assign(Object.create(null), { a: -12345678901234567890n }),
  );
});

test('fractions and exponents stay numbers, whatever their length', () => {
  const texts = ['0.12345678901234567', '1234567890123456.5', '1e300', '123456789012345678e2', '-0'];
  assert.deepEqual(parseJson(`[9007199254740993,${texts}]`), [9007199254740993n, ...texts.map(Number)]);
});

test('NaN and infinities are taken as numbers', () => {
  assert.deepEqual(parseJson('{"data":[NaN,Infinity, -Infinity,1]}'), {
    __proto__: null,
    data: [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 1],
  });
});

test('a key such as __proto__ is an ordinary key', () => {
  const value = parseJson('{"__proto__":{"polluted":1},"n":9007199254740993}') as Record<string, unknown>;
  assert.deepEqual(Object.keys(value), ['__proto__', 'n']);
  assert.equal(({} as Record<string, unknown>).polluted, undefined);
});

// Each has a long integer in front, so that the exact parser is the one that reads it.
test('what is not JSON is refused', () => {
  const broken = [
    '',
    '[',
    '[1',
    '[1,',
    '[1,]',
    '[1 2]',
    '{',
    '{"a"',
    '{"a":',
    '{"a":1',
    '{"a":1,}',
    '{a:1}',
    '"',
    '"\\"',
    '"\n"',
  ];
  const words = [
    'tru',
    'nul',
    'nan',
    '+1',
    '01',
    '1.',
    '.5',
    '1e',
    '- 1',
    '-',
    '0x10',
    '-NaN',
    "'a'",
    '"\\x"',
    'true false',
    '[1]]',
  ];
  for (const text of [...broken, ...words]) {
    assert.throws(() => parseJson(`[9007199254740993,${text}]`), SyntaxError, text);
    assert.throws(() => parseJson(text), SyntaxError, text);
  }
});

test('nesting is bounded', () => {
  const nested = (depth: number) => `${'['.repeat(depth)}9007199254740993${']'.repeat(depth)}`;
  assert.doesNotThrow(() => parseJson(nested(100)));
  assert.throws(() => parseJson(nested(101)), /more than 100 deep/);
  assert.throws(() => parseJson(nested(1_000_000)), SyntaxError);
});

test('it gives what JSON.parse gives for random documents without long integers', () => {
  const random = seedFromEnv();
  const strings = ['', 'plain', 'quote " backslash \\ slash /', 'é大😀', '\u0000\u001f\u007f\u2028', '\\\\"', 'NaN'];
  const make = (depth: number): unknown => {
    const kind = random.int(0, depth > 4 ? 4 : 6);
    if (kind === 0) return random.pick([true, false, null]);
    if (kind === 1) return random.int(-1000, 1000);
    if (kind === 2) return (random.float() - 0.5) * 10 ** random.int(-30, 10);
    if (kind <= 4) return random.pick(strings);
    if (kind === 5) return Array.from({ length: random.int(0, 5) }, () => make(depth + 1));
    return Object.fromEntries(
      Array.from({ length: random.int(0, 5) }, (_, i) => [random.pick(strings) + i, make(depth + 1)]),
    );
  };
  for (let round = 0; round < 300; round++) {
    const value = make(0);
    const text = JSON.stringify(value, null, random.int(0, 2));
    // A long integer beside it makes the exact parser read the document.
    const [read] = parseJson(`[${text},9007199254740993]`) as unknown[];
    assert.equal(JSON.stringify(read), JSON.stringify(value));
  }
});

test('scalars are written so that they read back the same', () => {
  assert.equal(scalarJson(18446744073709551615n), '18446744073709551615');
  assert.equal(scalarJson(-0), '-0');
  assert.equal(scalarJson(1e21), '1e+21');
  assert.equal(scalarJson('a"b'), '"a\\"b"');
  assert.equal(scalarJson(true), 'true');
  for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) assert.throws(() => scalarJson(value), RangeError);
});
