/** Suggestions for mistyped names, sizes in bytes, and names of versions. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { nearestName, suggestion } from '../../../src/config/nearest.ts';
import { formatSizeBytes, parseSizeBytes } from '../../../src/config/size.ts';
import { compareVersionNames, isVersionName } from '../../../src/config/version-name.ts';

const known = ['max_batch_size', 'max_queue_delay_us', 'slo_ms', 'queue', 'min', 'max', 'cpu', 'host', 'http_port'];

for (const [name, nearest] of [
  ['max_batch_siz', 'max_batch_size'],
  ['max_bacth_size', 'max_batch_size'],
  ['MAX-BATCH-SIZE', 'max_batch_size'],
  ['batch_size', 'max_batch_size'],
  ['max_queue_delay', 'max_queue_delay_us'],
  ['slo', 'slo_ms'],
  ['port', 'http_port'],
  ['hots', 'host'],
  ['qeueu', 'queue'],
  ['mix', 'min'],
  ['mni', 'min'],
  ['mixx', undefined],
  ['zzz', undefined],
  ['', undefined],
  ['m'.repeat(100_000), undefined],
  [`queue_${'x'.repeat(60)}`, undefined],
] as const) {
  test(`the known name nearest to ${JSON.stringify(name.slice(0, 30))} is ${nearest}`, () => {
    assert.equal(nearestName(name, known), nearest);
  });
}

test('a suggestion is a phrase in brackets or nothing', () => {
  assert.equal(suggestion('cpo', known), ' (did you mean "cpu"?)');
  assert.equal(suggestion('tensorrt', known), '');
});

for (const [text, bytes] of [
  ['0', 0],
  ['512', 512],
  ['512B', 512],
  ['64MiB', 67_108_864],
  ['64 MiB', 67_108_864],
  ['64mb', 64_000_000],
  ['2GB', 2e9],
  ['8TiB', 8 * 2 ** 40],
  ['9007199254740991', 9_007_199_254_740_991],
  ['9007199254740992', undefined],
  ['9999TiB', undefined],
  ['1.5GB', undefined],
  ['-1', undefined],
  ['', undefined],
  ['MiB', undefined],
  ['1iB', undefined],
  ['0x10', undefined],
  ['1e3', undefined],
  ['1 000', undefined],
  ['1  MiB', undefined],
] as const) {
  test(`the size ${JSON.stringify(text)} is ${bytes === undefined ? 'refused' : `${bytes} bytes`}`, () => {
    assert.equal(parseSizeBytes(text), bytes);
  });
}

test('a size is printed in the largest whole binary unit', () => {
  assert.deepEqual([0, 1000, 1024, 3 * 2 ** 20, 2 ** 40].map(formatSizeBytes), [
    '0 bytes',
    '1000 bytes',
    '1KiB',
    '3MiB',
    '1TiB',
  ]);
});

test('a version is a positive safe integer in its one plain form', () => {
  const names = ['1', '10', '9007199254740991', '0', '01', '-1', '1.0', 'v1', '', ' 1', '1\n', '9007199254740992', '١'];
  assert.deepEqual(names.filter(isVersionName), ['1', '10', '9007199254740991']);
});

test('versions order as numbers', () => {
  assert.deepEqual(['10', '9', '1', '100'].toSorted(compareVersionNames), ['1', '9', '10', '100']);
});
