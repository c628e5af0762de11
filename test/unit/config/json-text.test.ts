/** The strict JSON reader: the same values as JSON.parse, and a place and a plain reason for everything it refuses. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { JsonTextError, parseJsonBytes } from '../../../src/config/json-text.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';

function read(text: string | Uint8Array) {
  return parseJsonBytes(typeof text === 'string' ? Buffer.from(text) : text, 2 ** 20);
}

function refusalOf(text: string | Uint8Array): string {
  try {
    return `accepted: ${JSON.stringify(read(text).value)}`;
  } catch (error) {
    assert.ok(error instanceof JsonTextError);
    return `${error.position.line}:${error.position.column} ${error.message}`;
  }
}

const refused: readonly (readonly [string, string])[] = [
  ['', '1:1 is empty; the smallest valid content is {}'],
  [' \n', '2:1 is empty; the smallest valid content is {}'],
  ['{', '1:2 expected a key in double quotes, found the end of the file'],
  ['{"a":1', '1:7 expected "," or "}", found the end of the file'],
  ['[1', '1:3 expected "," or "]", found the end of the file'],
  ['{"a":1,}', '1:8 expected a key in double quotes, found "}" after a comma (JSON has no trailing commas)'],
  ['[1,\n]', '2:1 expected a value, found "]" after a comma (JSON has no trailing commas)'],
  ['{"a" 1}', '1:6 expected ":" after the key "a", found "1"'],
  ['{"a":1 "b":2}', '1:8 expected "," or "}", found "\\""'],
  ['{a:1}', '1:2 expected a key in double quotes, found "a"'],
  ["{'a':1}", '1:2 expected a key in double quotes, found "\'" (JSON uses double quotes)'],
  ['{\n  // note\n}', '2:3 expected a key in double quotes, found "/" (JSON has no comments)'],
  ['{"a":NaN}', '1:6 expected a value, found "NaN"'],
  ['{"a":01}', '1:6 expected a value, found "01"'],
  ['{"a":+1}', '1:6 expected a value, found "+1"'],
  ['{"a":1.}', '1:6 expected a value, found "1."'],
  ['{"a":0x10}', '1:6 expected a value, found "0x10"'],
  ['{"a":True}', '1:6 expected a value, found "True"'],
  ['{"a":1}}', '1:8 unexpected "}" after the end of the JSON value'],
  ['{"a":"x\ny"}', '1:6 a string is not closed on its line'],
  ['{"a":"x', '1:6 a string is not closed on its line'],
  ['{"a":"\\x"}', '1:6 a string holds a malformed escape or a bare control character'],
  ['{"a":"\t"}', '1:6 a string holds a malformed escape or a bare control character'],
  ['{"a":1,\n "a":2}', '2:2 key "a" stands twice in the same object'],
  ['{"a":{"b":1,"b":1}}', '1:13 key "b" stands twice in the same object'],
  ['{"a":1, "\\u0061":2}', '1:9 key "a" stands twice in the same object'],
  ['{"__proto__":1,"__proto__":1}', '1:16 key "__proto__" stands twice in the same object'],
  ['{"ż😀": }', '1:8 expected a value, found "}"'],
  [`${'['.repeat(65)}`, '1:65 nested deeper than 64 levels'],
];

for (const [text, refusal] of refused) {
  test(`the text ${JSON.stringify(text.slice(0, 40))} is refused at its place`, () => {
    assert.equal(refusalOf(text), refusal);
  });
}

test('a UTF-8 byte order mark is skipped, and UTF-16 or stray bytes are refused', () => {
  assert.deepEqual(refusalOf(Buffer.from('\ufeff{"a":1}')), 'accepted: {"a":1}');
  assert.equal(refusalOf(Buffer.from('\ufeff{}', 'utf16le')), '1:1 is not UTF-8 text');
  assert.equal(refusalOf(Buffer.from([0x22, 0xff, 0x22])), '1:1 is not UTF-8 text');
});

test('the same key may stand in different objects', () => {
  assert.equal(refusalOf('{"a":{"a":1},"b":{"a":2}}'), 'accepted: {"a":{"a":1},"b":{"a":2}}');
});

test('64 levels of nesting are read', () => {
  assert.match(refusalOf(`${'['.repeat(64)}${']'.repeat(64)}`), /^accepted/);
});

test('objects have no prototype, so that __proto__ is a key', () => {
  const { value } = read('{"__proto__":{"x":1}}');
  assert.equal(Object.getPrototypeOf(value), null);
  assert.equal(JSON.stringify(value), '{"__proto__":{"x":1}}');
});

test('places of keys and values are known, and a missing one falls back to what is around it', () => {
  const document = read('{\n  "a": {"b": [1,\n  22]},\n  "c": 3\n}');
  assert.deepEqual(document.valuePosition(['a', 'b', 1]), { line: 3, column: 3 });
  assert.deepEqual(document.valuePosition(['a', 'b', 7]), { line: 2, column: 14 });
  assert.deepEqual(document.valuePosition(['x']), { line: 1, column: 1 });
  assert.deepEqual(document.keyPosition(['a', 'b']), { line: 2, column: 9 });
  assert.deepEqual(document.valuePosition(['c']), { line: 4, column: 8 });
});

test('random documents read as JSON.parse reads them, and a random edit never gives another verdict', () => {
  const random = seedFromEnv();
  const alphabet = '{}[]",:0123456789.eE+-\\u00tfnarls \n/\'';
  for (let round = 0; round < 3000; round++) {
    const text = JSON.stringify(randomValue(random, 4), null, round % 3);
    assert.equal(JSON.stringify(read(text).value), JSON.stringify(JSON.parse(text)));
    const at = random.int(0, text.length - 1);
    const edited = text.slice(0, at) + random.pick([...alphabet]) + text.slice(at + 1);
    const verdict = refusalOf(edited);
    if (!verdict.includes('stands twice')) {
      assert.equal(verdict.startsWith('accepted'), parses(edited), `round ${round}: ${verdict}: ${edited}`);
    }
  }
});

function parses(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function randomValue(random: Random, depth: number): unknown {
  const count = random.int(0, 3);
  switch (random.int(0, depth === 0 ? 3 : 5)) {
    case 0:
      return random.pick([null, true, false]);
    case 1:
      return random.int(-1_000_000, 1_000_000) / 1000;
    case 2:
      return random.float() * 10 ** random.int(-200, 200);
    case 3:
      return random.pick(['', 'a"\\\n', 'ż😀', '\u0001']);
    case 4:
      return Array.from({ length: count }, () => randomValue(random, depth - 1));
    default:
      return Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, randomValue(random, depth - 1)]));
  }
}
