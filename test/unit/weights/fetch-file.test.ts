/**
 * One file, from servers that are good and bad in every way that was thought of (truncated-download, 48; corrupt-model-files, 46).
 *
 * After every failure nothing may be at the final path, and no message may show a query.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import type { FaultCode } from '../../../src/weights/fault.ts';
import { WeightFault } from '../../../src/weights/fault.ts';
import { Tracker } from '../../../src/weights/tracker.ts';
import { type Misbehaviour, madeContent, sha256Of, WeightOrigin } from '../../support/weight-origin.ts';
import { FetchRig } from './rig.ts';

const CONTENT = madeContent(300_000);
const SHA256 = sha256Of(CONTENT);

interface Scene {
  readonly origin: WeightOrigin;
  readonly rig: FetchRig;
  readonly url: string;
}

/** @param misbehaviours of the first requests; later ones are answered well */
async function scene(t: TestContext, ...misbehaviours: readonly Misbehaviour[]): Promise<Scene> {
  const origin = await WeightOrigin.start(t, { '/model.onnx': CONTENT });
  origin.misbehave = (index) => misbehaviours[index];
  return { origin, rig: new FetchRig(t), url: `${origin.url}/model.onnx?X-Amz-Signature=secret` };
}

async function assertFails(t: Scene, code: FaultCode, pattern: RegExp, sha256 = SHA256): Promise<void> {
  await assert.rejects(t.rig.fetch(t.url, sha256), (error: unknown) => {
    assert(error instanceof WeightFault, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, pattern);
    assert.doesNotMatch(error.message, /secret/);
    return true;
  });
  assert.deepEqual(fs.readdirSync(t.rig.cache.blobs), []);
}

const partsIn = ({ rig }: Scene) => fs.readdirSync(rig.cache.partial);

async function assertArrives(it: Scene, sha256 = SHA256): Promise<void> {
  const { path: file } = await it.rig.fetch(it.url, sha256);
  assert.equal(sha256Of(fs.readFileSync(file)), sha256);
  assert.equal(fs.statSync(file).mode & 0o777, 0o444);
  assert.deepEqual(partsIn(it), []);
  assert.deepEqual(fs.readdirSync(it.rig.cache.locks), []);
  assert.doesNotMatch(it.rig.notes.join('\n'), /secret/);
}

test('a file comes in one request, and the second time in none', async (t) => {
  const it = await scene(t);
  await assertArrives(it);
  await it.origin.stop();
  await assertArrives(it);
  assert.equal(it.origin.requests.length, 1);
  const { headers } = it.origin.requests[0]!;
  assert.equal(headers['accept-encoding'], 'identity');
  assert.equal(headers.range, undefined);
});

test('a body that is cut is continued from where it ended, on the condition that the file is the same', async (t) => {
  const it = await scene(t, { cutAfterBytes: 100_000 }, { cutAfterBytes: 100_000 });
  await assertArrives(it);
  assert.deepEqual(
    it.origin.requests.map(({ status }) => status),
    [200, 206, 206],
  );
  assert.equal(it.origin.requests[1]!.headers['if-range'], `"${SHA256.slice(0, 16)}"`);
  assert(it.rig.sleeps.every((ms) => ms > 0));
});

test('a server that does not know ranges sends all again, and what came before is not kept', async (t) => {
  const it = await scene(t, { cutAfterBytes: 100_000 }, { ignoreRange: true });
  await assertArrives(it);
  assert.equal(it.origin.requests[1]!.status, 200);
});

test('a file that is replaced between two parts comes whole as it is now', async (t) => {
  const it = await scene(t, { cutAfterBytes: 100_000 });
  const other = madeContent(280_000, 'other');
  it.rig.sleeps.push = (ms: number) => {
    it.origin.put('/model.onnx', other);
    return ms;
  };
  await assertArrives(it, sha256Of(other));
  assert.deepEqual(
    it.origin.requests.map(({ status }) => status),
    [200, 200],
  );
});

test('a file that is replaced by one that is not wanted is not kept', async (t) => {
  const it = await scene(t, { cutAfterBytes: 100_000 });
  it.rig.sleeps.push = (ms: number) => {
    it.origin.put('/model.onnx', madeContent(280_000, 'other'));
    return ms;
  };
  await assertFails(it, 'HASH_MISMATCH', /gave 280000 bytes with the sha256 [0-9a-f]{64}, not /);
  assert.deepEqual(partsIn(it), []);
});

test('without a mark of the file, parts of two files are found out by their size or hash, and all comes again', async (t) => {
  for (const size of [280_000, 300_000]) {
    const other = madeContent(size, 'other');
    const it = await scene(t, { cutAfterBytes: 100_000, withoutTag: true }, { withoutTag: true });
    it.rig.sleeps.push = (ms: number) => {
      it.origin.put('/model.onnx', other);
      return ms;
    };
    await assertArrives(it, sha256Of(other));
    assert.equal(it.origin.requests[1]!.headers['if-range'], undefined);
    assert.equal(it.origin.requests.at(-1)!.headers.range, undefined);
  }
});

