/**
 * Fault: the supervisor is killed (SIGKILL) under load.
 *
 * Safety: everything it started ends with it and nothing is left on the machine: no process, no shared memory, no lock. Another server on the machine is not
 * touched. Liveness: the next server starts, serves, and removes what little a file the dead one left.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { infer, inferBytes, jsonBody } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, processesOf } from '../support/idle.ts';
import { allMemoryFiles, memoryFiles, namedMemoryFiles } from '../support/process-table.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, startServer } from '../support/server.ts';

const ROUNDS = 3;
const REQUESTS = 1000;
const DEATHS = 4;

const repository = makeRepository({ after }, ['rows', 'slow']);
const runtimeDir = temporaryDirectory({ after }, 'run');
const args = ['--runtime-dir', runtimeDir];
const bystander = launchServer({ after }, { repository: repository.dir, args });

before(() => bystander.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');
const SLOW = jsonBody('{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[20000]}]}');

const addressFiles = () =>
  fs
    .readdirSync(runtimeDir)
    .filter((name) => name.startsWith('server-'))
    .sort();
const sharedBefore = namedMemoryFiles();
const ownShared = () => namedMemoryFiles().filter((name) => !sharedBefore.includes(name));

async function request(url: string, count: number): Promise<void> {
  const connection = await RawConnection.open(url);
  await connection.write(Buffer.concat(Array.from({ length: count }, () => inferBytes('rows', ROWS))));
  for (let n = 0; n < count; n++) assert.equal((await connection.response(60_000, 'POST')).status, 200);
  connection.destroy();
}

// Story: files stayed in /dev/shm after a crash and grew with every restart (shm-leftovers, 60).
test('a killed server leaves nothing: no process, no shared memory; the next one starts beside a server that lives on', async (t) => {
  const bystanderFile = `server-${bystander.pid}.json`;
  for (let round = 0; round < ROUNDS; round++) {
    const server = await startServer(t, { repository: repository.dir, args });
    const ownFile = `server-${server.pid}.json`;
    // What the killed one before left is gone, what lives is not.
    assert.deepEqual(addressFiles(), [bystanderFile, ownFile].sort());
    await request(server.url, REQUESTS);
    const waiting = await RawConnection.open(server.url);
    await waiting.write(inferBytes('slow', SLOW));
    const broken = assert.rejects(waiting.response(60_000, 'POST'), /connection ended/);
    const segments = memoryFiles(server.pid);
    assert.equal(segments.size, 2, 'one for each model');
    // Fails if a process is left after five seconds.
    assert.deepEqual(await server.kill(), { code: null, signal: 'SIGKILL' });
    await broken;
    waiting.destroy();
    // Nobody has its memory any more, so it is free.
    const left = allMemoryFiles();
    assert.deepEqual(
      [...segments].filter((file) => left.has(file)),
      [],
    );
    assert.deepEqual(ownShared(), []);
    assert.deepEqual(addressFiles(), [bystanderFile, ownFile].sort());
    assert.equal((await infer(bystander.url, 'rows', ROWS)).status, 200);
  }
  assert.deepEqual(
    (await bystander.status()).processes.filter(({ restarts }) => restarts !== 0),
    [],
  );
});

test('device processes that die one after another leave no shared memory either', async () => {
  await request(bystander.url, 100);
  const committed = async () => {
    const models = (await bystander.status()).models as { queue: { committed_bytes: number } }[];
    return models.reduce((sum, { queue }) => sum + queue.committed_bytes, 0);
  };
  const before = await committed();
  for (let death = 0; death < DEATHS; death++) {
    const { pid } = processesOf(await bystander.status()).find(({ role }) => role === 'device')!;
    process.kill(pid, 'SIGKILL');
    // The death has to be noticed before anything else tells of it.
    await bystander.log(({ childPid }) => childPid === pid);
    await assertAllAtWork(bystander, 60_000);
    await request(bystander.url, 100);
  }
  await assertIdle(bystander);
  assert((await committed()) <= before, 'the queues hold more memory than before');
  assert.deepEqual(ownShared(), []);
});
