/** The pull command: what it prints where, its exit codes, and that it shows no secret. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { DownloadView } from '../../../src/cli/download-view.ts';
import { EXIT } from '../../../src/config/exit-codes.ts';
import { Tracker } from '../../../src/weights/tracker.ts';
import { eventually } from '../../support/idle.ts';
import { temporaryDirectory } from '../../support/repository.ts';
import { PROJECT_DIR } from '../../support/server.ts';
import { madeContent, sha256Of, WeightOrigin } from '../../support/weight-origin.ts';
import { capture } from './capture.ts';

const CONTENT = madeContent(100_000);
const SHA256 = sha256Of(CONTENT);

interface Scene {
  readonly origin: WeightOrigin;
  readonly dir: string;
  pull(...args: string[]): ReturnType<typeof capture>;
}

async function scene(t: TestContext): Promise<Scene> {
  const dir = temporaryDirectory(t, 'pull');
  const origin = await WeightOrigin.start(t, { '/a/model.onnx': CONTENT });
  return {
    origin,
    dir,
    pull: (...args) => capture(['pull', '--cache-dir', path.join(dir, 'cache'), ...args], { cwd: dir }),
  };
}

test('a file is fetched once, and its path is all that goes to stdout', async (t) => {
  const { origin, pull } = await scene(t);
  const url = `${origin.url}/a/model.onnx?sig=secret`;
  const { exitCode, out, err } = await pull(url, '--sha256', SHA256.toUpperCase());
  assert.equal(exitCode, EXIT.OK.code, err);
  assert.match(out, /^\/.*\/model\.onnx\n$/);
  assert.equal(sha256Of(fs.readFileSync(out.trim())), SHA256);
  assert.equal((await pull(url, '--sha256', SHA256)).out, out);
  assert.equal(origin.requests.length, 1);
  assert.doesNotMatch(out + err, /secret/);
});

test('a wrong hash, a missing file and a full cache have an exit code of their own, and the reason with its code', async (t) => {
  const { origin, pull } = await scene(t);
  const url = `${origin.url}/a/model.onnx?sig=secret`;
  for (const [args, pattern] of [
    [[url, '--sha256', sha256Of('other')], /error: http:.* gave 100000 bytes with the sha256 .* \(HASH_MISMATCH\)/],
    [[`${origin.url}/none`, '--sha256', SHA256], /\(NOT_FOUND\)/],
    [
      [url, '--sha256', SHA256, '--weight-credentials', 'none.json'],
      /none\.json cannot be read: ENOENT.*\(CREDENTIALS\)/,
    ],
  ] as const) {
    const { exitCode, out, err } = await pull(...args);
    assert.equal(exitCode, EXIT.WEIGHTS.code);
    assert.equal(out, '');
    assert.match(err, pattern);
    assert.doesNotMatch(err, /secret/);
  }
  origin.put('/large', madeContent(2 ** 20 + 1));
  const large = await pull(`${origin.url}/large`, '--sha256', SHA256, '--weight-cache-max-bytes', '1MiB');
  assert.match(large.err, /the cache may hold 1 MiB.*\(CACHE_FULL\)/);
});

for (const [what, args, pattern] of [
  ['nothing', [], /pull needs a url/],
  ['a URL without a hash', ['http://127.0.0.1/m?secret'], /--sha256 must be given[\s\S]*sha256sum/],
  ['a hash that is none', ['http://127.0.0.1/m?secret', '--sha256', 'abc'], /64 hexadecimal digits/],
  ['a URL with a password', ['http://u:secret@127.0.0.1/m', '--sha256', SHA256], /name or password in it/],
] as const) {
  test(`${what} is a wrong command line`, async (t) => {
    const { pull } = await scene(t);
    const { exitCode, err } = await pull(...args);
    assert.equal(exitCode, EXIT.USAGE.code);
    assert.match(err, pattern);
    assert.doesNotMatch(err, /secret/);
  });
}

// Story: a fetch that is killed leaves what came, and the next one goes on with it: no lock is left, and no byte is asked for twice.
test('a pull that is killed halfway is continued by the next, and leaves nothing else behind', async (t) => {
  const { origin, dir, pull } = await scene(t);
  origin.misbehave = (index) => (index === 0 ? { holdAfterBytes: 60_000 } : undefined);
  const cache = path.join(dir, 'cache');
  const url = `${origin.url}/a/model.onnx`;
  const child = spawn(
    process.execPath,
    [path.join(PROJECT_DIR, 'bin/serve'), 'pull', url, '--sha256', SHA256, '--cache-dir', cache],
    {
      stdio: 'ignore',
      env: { ...process.env, NODE_TEST_CONTEXT: undefined },
    },
  );
  t.after(() => child.kill('SIGKILL'));
  await origin.held();
  const partial = path.join(cache, 'weights/partial');
  await eventually(async () => {
    const sizes = fs.readdirSync(partial).map((name) => fs.statSync(path.join(partial, name)).size);
    return sizes.includes(60_000) ? undefined : `the parts have ${sizes} bytes`;
  });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGKILL');
  await ended;
  const { exitCode, err } = await pull(url, '--sha256', SHA256);
  assert.equal(exitCode, 0, err);
  assert.match(err, /goes on after 60000 bytes/);
  assert.equal(origin.requests.at(-1)!.sentBytes, 40_000);
  assert.equal(origin.requests.length, 2);
  for (const folder of ['partial', 'locks']) assert.deepEqual(fs.readdirSync(path.join(cache, 'weights', folder)), []);
});

test('on a terminal bars are drawn over one another, with bytes, rate and remaining time; what is noted stays', (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'Date'], now: 1_000_000 });
  const trackers = ['model.onnx', 'model.onnx_data'].map((file) => new Tracker(file, SHA256, 'http://host/m'));
  let screen = '';
  const terminal = {
    err: (text: string) => {
      screen += text.replaceAll('\x1b', 'ESC');
    },
    out: () => {},
    env: {},
    cwd: '/',
    columns: 100,
    errColumns: 100,
    programPath: '',
  };
  const view = new DownloadView(
    terminal,
    trackers.map((tracker) => ({ of: 'bert/1', tracker })),
  );
  const [first, second] = trackers as [Tracker, Tracker];
  first.phase = 'receiving';
  first.sizeBytes = 100 * 2 ** 20;
  second.phase = 'pausing';
  second.note = 'the server answered 429; the next attempt is in 5.0 s';
  for (let n = 0; n <= 10; n++) {
    first.at(n * 4 * 2 ** 20, Date.now());
    t.mock.timers.tick(200);
  }
  assert.match(screen, /\[#{8}\.{12}\] bert\/1 model\.onnx {2}40 % of 100 MiB, 18 MiB\/s, 4 s left\n/);
  assert.match(screen, /bert\/1 model\.onnx_data {2}the server answered 429/);
  assert.match(screen, /\n0 of 2 files are there\nESC\[3AESC\[J/);
  view.note({ of: 'bert/1', tracker: first }, 'something to say');
  first.phase = 'done';
  view.close();
  assert.match(screen, /ESC\[J\[[#.]+\] bert\/1 model\.onnx_data[^\n]*\n1 of 2 files are there\n$/);
  assert.match(screen, /bert\/1 model\.onnx: something to say\n/);
});
