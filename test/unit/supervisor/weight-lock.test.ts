/** The weight lock by itself: what lies in its file is of no importance, and no place for a file is no reason not to load. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { WeightLock } from '../../../src/supervisor/weight-lock.ts';
import { lock } from '../../../src/system/flock.ts';
import { temporaryDirectory } from '../../support/repository.ts';

const LIMIT_MS = 20_000;

function weightLock(t: TestContext, ...directories: readonly string[]): WeightLock {
  const own = new WeightLock(createLogger('test', 'fatal'), directories);
  t.after(() => own.close());
  return own;
}

const acquire = (own: WeightLock) => own.acquire('model/1 on cpu', AbortSignal.timeout(LIMIT_MS));

// Story: a lock file that named a process which had the same number by chance, or that was empty, was taken for a lock (stale-lock, 51).
for (const [what, content] of [
  ['a living process', `${process.pid}\n`],
  ['a process of another boot', '{"pid":1,"boot_id":"00000000-0000-0000-0000-000000000000"}'],
  ['nobody, being empty', ''],
] as const) {
  test(`a lock file that names ${what} is no lock`, async (t) => {
    const directory = temporaryDirectory(t);
    const file = path.join(directory, 'batchport-weights.lock');
    fs.writeFileSync(file, content);
    const own = weightLock(t, directory);
    await acquire(own);
    const { state, file: used } = own.status();
    assert.deepEqual([state, used], ['holding', file]);
    own.release();
    assert.equal(fs.readFileSync(file, 'utf8'), content);
  });
}

test('a second holder waits for the first and tells who that is; another mode of the file changes nothing', async (t) => {
  const directory = temporaryDirectory(t);
  const file = path.join(directory, 'batchport-weights.lock');
  fs.writeFileSync(file, '', { mode: 0o444 });
  const own = weightLock(t, directory);
  const fd = fs.openSync(file, 'r');
  await lock(fd, 'exclusive', { signal: AbortSignal.timeout(LIMIT_MS) });
  const acquired = acquire(own);
  const { state, holder_pid: holder, model } = own.status();
  assert.deepEqual([state, holder, model], ['waiting', process.pid, 'model/1 on cpu']);
  fs.closeSync(fd);
  await acquired;
  assert.equal(own.status().state, 'holding');
});

test('a wait that is given up leaves the lock to others', async (t) => {
  const directory = temporaryDirectory(t);
  const [one, other] = [weightLock(t, directory), weightLock(t, directory)];
  await acquire(one);
  const stop = new AbortController();
  const waiting = other.acquire('b/1 on cpu', stop.signal);
  stop.abort(new Error('stopped'));
  await assert.rejects(waiting, /stopped/);
  assert.equal(other.status().state, 'free');
  one.release();
  await acquire(other);
});

// Story: once its file had been removed, a server that started later loaded at the same time.
test('a file that is removed is made anew, and who waits for the one before finds that', async (t) => {
  const directory = temporaryDirectory(t);
  const file = path.join(directory, 'batchport-weights.lock');
  const [one, other] = [weightLock(t, directory), weightLock(t, directory)];
  fs.rmSync(file);
  await acquire(one);
  // Removed under the holder, while somebody waits for it.
  const acquired = acquire(other);
  assert.equal(other.status().holder_pid, process.pid);
  fs.rmSync(file);
  const late = weightLock(t, directory);
  await acquire(late);
  one.release();
  const stop = new AbortController();
  const given = assert.rejects(one.acquire('b/1 on cpu', stop.signal), /stopped/);
  assert.equal(one.status().state, 'waiting');
  stop.abort(new Error('stopped'));
  await given;
  assert.equal(other.status().state, 'waiting', 'the file that it has waited for is not the one in place');
  late.release();
  await acquired;
  assert.equal(other.status().state, 'holding');
  assert.equal(one.status().state, 'free');
});

test('where no other file can be had, the one that was removed still keeps those apart who have it', async (t) => {
  const directory = temporaryDirectory(t);
  const [one, other] = [weightLock(t, directory), weightLock(t, directory)];
  fs.rmSync(directory, { recursive: true });
  await acquire(one);
  const acquired = acquire(other);
  assert.equal(other.status().state, 'waiting');
  one.release();
  await acquired;
  assert.equal(other.status().state, 'holding');
});

test('a link, a folder and a missing place are passed over; without any place, loads go on without a lock', async (t) => {
  const directory = temporaryDirectory(t);
  const [link, folder, good] = ['link', 'folder', 'good'].map((name) => path.join(directory, name));
  for (const one of [link!, folder!, good!]) fs.mkdirSync(one);
  fs.symlinkSync(path.join(good!, 'elsewhere'), path.join(link!, 'batchport-weights.lock'));
  fs.mkdirSync(path.join(folder!, 'batchport-weights.lock'));
  const missing = path.join(directory, 'missing');
  const own = weightLock(t, missing, link!, folder!, good!);
  assert.equal(own.status().file, path.join(good!, 'batchport-weights.lock'));
  assert.equal(fs.existsSync(path.join(good!, 'elsewhere')), false);

  const none = weightLock(t, missing);
  await acquire(none);
  assert.deepEqual([none.status().state, none.status().file], ['holding', null]);
  none.release();
});
