/**
 * Metrics under clients that do what they like: no name, path or id of theirs becomes a label, names of models are escaped, counters only rise, whoever dies
 * meanwhile, and a scrape needs no other process than the supervisor.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { infer, inferBytes, jsonBody } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle } from '../support/idle.ts';
import { type Random, seedFromEnv } from '../support/random.ts';
import { RawConnection, requestBytes } from '../support/raw.ts';
import { type ModelEntry, makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { type Family, parseExposition } from '../unit/metrics/exposition.ts';

const STRANGE_REQUESTS = 10_000;
const BURST = 200;
const SCRAPES = 20;
const ODD_NAMES = ['quote"d', 'back\\slash', 'curly{brace="x"}', 'comma,equals=', 'ümläut 😀', "apo'strophe # hash"];

const repository = makeRepository(
  { after },
  new Map<string, ModelEntry>([['rows', {}], ...ODD_NAMES.map((name) => [name, { fixture: 'rows' }] as const)]),
);
const server = launchServer({ after }, { repository: repository.dir });
const random = seedFromEnv();

before(() => server.ready());

const rows = (id: string) =>
  jsonBody(`{"id":${JSON.stringify(id)},"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`);

async function scrape(): Promise<Map<string, Family>> {
  return parseExposition(await server.metrics());
}

/** Every series by its name and labels, with its value. */
function seriesOf(families: Map<string, Family>): Map<string, { family: Family; value: number }> {
  const all = new Map<string, { family: Family; value: number }>();
  for (const family of families.values()) {
    for (const { name, labels, value } of family.series) {
      all.set(JSON.stringify([name, ...[...labels].sort()]), { family, value });
    }
  }
  return all;
}

/** A path that the server has not seen, of one of the kinds that might become a label. */
function strange(seeds: Random): string {
  const text = Buffer.from(seeds.bytes(seeds.int(1, 12))).toString('base64url');
  return seeds.pick([
    `/v2/models/${text}`,
    `/v2/models/${text}/ready`,
    `/v2/models/rows/versions/${text}`,
    `/v2/models/rows/versions/${seeds.int(2, 1e9)}`,
    `/${text}/${text}`,
    `/v2/health/live?${text}`,
    `/v2/models/%22%5C%0A${text}`,
  ]);
}

// Stories: one series per URL or unknown model until the memory was full; counters that jumped back as workers answered in turn (metrics-cardinality-and-merge, 68).
test(`${STRANGE_REQUESTS} requests for random paths, models, versions and ids add no series`, async () => {
  await infer(server.url, 'rows', rows('first'));
  const before = seriesOf(await scrape());
  const connection = await RawConnection.open(server.url);
  for (let sent = 0; sent < STRANGE_REQUESTS; sent += BURST) {
    const requests = Array.from({ length: BURST }, (_, n) =>
      n % 4 === 0 ? inferBytes('rows', rows(`id ${random.uint32()}`)) : requestBytes('GET', strange(random)),
    );
    await connection.write(Buffer.concat(requests));
    for (let n = 0; n < BURST; n++) assert((await connection.response(60_000, 'POST')).status < 500);
  }
  connection.destroy();
  const later = seriesOf(await scrape());
  assert.deepEqual([...later.keys()].sort(), [...before.keys()].sort());
});

test('names of models with quotes, backslashes and braces are labels that a strict reader reads back', async () => {
  for (const name of ODD_NAMES) assert.equal((await infer(server.url, name, rows('odd'))).status, 200, name);
  const families = await scrape();
  const names = new Set(families.get('batchport_requests_total')!.series.map(({ labels }) => labels.get('model')));
  assert.deepEqual([...names].sort(), ['rows', ...ODD_NAMES].sort());
  for (const { labels, value } of families.get('batchport_requests_total')!.series) {
    if (labels.get('model') !== 'rows') assert.equal(value, labels.get('outcome') === 'ok' ? 1 : 0);
  }
});

test('no counter ever falls, under load, while processes die and are replaced', async () => {
  let stop = false;
  const load = Array.from({ length: 4 }, async () => {
    while (!stop) {
      // Broken connections and refusals are part of it.
      await infer(server.url, 'rows', rows('load')).catch(() => {});
    }
  });
  let before = seriesOf(await scrape());
  try {
    for (let n = 0; n < SCRAPES; n++) {
      if (n === 5) process.kill((await server.pids('device'))[0]!, 'SIGKILL');
      if (n === 10) await assertAllAtWork(server);
      if (n === 11) process.kill((await server.pids('ingress'))[0]!, 'SIGKILL');
      const now = seriesOf(await scrape());
      for (const [key, { family, value }] of before) {
        const later = now.get(key);
        assert(later !== undefined, `${key} is gone`);
        if (family.type !== 'gauge') assert(later.value >= value, `${key} fell from ${value} to ${later.value}`);
      }
      const fresh = [...now].filter(
        ([key, { family }]) => !before.has(key) && family.name !== 'batchport_process_exits_total',
      );
      assert.deepEqual(
        fresh.map(([key]) => key),
        [],
      );
      before = now;
    }
  } finally {
    stop = true;
    await Promise.all(load);
  }
  await assertAllAtWork(server);
  assert.equal(await server.metric('batchport_process_restarts_total'), 2);
  await assertIdle(server);
  assert.equal(await server.metric('batchport_requests_in_flight'), 0);
});

test('a scrape needs neither a device nor an ingress process', async () => {
  const pids = [...(await server.pids('device')), ...(await server.pids('ingress'))];
  for (const pid of pids) process.kill(pid, 'SIGSTOP');
  try {
    const families = await scrape();
    assert(families.get('batchport_requests_total')!.series.length > 0);
  } finally {
    for (const pid of pids) process.kill(pid, 'SIGCONT');
  }
  assert.equal((await infer(server.url, 'rows', rows('last'))).status, 200);
});
