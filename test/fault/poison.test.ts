/**
 * A request whose data kills the process that runs it takes its whole batch with it, again and again, until the server gives up on all of them. Here the
 * batch is run once more as a whole, then request by request: the guilty one gets the error, its neighbours get their answers.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, InferenceError } from '../../src/client/client.ts';
import { assertAllAtWork, assertIdle } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const CALLERS = 16;
const DEATHS_MAX = 6;

const cleanUp = { after };
/** `crash` divides a by b; −2^31 / −1 ends the process with SIGFPE. */
const repository = makeRepository(cleanUp, {
  crash: { config: { max_batch_size: CALLERS, max_queue_delay_us: 500_000, runtime: { intra_op_threads: 1 } } },
});
const server = launchServer(cleanUp, { repository: repository.dir });
let client: Client | undefined;

before(async () => {
  await server.ready();
  client = new Client(server.url, { connections: CALLERS, retry: false });
});
after(() => client?.close());

async function divide(a: number, b: number): Promise<number | InferenceError> {
  const input = (name: string, value: number) =>
    ({ name, datatype: 'INT32', shape: [1, 1], data: Int32Array.of(value) }) as const;
  try {
    const result = await client!.infer('crash', { inputs: [input('a', a), input('b', b)], timeoutMs: 120_000 });
    return result.outputs[0]!.data[0] as number;
  } catch (error) {
    if (error instanceof InferenceError) return error;
    throw error;
  }
}

test('one poison request in a batch of 16: 15 answers, one error, at most 6 deaths', {
  skip: process.arch !== 'x64' && 'only x64 traps',
}, async () => {
  const guilty = 5;
  const answers = await Promise.all(
    Array.from({ length: CALLERS }, (_, n) => (n === guilty ? divide(-(2 ** 31), -1) : divide(100 * n, 10))),
  );
  answers.forEach((answer, n) => {
    if (n !== guilty) assert.equal(answer, 10 * n);
  });
  const error = answers[guilty];
  assert.ok(error instanceof InferenceError, 'the guilty request gets an error');
  assert.equal(error.status, 503);
  assert.equal(error.code, 'WORKER_LOST');
  const { processes } = await server.status();
  const device = processes.find(({ role }) => role === 'device');
  const restarts = Number(device?.restarts);
  assert.ok(restarts >= 3 && restarts <= DEATHS_MAX, `${restarts} deaths`);
  assert.equal(await divide(30, 10), 3, 'the server goes on');
  await assertAllAtWork(server);
  await assertIdle(server);
});
