/** The statistics extension: what it counts adds up, is the same over both protocols, and outlives the processes that counted. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  assertRefused,
  binaryRequest,
  get,
  infer,
  inferBytes,
  json,
  jsonRequest,
  sendTogether,
} from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { LOOKUP_ROWS } from '../support/fixtures-shapes.ts';
import { assertCallRefused, GrpcClients } from '../support/grpc.ts';
import { eventually, processesOf } from '../support/idle.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

type Duration = { count: number; ns: number };
interface Statistics {
  readonly name: string;
  readonly version: string;
  readonly last_inference: number;
  readonly inference_count: number;
  readonly execution_count: number;
  readonly inference_stats: Readonly<Record<string, Duration>>;
  readonly batch_stats: readonly { batch_size: number; compute_input: Duration; compute_infer: Duration }[];
}

const random = seedFromEnv();
const config = { max_batch_size: 8, max_queue_delay_us: 100_000 };
const server = launchServer(
  { after },
  {
    grpc: true,
    args: ['--ingress', '2'],
    repository: makeRepository(
      { after },
      {
        simple: { config },
        lookup: {},
        rows: { fixture: { 1: 'rows', 2: 'rows' }, config: { version_policy: 'all' } },
      },
    ).dir,
  },
);
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

async function statistics(path: string): Promise<Statistics[]> {
  const answer = await get(server.url, path);
  assert.equal(answer.status, 200);
  return json(answer).model_stats as Statistics[];
}
const of = async (model: string): Promise<Statistics> => (await statistics(`/v2/models/${model}/stats`))[0]!;
/** Answers are counted a moment after they have gone out, which another ingress may be asked in. */
async function untilAnswered(model: string, count: number): Promise<void> {
  await eventually(async () => {
    const { inference_stats: stats } = await of(model);
    const all = stats.success!.count + stats.fail!.count;
    return all === count ? undefined : `${all} answers are counted, not ${count}`;
  });
}
const inputs = (rows: number) => sampleInputs(fixture('simple'), random, rows);

test('a model that has not been asked has nothing to tell', async () => {
  const {
    last_inference: last,
    inference_count: rows,
    execution_count: batches,
    inference_stats: stats,
    batch_stats: sizes,
  } = await of('simple');
  assert.deepEqual({ last, rows, batches, sizes }, { last: 0, rows: 0, batches: 0, sizes: [] });
  for (const duration of Object.values(stats)) assert.deepEqual(duration, { count: 0, ns: 0 });
});

test('rows, batches and requests are counted, each with its time', async () => {
  const before = Date.now();
  await sendTogether(
    server.url,
    [1, 2, 3].map((rows) => inferBytes('simple', binaryRequest(inputs(rows)))),
  );
  await infer(server.url, 'simple', jsonRequest(inputs(5)));
  await untilAnswered('simple', 4);
  const {
    last_inference: last,
    inference_count: rows,
    execution_count: batches,
    inference_stats: stats,
    batch_stats: sizes,
  } = await of('simple');
  assert.equal(rows, 11);
  assert.equal(
    sizes.reduce((sum, { compute_infer: { count } }) => sum + count, 0),
    batches,
  );
  assert.equal(
    sizes.reduce((sum, { batch_size: size, compute_infer: { count } }) => sum + size * count, 0),
    rows,
  );
  for (const { compute_infer: run, compute_input: input } of sizes) assert(run.ns > 0 && input.count === run.count);
  for (const name of ['success', 'queue', 'compute_input', 'compute_infer', 'compute_output']) {
    assert.equal(stats[name]!.count, 4, name);
    assert(stats[name]!.ns > 0, name);
  }
  const { success, fail, ...parts } = stats;
  const inParts = Object.values(parts).reduce((sum, { ns }) => sum + ns, 0);
  assert(inParts <= success!.ns * 1.01, `${inParts} in parts, ${success!.ns} in all`);
  assert.deepEqual(fail, { count: 0, ns: 0 });
  assert(last >= before - 1000 && last <= Date.now() + 1000, String(last));
});

test('what failed is counted apart', async () => {
  const bad = new Map([['index', tensor('INT64', [1], BigInt64Array.of(BigInt(LOOKUP_ROWS)))]]);
  assertRefused(await infer(server.url, 'lookup', jsonRequest(bad)), 'MODEL_FAILED', /out of data bounds/);
  await untilAnswered('lookup', 1);
  const { inference_stats: stats } = await of('lookup');
  assert.equal(stats.success!.count, 0);
  assert.equal(stats.fail!.count, 1);
  assert(stats.fail!.ns > 0);
});

test('they are told of a version, of a model, and of all', async () => {
  const named = (all: readonly Statistics[]) => all.map(({ name, version }) => `${name}/${version}`).sort();
  assert.deepEqual(named(await statistics('/v2/models/rows/versions/1/stats')), ['rows/1']);
  assert.deepEqual(named(await statistics('/v2/models/rows/stats')), ['rows/1', 'rows/2']);
  assert.deepEqual(named(await statistics('/v2/models/stats')), ['lookup/1', 'rows/1', 'rows/2', 'simple/1']);
  assertRefused(await get(server.url, '/v2/models/nope/stats'), 'MODEL_NOT_FOUND', /unknown model/);
});

test('over gRPC they are the same', async () => {
  const client = clients.open();
  const http = await of('simple');
  const {
    model_stats: [grpc],
  } = await client.call('ModelStatistics', { name: 'simple' });
  assert.equal(Number(grpc.inference_count), http.inference_count);
  assert.equal(Number(grpc.execution_count), http.execution_count);
  for (const [name, { count, ns }] of Object.entries(http.inference_stats)) {
    assert.deepEqual(
      [Number(grpc.inference_stats[name].count), Number(grpc.inference_stats[name].ns)],
      [count, ns],
      name,
    );
  }
  assert.deepEqual(
    grpc.batch_stats.map((one: { batch_size: unknown; compute_infer: { ns: unknown } }) => [
      Number(one.batch_size),
      Number(one.compute_infer.ns),
    ]),
    http.batch_stats.map(({ batch_size: size, compute_infer: { ns } }) => [size, ns]),
  );
  assert.equal((await client.call('ModelStatistics', {})).model_stats.length, 4);
  await assertCallRefused(client.call('ModelStatistics', { name: 'nope' }), 'MODEL_NOT_FOUND', /unknown model/);
});

test('they outlive the processes that counted', async () => {
  const before = await of('simple');
  for (const { role, pid } of processesOf(await server.status())) {
    if (role !== 'supervisor') process.kill(pid, 'SIGKILL');
  }
  await eventually(async () => {
    const answer = await infer(server.url, 'simple', binaryRequest(inputs(1))).catch(() => undefined);
    return answer?.status === 200 ? undefined : 'the server is not back';
  });
  await eventually(async () => {
    const { inference_stats: stats } = await of('simple');
    return stats.success!.count > before.inference_stats.success!.count ? undefined : 'the answer is not counted';
  });
  const now = await of('simple');
  assert(now.inference_count > before.inference_count);
});

test('the extension is advertised', async () => {
  assert((json(await get(server.url, '/v2')).extensions as string[]).includes('statistics'));
});
