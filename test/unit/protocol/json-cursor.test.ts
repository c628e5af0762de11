/** JSON's grammar: what `JSON.parse` takes the cursor takes, and the rest it refuses. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import { JSON_DEPTH_MAX, JsonCursor } from '../../../src/protocol/json-cursor.ts';
import { JsonKeys } from '../../../src/protocol/json-keys.ts';
import { seedFromEnv } from '../../support/random.ts';
import { assertRefused } from './fixtures.ts';

function skipAll(text: string | Buffer): void {
  const cursor = new JsonCursor(Buffer.from(text));
  cursor.skipValue(0);
  cursor.expectEnd();
}

function accepts(text: string): boolean {
  try {
    skipAll(text);
    return true;
  } catch (error) {
    if (error instanceof BatchportError) return false;
    throw error;
  }
}

function parses(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

test('valid and broken texts are told apart as JSON.parse does', () => {
  const texts = [
    ...[
      '{}',
      '[]',
      ' [ ] ',
      '{"a":1}',
      '[1,2,[3,{"b":null}]]',
      'true',
      'false',
      'null',
      '"x"',
      '0',
      '-0',
      '-0.0',
      '1e5',
      '1E+5',
      '1e-5',
    ],
    ...[
      '',
      ' ',
      '{',
      '}',
      '[',
      ']',
      '[1',
      '[1,',
      '[1,]',
      '[,1]',
      '[1 2]',
      '{"a"}',
      '{"a":}',
      '{"a":1,}',
      '{,}',
      '{a:1}',
      "{'a':1}",
    ],
    ...[
      '01',
      '-',
      '-01',
      '+1',
      '.5',
      '1.',
      '1.e5',
      '1e',
      '1e+',
      '1e5.5',
      '0x10',
      '1_000',
      'NaN',
      '-NaN',
      'Infinity',
      '-Infinity',
      'tru',
      'truee',
    ],
    ...[
      '"\\n\\t\\"\\\\\\/\\b\\f\\r"',
      '"\\u00e9"',
      '"\\ud83d\\ude00"',
      '"\\x"',
      '"\\u12"',
      '"\\u12g4"',
      '"a\nb"',
      '"a\tb"',
      '"open',
      '"\\',
      '"\\u',
    ],
    ...[
      '[1]]',
      '{}{}',
      '[] x',
      '// c\n[]',
      '[1,/**/2]',
      '\u00a0[]',
      '\ufeff[]',
      '\f[]',
      '[\r\n\t 1 ]',
      '{"":""}',
      '{"a":1,"a":2}',
      'nul',
      'nullx',
    ],
  ];
  for (const text of texts) assert.equal(accepts(text), parses(text), JSON.stringify(text));
});

test('random edits of a valid text are accepted exactly when JSON.parse accepts them', () => {
  const random = seedFromEnv();
  const base = '{"a":[1,-2.5e+3,true,false,null,"x\\u00e9\\n\\\\"],"b":{"c":[[],{}],"d":0.1}}';
  const alphabet = '{}[]:,"\\ \n0123456789-+.eEtrufalsn/x';
  for (let round = 0; round < 20_000; round++) {
    let text = base;
    for (let edit = 0; edit < random.int(1, 3); edit++) {
      const at = random.int(0, text.length - 1);
      const char = alphabet[random.int(0, alphabet.length - 1)]!;
      const kind = random.float();
      if (kind < 0.4) text = text.slice(0, at) + char + text.slice(at + 1);
      else if (kind < 0.7) text = text.slice(0, at) + text.slice(at + 1);
      else text = text.slice(0, at) + char + text.slice(at);
    }
    assert.equal(accepts(text), parses(text), JSON.stringify(text));
  }
});

