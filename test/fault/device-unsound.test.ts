/**
 * Fault: a device breaks while nobody asks it for anything, as a GPU does after an illegal access to its memory: its process lives, and every run fails.
 *
 * Safety: its models are not said to be ready for long. Liveness: its process is started afresh, which mends most such faults; where it does not, the models are
 * unavailable with the reason, and come back once the device is mended.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { get, infer, json, jsonBody } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, eventually } from '../support/idle.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, PROJECT_DIR } from '../support/server.ts';

const LIMIT_MS = 90_000;

const cleanUp = { after };
const folder = temporaryDirectory(cleanUp, 'unsound');
/** While it is there every run fails; a process that has seen `once` is broken for its life. */
const [always, once] = ['always', 'once'].map((name) => path.join(folder, name)) as [string, string];
const hook = path.join(folder, 'break.mjs');
const library = (name: string) => JSON.stringify(pathToFileURL(path.join(PROJECT_DIR, 'dist/src/runtime', name)).href);
fs.writeFileSync(
  hook,
  `import fs from 'node:fs';
   import { isMainThread } from 'node:worker_threads';
   if (!isMainThread) {
     const { Runner } = await import(${library('runner.js')});
     const { OrtError } = await import(${library('ort-error.js')});
     const { run } = Runner.prototype;
     let broken = false;
     Runner.prototype.run = function (...args) {
       if (fs.existsSync(${JSON.stringify(once)})) {
         fs.rmSync(${JSON.stringify(once)}, { force: true });
         broken = true;
       }
       if (broken || fs.existsSync(${JSON.stringify(always)})) throw new OrtError(1, 'CUDA failure 700: an illegal memory access was encountered');
       return run.apply(this, args);
     };
   }
  `,
);
const repository = makeRepository(cleanUp, ['rows']);
const server = launchServer(cleanUp, {
  repository: repository.dir,
  env: { NODE_OPTIONS: `--import=${pathToFileURL(hook).href}` },
});
before(() => server.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');
const endedForIt = () => server.metric('batchport_process_exits_total', { role: 'device', reason: 'exit code 74' });

test('an idle device that has broken is found by a canary run and started afresh', async () => {
  fs.writeFileSync(once, '');
  await eventually(async () => ((await endedForIt()) === 1 ? undefined : 'nobody has noticed'), LIMIT_MS);
  await assertAllAtWork(server, LIMIT_MS);
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
});

test('one that is broken for good makes its models unavailable, with the reason, until it is mended', async () => {
  fs.writeFileSync(always, '');
  await eventually(async () => {
    const { status, body } = await get(server.url, '/v2/health/ready');
    if (status === 200) return 'still ready';
    return /does not any more.*illegal memory access/.test(body.toString()) ? undefined : body.toString();
  }, LIMIT_MS);
  assert.equal((await get(server.url, '/v2/models/rows/ready')).status, 503);
  assert.match(String(json(await infer(server.url, 'rows', ROWS)).error), /illegal memory access/);
  fs.rmSync(always);
  server.signal('SIGHUP');
  await assertAllAtWork(server, LIMIT_MS);
  await eventually(async () => {
    const { status } = await get(server.url, '/v2/health/ready');
    return status === 200 ? undefined : `ready is ${status}`;
  }, LIMIT_MS);
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  await assertIdle(server);
});
