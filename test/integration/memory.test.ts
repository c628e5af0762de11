/**
 * Memory: many requests of varying sizes leave every process as large as it was once everything had been used for the first time, and no queue fuller.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { binaryRequest, get, inferBytes } from '../support/exchange.ts';
import { assertIdle, assertNoMoreDescriptors, countDescriptors, eventually, processesOf } from '../support/idle.ts';
import { residentBytes } from '../support/process-table.ts';
import { type Random, seedFromEnv } from '../support/random.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { randomTensor } from '../support/tensor.ts';

const REQUESTS = 20_000;
/** First uses: code is compiled, heaps and arenas reach their size. */
const WARM_UP_REQUESTS = 20_000;
const CONNECTIONS = 8;
const PIPELINED = 16;
const ROWS_MAX = 32;
/** A fifth. */
const GROWTH_MAX = 0.2;
/** What heaps of small processes move by, whatever is kept: 3.4 KB a request would be seen all the same. */
const GROWTH_MIN_BYTES = 64 * 2 ** 20;

/** A process collects its garbage on this signal: how much of it lies around says nothing about what is kept. */
const COLLECT_SIGNAL = 'SIGWINCH';

const hook = path.join(temporaryDirectory({ after }, 'hook'), 'collect.mjs');
fs.writeFileSync(
  hook,
  `import v8 from 'node:v8';
   import vm from 'node:vm';
   v8.setFlagsFromString('--expose-gc');
   const collect = vm.runInNewContext('gc');
   process.on('${COLLECT_SIGNAL}', () => collect());`,
);
const repository = makeRepository({ after }, ['mlp', 'dynamic', 'idB']);
const server = launchServer(
  { after },
  { repository: repository.dir, env: { NODE_OPTIONS: `--import=${pathToFileURL(hook).href}` } },
);
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

/** Resident bytes of each process, after it was told to collect its garbage. */
async function collectedMemory(): Promise<Map<string, number>> {
  const processes = processesOf(await server.status());
  for (const { pid } of processes) process.kill(pid, COLLECT_SIGNAL);
  // The signal is taken before an answer that is asked for later.
  await get(server.url, '/v2/health/live');
  return new Map(processes.map(({ role, pid }) => [role, residentBytes(pid)]));
}

// Story: native memory was not given back, some megabytes with every run or load (session-memory-growth, 61).
test(`${REQUESTS} requests of varying batch sizes leave every process about as large as it was`, async (t) => {
  const requests = makeRequests(random);
  await send(requests, WARM_UP_REQUESTS, random);
  const descriptors = await countDescriptors(server);
  await assertIdle(server);
  for (let n = 0; n < 3; n++) await collectedMemory(); // Until it no longer helps.
  const before = await collectedMemory();
  await send(requests, REQUESTS, random);
  await assertIdle(server);
  await eventually(async () => {
    const growths = [...(await collectedMemory())].map(([role, bytes]) => ({
      role,
      bytes,
      by: bytes / before.get(role)! - 1,
    }));
    const text = growths.map(
      ({ role, bytes, by }) => `${role}: ${Math.round(bytes / 2 ** 20)} MiB, ${(100 * by).toFixed(1)} % more`,
    );
    if (growths.some(({ bytes, by }) => by > GROWTH_MAX && bytes - bytes / (1 + by) > GROWTH_MIN_BYTES))
      return text.join('; ');
    t.diagnostic(text.join('; '));
    return undefined;
  });
  assert(processesOf(await server.status()).every(({ restarts }) => restarts === 0));
  await assertNoMoreDescriptors(server, descriptors);
});
