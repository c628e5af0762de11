/**
 * Models whose weights come from a URL (`source` in config.json or models.json): fetched before they are loaded, while others are served; started from the cache
 * without a network; replaced and let go; and told about while they come.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { WeightCache } from '../../src/weights/cache.ts';
import { removeUnused } from '../../src/weights/room.ts';
import { assertRefused, get, infer, json, jsonBody, send } from '../support/exchange.ts';
import { EXTERNAL_FILE } from '../support/fixtures-compute.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { eventually } from '../support/idle.ts';
import { modelFiles } from '../support/models.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, startServer, type TestServer } from '../support/server.ts';
import { sha256Of, WeightOrigin } from '../support/weight-origin.ts';

const PLUS = Buffer.from(plusModel(1));
const OTHER = Buffer.from(plusModel(2));

interface Status {
  readonly server: { readonly ready: boolean; readonly reason: string };
  readonly models: readonly { name: string; version: string; state: string; reason: string; file_bytes: number }[];
  readonly weights: {
    readonly received_bytes: number;
    readonly requests: number;
    readonly cache: { readonly files: number; readonly used_bytes: number };
    readonly downloads: readonly Record<string, unknown>[];
  } | null;
}

/** The status of a server that is not ready yet: its addresses are in the runtime directory. */
async function earlyStatus(server: TestServer, runtimeDir: string): Promise<Status> {
  const file = path.join(runtimeDir, `server-${server.pid}.json`);
  let text = '';
  await eventually(async () => {
    text = fs.existsSync(file) ? fs.readFileSync(file, 'utf8') : '';
    return text.endsWith('\n') ? undefined : 'the server has not written its addresses';
  });
  const { metrics } = JSON.parse(text) as { metrics: string };
  return json(await get(metrics, '/status')) as unknown as Status;
}

const statusOf = async (server: TestServer): Promise<Status> => (await server.status()) as unknown as Status;

async function valueOfTen(server: TestServer, model: string): Promise<number> {
  const answer = await infer(
    server.url,
    model,
    jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[10]}]}'),
  );
  assert.equal(answer.status, 200, answer.body.toString());
  return (json(answer).outputs as { data: number[] }[])[0]!.data[0]!;
}

function args(dir: string, ...more: readonly string[]): readonly string[] {
  return ['--cache-dir', path.join(dir, 'cache'), '--runtime-dir', path.join(dir, 'run'), ...more];
}

