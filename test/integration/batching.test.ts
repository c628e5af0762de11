/**
 * Which rows run together: those of one model version, shape and set of outputs, never more than the limit, and only where the model keeps rows apart.
 *
 * The model `batch_spy` itself tells each row which others were in its batch. Requests that are to meet are sent in one write; a batch that is full runs at
 * once, another waits for `DELAY_US`.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  type Answer,
  assertRefused,
  assertUnharmed,
  binaryBody,
  binaryRequest,
  get,
  infer,
  inferBytes,
  json,
  jsonBody,
  jsonRequest,
  outputsOf,
  type RequestFields,
  sendTogether,
} from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { TAGS_MAX, taggedRows, tagsOf } from '../support/fixtures-batches.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { Oracle } from '../support/reference.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, assertSameTensors, sliceRows, type TestTensor, tensor } from '../support/tensor.ts';

const BATCH_ROWS = 8;
const DELAY_US = 300_000;

const random = seedFromEnv();
const small = { queue: { max_bytes: '4MiB' } };
const meeting = { ...small, max_batch_size: BATCH_ROWS, max_queue_delay_us: DELAY_US };
const UNBATCHABLE = {
  recurrent: /"state" has .*first dimension is fixed|"sr" is a scalar/,
  scalar: /"factor" is a scalar/,
  no_batch: /first dimension is fixed/,
  reduce_batch: /"y" has shape \[1\]/,
  batch_softmax: /another value beside other rows/,
};
const repository = makeRepository(
  { after },
  {
    batch_spy: { config: meeting },
    two: {
      fixture: { 1: 'batch_spy', 2: 'batch_spy' },
      config: { ...meeting, max_queue_delay_us: DELAY_US, version_policy: 'all' },
    },
    simple: { config: meeting },
    lookup: { config: meeting },
    loose_rows: { config: meeting },
    forced_sum: { fixture: 'reduce_batch', config: meeting },
    forced_softmax: { fixture: 'batch_softmax', config: meeting },
    ...Object.fromEntries(Object.keys(UNBATCHABLE).map((name) => [name, { config: small }])),
  },
);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

async function executions(model: string, version = '1'): Promise<{ batches: number; rows: number }> {
  const { models } = (await server.status()) as unknown as {
    models: { name: string; version: string; batches: number; rows: number }[];
  };
  const { batches, rows } = models.find((entry) => entry.name === model && entry.version === version)!;
  return { batches, rows };
}

/** Batches and rows that a model runs during an action. */
async function countExecutions<T>(model: string, action: () => Promise<T>) {
  const earlier = await executions(model);
  const result = await action();
  const { batches, rows } = await executions(model);
  return { result, batches: batches - earlier.batches, rows: rows - earlier.rows };
}

interface SpyRequest {
  readonly rows: number;
  readonly columns?: number;
  readonly outputs?: readonly string[];
  readonly model?: string;
  readonly version?: string;
}

/**
 * Sends requests to spies together, each row with a tag of its own, checks that each got its own values back, and gives for each request the tags of the
 * batch it ran in. Half of them go in JSON.
 */
