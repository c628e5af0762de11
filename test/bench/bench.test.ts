/** The benchmarks in their smallest size, so that they keep working; and what makes their numbers trustworthy. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryDirectory } from '../support/repository.ts';
import { CleanUps, interleave, isMet } from './benchmark.ts';
import { loadGenerator, wrkVersion } from './load.ts';
import type { LoadJob } from './load-worker.ts';
import type { document } from './report.ts';
import { LatencyHistogram, median } from './statistics.ts';

const RUN = fileURLToPath(new URL('./run.js', import.meta.url));
const NO_WRK = wrkVersion() === undefined ? 'wrk is not installed' : false;

/** The targets that the project holds itself to, by result. */
const TARGETS = {
  'binary-c1.added_median_us': { atMost: 75 },
  'binary-c1.p99_ratio': { atMost: 3 },
  'binary-c16.throughput_ratio': { atLeast: 0.75 },
  'binary-c64.throughput_ratio': { atLeast: 0.8 },
  'grpc-c16.throughput_ratio': { atLeast: 0.9 },
  'shared-600kb.throughput_ratio': { atLeast: 1.5 },
  'mlp_big-c64.rows_ratio': { atLeast: 0.95 },
  'tune-conv-50.p99_error_ratio': { atMost: 0.2 },
  'tune-conv-80.p99_error_ratio': { atMost: 0.2 },
};

async function bench(...args: string[]): Promise<{ code: number | null; output: string }> {
  const child = spawn(process.execPath, ['--expose-gc', RUN, ...args]);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  return { code, output };
}

/** Runs benchmarks in their small size and gives what `--json` wrote. */
async function quick(t: TestContext, ...args: string[]) {
  const file = path.join(temporaryDirectory(t, 'bench'), 'results.json');
  const { code, output } = await bench('--quick', '--json', file, ...args);
  assert.equal(code, 0, output);
  const results = JSON.parse(fs.readFileSync(file, 'utf8')) as ReturnType<typeof document>;
  return { ...results, output };
}

test('every benchmark runs in its small size, and every target gets a verdict', async (t) => {
  const { machine, results, output } = await quick(t, '--load', 'builtin');
  assert.match(machine.commit, /^([0-9a-f]{7,}(\+changes)?|unknown)$/);
  assert.equal(machine.node, process.version);
  assert(machine.cpu !== '' && machine.cores > 0 && machine.loadAverage >= 0);

  const names = results.map(({ name }) => name);
  assert.equal(new Set(names).size, names.length, 'a name occurs twice');
  for (const { name, values, median } of results) {
    assert.match(name, /^[a-z0-9_-]+\.[a-z0-9_]+$/i);
    assert(values.length > 0 && [...values, median].every(Number.isFinite), `${name}: ${values}`);
    assert(output.includes(name), `${name} is not in the table`);
    // A difference may be negative, and a process may cost less than a tick of the clock.
    if (!/added|cpu_us$/.test(name)) assert(median > 0, `${name} is ${median}`);
  }
  const judged = results.filter(({ target }) => target !== undefined);
  assert.deepEqual(Object.fromEntries(judged.map(({ name, target }) => [name, target])), TARGETS);
  for (const { name, met } of judged) {
    assert.match(output, new RegExp(`^${met ? 'met    ' : 'NOT MET'}  ${name.replace('.', '\\.')}: `, 'm'));
  }
  for (const topology of ['json-c16', 'beside-large-json', 'idle-demo', 'start-mlp', 'start-demo']) {
    assert(
      names.some((name) => name.startsWith(`${topology}.`)),
      `nothing about ${topology}`,
    );
  }
});

test('under overload every request has an answer, and some are answered inside the objective', async (t) => {
  const { results } = await quick(t, 'overload');
  const of = (name: string) => results.find((result) => result.name === name)!;
  assert.equal(of('conv-200pct.unanswered').median, 0);
  for (const name of ['conv.capacity_per_s', 'conv-200pct.goodput_ratio', 'ocr-200pct.goodput_ratio']) {
    assert(of(name).median > 0, `${name} is ${of(name).median}`);
  }
  assert.deepEqual(of('conv-200pct.goodput_ratio').target, { atLeast: 0.95 });
});

test('wrk can send the load', { skip: NO_WRK }, async (t) => {
  const { load, results } = await quick(t, '--load', 'wrk', 'http-json');
  assert.match(load, /^wrk /);
  assert(results.find(({ name }) => name === 'json-c16.requests_per_s')!.median > 0);
});

