/** Runs that are cancelled from another thread: the one that was meant fails and says why, all others are as if nothing had happened. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type TestContext, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { RunControl } from '../../../src/device/run-control.ts';
import { RunCancelled, WatchedRunner } from '../../../src/device/watched-runner.ts';
import { STATUS_DEADLINE } from '../../../src/queue/result.ts';
import { Cells } from '../../../src/runtime/cells.ts';
import type { TensorValue } from '../../../src/runtime/runner.ts';
import { Session } from '../../../src/runtime/session.ts';
import { CPU, modelPath } from '../runtime/models.ts';
import type { WatchedOutcome, WatchedWork } from './fixtures/watched-worker.ts';

/** About an hour. */
const ENDLESS = 100_000_000;

function load(t: TestContext): Session {
  const session = Session.load(modelPath('slow'), CPU);
  t.after(() => session.release());
  return session;
}

function startWorker(
  session: Session,
  steps: readonly number[],
): { control: RunControl; outcome: Promise<WatchedOutcome> } {
  const control = new RunControl();
  const workerData: WatchedWork = { handle: session.handle, control: control.memory, steps };
  const worker = new Worker(new URL('./fixtures/watched-worker.js', import.meta.url), { workerData });
  const exit = once(worker, 'exit');
  const outcome = once(worker, 'message').then(async ([message]) => {
    await exit;
    return message as WatchedOutcome;
  });
  return { control, outcome };
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
}

test('a run that is cancelled fails with its limit and as a passed deadline; those after it succeed', async (t) => {
  const { control, outcome } = startWorker(load(t), [1, ENDLESS, 2, 3]);
  await until(() => control.runningForMs > 50);
  assert.equal(control.cancel(50), true);
  const { succeeded, wrong, cancelled, failed } = await outcome;
  assert.deepEqual([succeeded, wrong, failed], [3, 0, []]);
  assert.equal(cancelled.length, 1);
  assert.match(cancelled[0]!, /cancelled after 1\.5 s \(--run-timeout-s/);
  assert.equal(new RunCancelled(1).status, STATUS_DEADLINE);
});

test('only a run older than asked for is cancelled', async (t) => {
  const { control, outcome } = startWorker(load(t), [ENDLESS]);
  await until(() => control.runningForMs > 0);
  assert.equal(control.cancel(60_000), false);
  assert.equal(control.cancel(0), true);
  assert.equal((await outcome).cancelled.length, 1);
});

test('between runs there is nothing to cancel, and after the end of the runner neither', async (t) => {
  const idle = new RunControl();
  assert.equal(idle.cancel(0), false);
  assert.equal(idle.runningForMs, 0);
  const { control, outcome } = startWorker(load(t), [1]);
  await outcome;
  assert.equal(control.cancel(0), false);
});

test('cancelled at any instant, each run is either right or says that it was cancelled', async (t) => {
  const steps = Array.from({ length: 400 }, (_, n) => 1 + (n % 7));
  const { control, outcome } = startWorker(load(t), steps);
  let ended = false;
  void outcome.then(() => {
    ended = true;
  });
  let cancellations = 0;
  await until(() => {
    for (let n = 0; n < 50; n++) if (control.cancel(0)) cancellations++;
    return ended;
  });
  const { succeeded, wrong, cancelled, failed } = await outcome;
  assert.deepEqual(failed, []);
  assert.equal(wrong, 0);
  assert.equal(succeeded + cancelled.length, steps.length);
  assert.ok(cancelled.length > 0 && cancellations >= cancelled.length, `${cancelled.length} of ${cancellations}`);
});

test('a cancellation that came as its run ended leaves the next one alone', (t) => {
  const control = new RunControl();
  const runner = new WatchedRunner(load(t).handle, control, 1500);
  t.after(() => runner.dispose());
  control.begin(0);
  assert.equal(control.cancel(0), true);
  control.end();
  const memory = new Cells(1);
  memory.set(0, 3);
  const input = runner.tensorOver('INT64', memory.address, 8, [1, 1]);
  const outputs: (TensorValue | undefined)[] = [undefined];
  runner.run([input], [0], outputs);
  assert.equal(control.cancelled, 0);
  for (const value of [input, outputs[0]!]) runner.release(value);
});

test('every run tells when it began', (t) => {
  const starts: number[] = [];
  const runner = new WatchedRunner(load(t).handle, new RunControl(), 1500, (sinceUs) => starts.push(sinceUs));
  t.after(() => runner.dispose());
  const memory = new Cells(1);
  for (let n = 0; n < 2; n++) {
    const input = runner.tensorOver('INT64', memory.address, 8, [1, 1]);
    const outputs: (TensorValue | undefined)[] = [undefined];
    runner.run([input], [0], outputs);
    for (const value of [input, outputs[0]!]) runner.release(value);
  }
  assert.equal(starts.length, 2);
  assert.ok(starts[1]! > starts[0]! && starts[0]! > 0);
});