async function batchesOf(requests: readonly SpyRequest[]): Promise<number[][]> {
  let tag = 0;
  const inputs = requests.map(({ rows, columns = 3 }, n) => {
    const x = taggedRows(tag, rows, columns, n + 1);
    tag += rows;
    return x;
  });
  assert(tag <= TAGS_MAX);
  const bytes = requests.map(({ model = 'batch_spy', version, outputs }, n) => {
    const fields: RequestFields = outputs === undefined ? {} : { outputs: outputs.map((name) => ({ name })) };
    const values = new Map([['x', inputs[n]!]]);
    return inferBytes(model, n % 2 === 0 ? binaryRequest(values, fields) : jsonRequest(values, fields), version);
  });
  const answers = await sendTogether(server.url, bytes);
  tag = 0;
  return requests.map(({ rows, columns = 3, outputs = ['y', 'z'] }, n) => {
    const result = outputsOf(answers[n]!);
    assert.deepEqual([...result.keys()], outputs, `outputs of request ${n}`);
    const groups = outputs.flatMap((name) => {
      const { shape, data } = result.get(name) as Extract<TestTensor, { datatype: 'FP32' }>;
      assert.deepEqual(shape, [rows, columns], `shape of request ${n}`);
      return Array.from({ length: rows }, (_, row) => {
        const values = data.subarray(row * columns, (row + 1) * columns);
        assert.deepEqual([...values.subarray(1)], new Array(columns - 1).fill(n + 1), `values of request ${n}`);
        return tagsOf(values[0]!);
      });
    });
    for (const group of groups) assert.deepEqual(group, groups[0], `all rows of request ${n} run in one batch`);
    for (let own = tag; own < tag + rows; own++) assert(groups[0]!.includes(own), `request ${n} ran with its own rows`);
    tag += rows;
    return groups[0]!;
  });
}

// Concatenating what differs beyond the first dimension gives one client the other's length, or garbage (case 11).
test('requests share a batch only when all other dimensions are equal', async () => {
  const { result, batches, rows } = await countExecutions('batch_spy', () =>
    batchesOf([
      { rows: 1, columns: 3 },
      { rows: 1, columns: 5 },
      { rows: 2, columns: 3 },
      { rows: 1, columns: 3 },
    ]),
  );
  assert.deepEqual(result, [[0, 2, 3, 4], [1], [0, 2, 3, 4], [0, 2, 3, 4]]);
  assert.deepEqual({ batches, rows }, { batches: 2, rows: 5 });
});

test('requests share a batch only when they ask for the same outputs, in any order', async () => {
  const { result, batches } = await countExecutions('batch_spy', () =>
    batchesOf([
      { rows: 1, outputs: ['y'] },
      { rows: 1, outputs: ['z'] },
      { rows: 1, outputs: ['y', 'z'] },
      { rows: 1, outputs: ['y'] },
      { rows: 1, outputs: ['z', 'y'] },
      { rows: 1 },
    ]),
  );
  assert.deepEqual(result, [[0, 3], [1], [2, 4, 5], [0, 3], [2, 4, 5], [2, 4, 5]]);
  assert.equal(batches, 3);
});

test('requests for two versions of a model never share a batch', async () => {
  const result = await batchesOf([
    { rows: 1, model: 'two', version: '1' },
    { rows: 1, model: 'two', version: '2' },
    { rows: 2, model: 'two', version: '1' },
    { rows: 1, model: 'two' },
  ]);
  assert.deepEqual(result, [
    [0, 2, 3],
    [1, 4],
    [0, 2, 3],
    [1, 4],
  ]);
  assert.deepEqual(await executions('two', '1'), { batches: 1, rows: 3 });
  assert.deepEqual(await executions('two', '2'), { batches: 1, rows: 2 });
});

// A limit that counts requests lets one of five rows count as one (case 12).
test('a batch never has more rows than max_batch_size, whatever the requests bring', async () => {
  const { result, batches, rows } = await countExecutions('batch_spy', () =>
    batchesOf([{ rows: 5 }, { rows: 5 }, { rows: 3 }]),
  );
  assert.equal(rows, 13);
  assert.equal(batches, 2);
  const sizes = [...new Set(result.map(String))].map((group) => group.split(',').length).sort();
  assert.deepEqual(sizes, [5, 8]);
  for (let round = 0; round < 4; round++) {
    const requests: SpyRequest[] = [];
    for (let left = TAGS_MAX; left > 0; ) {
      const count = random.int(1, Math.min(BATCH_ROWS, left));
      requests.push({ rows: count });
      left -= count;
    }
    const run = await countExecutions('batch_spy', () => batchesOf(requests));
    for (const group of run.result) assert(group.length <= BATCH_ROWS, `${group.length} rows ran together`);
    assert.equal(run.rows, TAGS_MAX);
    assert.equal(run.batches, new Set(run.result.map(String)).size);
  }
  const batchesUpTo = (le: string) => server.metric('batchport_batch_rows_bucket', { model: 'batch_spy', le });
  assert.equal(await batchesUpTo(String(BATCH_ROWS)), await batchesUpTo('+Inf'));
  assert.equal(await batchesUpTo('+Inf'), (await executions('batch_spy')).batches);
});