test('wrong arguments end with 2 and say what there is', async () => {
  for (const [args, message] of [
    [['no-such'], /http-binary.*start/],
    [['--rounds', '0'], /whole number/],
    [['--load', 'ab'], /auto, wrk, builtin/],
    [['--nonsense'], /nonsense/],
  ] as const) {
    const { code, output } = await bench(...args);
    assert.equal(code, 2, output);
    assert.match(output, message);
  }
});

test('--help tells the options and the benchmarks, and runs none', async () => {
  const { code, output } = await bench('--help');
  assert.equal(code, 0);
  assert.match(output, /^usage: npm run bench .*--rounds N.*\n {2}http-binary +tiny MLP/s);
});

/** A server that answers with this status. */
async function answering(t: TestContext, status: number): Promise<LoadJob> {
  const server = createServer((request, response) => {
    request.resume();
    response.writeHead(status, { 'Content-Length': 2 });
    response.end('no');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}/x`, headers: {}, body: Buffer.from('body'), connections: 2, seconds: 0.1 };
}

for (const kind of ['builtin', 'wrk'] as const) {
  test(`the load of ${kind} counts answers, and refuses a server that does not answer 200`, {
    skip: kind === 'wrk' && NO_WRK,
  }, async (t) => {
    const load = loadGenerator(kind, t);
    const { requests, seconds, medianUs, p99Us } = await load.run(await answering(t, 200));
    assert(requests > 0 && seconds > 0.09 && medianUs > 0 && p99Us >= medianUs);
    await assert.rejects(load.run(await answering(t, 503)), /503|"status":[1-9]/);
    await assert.rejects(
      load.run({ ...(await answering(t, 200)), url: 'http://127.0.0.1:1/x' }),
      /ECONNREFUSED|connect|refused/i,
    );
  });
}

test('the median is the middle value, or the mean of the two in the middle', () => {
  assert.equal(median([5]), 5);
  assert.equal(median([9, 1, 5]), 5);
  assert.equal(median([4, 1, 100, 2]), 3);
  assert.throws(() => median([]), RangeError);
});

test('percentiles of latencies are exact to a microsecond, and bounded', () => {
  const histogram = new LatencyHistogram();
  assert.equal(histogram.percentile(0.99), 0);
  for (let us = 1; us <= 100; us++) histogram.add(us);
  assert.deepEqual(
    [0.5, 0.99, 1].map((fraction) => histogram.percentile(fraction)),
    [50, 99, 100],
  );
  histogram.add(1e9);
  assert.equal(histogram.percentile(1), 1_000_000);
});

test('a target is met at its very value', () => {
  const of = (value: number, target: { atLeast: number } | { atMost: number }) =>
    isMet({ name: 'x.y', values: [value], target });
  assert.deepEqual(
    [0.74, 0.75, 0.76].map((value) => of(value, { atLeast: 0.75 })),
    [false, true, true],
  );
  assert.deepEqual(
    [74, 75, 76].map((value) => of(value, { atMost: 75 })),
    [true, true, false],
  );
  assert.equal(isMet({ name: 'x.y', values: [1] }), undefined);
});

test('clean-up goes on after an action that fails, the latest action first', async () => {
  const cleanUp = new CleanUps();
  const done: string[] = [];
  cleanUp.after(() => void done.push('first'));
  cleanUp.after(() => Promise.reject(new Error('as it should')));
  cleanUp.after(() => void done.push('last'));
  await assert.rejects(cleanUp.run(), /as it should/);
  assert.deepEqual(done, ['last', 'first']);
});

test('interleaved rounds begin with either side in turn', async () => {
  const order: string[] = [];
  const call = (side: string) => async () => order.push(side);
  const { ones, others } = await interleave(3, call('a'), call('b'));
  assert.equal(order.join(''), 'abbaab');
  assert.deepEqual([ones.length, others.length], [3, 3]);
});

test('faults cost no request, in their small size too', async (t) => {
  const { results } = await quick(t, 'faults');
  const missed = results.filter(({ met }) => met === false).map(({ name, median }) => `${name}: ${median}`);
  assert.deepEqual(missed, []);
  for (const name of ['device-killed', 'ingress-killed']) {
    for (const metric of ['requests', 'deaths']) {
      assert(results.find((one) => one.name === `${name}.${metric}`)!.median > 0, `${name}.${metric}`);
    }
  }
  for (const name of process.arch === 'x64' ? ['poison', 'supervisor-killed'] : ['supervisor-killed']) {
    assert(
      results.some((one) => one.name.startsWith(`${name}.`)),
      name,
    );
  }
});
