/**
 * While a model runs for long, everything that needs no model, and every other model, goes on answering.
 *
 * How fast is not asserted; that many answers come while one single run is still going on is.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { binaryRequest, get, infer, jsonBody, outputsOf } from '../support/exchange.ts';
import { assertIdle, modelsOf, untilRunning } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

/** Rows of one run: about a second of work for the one thread it has. */
const BIG_ROWS = 2048;
const ROUNDS = 5;

const repository = makeRepository(
  { after },
  {
    mlp_big: { config: { max_batch_size: BIG_ROWS, queue: { max_rows: BIG_ROWS }, runtime: { intra_op_threads: 1 } } },
    rows: {},
  },
);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

// Story: health and metrics stopped answering while a model ran, since the run was synchronous under a Promise (event-loop-blocked-by-run, 7).
test('health, metadata, metrics, status, refusals and another model answer while a run goes on', async () => {
  const x = tensor('FP32', [BIG_ROWS, 1024], new Float32Array(BIG_ROWS * 1024).fill(0.5));
  let done = false;
  const run = infer(server.url, 'mlp_big', binaryRequest(new Map([['x', x]]))).finally(() => (done = true));
  await untilRunning(server, 'mlp_big', BIG_ROWS);
  for (let round = 0; round < ROUNDS; round++) {
    assert.equal((await get(server.url, '/v2/health/live')).status, 200);
    assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
    assert.equal((await get(server.url, '/v2/models/mlp_big')).status, 200);
    assert.equal((await get(server.metricsUrl, '/metrics')).status, 200);
    assert.equal((await infer(server.url, 'mlp_big', jsonBody('{'))).status, 400);
    assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
    assert.equal(done, false, `the run was over in round ${round}`);
  }
  const running = modelsOf(await server.status()).find(({ name }) => name === 'mlp_big')!;
  assert.equal(running.queue!.rows_running, BIG_ROWS);
  const y = outputsOf(await run).get('y')!;
  assert.deepEqual([...y.shape], [BIG_ROWS, 1000]);
  await assertIdle(server);
});
