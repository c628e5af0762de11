/**
 * Two servers on one empty cache want the same weights, and the one that fetches them is killed halfway: the other goes on at once with what has come, so that the bytes
 * go over the network once. And the one that is started again asks for nothing.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { eventually } from '../support/idle.ts';
import { modelFiles } from '../support/models.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { sha256Of, WeightOrigin } from '../support/weight-origin.ts';

test('the fetcher of weights is killed: another server resumes, and all bytes come once', async (t) => {
  const dir = temporaryDirectory(t, 'weights');
  const content = Buffer.from(modelFiles('conv').model);
  const half = Math.floor(content.length / 2);
  const origin = await WeightOrigin.start(t, { '/conv': content });
  origin.misbehave = (index) => (index === 0 ? { holdAfterBytes: half } : undefined);
  const repository = makeRepository(t, {});
  repository.writeConfig('conv', { source: { url: `${origin.url}/conv`, sha256: sha256Of(content) } });
  const args = ['--cache-dir', path.join(dir, 'cache'), '--runtime-dir', path.join(dir, 'run')];
  const first = launchServer(t, { repository: repository.dir, args });
  await origin.held();
  const second = launchServer(t, { repository: repository.dir, args });
  await second.log(({ msg, what }) => msg === 'weights' && what === `process ${first.pid} fetches it`);
  const partial = path.join(dir, 'cache/weights/partial');
  await eventually(async () => {
    const [name] = fs.readdirSync(partial).filter((one) => one.endsWith('.part'));
    return fs.statSync(path.join(partial, name ?? '')).size === half ? undefined : 'the half is not there yet';
  });
  await first.kill();
  await second.ready();
  assert.deepEqual(
    origin.requests.map(({ status, sentBytes }) => [status, sentBytes]),
    [
      [200, half],
      [206, content.length - half],
    ],
  );
  const third = launchServer(t, { repository: repository.dir, args });
  await third.ready();
  assert.equal(origin.requests.length, 2);
  for (const folder of ['partial', 'locks', 'pauses']) {
    assert.deepEqual(fs.readdirSync(path.join(dir, 'cache/weights', folder)), []);
  }
});
