/** Generated files: current in the repository, and made from the tables by their markers. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { generatedFiles, withTables } from '../../../src/cli/generated.ts';

// The compiled test lies in dist/test/unit/cli.
const root = fileURLToPath(new URL('../../../..', import.meta.url));

test('the JSON Schemas and the tables of the README are what the code says; npm run generate refreshes them', () => {
  for (const [path, content] of generatedFiles(root)) {
    assert.equal(readFileSync(join(root, path), 'utf8'), content, `${path} is not current`);
  }
});

test('a table replaces what stands between its markers, and nothing else', () => {
  const text = 'before\n<!-- exit-codes:begin -->\nold\n<!-- exit-codes:end -->\nafter\n';
  const refreshed = withTables(text);
  assert.match(
    refreshed,
    /^before\n<!-- exit-codes:begin -->\n\n\| Exit code \|[\s\S]*\n\n<!-- exit-codes:end -->\nafter\n$/,
  );
  assert.doesNotMatch(refreshed, /old/);
  assert.equal(withTables(refreshed), refreshed);
});

test('a marker without a partner or without a table is an error', () => {
  assert.throws(() => withTables('<!-- settings:begin -->\n'), /no partner/);
  assert.throws(() => withTables('<!-- settings:begin -->\n<!-- errors:end -->\n'), /no partner/);
  assert.throws(() => withTables('<!-- nothing:begin -->\n<!-- nothing:end -->\n'), /no table "nothing"/);
});

test('errors and metrics have their tables', () => {
  const errors = withTables('<!-- errors:begin -->\n<!-- errors:end -->\n');
  assert.match(errors, /\| `QUEUE_FULL` \| 429 \| `RESOURCE_EXHAUSTED` \| 1 s \| /);
  assert.match(errors, /\| `BAD_TENSOR` \| 400 \| `INVALID_ARGUMENT` \| {2}\| /);
});