test('a request of max_batch_size rows is one batch', async () => {
  assert.deepEqual(await batchesOf([{ rows: BATCH_ROWS }]), [[0, 1, 2, 3, 4, 5, 6, 7]]);
});

test('inputs that disagree about the number of rows are refused', async () => {
  const rows = (count: number) => tensor('INT32', [count, 16], new Int32Array(count * 16));
  const inputs = new Map([
    ['INPUT0', rows(2)],
    ['INPUT1', rows(3)],
  ]);
  assertRefused(
    await infer(server.url, 'simple', jsonRequest(inputs)),
    'BAD_TENSOR',
    /'INPUT1' has 3 rows.*'INPUT0' has 2/,
  );
});

// No rows at all is a tensor like any other, and its neighbours in the batch keep theirs (case 31).
test('a request of no rows is answered with no rows, and those beside it with their own', async () => {
  const values = (count: number, first: number): Map<string, TestTensor> =>
    new Map([
      [
        'INPUT0',
        tensor(
          'INT32',
          [count, 16],
          Int32Array.from({ length: count * 16 }, (_, i) => first + i),
        ),
      ],
      ['INPUT1', tensor('INT32', [count, 16], new Int32Array(count * 16).fill(first))],
    ]);
  const inputs = [values(1, 100), values(0, 0), values(2, 200), values(0, 0), values(5, 300)];
  const answers = await sendTogether(
    server.url,
    inputs.map((value, n) => inferBytes('simple', n % 3 === 0 ? jsonRequest(value) : binaryRequest(value))),
  );
  for (const [n, value] of inputs.entries()) {
    assertSameTensors(outputsOf(answers[n]!), fixture('simple').reference!(value));
  }
  const empty = inputBytes(
    '{"name":"INPUT0","shape":[0,16],"datatype":"INT32"',
    '{"name":"INPUT1","shape":[0,16],"datatype":"INT32"',
  );
  for (const request of [jsonBody(empty(',"data":[]}')), binaryBody(empty(',"parameters":{"binary_data_size":0}}'))]) {
    const answer = await infer(server.url, 'simple', request);
    assert.equal(
      answer.body.toString(),
      `{"model_name":"simple","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[0,16],"data":[]},{"name":"OUTPUT1","datatype":"INT32","shape":[0,16],"data":[]}]}`,
    );
  }
});

/** A request's JSON from the beginnings of its inputs, all with the same end. */
function inputBytes(...heads: string[]): (end: string) => string {
  return (end) => `{"inputs":[${heads.map((head) => head + end).join()}]}`;
}

// Models whose first dimension is no batch give wrong rows when they are batched (case 33).
for (const [name, reason] of Object.entries(UNBATCHABLE)) {
  test(`${name} is not batched, says why, and gives each request its own run`, async (t) => {
    const metadata = json(await get(server.url, `/v2/models/${name}`)) as {
      parameters: { max_batch_size: number; batching: string };
    };
    assert.equal(metadata.parameters.max_batch_size, 0);
    assert.match(metadata.parameters.batching, reason);
    const oracle = Oracle.of(t, name);
    const inputs = [1, 2, 1, 3].map((rows) => sampleInputs(fixture(name), random, rows));
    const { result: answers, batches } = await countExecutions(name, () =>
      sendTogether(
        server.url,
        inputs.map((values) => inferBytes(name, binaryRequest(values))),
      ),
    );
    for (const [n, values] of inputs.entries()) assertSameTensors(outputsOf(answers[n]!), oracle.run(values));
    assert.equal(batches, inputs.length);
  });
}

