/**
 * Clients that others wrote, against a server of ours: Triton's own Python client in all of its flavours, its perf_analyzer, KServe's clients, and curl.
 *
 * `.ci/run` fetches the first three from PyPI into .cache/conformance; where they are not, these tests say so and are skipped.
 */
import assert from 'node:assert/strict';
import { execFile, type SpawnSyncReturns, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import type { Datatype } from '../../src/tensor/datatype.ts';
import { rowsOf } from '../support/fixtures-elementwise.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer, PROJECT_DIR } from '../support/server.ts';

const FOLDER = path.join(PROJECT_DIR, '.cache/conformance');
const PYTHON = path.join(FOLDER, 'venv/bin/python');
const KSERVE_PYTHON = path.join(FOLDER, 'kserve/bin/python');
const PERF_ANALYZER = path.join(FOLDER, 'perf_analyzer');
const scriptOf = (name: string) => path.join(PROJECT_DIR, 'test/conformance', name);
const LIMIT_MS = 120_000;
const OUTPUT_MAX_BYTES = 2 ** 20;
const DATATYPES: readonly Datatype[] = [
  'BOOL',
  'INT8',
  'INT16',
  'INT32',
  'INT64',
  'UINT8',
  'UINT16',
  'UINT32',
  'UINT64',
  'FP16',
  'FP32',
  'FP64',
  'BYTES',
];

const run = promisify(execFile);
const identities = Object.fromEntries(
  DATATYPES.map((datatype) => [`rows_${datatype.toLowerCase()}`, { fixture: rowsOf(datatype) }]),
);
const models = {
  ...identities,
  simple: { config: { max_batch_size: 4 } },
  lookup: {},
  late: { fixture: 'rows' },
  labelled: { fixture: 'rows', config: { outputs: [{ name: 'y', labels: 'labels.txt' }] } },
};
const repository = makeRepository({ after }, models);
repository.writeFile(['labelled', 'labels.txt'], 'zero\none\n');
const loaded = Object.keys(models).filter((name) => name !== 'late');
const server = launchServer(
  { after },
  {
    grpc: true,
    repository: repository.dir,
    args: [
      '--system-shared-memory',
      '--model-control-mode',
      'explicit',
      ...loaded.flatMap((name) => ['--load-model', name]),
    ],
  },
);

before(async () => {
  await server.ready();
});

const notFetched = (file: string): string | false =>
  fs.existsSync(file)
    ? false
    : `${path.relative(PROJECT_DIR, file)} is not there: .ci/run fetches it where Python and PyPI are`;

const host = () => server.url.replace('http://', '');

for (const [client, python, script, leastChecks] of [
  ['tritonclient', PYTHON, 'check_tritonclient.py', 50],
  ['KServe', KSERVE_PYTHON, 'check_kserve.py', 60],
] as const) {
  describe(client, { skip: notFetched(python) }, () => {
    test('every operation of its flavours for HTTP and gRPC', async (t) => {
      const { stdout } = await run(python, [scriptOf(script), host(), server.address('grpc')], {
        timeout: LIMIT_MS,
        maxBuffer: OUTPUT_MAX_BYTES,
      });
      const lines = stdout.trim().split('\n');
      assert(lines.length > leastChecks, stdout);
      for (const line of lines) {
        const [, failed, name, reason] = /^(not )?ok ([^:]+: [^:]+|[^:]+)(?:: (.*))?$/.exec(line) ?? [];
        await t.test(name ?? line, () => assert.equal(failed, undefined, reason));
      }
    });
  });
}

describe('perf_analyzer', { skip: notFetched(PERF_ANALYZER) }, () => {
  for (const [what, ...args] of [
    ['HTTP', '-m', 'simple', '--concurrency-range', '1:4:3'],
    ['HTTP, batches of a request', '-m', 'simple', '-b', '3', '--concurrency-range', '2'],
    ['gRPC', '-m', 'simple', '-i', 'grpc', '--concurrency-range', '2'],
    ['gRPC, asynchronous', '-m', 'simple', '-i', 'grpc', '--concurrency-range', '2', '--async'],
    ['HTTP, shared memory', '-m', 'simple', '--concurrency-range', '1:4:3', '--shared-memory', 'system'],
    ['gRPC, shared memory', '-m', 'simple', '-i', 'grpc', '--concurrency-range', '2', '--shared-memory', 'system'],
    ['gRPC, streaming', '-m', 'simple', '-i', 'grpc', '--concurrency-range', '2', '--async', '--streaming'],
  ]) {
    test(`${what}: it finishes, and its statistics add up`, async () => {
      const url = args.includes('grpc') ? server.address('grpc') : host();
      // Two short windows; whether they are steady is no matter here.
      const settings = ['-u', url, '-p', '200', '-r', '3', '-s', '999'];
      const { stdout, stderr } = await run(PERF_ANALYZER, [...args, ...settings], {
        timeout: LIMIT_MS,
        maxBuffer: OUTPUT_MAX_BYTES,
      });
      assert.doesNotMatch(stdout + stderr, /error|fail/i);
      const counted = (name: string) => Number(new RegExp(`${name}: (\\d+)`).exec(stdout)?.[1]);
      const rows = args.includes('-b') ? 3 : 1;
      assert(counted('Successful request count') > 0, stdout);
      assert(counted('Inference count') >= counted('Execution count'), stdout);
      const perRequest = counted('Inference count') / counted('Successful request count');
      assert(Math.abs(perRequest - rows) < 0.2, stdout);
    });
  }
});

describe('curl', { skip: spawned('curl', '--version').error === undefined ? false : 'curl is not installed' }, () => {
  const curl = async (...args: string[]) => (await run('curl', ['-sS', '--max-time', '30', ...args])).stdout;

  test('asks for a run, metadata and health', async () => {
    const data = Array.from({ length: 16 }, (_, n) => n);
    const inputs = ['INPUT0', 'INPUT1'].map((name) => ({ name, shape: [1, 16], datatype: 'INT32', data }));
    const answer = JSON.parse(await curl('-d', JSON.stringify({ inputs }), `${server.url}/v2/models/simple/infer`));
    assert.deepEqual(
      answer.outputs[0].data,
      data.map((value) => 2 * value),
    );
    assert.equal(JSON.parse(await curl(`${server.url}/v2/models/simple`)).name, 'simple');
    assert.equal(await curl('-o', '/dev/null', '-w', '%{http_code}', `${server.url}/v2/health/ready`), '200');
  });

  test('waits for leave to send a large body, and sends it in chunks', async () => {
    const data = Array.from({ length: 16 * 4000 }, () => 1);
    const inputs = ['INPUT0', 'INPUT1'].map((name) => ({
      name,
      shape: [4, 16],
      datatype: 'INT32',
      data: data.slice(0, 64),
    }));
    const body = JSON.stringify({ inputs, padding: data });
    for (const header of ['Expect: 100-continue', 'Transfer-Encoding: chunked']) {
      const child = run('curl', [
        '-sS',
        '--max-time',
        '30',
        '-H',
        header,
        '--data-binary',
        '@-',
        `${server.url}/v2/models/simple/infer`,
      ]);
      child.child.stdin!.end(body);
      assert.deepEqual(JSON.parse((await child).stdout).outputs[0].shape, [4, 16]);
    }
  });
});

function spawned(program: string, ...args: string[]): SpawnSyncReturns<Buffer> {
  return spawnSync(program, args);
}