test('while weights come, others are served and figures are told; then they are served, and the next start needs no network', async (t) => {
  const dir = temporaryDirectory(t, 'weights');
  const { model, sideFiles } = modelFiles('external');
  const side = Buffer.from(sideFiles!.get(EXTERNAL_FILE)!);
  const origin = await WeightOrigin.start(t, { '/plus': PLUS, '/external': Buffer.from(model), '/side': side });
  origin.misbehave = (index) => (index === 0 ? { holdAfterBytes: 20 } : undefined);
  const repository = makeRepository(t, { local: { fixture: 'id_fp32' } });
  const files = [
    { path: 'model.onnx', url: `${origin.url}/external`, sha256: sha256Of(model) },
    { path: EXTERNAL_FILE, url: `${origin.url}/side`, sha256: sha256Of(side) },
  ];
  const plus = { source: { url: `${origin.url}/plus?sig=secret`, sha256: sha256Of(PLUS), version: 3 } };
  repository.writeFile(['models.json'], JSON.stringify({ models: { plus } }));
  const server = launchServer(t, { repository: repository.dir, args: args(dir) });
  await origin.held();
  let status = await earlyStatus(server, path.join(dir, 'run'));
  await eventually(async () => {
    status = await earlyStatus(server, path.join(dir, 'run'));
    const local = status.models.find(({ name }) => name === 'local');
    const bytes = status.weights?.downloads[0]?.bytes;
    return local?.state === 'READY' && bytes === 20 ? undefined : JSON.stringify(status.models);
  });
  assert.equal(status.server.ready, false);
  assert.match(status.server.reason, /plus\/3: its weights are fetched: model\.onnx: \d+ % of \d+ bytes/);
  const loading = status.models.find(({ name }) => name === 'plus')!;
  assert.deepEqual([loading.state, loading.version], ['LOADING', '3']);
  assert.match(loading.reason, /its weights are fetched/);
  const [download] = status.weights!.downloads;
  assert.deepEqual(
    [download!.models, download!.file, download!.state, download!.size_bytes, download!.url],
    [['plus/3'], 'model.onnx', 'receiving', PLUS.length, `${origin.url}/plus?…`],
  );
  origin.release();
  await server.ready();
  assert.equal(await valueOfTen(server, 'plus'), 11);
  status = await statusOf(server);
  assert.deepEqual(status.weights!.downloads, []);
  assert.equal(status.weights!.received_bytes, PLUS.length);
  assert.equal(status.models.find(({ name }) => name === 'plus')!.file_bytes, PLUS.length);
  assert.equal(await server.metric('batchport_weight_received_bytes_total'), PLUS.length);
  assert.equal(await server.metric('batchport_weight_cache_bytes'), PLUS.length);
  await server.stop();
  assert.doesNotMatch(server.logs.map((line) => JSON.stringify(line)).join('\n'), /secret/);

  // A model of two files, the second of which the first names.
  repository.writeConfig('external', { source: { files } });
  const second = await startServer(t, { repository: repository.dir, args: args(dir) });
  assert.equal(origin.requests.length, 3);
  assert.deepEqual(
    (await statusOf(second)).models.map(({ name, state }) => [name, state]),
    [
      ['external', 'READY'],
      ['local', 'READY'],
      ['plus', 'READY'],
    ],
  );
  await second.stop();

  await origin.stop();
  const offline = await startServer(t, { repository: repository.dir, args: args(dir) });
  assert.equal(await valueOfTen(offline, 'plus'), 11);
  assert.equal((await statusOf(offline)).weights!.requests, 0);
});

test('weights that cannot be had leave the others serving, with the reason; they come when they can', async (t) => {
  const dir = temporaryDirectory(t, 'weights');
  const origin = await WeightOrigin.start(t, { '/other': OTHER });
  const repository = makeRepository(t, {});
  const sources = {
    late: { url: `${origin.url}/late?sig=secret`, sha256: sha256Of(PLUS) },
    wrong: { url: `${origin.url}/other`, sha256: sha256Of(PLUS) },
    good: { url: `${origin.url}/other`, sha256: sha256Of(OTHER) },
  };
  const models = Object.fromEntries(Object.entries(sources).map(([name, source]) => [name, { source }]));
  repository.writeFile(['models.json'], JSON.stringify({ models }));
  const server = await startServer(t, { repository: repository.dir, args: args(dir) });
  assert.equal(await valueOfTen(server, 'good'), 12);
  const body = jsonBody('{"inputs":[]}');
  assertRefused(
    await infer(server.url, 'late', body),
    'NOT_READY',
    /could not be fetched: .*\/late\?… answers 404.*\(NOT_FOUND\)/,
  );
  assertRefused(
    await infer(server.url, 'wrong', body),
    'NOT_READY',
    /gave \d+ bytes with the sha256 .*\(HASH_MISMATCH\)/,
  );
  origin.put('/late', PLUS);
  const asked = origin.requests.filter(({ path: file }) => file === '/other').length;
  server.signal('SIGHUP');
  await eventually(async () => {
    const { models: now } = await statusOf(server);
    return now.find(({ name }) => name === 'late')?.state === 'READY' ? undefined : 'it is not ready';
  });
  assert.equal(await valueOfTen(server, 'late'), 11);
  // It had the bytes of the hash in the meantime, from the other model's address.
  await eventually(async () => {
    const { models: now } = await statusOf(server);
    const { state, reason } = now.find(({ name }) => name === 'wrong')!;
    return state === 'READY' || /HASH_MISMATCH/.test(reason) ? undefined : `${state} ${reason}`;
  });
  assert(origin.requests.filter(({ path: file }) => file === '/other').length <= asked + 1);
  assert.doesNotMatch(server.logs.map((line) => JSON.stringify(line)).join('\n'), /secret/);
});