test('nesting is bounded, for arrays and objects alike', () => {
  const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth);
  skipAll(nested(JSON_DEPTH_MAX));
  assertRefused(() => skipAll(nested(JSON_DEPTH_MAX + 1)), 'BAD_REQUEST', 'nested deeper than 100');
  assertRefused(() => skipAll('['.repeat(1_000_000)), 'BAD_REQUEST', 'nested deeper than 100');
  assertRefused(() => skipAll('{"a":'.repeat(500_000)), 'BAD_REQUEST', 'nested deeper than 100');
});

test('bytes that are not UTF-8 are refused wherever they stand', () => {
  for (const bytes of [[0xff], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0xf5, 0x80, 0x80, 0x80], [0xe2, 0x82]]) {
    const text = Buffer.concat([Buffer.from('["'), Buffer.from(bytes), Buffer.from('"]')]);
    assertRefused(() => skipAll(text), 'BAD_REQUEST', 'UTF-8');
  }
});

test('half a surrogate pair is refused, as it is no character', () => {
  for (const text of [
    '"\\ud800"',
    '"\\udc00"',
    '"\\ud800\\ud800"',
    '"\\ud800x"',
    '"\\ude00\\ud83d"',
    '"\\ud800\\u0041"',
  ]) {
    assertRefused(() => skipAll(text), 'BAD_REQUEST', 'surrogate');
  }
});

test('strings come out as JSON.parse reads them', () => {
  const texts = [
    '""',
    '"plain"',
    '"é大😀"',
    '"\\u00e9\\u5927\\ud83d\\ude00"',
    '"\\"\\\\\\/\\b\\f\\n\\r\\t"',
    '"a\\u0000b"',
    '"\\u007f\\u0080\\u07ff\\u0800\\uffff"',
  ];
  for (const text of texts) {
    const cursor = new JsonCursor(Buffer.from(text));
    assert.equal(cursor.readString(), JSON.parse(text));
    cursor.expectEnd();
  }
});

test('a key is known by its value, escaped or not', () => {
  const keys = new JsonKeys(['name', 'shape']);
  const cursor = new JsonCursor(Buffer.from('{"n\\u0061me":0,"shape" : 0,"shap":0,"":0,"__proto__":0}'));
  const found: number[] = [];
  cursor.openObject();
  for (let first = true; cursor.nextMember(first); first = false) {
    found.push(cursor.readKey(keys));
    cursor.skipValue(1);
  }
  assert.deepEqual(found, [0, 1, JsonKeys.UNKNOWN, JsonKeys.UNKNOWN, JsonKeys.UNKNOWN]);
});

test('integers are read exactly or not at all', () => {
  const cases: [string, number][] = [
    ['0', 0],
    ['-0', 0],
    ['16', 16],
    ['-3', -3],
    ['9007199254740991', 9007199254740991],
    ['9007199254740992', Number.POSITIVE_INFINITY],
    ['-9007199254740993', Number.NEGATIVE_INFINITY],
    ['9'.repeat(400), Number.POSITIVE_INFINITY],
    ['1.0', Number.NaN],
    ['1e3', Number.NaN],
  ];
  for (const [text, value] of cases) assert.equal(new JsonCursor(Buffer.from(text)).readPlainInteger(), value, text);
});

test('errors say where and what, and quote no more than a little of the text', () => {
  assertRefused(() => skipAll('{"a": nope}'), 'BAD_REQUEST', 'at byte 6', 'nope');
  assertRefused(() => skipAll('[NaN]'), 'BAD_REQUEST', 'JSON has no NaN', 'binary');
  assertRefused(() => skipAll('[-Infinity]'), 'BAD_REQUEST', 'JSON has no -Infinity');
  assert.throws(
    () => skipAll(`[x${'大'.repeat(10_000)}]`),
    (error: Error) => error.message.length < 200 && !error.message.includes('\ufffd'),
  );
});

test('a string that is to be a name or an id is bounded', () => {
  const read = (length: number): string => new JsonCursor(Buffer.from(`"${'x'.repeat(length)}"`)).readString();
  assert.equal(read(1 << 20).length, 1 << 20);
  assertRefused(() => read((1 << 20) + 1), 'BAD_REQUEST', 'longer than 1048576 bytes');
});
