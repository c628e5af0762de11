/** What is removed to make room, and what never is. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { WeightCache } from '../../../src/weights/cache.ts';
import { WeightFault } from '../../../src/weights/fault.ts';
import { filesDirectory, linkFiles } from '../../../src/weights/model-files.ts';
import { Partial } from '../../../src/weights/partial.ts';
import { cacheUse, makeRoom, removeUnused, sweep } from '../../../src/weights/room.ts';
import { type CleanUp, temporaryDirectory } from '../../support/repository.ts';
import { sha256Of } from '../../support/weight-origin.ts';

const DAY_MS = 24 * 3600 * 1000;

function cacheOf(cleanUp: CleanUp, maxBytes?: number): WeightCache {
  const cache = new WeightCache(temporaryDirectory(cleanUp, 'weights'), maxBytes);
  cache.prepare();
  return cache;
}

/** A file that was last wanted so many days ago. */
function add(cache: WeightCache, name: string, bytes: number, daysAgo: number): string {
  const content = Buffer.alloc(bytes, name);
  const sha256 = sha256Of(content);
  const then = new Date(Date.now() - daysAgo * DAY_MS);
  fs.writeFileSync(cache.blobPath(sha256), content, { mode: 0o444 });
  fs.utimesSync(cache.blobPath(sha256), then, then);
  return sha256;
}

const has = (cache: WeightCache, sha256: string) => fs.existsSync(cache.blobPath(sha256));

test('what has not been wanted for longest goes first, and no more than has to', (t) => {
  const cache = cacheOf(t, 1000);
  const [old, older, young] = [add(cache, 'old', 300, 2), add(cache, 'older', 300, 3), add(cache, 'young', 300, 1)];
  makeRoom(cache, 300, '');
  assert.deepEqual(
    [older, old, young].map((sha256) => has(cache, sha256)),
    [false, true, true],
  );
  assert.deepEqual(cacheUse(cache), { files: 2, usedBytes: 600 });
});

test('wanting a file makes it young, and leaves its modification time', (t) => {
  const cache = cacheOf(t, 1000);
  const [old, young] = [add(cache, 'old', 500, 9), add(cache, 'young', 500, 1)];
  const { mtimeMs } = fs.statSync(cache.blobPath(old));
  cache.lease(old)!.release();
  assert.equal(fs.statSync(cache.blobPath(old)).mtimeMs, mtimeMs);
  makeRoom(cache, 100, '');
  assert.deepEqual(
    [old, young].map((sha256) => has(cache, sha256)),
    [true, false],
  );
});

test('what is in use is never removed, however old it is, and the message says that it is in use', (t) => {
  const cache = cacheOf(t, 1000);
  const [used, unused] = [add(cache, 'used', 600, 9), add(cache, 'unused', 300, 1)];
  const lease = cache.lease(used)!;
  fs.utimesSync(cache.blobPath(used), new Date(0), new Date(0));
  assert.throws(
    () => makeRoom(cache, 500, ''),
    (error: unknown) => {
      assert(error instanceof WeightFault);
      assert.equal(error.code, 'CACHE_FULL');
      assert.match(
        error.message,
        /the file has 500 bytes, the cache may hold 1000 bytes, and 600 bytes of the cache are in use/,
      );
      return true;
    },
  );
  assert.deepEqual(
    [used, unused].map((sha256) => has(cache, sha256)),
    [true, false],
  );
  lease.release();
  makeRoom(cache, 500, '');
  assert.equal(has(cache, used), false);
});

test('a file that could never fit removes nothing', (t) => {
  const cache = cacheOf(t, 1000);
  const sha256 = add(cache, 'there', 900, 9);
  assert.throws(() => makeRoom(cache, 1001, ''), { code: 'CACHE_FULL' });
  assert.throws(() => makeRoom(cacheOf(t), 2 ** 50, ''), { code: 'DISK_FULL' });
  assert(has(cache, sha256));
});

test('parts that nobody writes to go before files, one that is written to does not', async (t) => {
  const cache = cacheOf(t, 100_000);
  const sha256 = add(cache, 'file', 50_000, 30);
  const forgotten = path.join(cache.partial, `${sha256Of('forgotten')}.1.part`);
  fs.writeFileSync(forgotten, Buffer.alloc(40_000));
  fs.writeFileSync(forgotten.replace('.part', '.json'), '{}');
  const written = await Partial.open(cache, sha256Of('written'), new AbortController().signal);
  t.after(() => written.close());
  await written.append(Buffer.alloc(1000));
  makeRoom(cache, 20_000, written.path);
  assert(has(cache, sha256));
  assert.deepEqual(fs.readdirSync(cache.partial), [path.basename(written.path)]);
  assert.throws(() => makeRoom(cache, 100_001, ''), { code: 'CACHE_FULL' });
});