test('a body without a length that is cut is not taken for the file', async (t) => {
  const it = await scene(t, { unsized: true, cutAfterBytes: 1000 });
  await assertArrives(it);
  const whole = await scene(t, { unsized: true });
  await assertArrives(whole);
});

test('a server that cuts again and again is given up, and what came is kept for the next time', async (t) => {
  const it = await scene(t, ...Array.from({ length: 20 }, () => ({ cutAfterBytes: 1000 })));
  await assertFails(it, 'INTERRUPTED', /after 8 attempts that did not get on/);
  assert(partsIn(it).some((name) => name.endsWith('.part')));
  it.origin.misbehave = () => undefined;
  await assertArrives(it);
  assert.notEqual(it.origin.requests.at(-1)!.headers.range, undefined);
});

test('a wrong hash is final at once where everything came in one answer', async (t) => {
  const it = await scene(t);
  const wrong = sha256Of('something else');
  await assertFails(it, 'HASH_MISMATCH', new RegExp(`sha256 ${SHA256}, not ${wrong}`), wrong);
  assert.equal(it.origin.requests.length, 1);
  assert.deepEqual(partsIn(it), []);
});

test('a login page that answers 200 is named as what it is', async (t) => {
  const it = await scene(t, { status: 200, body: '<!DOCTYPE html><html>log in</html>' });
  await assertFails(it, 'HASH_MISMATCH', /what came is an HTML or XML page/);
});

test('a compressed body is refused, since it is not what was asked for', async (t) => {
  const it = await scene(t, { headers: { 'content-encoding': 'gzip' } });
  await assertFails(it, 'NOT_A_FILE', /compressed/);
});

for (const [status, code, pattern] of [
  [401, 'ACCESS_DENIED', /the presigned URL may have expired/],
  [403, 'ACCESS_DENIED', /the presigned URL may have expired/],
  [404, 'NOT_FOUND', /there is no such file/],
  [410, 'NOT_FOUND', /there is no such file/],
  [400, 'NOT_A_FILE', /answers 400/],
  [204, 'NOT_A_FILE', /answers 204/],
] as const) {
  test(`status ${status} is final: ${code}`, async (t) => {
    const it = await scene(t, { status });
    await assertFails(it, code, pattern);
    assert.equal(it.origin.requests.length, 1);
    assert.deepEqual(partsIn(it), []);
  });
}

for (const status of [408, 425, 500, 502, 504]) {
  test(`status ${status} is tried again`, async (t) => {
    const it = await scene(t, { status });
    await assertArrives(it);
    assert.equal(it.rig.sleeps.length, 1);
  });
}

for (const status of [429, 503]) {
  test(`status ${status} with Retry-After is obeyed to the second`, async (t) => {
    const it = await scene(
      t,
      { status, headers: { 'retry-after': '7' } },
      { status, headers: { ratelimit: '"a";r=0;t=9' } },
    );
    await assertArrives(it);
    // The random part is 0 here.
    assert.deepEqual(it.rig.sleeps, [7000, 9000]);
    assert.equal(it.origin.requests.length, 3);
  });

  test(`status ${status} without a time is not asked again at once`, async (t) => {
    const it = await scene(t, { status });
    await assertArrives(it);
    assert.equal(it.rig.sleeps.length, 1);
    assert(it.rig.sleeps[0]! >= 1000);
  });
}

test('a server that asks for too long a wait is left alone', async (t) => {
  const it = await scene(t, { status: 429, headers: { 'retry-after': '86400' } });
  await assertFails(it, 'RATE_LIMITED', /asks to wait for 86400 s/);
  assert.equal(it.origin.requests.length, 1);
});

test('a server that never lets anybody in is given up after a bounded number of requests', async (t) => {
  const it = await scene(t, ...Array.from({ length: 100 }, () => ({ status: 429, headers: { 'retry-after': '1' } })));
  await assertFails(it, 'RATE_LIMITED', /to 20 requests in a row/);
  assert.equal(it.origin.requests.length, 20);
});

test('what one file was told holds for the other files of that server, and for other processes with the same cache', async (t) => {
  const it = await scene(t, { status: 429, headers: { 'retry-after': '30' } });
  const started = it.rig.nowMs;
  await it.rig.host().onPause(it.origin.url, 0);
  await assertArrives(it);
  const other = new FetchRig(t, { directory: path.dirname(path.dirname(it.rig.cache.blobs)) });
  other.nowMs = started + 10_000;
  it.origin.put('/other', madeContent(1000));
  await other.fetch(`${it.origin.url}/other`, sha256Of(madeContent(1000)));
  assert.equal(other.sleeps.length, 1);
  assert(Math.abs(other.sleeps[0]! - 20_000) <= 2, `${other.sleeps[0]}`);
});

test('a good answer that was the last of its quota makes the next file wait', async (t) => {
  const it = await scene(t, { headers: { ratelimit: '"default";r=0;t=12' } });
  await assertArrives(it);
  assert.deepEqual(it.rig.sleeps, []);
  it.origin.put('/other', madeContent(1000));
  await it.rig.fetch(`${it.origin.url}/other`, sha256Of(madeContent(1000)));
  assert.deepEqual(it.rig.sleeps, [12_000]);
});

