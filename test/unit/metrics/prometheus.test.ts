/** What /metrics prints: the text format, the bound on series, counters that never fall, one snapshot a scrape, the README table. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BATCH_BUCKETS_ROWS, LATENCY_BUCKETS_S } from '../../../src/metrics/counters.ts';
import { createRegistry, metricsTable } from '../../../src/metrics/prometheus.ts';
import { seedFromEnv } from '../../support/random.ts';
import { type Family, parseExposition, type Series } from './exposition.ts';
import { allSeries, type Exposition, scrape, values } from './scrapes.ts';
import { FakeModel, fakeProcess, ofModels } from './snapshots.ts';

test('names and devices with quotes, backslashes and line feeds come back as they were', async () => {
  const names = [
    'plain',
    'a "quoted" one',
    'back\\slash',
    'line\nfeed',
    '\\',
    '\\n',
    '"',
    'trailing\\"',
    'a,b="c"} 1',
    'é模型',
    '',
  ];
  const models = names.map((name) => new FakeModel(name, [`device of ${name}`]).snapshot());
  const exposition = await scrape(ofModels(...models));
  for (const name of names) {
    assert.equal(values(exposition, 'model_ready', { model: name }).length, 1, JSON.stringify(name));
    assert.equal(values(exposition, 'batches_total', { model: name, device: `device of ${name}` }).length, 1);
    assert.equal(values(exposition, 'request_seconds_bucket', { model: name }).length, LATENCY_BUCKETS_S.length + 1);
  }
});

test('every histogram is cumulative, ends at +Inf with its count, and has the bounds of its kind', async () => {
  const random = seedFromEnv();
  const model = new FakeModel('a', ['cpu', 'cuda:0']);
  for (let n = 0; n < 2000; n++) model.countSomething(random);
  const exposition = await scrape(ofModels(model.snapshot()));
  const histograms = [...exposition.values()].filter(({ type }) => type === 'histogram');
  assert.equal(histograms.length, 3);
  for (const family of histograms) {
    const bounds = family.name === 'batchport_batch_rows' ? BATCH_BUCKETS_ROWS : LATENCY_BUCKETS_S;
    for (const [key, series] of ladders(family)) {
      const buckets = series.filter(({ name }) => name === `${family.name}_bucket`);
      assert.deepEqual(
        buckets.map(({ labels }) => labels.get('le')),
        [...bounds.map(String), '+Inf'],
        key,
      );
      const counts = buckets.map(({ value }) => value);
      assert.deepEqual(
        counts,
        counts.toSorted((a, b) => a - b),
      );
      const one = (suffix: string) =>
        series.filter(({ name }) => name === family.name + suffix).map(({ value }) => value);
      assert.deepEqual(one('_count'), [counts.at(-1)]);
      assert.equal(one('_sum').length, 1);
      assert.ok(counts.at(-1)! > 0 && one('_sum')[0]! > 0, `${key} has seen something`);
    }
  }
});

test('names follow the rules of Prometheus: prefix, base units, _total for counters and only for them', async () => {
  const model = new FakeModel('a');
  for (const { name, type, help } of (
    await scrape({ ...ofModels(model.snapshot()), processes: [fakeProcess({})] })
  ).values()) {
    assert.match(name, /^batchport(_[a-z]+)+$/);
    assert.equal(name.endsWith('_total'), type === 'counter', name);
    assert.doesNotMatch(name, /_(ms|us|millis|micros|milliseconds|microseconds|kb|mb|kilobytes|percent)(_|$)/);
    assert.doesNotMatch(name, /_(sum|count|bucket|counter|gauge|histogram)$/);
    assert.match(help, /^[A-Z0-9].*\.$/);
  }
});

test('the number of series follows from models, devices and processes alone, whatever was counted', async () => {
  const random = seedFromEnv();
  const sizes: number[] = [];
  for (const busy of [false, true]) {
    for (const [models, devices] of [
      [1, 1],
      [2, 1],
      [5, 1],
      [1, 2],
      [1, 3],
      [3, 4],
    ] as const) {
      const names = Array.from({ length: devices }, (_, n) => `cuda:${n}`);
      const fakes = Array.from({ length: models }, (_, n) => new FakeModel(`model ${n}`, names));
      if (busy) for (let n = 0; n < 3000; n++) random.pick(fakes).countSomething(random);
      const exposition = await scrape(ofModels(...fakes.map((fake) => fake.snapshot())));
      sizes.push(allSeries(exposition).length);
    }
  }
  const perModel = perItem(['model', 'version'], false);
  const perDevice = perItem(['model', 'version'], true);
  const ofDevice = perItem([], true);
  const fixed = perItem([], false) + 1;
  const expected = [
    [1, 1],
    [2, 1],
    [5, 1],
    [1, 2],
    [1, 3],
    [3, 4],
  ].map(([models, devices]) => fixed + devices! * ofDevice + models! * (perModel + devices! * perDevice));
  assert.deepEqual(sizes, [...expected, ...expected]);
});

test('label names and the values of fixed labels are those that the README table lists', async () => {
  const model = new FakeModel('a');
  const exposition = await scrape({
    ...ofModels(model.snapshot()),
    processes: [fakeProcess({ exits: { 'exit code 1': 1 } })],
  });
  const rows = readmeRows();
  assert.deepEqual(
    rows.map(({ name }) => name),
    [...exposition.keys()],
  );
  for (const { name, type, labels, help } of rows) {
    const family = exposition.get(name)!;
    assert.equal(family.type, type);
    assert.equal(family.help, help);
    for (const { labels: found } of family.series) {
      assert.deepEqual(new Set([...found.keys()].filter((label) => label !== 'le')), new Set(labels.keys()), name);
      for (const [label, fixed] of labels) {
        if (fixed.length > 0) assert.ok(fixed.includes(found.get(label)!), `${name}: ${label}="${found.get(label)}"`);
      }
    }
  }
});

test('no counter falls while processes die, restart and take over', async () => {
  const random = seedFromEnv();
  const model = new FakeModel('a', ['cpu', 'cuda:0']);
  const exits: Record<string, number> = {};
  let restarts = 0;
  let before: Map<string, number> = new Map();
  for (let round = 0; round < 60; round++) {
    for (let n = 0; n < 50; n++) model.countSomething(random);
    if (random.chance(0.3)) {
      const reason = random.pick(['exit code 1', 'signal SIGKILL']);
      exits[reason] = (exits[reason] ?? 0) + 1;
      restarts++;
    }
    // Whether a thread runs in a slot changes; what was counted there stays.
    const thread = { running: random.chance(0.5), executingForS: random.chance(0.5) ? 1 : 0 };
    const state = random.chance(0.8) ? 'READY' : 'UNAVAILABLE';
    const exposition = await scrape({
      ...ofModels(model.snapshot({ state, requeuedRows: round, lostRows: round >> 1 }, thread)),
      processes: [fakeProcess({ role: 'device', device: 'cpu', restarts, exits: { ...exits } })],
    });
    const now = monotone(exposition);
    for (const [series, value] of before) assert.ok(now.get(series)! >= value, `${series} fell from ${value}`);
    before = now;
  }
  assert.ok(restarts > 0 && before.size > 100);
});

test('a scrape reads one snapshot, and the next scrape another one', async () => {
  let reads = 0;
  const model = new FakeModel('a');
  const registry = createRegistry(() => {
    reads++;
    model.ingress[0]!.received(1, 1);
    return ofModels(model.snapshot());
  });
  for (let n = 1; n <= 3; n++) {
    const exposition = parseExposition(await registry.metrics());
    assert.equal(reads, n);
    assert.deepEqual(values(exposition, 'request_rows_total'), [n]);
    assert.deepEqual(values(exposition, 'request_bytes_total'), [n]);
  }
});

test('scrapes at the same time each get a whole answer', async () => {
  const model = new FakeModel('a');
  const registry = createRegistry(() => ofModels(model.snapshot()));
  const texts = await Promise.all([registry.metrics(), registry.metrics(), registry.metrics()]);
  const counts = texts.map((text) => allSeries(parseExposition(text)).length);
  assert.equal(new Set(counts).size, 1);
});

test('a registry told in JSON or for a single metric has the same series and labels', async () => {
  const model = new FakeModel('a');
  const registry = createRegistry(() => ofModels(model.snapshot()));
  const exposition = parseExposition(await registry.metrics());
  for (const { name, values: told } of await registry.getMetricsAsJSON()) {
    const { series } = exposition.get(name)!;
    assert.deepEqual(
      told.map(({ labels }) => new Map(Object.entries(labels).sort())),
      series.map(({ labels }) => new Map([...labels].sort())),
    );
  }
  const single = parseExposition(`${await registry.getSingleMetricAsString('batchport_model_ready')}\n`);
  assert.deepEqual(values(single, 'model_ready'), [1]);
});

test('a snapshot that cannot be taken fails the scrape and not the next one', async () => {
  let fails = true;
  const registry = createRegistry(() => {
    if (fails) throw new Error('no snapshot');
    return ofModels();
  });
  await assert.rejects(registry.metrics(), /no snapshot/);
  fails = false;
  parseExposition(await registry.metrics());
});

test('a value that is no number is a bug and never printed', async () => {
  for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) {
    const registry = createRegistry(() => ofModels(new FakeModel('a').snapshot({ lostRows: value })));
    await assert.rejects(registry.metrics(), /This is a bug: batchport_rows_lost_total of {"model":"a","version":"1"}/);
  }
});

test('the content type is that of the text format', () => {
  assert.equal(createRegistry(() => ofModels()).contentType, 'text/plain; version=0.0.4; charset=utf-8');
});

/** The series of a histogram by the labels that are not `le`. */
function ladders({ series }: Family): Map<string, Series[]> {
  const groups = new Map<string, Series[]>();
  for (const one of series) {
    const key = JSON.stringify([...one.labels].filter(([label]) => label !== 'le').sort());
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return groups;
}

/** Counters, and what of histograms may only grow. */
function monotone(exposition: Exposition): Map<string, number> {
  const found = new Map<string, number>();
  for (const { type, series } of exposition.values()) {
    if (type === 'gauge') continue;
    for (const { name, labels, value } of series) found.set(JSON.stringify([name, ...labels]), value);
  }
  return found;
}

interface ReadmeRow {
  readonly name: string;
  readonly type: string;
  /** With the values of those that have a fixed set. */
  readonly labels: ReadonlyMap<string, readonly string[]>;
  readonly help: string;
}

function readmeRows(): ReadmeRow[] {
  const [head, rule, ...lines] = metricsTable().split('\n');
  assert.deepEqual([head, rule], ['| Metric | Type | Labels | Meaning |', '|---|---|---|---|']);
  return lines.map((line) => {
    const cells = /^\| `(\w+)` \| (\w+) \| (.*) \| (.*) \|$/.exec(line);
    assert.ok(cells, line);
    const labels = [...cells[3]!.matchAll(/`(\w+)`(?: \(([^)]*)\))?/g)].map(
      ([, label, fixed]) => [label!, fixed?.split(', ') ?? []] as const,
    );
    return { name: cells[1]!, type: cells[2]!, labels: new Map(labels), help: cells[4]! };
  });
}

/** Series that a version, or a version on a device, or the server has, counted from the README table. */
function perItem(labels: readonly string[], withDevice: boolean): number {
  let count = 0;
  for (const row of readmeRows()) {
    const names = [...row.labels.keys()];
    if (names.includes('role') || names.includes('node')) continue;
    if (names.includes('device') !== withDevice || names.includes('model') !== labels.includes('model')) continue;
    const values = [...row.labels.values()].reduce((product, fixed) => product * Math.max(1, fixed.length), 1);
    const bounds = row.name === 'batchport_batch_rows' ? BATCH_BUCKETS_ROWS : LATENCY_BUCKETS_S;
    count += values * (row.type === 'histogram' ? bounds.length + 3 : 1);
  }
  return count;
}
