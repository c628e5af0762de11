/**
 * The queue between real processes. Every answer is checked against its request's own rows; what came of the requests is printed as a table of acceptable
 * and forbidden outcomes, and afterwards nothing may be left in the segment.
 *
 * Seeds decide what is asked and who is killed or stopped and for how long, not what coincides: a seed does not repeat a run. STRESS_SECONDS runs longer.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  assertAcceptable,
  outcomeTable,
  QueueStress,
  type StressOptions,
  type StressOutcome,
} from '../support/queue-stress.ts';
import { type Random, seedFromEnv } from '../support/random.ts';

const SECONDS = Number(process.env.STRESS_SECONDS ?? 0);

const OPTIONS: StressOptions = {
  model: 'numbers',
  shape: {
    maxBatchRows: 16,
    slabs: 16,
    claimsPerSlab: 16,
    blocks: 64,
    ingressSlots: 2,
    instanceSlots: 2,
    counters: 0,
  },
  consumerProcesses: 1,
  requestsEach: 20_000,
  window: 32,
  maxRows: 1000,
  slowShare: 0.002,
};

async function run(
  options: StressOptions,
  random: Random,
  faultsMs: number,
  acceptable: readonly (keyof StressOutcome)[],
): Promise<StressOutcome> {
  const stress = new QueueStress(options, random);
  try {
    if (faultsMs > 0) await stress.faults(faultsMs);
    const outcome = await stress.finish();
    console.log(outcomeTable(outcome, acceptable));
    assertAcceptable(outcome, acceptable);
    return outcome;
  } finally {
    await stress.close();
  }
}

const LIMIT_MS = 60_000 + SECONDS * 2000;

test('two producer processes and two consumer threads: 40,000 requests, each answered once with its own rows', {
  timeout: LIMIT_MS,
}, async () => {
  const random = seedFromEnv();
  const until = Date.now() + SECONDS * 1000;
  do {
    const outcome = await run(OPTIONS, random, 0, ['right', 'givenUp']);
    assert.equal(outcome.asked, 2 * OPTIONS.requestsEach!);
    assert.equal(outcome.right + outcome.givenUp, outcome.asked);
  } while (Date.now() < until);
});

test('two producer processes and two consumer processes: BYTES, each answered once with its own rows', {
  timeout: LIMIT_MS,
}, async () => {
  const random = seedFromEnv();
  const until = Date.now() + SECONDS * 1000;
  do {
    const options: StressOptions = { ...OPTIONS, model: 'words', consumerProcesses: 2, requestsEach: 4000 };
    const outcome = await run(options, random, 0, ['right', 'givenUp']);
    assert.equal(outcome.right + outcome.givenUp, 2 * options.requestsEach!);
  } while (Date.now() < until);
});

test('producers and consumers killed and stopped at random: nothing wrong, nothing twice, nothing lost but with its own producer', {
  timeout: LIMIT_MS,
}, async () => {
  const random = seedFromEnv();
  const options: StressOptions = {
    ...OPTIONS,
    shape: { ...OPTIONS.shape, ingressSlots: 3, instanceSlots: 4, slabs: 8 },
    consumerProcesses: 2,
    requestsEach: undefined,
    window: 24,
    maxRows: 120,
    slowShare: 0.05,
  };
  const faultsMs = Math.max(6000, SECONDS * 1000);
  const outcome = await run(options, random, faultsMs, ['right', 'givenUp', 'refused', 'lost', 'workerLost']);
  assert.ok(outcome.kills > 0 && outcome.stops > 0 && outcome.right > 0);
});
