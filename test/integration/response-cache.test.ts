/** Models with a response cache: what is answered without a run, in every form and by every way, and what never is. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertDone, ControlledServer, valueIn } from '../support/control.ts';
import {
  assertRefused,
  binaryRequest,
  get,
  type InferRequest,
  infer,
  inferBytes,
  json,
  jsonBody,
  jsonRequest,
  outputsOf,
  sendTogether,
} from '../support/exchange.ts';
import { sampleInputs } from '../support/fixture.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { LOOKUP_ROWS } from '../support/fixtures-shapes.ts';
import { GrpcClients, tensorsOf, typedRequest } from '../support/grpc.ts';
import { assertIdle, eventually, untilModel, untilRunning } from '../support/idle.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensors, type TensorMap, tensor } from '../support/tensor.ts';

const random = seedFromEnv();
const config = { max_batch_size: 4, response_cache: { max_bytes: '4MiB' } };
const repository = makeRepository(
  { after },
  {
    simple: { config },
    simple_string: {},
    lookup: { config },
    wide: { config },
    slow: { config: { ...config, max_batch_size: 1, queue: { max_rows: 4 } } },
    rows: {},
  },
);
repository.writeFile(['simple_string', 'config.pbtxt'], 'response_cache { enable: true }');
repository.writeFile(['plus', '1', 'model.onnx'], plusModel(1));
repository.writeConfig('plus', config);
const args = ['--model-control-mode', 'explicit', '--load-model', '*', '--ingress', '1'];
const server = launchServer({ after }, { grpc: true, repository: repository.dir, args });
const control = new ControlledServer(server, repository);
const clients = new GrpcClients({ after }, server);

before(async () => {
  await server.ready();
});

interface Counted {
  readonly rows: number;
  readonly success: number;
  readonly hits: number;
  readonly misses: number;
  readonly infer: number;
}

/** What the statistics tell of a model once so many requests of it are counted. */
async function counted(model: string, requests: number): Promise<Counted> {
  let counts: Counted | undefined;
  await eventually(async () => {
    const [statistics] = json(await get(server.url, `/v2/models/${model}/stats`)).model_stats as {
      inference_count: number;
      inference_stats: Record<string, { count: number }>;
    }[];
    const { success, fail, cache_hit: hit, cache_miss: miss, compute_infer: run } = statistics!.inference_stats;
    const answered = success!.count + fail!.count;
    counts = {
      rows: statistics!.inference_count,
      success: success!.count,
      hits: hit!.count,
      misses: miss!.count,
      infer: run!.count,
    };
    return answered === requests ? undefined : `${answered} answers are counted, not ${requests}`;
  });
  return counts!;
}

const ask = (model: string, request: InferRequest) => infer(server.url, model, request);

test('tensors that came before are answered without a run, whatever form they come and are wanted in', async () => {
  const inputs = sampleInputs(fixture('simple'), random, 2);
  const right = fixture('simple').reference!(inputs);
  const reversed = new Map([...inputs].reverse());
  const client = clients.open();
  assertSameTensors(outputsOf(await ask('simple', binaryRequest(inputs))), right);
  assertSameTensors(outputsOf(await ask('simple', jsonRequest(inputs))), right);
  assertSameTensors(outputsOf(await ask('simple', binaryRequest(reversed, { parameters: { priority: 2 } }))), right);
  assertSameTensors(tensorsOf(await client.infer('simple', inputs)), right);
  assertSameTensors(tensorsOf(await client.call('ModelInfer', typedRequest('simple', inputs))), right);
  const answer = await ask('simple', jsonRequest(inputs, { id: 'mine', outputs: both('OUTPUT1', 'OUTPUT0') }));
  assert.equal(json(answer).id, 'mine');
  assert.deepEqual([...outputsOf(answer).keys()], ['OUTPUT1', 'OUTPUT0']);
  assertSameTensors(outputsOf(answer), right);
  assert.deepEqual(await counted('simple', 6), { rows: 2, success: 6, hits: 5, misses: 1, infer: 1 });
});

const both = (...names: string[]) => names.map((name) => ({ name }));

test('other tensors, rows of them and other outputs are run', async () => {
  const inputs = sampleInputs(fixture('simple'), random, 2);
  const rowsBefore = (await counted('simple', 6)).rows;
  const one: TensorMap = new Map(
    [...inputs].map(([name, { data }]) => [name, tensor('INT32', [1, 16], (data as Int32Array).slice(0, 16))]),
  );
  const swapped = new Map([
    ['INPUT0', inputs.get('INPUT1')!],
    ['INPUT1', inputs.get('INPUT0')!],
  ]);
  for (const asked of [inputs, one, swapped]) {
    assertSameTensors(outputsOf(await ask('simple', binaryRequest(asked))), fixture('simple').reference!(asked));
  }
  const single = outputsOf(await ask('simple', jsonRequest(inputs, { outputs: both('OUTPUT1') })));
  assert.deepEqual([...single.keys()], ['OUTPUT1']);
  const { rows, hits } = await counted('simple', 10);
  assert.deepEqual({ rows: rows - rowsBefore, hits }, { rows: 2 + 1 + 2 + 2, hits: 5 });
});

