import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseTextFormat, type TextField, TextFormatError } from '../../../src/config/text-format.ts';
import { seedFromEnv } from '../../support/random.ts';

/** Fields as plain values: pairs of names and values. */
function plain(fields: readonly TextField[]): unknown[] {
  return fields.map(({ name, value }) => [
    name,
    value.kind === 'message' ? plain(value.fields) : value.kind === 'string' ? { text: value.text } : value.text,
  ]);
}

describe('the text form of protocol buffers', () => {
  for (const [text, expected] of [
    ['', []],
    ['  # nothing\n', []],
    ['a: 1', [['a', '1']]],
    [
      'a: 1 b: -2, c: 3; d: 0x1F',
      [
        ['a', '1'],
        ['b', '-2'],
        ['c', '3'],
        ['d', '0x1F'],
      ],
    ],
    [
      'a: true # yes\nb: KIND_GPU',
      [
        ['a', 'true'],
        ['b', 'KIND_GPU'],
      ],
    ],
    ['a: "x" \'y\' # and\n "z"', [['a', { text: 'xyz' }]]],
    ['a: "\\n\\t\\"\\101\\x41\\u00e9\\\\"', [['a', { text: '\n\t"AAé\\' }]]],
    ['a: [ ]', []],
    [
      'a: [1, -1, 16]',
      [
        ['a', '1'],
        ['a', '-1'],
        ['a', '16'],
      ],
    ],
    [
      'a { b: 1 } a: < b: 2 >',
      [
        ['a', [['b', '1']]],
        ['a', [['b', '2']]],
      ],
    ],
    [
      'a [ { b: 1 }, { b: 2 } ]',
      [
        ['a', [['b', '1']]],
        ['a', [['b', '2']]],
      ],
    ],
    [
      'a: 1.5e-3 b: .5 c: 2f',
      [
        ['a', '1.5e-3'],
        ['b', '.5'],
        ['c', '2f'],
      ],
    ],
  ] as const) {
    test(`reads ${JSON.stringify(text)}`, () => assert.deepEqual(plain(parseTextFormat(text)), expected));
  }

  for (const [text, line, column, message] of [
    ['a', 1, 2, /":" or a message/],
    ['a: ', 1, 4, /a value is expected/],
    ['a: 1\n b: {', 2, 6, /ends where "}"/],
    ['a: 1\n}', 2, 1, /a field name/],
    ['a: "x', 1, 4, /a value/],
    ['a: [1 2]', 1, 7, /comma or "\]"/],
    ['1: 2', 1, 1, /a field name/],
    [`${'a {'.repeat(40)}`, 1, 100, /more than 32 deep/],
  ] as const) {
    test(`tells what is wrong with ${JSON.stringify(text.slice(0, 20))}, and where`, () => {
      assert.throws(
        () => parseTextFormat(text),
        (error: TextFormatError) => {
          assert(error instanceof TextFormatError);
          assert.match(error.message, message);
          assert.deepEqual(error.position, { line, column });
          return true;
        },
      );
    });
  }

  test('ends for any text, with fields or a fault', () => {
    const random = seedFromEnv();
    const pieces = [
      'a',
      'b:',
      ' ',
      '\n',
      '{',
      '}',
      '[',
      ']',
      '<',
      '>',
      ',',
      ';',
      '"x"',
      "'",
      '"',
      '\\',
      '#c\n',
      '1',
      '-',
      '.5',
      '0x',
      'é',
      '\0',
    ];
    for (let round = 0; round < 5000; round++) {
      const text = Array.from({ length: random.int(0, 30) }, () => random.pick(pieces)).join('');
      try {
        parseTextFormat(text);
      } catch (error) {
        assert(error instanceof TextFormatError, `${JSON.stringify(text)}: ${error}`);
      }
    }
  });
});
