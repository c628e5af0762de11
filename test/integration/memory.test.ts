/**
 * Memory: many requests of varying sizes leave every process as large as it was once everything had been used for the first time, and no queue fuller.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { binaryRequest, inferBytes } from '../support/exchange.ts';
import { assertIdle, assertNoMoreDescriptors, countDescriptors, processesOf } from '../support/idle.ts';
import { residentBytes } from '../support/process-table.ts';
import { type Random, seedFromEnv } from '../support/random.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { randomTensor } from '../support/tensor.ts';

const REQUESTS = 20_000;
/** First uses: code is compiled, heaps and arenas reach their size. */
const WARM_UP_REQUESTS = 10_000;
const CONNECTIONS = 8;
const PIPELINED = 16;
const ROWS_MAX = 32;
const GROWTH_MAX = 0.2;

const repository = makeRepository({ after }, ['mlp', 'dynamic', 'idB']);
const server = launchServer({ after }, { repository: repository.dir });
const random = seedFromEnv();

before(() => server.ready());

/** Requests of every number of rows, and of many other shapes, made once: what is under test is the server. */
function makeRequests(seeds: Random): Buffer[] {
  const requests: Buffer[] = [];
  for (let rows = 1; rows <= ROWS_MAX; rows++) {
    requests.push(inferBytes('mlp', binaryRequest(new Map([['x', randomTensor(seeds, 'FP32', [rows, 64])]]))));
    const columns = seeds.int(1, 200);
    requests.push(inferBytes('dynamic', binaryRequest(new Map([['x', randomTensor(seeds, 'FP32', [rows, columns])]]))));
    requests.push(inferBytes('idB', binaryRequest(new Map([['INPUT0', randomTensor(seeds, 'BYTES', [rows, 3])]]))));
  }
  return requests;
}

async function send(requests: readonly Buffer[], count: number, seeds: Random): Promise<void> {
  let left = count;
  await Promise.all(
    Array.from({ length: CONNECTIONS }, async () => {
      const own = seeds.fork();
      const connection = await RawConnection.open(server.url);
      while (left > 0) {
        const burst = Math.min(left, own.int(1, PIPELINED));
        left -= burst;
        await connection.write(Buffer.concat(Array.from({ length: burst }, () => own.pick(requests))));
        for (let n = 0; n < burst; n++) assert.equal((await connection.response(60_000, 'POST')).status, 200);
      }
      connection.destroy();
    }),
  );
}

async function memory(): Promise<Map<string, number>> {
  const processes = processesOf(await server.status());
  return new Map(processes.map(({ role, pid }) => [role, residentBytes(pid)]));
}

// Story: native memory was not given back, some megabytes with every run or load (session-memory-growth, 61).
test(`${REQUESTS} requests of varying batch sizes leave every process within a fifth of its size`, async (t) => {
  const requests = makeRequests(random);
  await send(requests, WARM_UP_REQUESTS, random);
  const descriptors = await countDescriptors(server);
  const before = await memory();
  await send(requests, REQUESTS, random);
  await assertIdle(server);
  const after = await memory();
  for (const [role, bytes] of after) {
    const growth = bytes / before.get(role)! - 1;
    const what = `${role}: ${Math.round(bytes / 2 ** 20)} MiB, ${(100 * growth).toFixed(1)} % more than before`;
    t.diagnostic(what);
    assert(growth <= GROWTH_MAX, what);
  }
  assert(processesOf(await server.status()).every(({ restarts }) => restarts === 0));
  await assertNoMoreDescriptors(server, descriptors);
});
