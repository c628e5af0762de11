/** The reader of the text format: what it reads, and that it refuses what is not of the format. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseExposition } from './exposition.ts';

const HEAD = '# HELP a_total Things \\\\ of\\nall kinds.\n# TYPE a_total counter\n';

test('names, help, labels with escapes and values are read', () => {
  const family = parseExposition(`${HEAD}a_total{x="q\\"b\\\\s\\nn",y=""} 1.5e+3\n\na_total +Inf\n`).get('a_total')!;
  assert.equal(family.help, 'Things \\ of\nall kinds.');
  assert.equal(family.type, 'counter');
  assert.deepEqual(
    family.series.map(({ labels, value }) => [Object.fromEntries(labels), value]),
    [
      [{ x: 'q"b\\s\nn', y: '' }, 1500],
      [{}, Number.POSITIVE_INFINITY],
    ],
  );
});

for (const [what, text] of [
  ['without the end of the last line', `${HEAD}a_total 1`],
  ['a series without a family', 'a_total 1\n'],
  ['a series of another family', `${HEAD}b_total 1\n`],
  ['a type without help', '# TYPE a_total counter\na_total 1\n'],
  ['an unknown type', '# HELP a x\n# TYPE a number\na 1\n'],
  ['the same family twice', `${HEAD}a_total 1\n${HEAD}`],
  ['the same series twice', `${HEAD}a_total{x="1",y="2"} 1\na_total{y="2",x="1"} 2\n`],
  ['the same label twice', `${HEAD}a_total{x="1",x="2"} 1\n`],
  ['an open label', `${HEAD}a_total{x="1 1\n`],
  ['a bare quote in a label', `${HEAD}a_total{x="a"b"} 1\n`],
  ['a bare line feed in a label', `${HEAD}a_total{x="a\nb"} 1\n`],
  ['an unknown escape', `${HEAD}a_total{x="\\t"} 1\n`],
  ['a label that is not quoted', `${HEAD}a_total{x=1} 1\n`],
  ['a label with a dash in its name', `${HEAD}a_total{x-y="1"} 1\n`],
  ['a value that is not a number', `${HEAD}a_total Nan\n`],
  ['no value', `${HEAD}a_total\n`],
] as const) {
  test(`refused: ${what}`, () => {
    assert.throws(() => parseExposition(text));
  });
}
