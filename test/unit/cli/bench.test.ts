/** `bench` against a small server of the protocol that serves, refuses or comes late by the model's name. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, test } from 'node:test';
import { readBenchOptions } from '../../../src/cli/bench-options.ts';
import { progressText } from '../../../src/cli/bench-report.ts';
import { Tally } from '../../../src/load/tally.ts';
import { capture } from './capture.ts';

const cwd = mkdtempSync(join(tmpdir(), 'batchport-bench-'));
let url = '';

interface Sent {
  readonly path: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly json: Readonly<Record<string, unknown>>;
}
const sent: Sent[] = [];

const tensor = (name: string, shape: readonly number[], datatype = 'FP32') => ({ name, datatype, shape });
const INPUTS: Readonly<Record<string, unknown[]>> = {
  rows: [tensor('x', [-1, 3])],
  full: [tensor('x', [-1, 3])],
  broken: [tensor('x', [-1, 3])],
  picture: [tensor('image', [-1, 3, -1, -1], 'UINT8'), tensor('scale', [1])],
  fixed: [tensor('x', [2, 2])],
};

const server = createServer(async (request, response) => {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  const answer = (status: number, body: unknown) => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  };
  const path = request.url ?? '';
  if (path === '/v2') return answer(200, { name: 'teapot', version: '4.1', extensions: [] });
  const [, model = '', infer] = /^\/v2\/models\/(\w+)(?:\/versions\/\d+)?(\/infer)?$/.exec(path) ?? [];
  const inputs = INPUTS[model];
  if (inputs === undefined) return answer(404, { error: `no model ${model}`, code: 'MODEL_NOT_FOUND' });
  if (infer === undefined) return answer(200, { name: model, versions: ['1'], platform: 'onnx', inputs, outputs: [] });
  const body = Buffer.concat(parts);
  const jsonBytes = Number(request.headers['inference-header-content-length'] ?? body.length);
  sent.push({ path, headers: request.headers, json: JSON.parse(body.toString('utf8', 0, jsonBytes)) });
  if (model === 'full') return answer(429, { error: 'the queue is full', code: 'QUEUE_FULL' });
  if (model === 'broken') return answer(400, { error: 'this is \x1b[2J no input', code: 'BAD_TENSOR' });
  return answer(200, { model_name: model, outputs: [] });
});

before(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

beforeEach(() => {
  sent.length = 0;
});

after(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
  rmSync(cwd, { recursive: true });
});

const bench = (...args: string[]) => capture(['bench', ...args, '--url', url], { cwd });

async function benchJson(...args: string[]) {
  const { exitCode, out, err } = await bench(...args, '--json');
  assert.deepEqual([exitCode, err], [0, '']);
  return JSON.parse(out);
}

test('a sweep of clients is one table with a line for each', async () => {
  const { exitCode, out, err } = await bench('rows', '-c', '1,3', '--requests', '40', '--slo-ms', '10000');
  assert.deepEqual([exitCode, err], [0, '']);
  assert.match(
    out,
    /^rows at http:\/\/127\.0\.0\.1:\d+ \(teapot 4\.1\)\n1 row and \d+ bytes of binary a request, closed loop, 40 requests a run\n/,
  );
  assert.match(out, /\nCLIENTS +OK\/S +GOOD\/S +MEAN +P50 +P90 +P95 +P99 +P99\.9 +P99\.99 +MAX +OK +NOT OK\n/);
  // 40 answers say something about the median and the 90th and 95th percentile, and nothing beyond.
  for (const clients of [1, 3]) {
    assert.match(out, new RegExp(`\\n +${clients}( +[0-9.]+){6} +- +- +- +[0-9.]+ +40 +0\\n`));
  }
  assert.match(out, /generator's own part\nCLIENTS +CPU US\/REQUEST +BUSY\n +1 +\d+ +\d+ %\n +3 /);
  // And one before the first run.
  assert.equal(sent.length, 81);
});

test('open loops send at their rates: constant, in bursts, or as recorded', async () => {
  const open = await benchJson('rows', '-r', '500,1000', '--requests', '30', '--arrivals', 'constant', '--rows', '4');
  assert.deepEqual(
    open.runs.map((run: { rate: number; requests: number; ok: number }) => [run.rate, run.requests, run.ok]),
    [
      [500, 30, 30],
      [1000, 30, 30],
    ],
  );
  assert.deepEqual([open.load, open.request.rows], ['open loop, constant arrivals', 4]);
  assert.equal(open.runs[0].generator.sent_late_ms.count, 30);
  const poisson = await benchJson(
    'rows',
    '-r',
    '300',
    '--duration-s',
    '.2',
    '--warm-up-s',
    '.1',
    '--burst',
    '10:.05:.1',
  );
  assert.equal(poisson.load, 'open loop, poisson arrivals, 10 times as many for 0.05 s of 0.1 s');
  assert.deepEqual([poisson.warm_up_s, poisson.runs[0].measured_s], [0.1, 0.2]);
  assert.equal(poisson.runs[0].ok, poisson.runs[0].requests);
  writeFileSync(join(cwd, 'trace.txt'), '0\n0.01\n0.02\n0.04\n');
  const recorded = await benchJson('rows', '--trace', 'trace.txt');
  assert.deepEqual([recorded.runs[0].rate, recorded.runs[0].ok], [75, 4]);
  const faster = await benchJson('rows', '--trace', 'trace.txt', '--rate', '150');
  assert.deepEqual([faster.runs[0].rate, faster.runs[0].ok], [150, 4]);
});

test('a server that refuses is measured, with what it says', async () => {
  const { exitCode, out } = await bench('full', '--requests', '5', '--slo-ms', '100');
  assert.equal(exitCode, 0);
  assert.match(out, / 0 +5\n/);
  assert.match(
    out,
    /\nCLIENTS +NOT OK +COUNT +P50 +P99 +MAX +THE FIRST ONE SAID\n +1 +429 +5 .*\{"error":"the queue is full","code":"QUEUE_FULL"\}\n/,
  );
});

test('a request that the server finds wrong ends with 8 before any load', async () => {
  const { exitCode, out, err } = await bench('broken');
  assert.deepEqual([exitCode, out], [8, '']);
  assert.match(err, /^error: the server answered 400 to the first request: \{"error":"this is \\u001b\[2J no input"/);
  assert.equal(sent.length, 1);
  assert.match((await bench('missing')).err, /^error: the server answered 404 MODEL_NOT_FOUND: no model missing\n$/);
  const nobody = await capture(['bench', 'rows', '--url', 'http://127.0.0.1:1'], { cwd });
  assert.equal(nobody.exitCode, 7);
});

test('the request is made by the metadata and what is asked for', async () => {
  const once = ['--requests', '1'];
  await bench(
    'picture',
    ...once,
    '--shape',
    'image:2,3,4,5',
    '-i',
    'scale=[0.5]',
    '--format',
    'json',
    '--deadline-ms',
    '7.5',
  );
  const [image, scale] = sent[0]!.json.inputs as { shape: number[]; data: number[] }[];
  assert.deepEqual([image!.shape, image!.data.length, scale!.data], [[2, 3, 4, 5], 120, [0.5]]);
  assert.deepEqual(sent[0]!.json.parameters, { timeout: 7500 });
  sent.length = 0;
  await bench(
    'rows',
    ...once,
    '--model-version',
    '1',
    '--rows',
    '5',
    '--header',
    'Authorization: Bearer x',
    '--data',
    'zeros',
  );
  assert.equal(sent[0]!.path, '/v2/models/rows/versions/1/infer');
  assert.equal(sent[0]!.headers.authorization, 'Bearer x');
  assert.deepEqual(sent[0]!.json.parameters, { binary_data_output: true });
  assert.deepEqual((sent[0]!.json.inputs as { shape: number[] }[])[0]!.shape, [5, 3]);
  sent.length = 0;
  const shapeSent = async (...args: string[]) => (await benchJson('rows', ...once, ...args)).request.inputs[0].shape;
  assert.deepEqual(await shapeSent('--shape', '9,3'), [9, 3]);
  assert.deepEqual(await shapeSent('--shape', 'x:9,3', '--rows', '4'), [4, 3]);
});

test('a condition that is met ends with 10 and says what met it', async () => {
  const { exitCode, err } = await bench('full', '--requests', '5', '--fail-if', 'not-ok>0', '--fail-if', 'rate>5');
  assert.deepEqual([exitCode, err], [10, 'failed: not-ok>0 at 1: not-ok is 5\n']);
  assert.equal((await bench('rows', '--requests', '5', '--fail-if', 'not-ok>0')).exitCode, 0);
});

test('what makes no sense is refused before anything is sent', async () => {
  writeFileSync(join(cwd, 'bad.txt'), 'noon\n');
  writeFileSync(join(cwd, 'one.txt'), '5\n5\n');
  for (const [args, message] of [
    [['rows', '-c', '0'], /--concurrency: "0" is not a whole number/],
    [['rows', '-c', '1,'], /--concurrency: "" is not/],
    [['rows', '-c', '1', '-r', '5'], /choose one/],
    [['rows', '-r', '-5'], /--rate needs a value|--rate: "-5" is not/],
    [['rows', '-r', '1e3'], /--rate: "1e3" is not a number above 0/],
    [['rows', '--arrivals', 'constant'], /--arrivals needs --rate or --trace/],
    [['rows', '--trace', 'bad.txt', '--burst', '1:1:2'], /--burst and --trace exclude each other/],
    [['rows', '--trace', 'bad.txt'], /--trace bad\.txt: line 1: "noon" is no time/],
    [['rows', '--trace', 'none.txt'], /--trace none\.txt: ENOENT/],
    [['rows', '--trace', 'one.txt', '-r', '5'], /the times in one\.txt do not differ/],
    [['rows', '-r', '5', '--burst', '10:1'], /is not FACTOR:SECONDS:EVERY/],
    [['rows', '-r', '5', '--burst', '10:2:2'], /a burst must be shorter than its period/],
    [['rows', '--arrivals', 'even', '-r', '1'], /--arrivals: "even" is not one of poisson, constant/],
    [['rows', '--duration', '5'], /unknown option --duration; did you mean --duration-s\?/],
    [['rows', '--fail-if', 'p98>1'], /--fail-if: "p98>1" is no condition.*\n.*p99\.9/],
    [['rows', '--fail-if', 'goodput<1'], /--fail-if goodput needs --slo-ms/],
    [['rows', '--header', 'nonsense'], /is not NAME: VALUE/],
    [['rows', '--header', 'a: b\r\nc: d'], /is not NAME: VALUE/],
    [['rows', '--header', 'Content-Length: 5'], /Content-Length is made by this command itself/],
    [['rows', '--shape', 'y:1,3'], /the model has no input "y"/],
    [['rows', '--shape', 'x:1,-1'], /not NAME:DIM,DIM,… such as x:1,3,224,224/],
    [['rows', '--shape', 'x:1,3', '-i', '[[1,2,3]]'], /has both --input and --shape/],
    [['rows', '-i', '[[1,2,3]]', '--rows', '2'], /--rows: there is no made-up input whose first dimension is open/],
    [['fixed', '--rows', '2'], /--rows: there is no made-up input/],
    [['picture'], /input "image" \[-1,3,-1,-1\] has open dimensions\n.*--shape image:1,3,224,224/],
  ] as const) {
    const { exitCode, out, err } = await bench(...args);
    assert.deepEqual([exitCode, out], [2, ''], args.join(' '));
    assert.match(err, message, args.join(' '));
  }
  assert.deepEqual(sent, []);
});

test('the progress line tells the load, the time and what has come, and fits the terminal', () => {
  const options = readBenchOptions({ rate: '50', 'duration-s': '10' }, cwd);
  const tally = new Tally(1000, 11_000, undefined);
  const load = options.loads[0]!;
  assert.match(progressText(load, { elapsedMs: 500, tally, inFlight: 3 }, options, 200), /^rate 50 {2}warm-up {2}0 ok/);
  for (let n = 0; n < 200; n++) {
    tally.sent(1000, 1000);
    tally.succeeded(1000, 1002);
  }
  const line = progressText(load, { elapsedMs: 4000, tally, inFlight: 3 }, options, 200);
  assert.equal(line, 'rate 50  3 of 10 s  200 ok  0 not  p50 2.00 ms  p99 2.00 ms  3 under way');
  assert.equal(progressText(load, { elapsedMs: 4000, tally, inFlight: 3 }, options, 20).length, 19);
});
