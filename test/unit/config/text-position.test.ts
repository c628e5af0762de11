import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type TextPosition, TextPositions } from '../../../src/config/text-position.ts';
import { seedFromEnv } from '../../support/random.ts';

/** By its definition: lines end with a line feed, columns count characters. */
function counted(text: string, offset: number): TextPosition {
  const lines = text.slice(0, offset).split('\n');
  return { line: lines.length, column: [...lines.at(-1)!].length + 1 };
}

test('places are told by lines and characters, in whatever order they are asked for', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 50; round++) {
    const characters = Array.from({ length: random.int(0, 60) }, () => 'ab\n\r\n😀é'.match(/./gsu)![random.int(0, 6)]!);
    const text = characters.join('');
    const offsets = [0, text.length];
    for (let n = 0; n < characters.length; n++) offsets.push(characters.slice(0, n).join('').length);
    const positions = new TextPositions(text);
    for (let n = 0; n < 40; n++) {
      const offset = offsets[random.int(0, offsets.length - 1)]!;
      assert.deepEqual(positions.of(offset), counted(text, offset), `${JSON.stringify(text)} at ${offset}, ${random}`);
    }
  }
});