test('a cache that cannot be used keeps nobody from serving what needs none', async (t) => {
  const dir = temporaryDirectory(t, 'weights');
  const repository = makeRepository(t, { local: { fixture: 'id_fp32' } });
  repository.writeConfig('remote', { source: { url: 'http://127.0.0.1:9/m', sha256: sha256Of(PLUS) } });
  fs.mkdirSync(path.join(dir, 'cache'));
  fs.writeFileSync(path.join(dir, 'cache/weights'), 'a file');
  const server = await startServer(t, { repository: repository.dir, args: args(dir) });
  const { models } = await statusOf(server);
  assert.equal(models.find(({ name }) => name === 'local')!.state, 'READY');
  assert.match(models.find(({ name }) => name === 'remote')!.reason, /\(CACHE_UNUSABLE\)/);
});

describe('models that come and go', async () => {
  const clean = { after };
  const dir = temporaryDirectory(clean, 'weights');
  const origin = await WeightOrigin.start(clean, { '/plus': PLUS, '/other': OTHER });
  const repository = makeRepository(clean, {});
  const write = (file: string, content: Buffer, more: object = {}) =>
    repository.writeConfig('model', { source: { url: `${origin.url}/${file}`, sha256: sha256Of(content) }, ...more });
  write('plus', PLUS);
  const server = launchServer(clean, {
    repository: repository.dir,
    args: args(dir, '--model-control-mode', 'explicit', '--load-model', '*'),
  });
  const post = (what: string, body = '') =>
    send(server.url, `/v2/repository/${what}`, {
      headers: [['Content-Type', 'application/json']],
      body: Buffer.from(body),
    });
  const cache = new WeightCache(path.join(dir, 'cache'));

  test('another hash is another model, which takes over; another URL of the same is none', async () => {
    await server.ready();
    assert.equal(await valueOfTen(server, 'model'), 11);
    write('other', OTHER);
    const loaded = await post('models/model/load');
    assert.equal(loaded.status, 200, loaded.body.toString());
    assert.equal(await valueOfTen(server, 'model'), 12);
    const asked = origin.requests.length;
    write('other?another=signature', OTHER);
    assert.equal((await post('models/model/load')).status, 200);
    assert.equal(await valueOfTen(server, 'model'), 12);
    assert.equal(origin.requests.length, asked);
  });

  test('what is served stays in the cache, what has been replaced need not', async () => {
    assert.equal(removeUnused(cache, cache.blobPath(sha256Of(OTHER))), false);
    assert.equal(removeUnused(cache, cache.blobPath(sha256Of(PLUS))), true);
  });

  test('a client chooses no source, and may give the rest of a configuration', async () => {
    const config = JSON.stringify({ source: { url: `${origin.url}/plus`, sha256: sha256Of(PLUS) } });
    const refused = await post('models/model/load', JSON.stringify({ parameters: { config } }));
    assertRefused(refused, 'BAD_REQUEST', /source is taken from the model's own configuration only/);
    const given = await post('models/model/load', JSON.stringify({ parameters: { config: '{"max_batch_size": 4}' } }));
    assert.equal(given.status, 200, given.body.toString());
    assert.equal(await valueOfTen(server, 'model'), 12);
  });

  test('weights that cannot be had leave the old ones serving', async () => {
    write('none', PLUS);
    const failed = await post('models/model/load');
    assertRefused(failed, 'BAD_REQUEST', /could not be fetched: .*\(NOT_FOUND\)/);
    assert.equal(await valueOfTen(server, 'model'), 12);
  });

  test('an unloaded model lets its files go', async () => {
    assert.equal((await post('models/model/unload')).status, 200);
    assert.equal(removeUnused(cache, cache.blobPath(sha256Of(OTHER))), true);
  });
});
