/**
 * A traffic spike makes batches larger than memory holds; elsewhere that kills the worker, and its restart the host. Here the account knows what rows take, batches
 * are run in parts that fit, and where it was wrong the run fails inside its budget and is made again in smaller parts: nobody outside notices.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from '../../src/client/client.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const MIB = 2 ** 20;
/** `bulge` takes 16 MiB in transit for each row: this holds 20 rows and not 21. */
const BUDGET_BYTES = 335 * MIB;

const cleanUp = { after };
const repository = makeRepository(cleanUp, {
  bulge: {
    config: {
      max_batch_size: 32,
      max_queue_delay_us: 20_000,
      memory_budget_bytes: BUDGET_BYTES,
      runtime: { intra_op_threads: 1 },
    },
  },
});
const server = launchServer(cleanUp, { repository: repository.dir });
let client: Client | undefined;

before(async () => {
  await server.ready();
  client = new Client(server.url, { connections: 32, retry: false });
});
after(() => client?.close());

function ask(values: Float32Array) {
  return client!.infer('bulge', {
    inputs: [{ name: 'x', datatype: 'FP32', shape: [values.length, 1], data: values }],
    timeoutMs: 60_000,
  });
}

test('a request larger than memory holds at once is run in parts of its rows and answered whole', async () => {
  const pids = server.pids('device');
  const values = Float32Array.from({ length: 32 }, (_, row) => row + 1);
  const { shape, data } = (await ask(values)).output('y', 'FP32');
  assert.deepEqual(shape, [32, 1]);
  assert.deepEqual(data, values);
  assert.equal(await server.metric('batchport_batch_out_of_memory_total', { model: 'bulge' }), 0, 'known before');
  assert.equal(await server.metric('batchport_batch_rows_executed_total', { model: 'bulge' }), 32);
  assert.ok((await server.metric('batchport_batches_total', { model: 'bulge' })) >= 2, 'in parts');
  assert.deepEqual(await server.pids('device'), await pids, 'nothing was killed');
});

test('a spike of requests that do not fit together reaches no client as an error', async () => {
  const pids = await server.pids('device');
  const answers = await Promise.all(
    Array.from({ length: 96 }, async (_, n) => (await ask(Float32Array.of(n + 1))).output('y', 'FP32').data[0]),
  );
  assert.deepEqual(
    answers,
    Array.from({ length: 96 }, (_, n) => n + 1),
  );
  assert.deepEqual(await server.pids('device'), pids, 'nothing was killed');
  assert.equal(await server.metric('batchport_batch_failures_total', { model: 'bulge' }), 0);
  assert.ok((await server.metric('batchport_model_memory_held_bytes', { model: 'bulge' })) <= BUDGET_BYTES);
  // What succeeded had 20 rows at the most, and batches are not much smaller than that.
  const label = { model: 'bulge' };
  const batches = await server.metric('batchport_batches_total', label);
  assert.ok((await server.metric('batchport_batch_rows_bucket', { ...label, le: '8' })) < batches, 'none is large');
});
