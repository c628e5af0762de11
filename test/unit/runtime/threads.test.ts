import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type TestContext, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { cancelRun } from '../../../src/runtime/runner.ts';
import { Session } from '../../../src/runtime/session.ts';
import type { Work } from './fixtures/run-worker.ts';
import { CPU, modelPath } from './models.ts';

function startWorker(work: Work): Worker {
  return new Worker(new URL('./fixtures/run-worker.js', import.meta.url), { workerData: work });
}

function load(t: TestContext, name: string): Session {
  const session = Session.load(modelPath(name), CPU);
  t.after(() => session.release());
  return session;
}

test('one session is run from several threads at once, and each gets its own results', async (t) => {
  const { handle } = load(t, 'mlp');
  const workers = [0, 1, 2, 3].map((seed) => startWorker({ handle, task: 'rows', seed, rounds: 2000 }));
  const wrong = await Promise.all(
    workers.map(async (worker) => {
      const exit = once(worker, 'exit');
      const [count] = await once(worker, 'message');
      await exit;
      return count;
    }),
  );
  assert.deepEqual(wrong, [0, 0, 0, 0]);
});

test('a run is cancelled from another thread, and the runner works again after a reset', async (t) => {
  const { handle } = load(t, 'slow');
  const worker = startWorker({ handle, task: 'cancel', seed: 0, rounds: 1 });
  const exit = once(worker, 'exit');
  const [{ token }] = await once(worker, 'message');
  // Whether the run has begun by now does not matter: a runner that is cancelled before fails its run as well.
  cancelRun(token);
  const [{ message }] = await once(worker, 'message');
  assert.match(message, /terminate.*; afterwards 3$/i);
  await exit;
});
