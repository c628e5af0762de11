/** Lines of label files and dictionaries. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LINE_BYTES_MAX, lineAt, lineCount, readLines, TEXT_BYTES_MAX } from '../../../src/postprocess/text-lines.ts';

function linesOf(text: string | Uint8Array): string[] | string {
  const lines = readLines(Buffer.from(text));
  if ('problem' in lines) return lines.problem;
  return Array.from({ length: lineCount(lines) }, (_, n) => Buffer.from(lineAt(lines, n)).toString());
}

test('lines end in a line feed, with or without a carriage return; the last one may lack it', () => {
  assert.deepEqual(linesOf(''), []);
  assert.deepEqual(linesOf('\n'), ['']);
  assert.deepEqual(linesOf('a\nb'), ['a', 'b']);
  assert.deepEqual(linesOf('a\r\n\r\nb b \n'), ['a', '', 'b b ']);
  assert.deepEqual(linesOf('\r'), ['']);
  assert.deepEqual(linesOf('a\rb\n\u2028\n'), ['a\rb', '\u2028']);
});

test('a text is the same as one split by a regular expression', () => {
  for (let seed = 0; seed < 300; seed++) {
    const text = Array.from(
      { length: seed % 12 },
      (_, n) => ['\n', '\r\n', 'x', 'é', ''][(seed * 7 + n * n * 3) % 5],
    ).join('');
    const expected = text.split('\n').map((line) => line.replace(/\r$/, ''));
    if (text === '' || text.endsWith('\n')) expected.pop();
    assert.deepEqual(linesOf(text), expected, JSON.stringify(text));
  }
});

test('what is not UTF-8, and what is too long, is told with its line', () => {
  assert.equal(linesOf(Buffer.from('61 0a ff 0a'.replaceAll(' ', ''), 'hex')), 'is not UTF-8 in line 2');
  assert.equal(linesOf(`a\nb\n${'x'.repeat(LINE_BYTES_MAX + 1)}`), `has more than ${LINE_BYTES_MAX} bytes in line 3`);
  assert.equal(linesOf('x'.repeat(LINE_BYTES_MAX)).length, 1);
  assert.equal(linesOf(new Uint8Array(TEXT_BYTES_MAX + 1).fill(0x0a)), `is larger than ${TEXT_BYTES_MAX} bytes`);
});

test('there is nothing behind the last line, and the longest is known', () => {
  const lines = readLines(Buffer.from('a\néé\n'));
  assert.ok(!('problem' in lines));
  assert.equal(lineAt(lines, 2).length, 0);
  assert.equal(lines.longest, 4);
});
