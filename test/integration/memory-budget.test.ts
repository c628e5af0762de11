/**
 * A traffic spike makes batches larger than memory holds; elsewhere that kills the worker, and its restart the host. Here the account knows what rows take, batches
 * are run in parts that fit, and where it was wrong the run fails inside its budget and is made again in smaller parts: nobody outside notices.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, InferenceError } from '../../src/client/client.ts';
import { eventually, processesOf } from '../support/idle.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const MIB = 2 ** 20;
/** `bulge` takes 16 MiB in transit for each row: this holds 20 rows and not 21. */
const BUDGET_BYTES = 335 * MIB;
/** A row of `square` of this length takes 16 MiB: this holds 5 of them. The load has measured rows of length 32, which take 4 KiB. */
const SQUARE_LENGTH = 2048;
const SQUARE_BUDGET_BYTES = 90 * MIB;

const cleanUp = { after };
const repository = makeRepository(cleanUp, {
  bulge: {
    config: {
      max_batch_size: 32,
      max_queue_delay_us: 20_000,
      queue: { max_rows: 128 },
      memory_budget_bytes: BUDGET_BYTES,
      runtime: { intra_op_threads: 1 },
    },
  },
  // Nobody else asks it, so that it has one peak and no other.
  peak: { fixture: 'bulge', config: { max_batch_size: 32, runtime: { intra_op_threads: 1 } } },
  square: {
    config: {
      max_batch_size: 32,
      max_queue_delay_us: 20_000,
      memory_budget_bytes: SQUARE_BUDGET_BYTES,
      runtime: { intra_op_threads: 1 },
    },
  },
});
// With a cache of its own, so that nothing is known from an earlier run.
const env = { BATCHPORT_CACHE_DIR: temporaryDirectory(cleanUp, 'cache') };
const server = launchServer(cleanUp, { repository: repository.dir, env });
let client: Client | undefined;

before(async () => {
  await server.ready();
  client = new Client(server.url, { connections: 32, retry: false });
});
after(() => client?.close());

function ask(values: Float32Array, model = 'bulge') {
  return client!.infer(model, {
    inputs: [{ name: 'x', datatype: 'FP32', shape: [values.length, 1], data: values }],
    timeoutMs: 60_000,
  });
}

// Story: an arena keeps for ever what one peak made it take, and the next model finds no memory.
test('when a peak is over, its memory is given back to the system, though no request comes any more', async (t) => {
  const label = { model: 'peak' };
  await eventually(async () => {
    await ask(
      Float32Array.from({ length: 16 }, (_, row) => row),
      'peak',
    );
    const held = await server.metric('batchport_model_memory_held_bytes', label);
    return held >= 256 * MIB ? undefined : `${held} bytes are held`;
  });
  const [before] = processesOf(await server.status()).filter(({ role }) => role === 'device');
  await eventually(async () => {
    const held = await server.metric('batchport_model_memory_held_bytes', label);
    return held < 32 * MIB ? undefined : `${held} bytes are held`;
  }, 60_000);
  const [now] = processesOf(await server.status()).filter(({ role }) => role === 'device');
  t.diagnostic(`resident before ${before!.rss_bytes >> 20} MiB, after ${now!.rss_bytes >> 20} MiB`);
  assert.ok(before!.rss_bytes - now!.rss_bytes > 96 * MIB, `${before!.rss_bytes} -> ${now!.rss_bytes}`);
  assert.ok((await server.metric('batchport_model_memory_given_back_total', label)) > 0);
  assert.equal((await ask(Float32Array.of(5), 'peak')).output('y', 'FP32').data[0], 5);
});

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

async function askSquare(rows: number, largest: number): Promise<void> {
  const data = new Float32Array(rows * SQUARE_LENGTH);
  for (let row = 0; row < rows; row++) data[row * SQUARE_LENGTH + row] = largest + row;
  const inputs = [{ name: 'x', datatype: 'FP32', shape: [rows, SQUARE_LENGTH], data }] as const;
  const answer = (await client!.infer('square', { inputs, timeoutMs: 60_000 })).output('y', 'FP32');
  assert.deepEqual(
    answer.data,
    Float32Array.from({ length: rows }, (_, row) => (largest + row) ** 2),
  );
}

test('rows of a length that needs far more than was guessed find their batch by failing inside the budget, and no request fails', async (t) => {
  const pids = await server.pids('device');
  const spike = async (): Promise<{ failed: number; batches: number }> => {
    await Promise.all([askSquare(32, 1), ...Array.from({ length: 32 }, (_, n) => askSquare(1, n + 1))]);
    const failed = await server.metric('batchport_batch_out_of_memory_total', { model: 'square' });
    return { failed, batches: await server.metric('batchport_batches_total', { model: 'square' }) };
  };
  const first = await spike();
  assert.ok(first.failed > 0, 'the guess was far too low');
  const second = await spike();
  t.diagnostic(`${JSON.stringify(first)} after one spike, ${JSON.stringify(second)} after the next`);
  assert.ok(second.failed - first.failed < (second.batches - first.batches) / 2, 'it has been learnt');
  assert.equal(await server.metric('batchport_batch_failures_total', { model: 'square' }), 0);
  assert.deepEqual(await server.pids('device'), pids, 'nothing was killed');
});

test('a spike beyond the queue is refused at once, and what was taken is answered, whatever memory it needs', async () => {
  const pids = await server.pids('device');
  const outcomes = await Promise.all(
    Array.from({ length: 64 }, (_, n) =>
      ask(Float32Array.from({ length: 8 }, (_, row) => 8 * n + row)).then(
        (answer) => ({ status: 200, data: answer.output('y', 'FP32').data, retryAfter: undefined }),
        (error: unknown) => {
          if (!(error instanceof InferenceError)) throw error;
          return { status: error.status, data: undefined, retryAfter: error.retryAfterMs };
        },
      ),
    ),
  );
  const refused = outcomes.filter(({ status }) => status === 429);
  assert.ok(refused.length > 0 && refused.length < outcomes.length, `${refused.length} refused`);
  assert.ok(refused.every(({ retryAfter }) => retryAfter !== undefined));
  outcomes.forEach(({ status, data }, n) => {
    if (status === 429) return;
    assert.equal(status, 200);
    assert.deepEqual(
      data,
      Float32Array.from({ length: 8 }, (_, row) => 8 * n + row),
    );
  });
  assert.deepEqual(await server.pids('device'), pids, 'nothing was killed');
  assert.equal(await server.metric('batchport_batch_failures_total', { model: 'bulge' }), 0);
});