test('a redirect is followed, and what one server is told is not told to the other', async (t) => {
  const it = await scene(t);
  const hub = await WeightOrigin.start(t);
  hub.misbehave = () => ({ status: 302, headers: { location: it.url } });
  it.rig.authorizations.set(hub.url, 'Bearer token');
  const { path: file } = await it.rig.fetch(`${hub.url}/org/model/resolve/main/model.onnx`, SHA256);
  assert.equal(sha256Of(fs.readFileSync(file)), SHA256);
  assert.equal(hub.requests[0]!.headers.authorization, 'Bearer token');
  assert.equal(it.origin.requests[0]!.headers.authorization, undefined);
});

test('a resumed transfer asks the first server again, since the address it redirects to may have expired', async (t) => {
  const it = await scene(t, { cutAfterBytes: 100_000 });
  const hub = await WeightOrigin.start(t);
  hub.misbehave = () => ({ status: 307, headers: { location: it.url } });
  await it.rig.fetch(`${hub.url}/model`, SHA256);
  assert.equal(hub.requests.length, 2);
  assert.notEqual(it.origin.requests[1]!.headers.range, undefined);
});

for (const [what, location, pattern] of [
  ['to itself for ever', '/model.onnx', /more than 5 times/],
  ['to nowhere', '', /redirects to an address that is none/],
  ['to a file of the host', 'file:///etc/passwd', /does not begin with https/],
] as const) {
  test(`a redirect ${what} is an error`, async (t) => {
    const it = await scene(t, ...Array.from({ length: 10 }, () => ({ status: 302, headers: { location } })));
    await assertFails(it, 'NOT_A_FILE', pattern);
    assert(it.origin.requests.length <= 6);
  });
}

test('nobody at the address: tried a bounded number of times, with waits that grow', async (t) => {
  const it = await scene(t);
  await it.origin.stop();
  await assertFails(it, 'INTERRUPTED', /ECONNREFUSED, after 8 attempts/);
  assert.equal(it.rig.sleeps.length, 7);
});

test('a server that restarts in the middle is waited for', async (t) => {
  const it = await scene(t, { holdAfterBytes: 100_000 });
  const fetched = assertArrives(it);
  await it.origin.held();
  await it.origin.stop();
  await it.origin.start();
  await fetched;
  assert.equal(it.origin.requests.length, 2);
  assert.equal(it.origin.requests[1]!.status, 206);
});

test('a part that is longer than the file, or of another place, is thrown away', async (t) => {
  const it = await scene(t, { cutAfterBytes: 250_000 });
  const short = madeContent(100_000, 'short');
  it.rig.sleeps.push = (ms: number) => {
    it.origin.put('/model.onnx', short);
    return ms;
  };
  it.origin.misbehave = (index) => [{ cutAfterBytes: 250_000, withoutTag: true }][index];
  await assertArrives(it, sha256Of(short));
  assert.deepEqual(
    it.origin.requests.map(({ status }) => status),
    [200, 416, 200],
  );
  const odd = await scene(t, { cutAfterBytes: 1000 }, { headers: { 'content-range': 'bytes 5-299999/300000' } });
  await assertArrives(odd);
});

test('a part that was whole when its process died needs no request', async (t) => {
  const it = await scene(t);
  fs.writeFileSync(path.join(it.rig.cache.partial, `${SHA256}.left.part`), CONTENT);
  await assertArrives(it);
  assert.equal(it.origin.requests.length, 0);
});

test('a spoilt part is found out by the hash, once, and the file comes anew', async (t) => {
  const it = await scene(t);
  fs.writeFileSync(path.join(it.rig.cache.partial, `${SHA256}.left.part`), Buffer.alloc(100_000));
  await assertArrives(it);
  assert.deepEqual(
    it.origin.requests.map(({ status }) => status),
    [206, 200],
  );
});

test('two that want the same file fetch it once, and the second sees how far the first is', async (t) => {
  const it = await scene(t, { holdAfterBytes: 100_000 });
  const first = it.rig.fetch(it.url, SHA256);
  await it.origin.held();
  const tracker = new Tracker('model.onnx', SHA256, '');
  const second = it.rig.fetch(it.url, SHA256, tracker);
  assert.equal(tracker.phase, 'waiting');
  assert.match(tracker.note, new RegExp(`process ${process.pid} fetches it`));
  it.origin.release();
  assert.equal((await first).path, (await second).path);
  assert.equal(it.origin.requests.length, 1);
  assert.equal(tracker.phase, 'done');
});

test('a stop leaves what has come to the next one, and no lock', async (t) => {
  const it = await scene(t, { holdAfterBytes: 100_000 });
  const fetched = it.rig.fetch(it.url, SHA256);
  await it.origin.held();
  it.rig.stop.abort(new Error('stopped'));
  await assert.rejects(fetched, /stopped/);
  assert.deepEqual(fs.readdirSync(it.rig.cache.locks), []);
  const next = new FetchRig(t, { directory: path.dirname(path.dirname(it.rig.cache.blobs)) });
  await next.fetch(it.url, SHA256);
  assert.equal(it.origin.requests.length, 2);
});
