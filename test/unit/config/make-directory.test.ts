import assert from 'node:assert/strict';
import { statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { makeDirectory } from '../../../src/config/make-directory.ts';
import { temporaryDirectory } from '../../support/repository.ts';

test('a directory and those above it are made, and may be there already', (t) => {
  const dir = path.join(temporaryDirectory(t), 'a', 'b', 'c');
  makeDirectory(dir, 0o700);
  makeDirectory(dir, 0o700);
  for (const made of [dir, path.dirname(dir)]) assert.equal(statSync(made).mode & 0o777, 0o700);
});

test('where nothing can be made the error comes at once', (t) => {
  const file = path.join(temporaryDirectory(t), 'file');
  writeFileSync(file, '');
  assert.throws(() => makeDirectory(file, 0o700), { code: 'EEXIST' });
  assert.throws(() => makeDirectory(path.join(file, 'a', 'b'), 0o700), { code: 'ENOTDIR' });
  // There, mkdir says ENOENT for ever.
  assert.throws(() => makeDirectory('/proc/batchport-test/a', 0o700), { code: 'ENOENT' });
});
