/**
 * Live and ready from the first moment on: live as soon as somebody listens, ready only once every model is served or has failed for good, and never back and
 * forth between them.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ChildHook } from '../support/child-hook.ts';
import { assertRefused, get, infer, json, jsonBody, sendTogether } from '../support/exchange.ts';
import { eventually } from '../support/idle.ts';
import { requestBytes } from '../support/raw.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, startServer, type TestServer } from '../support/server.ts';

const START_LIMIT_MS = 60_000;
const POLL_MS = 2;
const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

async function poll<T>(server: TestServer, what: string, attempt: () => T | undefined): Promise<T> {
  const deadline = Date.now() + START_LIMIT_MS;
  for (;;) {
    const found = attempt();
    if (found !== undefined) return found;
    assert.equal(server.exit, undefined, `${what}: the server has ended`);
    assert(Date.now() < deadline, `${what}: not within ${START_LIMIT_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Addresses from the file by which other commands find a server; it is there before anything is loaded. */
function addresses(runtimeDir: string, server: TestServer): Promise<{ http: string; metrics: string }> {
  return poll(server, 'the file with the addresses', () => {
    try {
      return JSON.parse(fs.readFileSync(path.join(runtimeDir, `server-${server.pid}.json`), 'utf8'));
    } catch {
      return undefined;
    }
  });
}

// Stories: ready said 200 with no worker at all; ready flapped while models were loaded (health-with-no-workers, 43).
test('while nothing is loaded the server is live and not ready, and says why everywhere it is asked', async (t) => {
  const runtimeDir = temporaryDirectory(t, 'run');
  const repository = makeRepository(t, ['rows', 'mlp']);
  const hook = new ChildHook(t);
  hook.holdAtStart('device');
  const server = launchServer(t, { repository: repository.dir, env: hook.env, args: ['--runtime-dir', runtimeDir] });
  try {
    const { http, metrics } = await addresses(runtimeDir, server);
    await eventually(async () => {
      // Connections made before an ingress process listens wait in the backlog.
      const live = await get(http, '/v2/health/live');
      return live.status === 200 ? undefined : `live is ${live.status}`;
    });
    assert.deepEqual(json(await get(http, '/v2/health/live')), { live: true });
    const ready = await get(http, '/v2/health/ready');
    assert.equal(ready.status, 503);
    assert.equal(json(ready).ready, false);
    assert.match(String(json(ready).error), /rows\/1|mlp\/1/);
    const modelReady = await get(http, '/v2/models/rows/ready');
    assert.equal(modelReady.status, 503);
    assert.equal(json(modelReady).ready, false);
    for (const answer of [await get(http, '/v2/models/rows'), await infer(http, 'rows', ROWS)]) {
      assertRefused(answer, 'NOT_READY', /rows.*version 1 is (UNAVAILABLE|LOADING)/);
      assert.equal(answer.header('retry-after'), '1');
    }
    assertRefused(await infer(http, 'none', ROWS), 'MODEL_NOT_FOUND', /unknown model/);
    const [index] = await sendTogether(http, [requestBytes('POST', '/v2/repository/index')]);
    const states = (JSON.parse(index!.body.toString()) as { state: string; reason: string }[]).map(
      ({ state, reason }) => {
        assert.notEqual(reason, '');
        return state;
      },
    );
    assert(states.every((state) => state === 'UNAVAILABLE' || state === 'LOADING'));
    assert.equal((await get(metrics, '/healthz')).status, 200);
    const { server: own } = json(await get(metrics, '/status')) as { server: { ready: boolean; state: string } };
    assert.deepEqual([own.ready, own.state], [false, 'starting']);
    assert.match(
      (await get(metrics, '/metrics')).body.toString(),
      /^batchport_model_ready\{model="rows",version="1"\} 0$/m,
    );
    assert.deepEqual(server.output, [], 'the ready line has to wait');
  } finally {
    hook.letGo('device');
  }
  await server.ready();
  assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
});

test('from the first connection on, live is 200 and ready turns to 200 once and for all', async (t) => {
  const runtimeDir = temporaryDirectory(t, 'run');
  const models = Object.fromEntries(Array.from({ length: 12 }, (_, n) => [`rows_${n}`, { fixture: 'rows' }]));
  const repository = makeRepository(t, models);
  const server = launchServer(t, { repository: repository.dir, args: ['--runtime-dir', runtimeDir] });
  const { http } = await addresses(runtimeDir, server);
  const seen: number[] = [];
  for (let after = 0; after < 50; ) {
    const [live, ready, first] = await sendTogether(http, [
      requestBytes('GET', '/v2/health/live'),
      requestBytes('GET', '/v2/health/ready'),
      requestBytes('GET', '/v2/models/rows_0/ready'),
    ]);
    assert.equal(live!.status, 200);
    seen.push(ready!.status);
    if (ready!.status !== 200) continue;
    // A ready server has every model.
    assert.equal(first!.status, 200);
    after++;
  }
  const turns = seen.filter((status, n) => n > 0 && status !== seen[n - 1]);
  assert(turns.length <= 1, `ready went ${[seen[0], ...turns].join(' → ')}`);
  assert(seen.every((status) => status === 200 || status === 503));
  await server.ready();
});

test('a server whose models have all failed is live and not ready, and says that it is ready once one is mended', async (t) => {
  const repository = makeRepository(t, {});
  repository.writeFile(['broken', '1', 'model.onnx'], 'this is no model, and no other kind of file is told by it');
  const server = launchServer(t, { repository: repository.dir });
  await server.ready();
  assert.equal((await get(server.url, '/v2/health/live')).status, 200);
  const ready = await get(server.url, '/v2/health/ready');
  assert.equal(ready.status, 503);
  assert.match(String(json(ready).error), /^broken\/1: /);
  // Story: the line on stdout said ready all the same.
  const where = `http=${server.url} metrics=${server.metricsUrl}`;
  assert.deepEqual(server.output, [`batchport not ready ${where}`]);
  repository.add('broken', { fixture: 'rows' });
  server.signal('SIGHUP');
  await poll(server, 'the ready line', () => server.output[1]);
  assert.deepEqual(server.output, [`batchport not ready ${where}`, `batchport ready ${where}`]);
  assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
});

test('with strict readiness a model that asks for a device which is not there keeps the server from being ready', async (t) => {
  const repository = makeRepository(t, { rows: {}, on_gpu: { fixture: 'rows', config: { devices: ['cuda:9'] } } });
  const server = await startServer(t, { repository: repository.dir, args: ['--strict-readiness'] });
  assert.match(server.output[0]!, /^batchport not ready /);
  const ready = await get(server.url, '/v2/health/ready');
  assert.equal(ready.status, 503);
  assert.match(String(json(ready).error), /^on_gpu\/1: its configuration asks for the device cuda:9/);
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
});
