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

test('a directory that cannot be used is logged once, and again only after it could', (t) => {
  const dir = temporaryDirectory(t, 'cache');
  const said: string[] = [];
  const listening = { warn: (_: object, text: string) => said.push(text) } as unknown as typeof log;
  const cache = new CacheFolder<number>(dir, 'numbers', listening, () => undefined);
  const blocked = path.join(dir, 'numbers');
  const putTwice = () => {
    for (const fact of [1, 2]) cache.put('one', fact);
  };
  fs.writeFileSync(blocked, '');
  putTwice();
  assert.equal(said.length, 1);
  fs.rmSync(blocked);
  putTwice();
  assert.deepEqual([said.length, fs.readdirSync(blocked).length], [1, 1]);
  fs.rmSync(blocked, { recursive: true });
  fs.writeFileSync(blocked, '');
  putTwice();
  assert.equal(said.length, 2);
});

test('a fact that could not be kept leaves no file behind', (t) => {
  const dir = temporaryDirectory(t, 'cache');
  numbers(dir).put('one', 1);
  const [name] = fs.readdirSync(path.join(dir, 'numbers'));
  fs.rmSync(path.join(dir, 'numbers', name!));
  fs.mkdirSync(path.join(dir, 'numbers', name!)); // what is written cannot be renamed to a directory
  numbers(dir).put('one', 2);
  assert.deepEqual(fs.readdirSync(path.join(dir, 'numbers')), [name]);
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
