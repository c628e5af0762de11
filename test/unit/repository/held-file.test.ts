/** A file that is kept while its name is given to another one. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { HeldFile } from '../../../src/repository/held-file.ts';
import { temporaryDirectory } from '../../support/repository.ts';

function makeFile(t: TestContext): { file: HeldFile; name: string; replace: (content: string) => void } {
  const name = path.join(temporaryDirectory(t, 'held'), 'model.onnx');
  fs.writeFileSync(name, 'old');
  const file = new HeldFile(name);
  t.after(() => file.release());
  const replace = (content: string): void => {
    fs.writeFileSync(`${name}.new`, content);
    fs.renameSync(`${name}.new`, name);
  };
  return { file, name, replace };
}

const contentOf = (file: HeldFile) => fs.readFileSync(file.source, 'utf8');

test('it is read by its name as long as that is its own, and through this process afterwards', (t) => {
  const { file, name, replace } = makeFile(t);
  file.hold();
  assert.equal(file.source, name);
  replace('a new one');
  assert.match(file.source, /^\/proc\/\d+\/fd\/\d+$/);
  assert.equal(contentOf(file), 'old');
  fs.rmSync(name);
  assert.equal(contentOf(file), 'old');
  file.release();
  assert.equal(file.source, name);
});

test('one that was replaced before it could be held is not taken for the old one', (t) => {
  const { file, replace } = makeFile(t);
  replace('a new one');
  file.hold();
  assert.equal(contentOf(file), 'a new one');
});

test('one that has been written over is read by its name', (t) => {
  const { file, name, replace } = makeFile(t);
  file.hold();
  fs.writeFileSync(name, 'written over');
  assert.equal(file.source, name);
  replace('mended');
  assert.equal(contentOf(file), 'mended');
});

test('another look takes the file that is there now', (t) => {
  const { file, replace } = makeFile(t);
  const { stamp } = file;
  assert(!file.hasChanged);
  replace('a new one');
  assert(file.hasChanged);
  file.look();
  assert(!file.hasChanged);
  assert.notEqual(file.stamp, stamp);
  file.hold();
  replace('a third');
  assert.equal(contentOf(file), 'a new one');
});

test('a change of a file beside it that it names is one of its own, and so is one that comes or goes', (t) => {
  const { file, name } = makeFile(t);
  const weights = `${name}_data`;
  const stamps = new Set([file.stamp]);
  const tell = () => stamps.add(file.stamp).size;
  fs.writeFileSync(weights, 'old');
  assert(!file.hasChanged, 'nothing names it');
  file.names([weights]);
  assert(!file.hasChanged);
  assert.equal(tell(), 2);
  fs.writeFileSync(weights, 'a new one');
  file.names([weights]);
  assert(file.hasChanged);
  assert.equal(tell(), 3);
  fs.rmSync(weights);
  assert(file.hasChanged);
  assert.equal(tell(), 4);
  file.look();
  file.names([weights]);
  assert(!file.hasChanged);
  fs.writeFileSync(weights, 'back');
  assert(file.hasChanged);
});

test('what is held is one model, whatever becomes of its name', (t) => {
  const { file, replace } = makeFile(t);
  file.hold();
  const { stamp } = file;
  replace('a new one');
  assert.equal(file.stamp, stamp);
  assert(file.hasChanged);
});

test('descriptors are given back', (t) => {
  const { file } = makeFile(t);
  const count = () => fs.readdirSync('/proc/self/fd').length;
  const before = count();
  for (let n = 0; n < 10; n++) {
    file.hold();
    file.hold();
    file.look();
  }
  file.hold();
  file.release();
  file.release();
  assert.equal(count(), before);
});
