import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { CacheFolder, ENTRIES_MAX } from '../../../src/supervisor/cache-folder.ts';
import { temporaryDirectory } from '../../support/repository.ts';

const log = createLogger('test', 'fatal');
const numbers = (dir: string) =>
  new CacheFolder<number>(dir, 'numbers', log, (value) => (typeof value === 'number' ? value : undefined));

test('a fact is found again under its own identity, also by another process', (t) => {
  const dir = temporaryDirectory(t, 'cache');
  numbers(dir).put('one', 1);
  numbers(dir).put('two', 2);
  assert.deepEqual(
    ['one', 'two', 'three'].map((name) => numbers(dir).get(name)),
    [1, 2, undefined],
  );
  numbers(dir).put('one', 11);
  assert.equal(numbers(dir).get('one'), 11);
});

test('what is no fact is not given out, and a folder that cannot be used harms nobody', (t) => {
  const dir = temporaryDirectory(t, 'cache');
  numbers(dir).put('one', 1);
  const [name] = fs.readdirSync(path.join(dir, 'numbers'));
  fs.writeFileSync(path.join(dir, 'numbers', name!), '"text"');
  assert.equal(numbers(dir).get('one'), undefined);
  const blocked = path.join(dir, 'file');
  fs.writeFileSync(blocked, '');
  numbers(blocked).put('one', 1);
  assert.equal(numbers(blocked).get('one'), undefined);
});

test('the folder does not grow without end: the oldest go first', (t) => {
  const dir = temporaryDirectory(t, 'cache');
  const cache = numbers(dir);
  cache.put('oldest', 0);
  const [name] = fs.readdirSync(path.join(dir, 'numbers'));
  fs.utimesSync(path.join(dir, 'numbers', name!), 1, 1);
  for (let n = 0; n < ENTRIES_MAX; n++) fs.writeFileSync(path.join(dir, 'numbers', `${n}.json`), '0');
  cache.put('newest', 1);
  assert.equal(fs.readdirSync(path.join(dir, 'numbers')).length, ENTRIES_MAX);
  assert.deepEqual([cache.get('oldest'), cache.get('newest')], [undefined, 1]);
});