test('room that a part has reserved counts as held', async (t) => {
  const cache = cacheOf(t, 2 ** 20);
  const part = await Partial.open(cache, sha256Of('reserved'), new AbortController().signal);
  t.after(() => part.close());
  part.reserve(2 ** 20);
  if (fs.statSync(part.path).blocks === 0) {
    t.skip('the file system of the test cannot reserve room');
    return;
  }
  assert.throws(() => makeRoom(cache, 4096, ''), { code: 'CACHE_FULL' });
  makeRoom(cache, 2 ** 20, part.path);
});

test("a file that goes takes the directory of its model with it, and no other model's", (t) => {
  const cache = cacheOf(t);
  const [a, b] = [add(cache, 'a', 10, 1), add(cache, 'b', 10, 1)];
  const one = [{ path: 'model.onnx', url: '', sha256: a }];
  const two = [{ path: 'deep/model.onnx', url: '', sha256: b }];
  linkFiles(cache, one);
  linkFiles(cache, two);
  linkFiles(cache, two);
  const file = path.join(filesDirectory(cache, two), 'deep/model.onnx');
  assert.equal(fs.statSync(file).ino, fs.statSync(cache.blobPath(b)).ino);
  assert.deepEqual(fs.readdirSync(path.dirname(file)), ['model.onnx']);
  const lease = cache.lease(b)!;
  assert.equal(removeUnused(cache, cache.blobPath(b)), false);
  assert(fs.existsSync(file));
  lease.release();
  assert.equal(removeUnused(cache, cache.blobPath(b)), true);
  assert.equal(fs.existsSync(filesDirectory(cache, two)), false);
  assert(fs.existsSync(path.join(filesDirectory(cache, one), 'model.onnx')));
  assert.equal(cache.lease(b), undefined);
});

test('a link to a file that has been removed and fetched anew is made anew', (t) => {
  const cache = cacheOf(t);
  const sha256 = add(cache, 'a', 10, 1);
  const files = [{ path: 'model.onnx', url: '', sha256 }];
  linkFiles(cache, files);
  fs.rmSync(cache.blobPath(sha256));
  add(cache, 'a', 10, 1);
  linkFiles(cache, files);
  const linked = path.join(filesDirectory(cache, files), 'model.onnx');
  assert.equal(fs.statSync(linked).ino, fs.statSync(cache.blobPath(sha256)).ino);
});

test('what was left behind long ago is swept away, what is young or in use is not', async (t) => {
  const cache = cacheOf(t);
  const long = new Date(Date.now() - 8 * DAY_MS);
  const put = (directory: string, name: string, then = long) => {
    const file = path.join(directory, name);
    fs.writeFileSync(file, 'x');
    fs.utimesSync(file, then, then);
    return file;
  };
  const kept = [
    put(cache.partial, `${sha256Of('young')}.1.part`, new Date()),
    put(cache.partial, `${sha256Of('young')}.1.json`, new Date()),
    put(cache.locks, sha256Of('young'), new Date()),
    put(cache.pauses, 'future', new Date(Date.now() + DAY_MS)),
  ];
  const gone = [
    put(cache.partial, `${sha256Of('old')}.1.part`),
    put(cache.partial, `${sha256Of('old')}.1.json`),
    put(cache.partial, `${sha256Of('orphan')}.1.json`),
    put(cache.locks, sha256Of('old')),
    put(cache.pauses, 'past'),
  ];
  const own = await Partial.open(cache, sha256Of('own'), new AbortController().signal);
  t.after(() => own.close());
  await own.append(Buffer.from('x'));
  fs.utimesSync(own.path, long, long);
  sweep(cache, Date.now());
  assert.deepEqual(
    kept.map((file) => fs.existsSync(file)),
    kept.map(() => true),
  );
  assert.deepEqual(
    gone.map((file) => fs.existsSync(file)),
    gone.map(() => false),
  );
  assert(fs.existsSync(own.path));
});

test('a name that is no hash never becomes a path', (t) => {
  const cache = cacheOf(t);
  for (const name of ['', '..', '../../etc/passwd', 'A'.repeat(64), `${'a'.repeat(63)}\n`]) {
    assert.throws(() => cache.blobPath(name), /bug/);
  }
});

test('a cache that cannot be written to says so', (t) => {
  const directory = temporaryDirectory(t, 'weights');
  fs.writeFileSync(path.join(directory, 'weights'), 'a file where the directory would be');
  assert.throws(() => new WeightCache(directory).prepare(), { code: 'CACHE_UNUSABLE' });
});