test('max_batch_size does not make a model that mixes its rows servable', async () => {
  for (const [name, reason] of [
    ['forced_sum', UNBATCHABLE.reduce_batch],
    ['forced_softmax', UNBATCHABLE.batch_softmax],
  ] as const) {
    const x = sampleInputs(fixture(name === 'forced_sum' ? 'reduce_batch' : 'batch_softmax'), random, 1);
    const answer = await infer(server.url, name, jsonRequest(x));
    assertRefused(
      answer,
      'NOT_READY',
      new RegExp(`max_batch_size is ${BATCH_ROWS}, but the model cannot be batched: .*(${reason.source}).*Set it to 0`),
    );
    assert.equal((await get(server.url, `/v2/models/${name}/ready`)).status, 503);
  }
  assert.equal((await get(server.url, '/v2/models/simple/ready')).status, 200);
});

/** Rows `[key, 1]` of the model `loose_rows`. */
function keyed(...keys: number[]): Map<string, TestTensor> {
  return new Map([['x', tensor('FP32', [keys.length, 2], Float32Array.from(keys.flatMap((key) => [key, 1])))]]);
}

test('a model that gives more or fewer rows than it got fails those requests and never slices', async () => {
  for (const odd of [150, 250]) {
    const inputs = [keyed(1, 2), keyed(3), keyed(odd), keyed(4, 5, 6, 7)];
    const answers: Answer[] = await sendTogether(
      server.url,
      inputs.map((values) => inferBytes('loose_rows', binaryRequest(values))),
    );
    for (const n of [0, 1, 3]) assertSameTensor(outputsOf(answers[n]!).get('y'), inputs[n]!.get('x')!, `request ${n}`);
    const shape = odd === 150 ? '0,2' : '2,2';
    assertRefused(
      answers[2]!,
      'MODEL_FAILED',
      new RegExp(`Output 'y' has shape \\[${shape}\\] for a batch of 1 rows.*max_batch_size to 0`),
    );
  }
});

test('a request that makes the model fail does not fail the others in its batch', async () => {
  const index = (...values: number[]) =>
    new Map([['index', tensor('INT64', [values.length], BigInt64Array.from(values, BigInt))]]);
  const inputs = [index(0, 1), index(8), index(2, 3), index(4), index(-9), index(5)];
  const answers = await sendTogether(
    server.url,
    inputs.map((values) => inferBytes('lookup', jsonRequest(values))),
  );
  for (const [n, values] of inputs.entries()) {
    if (n === 1 || n === 4) assertRefused(answers[n]!, 'MODEL_FAILED', /out of data bounds/);
    else assertSameTensors(outputsOf(answers[n]!), fixture('lookup').reference!(values));
  }
});

test('rows cut out of a batch are those of the request, from the first to the last', async () => {
  const rows = sampleInputs(fixture('simple'), random, BATCH_ROWS);
  const expected = fixture('simple').reference!(rows);
  const cuts = [0, 3, 4, 8];
  const parts = cuts.slice(1).map((to, n) => [cuts[n]!, to] as const);
  const answers = await sendTogether(
    server.url,
    parts.map(([from, to]) =>
      inferBytes(
        'simple',
        binaryRequest(new Map([...rows].map(([name, value]) => [name, sliceRows(value, from, to)]))),
      ),
    ),
  );
  for (const [n, [from, to]] of parts.entries()) {
    const cut = new Map([...expected].map(([name, value]) => [name, sliceRows(value, from, to)]));
    assertSameTensors(outputsOf(answers[n]!), cut);
  }
});

test('no process of the server died on the way', () => assertUnharmed(server));
