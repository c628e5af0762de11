/**
 * Fault: memory of a model's arena is lost to it, so that runs which used to fit find none, however small they are made.
 *
 * Safety: the request that shows it is not refused, no other one fails. Liveness: the process ends by itself, its batch is run by the next one; and if that did not
 * help, it does not happen again and again.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { binaryRequest, infer, outputsOf } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, assertNoMoreDescriptors, countDescriptors, eventually } from '../support/idle.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, PROJECT_DIR } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

const LIMIT_MS = 60_000;
const MIB = 2 ** 20;
/** `bulge` needs 16 MiB for a row. */
const BUDGET_MIB = 100;

const cleanUp = { after };
const folder = temporaryDirectory(cleanUp, 'leak');
/** While it is there, the thread that has loaded a model of this name takes memory of its arena and forgets it; then it removes the file. */
const flag = path.join(folder, 'bulge');
const hook = path.join(folder, 'leak.mjs');
const library = (name: string) => JSON.stringify(pathToFileURL(path.join(PROJECT_DIR, 'dist/src/runtime', name)).href);
fs.writeFileSync(
  hook,
  `import fs from 'node:fs';
   import { isMainThread } from 'node:worker_threads';
   if (!isMainThread) {
     const { Session } = await import(${library('session.js')});
     const { ortLibrary } = await import(${library('library.js')});
     const load = Session.load;
     Session.load = (file, options) => {
       const session = load.call(Session, file, options);
       if (file.includes('/bulge/')) setInterval(() => fs.existsSync(${JSON.stringify(flag)}) && leak(session.handle.session), 5);
       return session;
     };
     function leak(session) {
       const { api, out } = ortLibrary();
       const info = out((cell) => api.CreateMemoryInfo('Cpu', 1, 0, 0, cell));
       const allocator = out((cell) => api.CreateAllocator(session, info, cell));
       const dims = BigInt64Array.of(${MIB}n);
       try {
         for (;;) out((cell) => api.CreateTensorAsOrtValue(allocator, koffiAddress(dims), 1, 2, cell));
       } catch {
         fs.rmSync(${JSON.stringify(flag)}, { force: true });
       }
     }
     const { createRequire } = await import('node:module');
     const koffi = createRequire(${library('session.js')})('koffi');
     function koffiAddress(array) { return Number(koffi.address(array.buffer)); }
   }
  `,
);
const repository = makeRepository(cleanUp, {
  bulge: { config: { max_batch_size: 4, memory_budget_bytes: BUDGET_MIB * MIB, runtime: { intra_op_threads: 1 } } },
  mlp: {},
});
const launch = () =>
  launchServer(cleanUp, {
    repository: repository.dir,
    env: { NODE_OPTIONS: `--import=${pathToFileURL(hook).href}` },
  });
let server = launch();
before(() => server.ready());

const row = (value: number) => binaryRequest(new Map([['x', tensor('FP32', [1, 1], Float32Array.of(value))]]));
const mlpRow = binaryRequest(new Map([['x', tensor('FP32', [1, 64], new Float32Array(64))]]));

async function askBulge(value: number): Promise<void> {
  const answer = await infer(server.url, 'bulge', row(value));
  assert.equal(answer.status, 200, answer.body.toString());
  assert.deepEqual(outputsOf(answer).get('y')!.data, Float32Array.of(value));
}

/** Fills the arena with what nobody will ever free. */
async function poison(): Promise<void> {
  fs.writeFileSync(flag, '');
  await eventually(async () => (fs.existsSync(flag) ? 'nothing has leaked yet' : undefined), LIMIT_MS);
}

const endedForIt = () => server.metric('batchport_process_exits_total', { role: 'device', reason: 'exit code 73' });

test('an arena that has lost its memory goes with its process, and the request that shows it is answered by the next', async () => {
  await askBulge(1);
  const descriptors = await countDescriptors(server);
  const [before] = await server.pids('device');
  await poison();
  let stop = false;
  const statuses = new Set<number>();
  const others = Array.from({ length: 4 }, async () => {
    while (!stop) statuses.add((await infer(server.url, 'mlp', mlpRow)).status);
  });
  await askBulge(2);
  await askBulge(3);
  stop = true;
  await Promise.all(others);
  assert.deepEqual([...statuses], [200], 'the other model of the device');
  const [next] = await server.pids('device');
  assert.notEqual(next, before);
  assert.equal(await endedForIt(), 1);
  assert.equal(await server.metric('batchport_process_restarts_total', { role: 'device' }), 1);
  const told = server.logs.find(({ msg }) => msg === 'device process is started afresh');
  assert.match(
    String(told?.reason),
    /A row that has fitted before finds no memory, since \d+\.\d MiB of the arena are lost/,
  );
  await assertAllAtWork(server, LIMIT_MS);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});

test('where that has just been done it is not done again: the row is refused, and the process lives', async () => {
  const [pid] = await server.pids('device');
  await poison();
  const answer = await infer(server.url, 'bulge', row(4));
  assert.equal(answer.status, 503);
  assert.match(answer.body.toString(), /OUT_OF_MEMORY/);
  assert.equal((await infer(server.url, 'mlp', mlpRow)).status, 200);
  assert.deepEqual(await server.pids('device'), [pid]);
  assert.equal(await endedForIt(), 1);
});

test('told to stop while its device is started afresh, the server answers what it has taken, and ends as it should', async () => {
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  server = launch();
  await server.ready();
  await askBulge(5);
  await poison();
  const answer = askBulge(6);
  await server.log(({ msg }) => msg === 'device process is started afresh', LIMIT_MS);
  server.signal('SIGTERM');
  await answer;
  assert.deepEqual(await server.ended(), { code: 0, signal: null });
});