test("Triton's response_cache is one, and strings are found in it", async () => {
  const inputs = sampleInputs(fixture('simple_string'), random, 1);
  const right = fixture('simple_string').reference!(inputs);
  assertSameTensors(outputsOf(await ask('simple_string', jsonRequest(inputs))), right);
  assertSameTensors(outputsOf(await ask('simple_string', binaryRequest(inputs))), right);
  assert.deepEqual(await counted('simple_string', 2), { rows: 1, success: 2, hits: 1, misses: 1, infer: 1 });
  const { response_cache: cache } = json(await get(server.url, '/v2/models/simple_string/config'));
  assert.deepEqual(cache, { enable: true, max_bytes: 64 * 2 ** 20 });
});

test('what fails is run again', async () => {
  const bad = jsonRequest(new Map([['index', tensor('INT64', [1], BigInt64Array.of(BigInt(LOOKUP_ROWS)))]]));
  for (let n = 0; n < 2; n++) assertRefused(await ask('lookup', bad), 'MODEL_FAILED', /out of data bounds/);
  assert.equal(await server.metric('batchport_batch_failures_total', { model: 'lookup' }), 2);
  const { hits, misses } = await counted('lookup', 2);
  assert.deepEqual({ hits, misses }, { hits: 0, misses: 0 });
});

test('answers of several batches are kept as one, those that a thread writes are written anew, and the oldest make room', async () => {
  const inputs = sampleInputs(fixture('simple'), random, 6);
  const right = fixture('simple').reference!(inputs);
  const { rows } = await counted('simple', 10);
  for (let n = 0; n < 2; n++) assertSameTensors(outputsOf(await ask('simple', binaryRequest(inputs))), right);
  assert.equal((await counted('simple', 12)).rows, rows + 6);
  // 1 MiB each, and 4 MiB of room.
  for (const value of [1, 2, 2, 3, 4, 4, 1]) {
    const x = new Map([['x', tensor('FP32', [1, 1], Float32Array.of(value))]]);
    const form = value === 2 ? jsonRequest : binaryRequest;
    assertSameTensors(outputsOf(await ask('wide', form(x))), fixture('wide').reference!(x));
  }
  const { hits, misses } = await counted('wide', 7);
  assert.deepEqual({ hits, misses }, { hits: 2, misses: 5 });
  const held = await server.metric('batchport_response_cache_bytes', { model: 'wide' });
  assert(held > 3 * 2 ** 20 && held <= 4 * 2 ** 20, String(held));
  assert.equal(await server.metric('batchport_response_cache_evictions_total', { model: 'wide' }), 2);
});

test('a model that is loaded anew knows nothing of what the one before it has answered', async () => {
  assert.equal(await control.valueOfTen('plus'), 11);
  assert.equal(await control.valueOfTen('plus'), 11);
  assert.equal((await counted('plus', 2)).hits, 1);
  control.replaceFile('plus', '1', plusModel(2));
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 12);
  // Of what is served there is one answer; that of the old one is no longer held.
  assert.equal(await server.metric('batchport_response_cache_entries', { model: 'plus' }), 1);
});

test('a full queue and a deadline that no run can meet do not keep an answer back', async (t) => {
  const steps = (count: number) =>
    jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${count}]}]}`);
  const hurried = (request: InferRequest): InferRequest => ({
    ...request,
    headers: [...request.headers, ['Batchport-Deadline-Ms', '1']],
  });
  for (let n = 0; n < 8; n++) assert.equal((await ask('slow', steps(1000 + n))).status, 200);
  // Of a client that leaves in the end, which ends the run too.
  const blocking = await RawConnection.open(server.url);
  t.after(() => blocking.destroy());
  await blocking.write(inferBytes('slow', steps(1_000_000)));
  await untilRunning(server, 'slow');
  const waiting = [1, 2, 3, 4].map((n) => ask('slow', steps(n)));
  await untilModel(server, 'slow', ({ queue }) => queue!.rows_queued === 4);
  const [known, unknown, late] = await sendTogether(server.url, [
    inferBytes('slow', hurried(steps(1000))),
    inferBytes('slow', steps(5)),
    inferBytes('slow', hurried(steps(6))),
  ]);
  assert.equal(known!.status, 200);
  assert.equal(valueIn(known!), 1000);
  assertRefused(unknown!, 'QUEUE_FULL', /queue/);
  assertRefused(late!, 'OVERLOADED', /deadline/);
  blocking.destroy();
  for (const answer of await Promise.all(waiting)) assert.equal(answer.status, 200);
  await assertIdle(server);
});

test('a model without one has neither the metrics nor the counts of one', async () => {
  const inputs = sampleInputs(fixture('rows'), random, 1);
  for (let n = 0; n < 2; n++) assert.equal((await ask('rows', binaryRequest(inputs))).status, 200);
  assert.deepEqual(await counted('rows', 2), { rows: 2, success: 2, hits: 0, misses: 0, infer: 2 });
  const metrics = await server.metrics();
  assert.match(metrics, /^batchport_response_cache_hits_total\{model="simple",version="1"\} 6$/m);
  assert.doesNotMatch(metrics, /^batchport_response_cache_\w+\{model="rows"/m);
});
