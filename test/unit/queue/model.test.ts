/**
 * Random runs of the queue against a naive account of its requests (queue-world.ts): every request gets exactly one answer, computed from its own rows, or
 * is accounted for: given up, lost with its ingress, or lost with as many instances as it may cost.
 *
 * TEST_SEED repeats a run; QUEUE_MODEL_RUNS makes more of them.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { World, type WorldCounts } from '../../support/queue-world.ts';
import { Random, seedFromEnv } from '../../support/random.ts';

const RUNS = Number(process.env.QUEUE_MODEL_RUNS ?? 60);
const STEPS = 200;
const STEPS_BETWEEN_RESTS = 50;

test('whatever happens in whatever order, every request has exactly one right answer or is accounted for', () => {
  const { seed } = seedFromEnv();
  const total: WorldCounts = {
    operations: 0,
    asked: 0,
    answered: 0,
    refused: 0,
    lost: 0,
    workerLost: 0,
    kills: 0,
    stops: 0,
  };
  for (let run = 0; run < RUNS; run++) {
    const world = new World(new Random(seed + run));
    let step = 0;
    try {
      for (; step < STEPS; step++) {
        world.step();
        if ((step + 1) % STEPS_BETWEEN_RESTS === 0) world.rest();
      }
    } catch (error) {
      throw new Error(`TEST_SEED=${(seed + run) >>> 0} fails at step ${step}: ${(error as Error).stack}`, {
        cause: error,
      });
    } finally {
      world.close();
    }
    for (const [name, count] of Object.entries(world.counts)) total[name as keyof WorldCounts] += count;
  }
  console.log(
    Object.entries(total)
      .map(([name, count]) => `${name} ${count}`)
      .join(', '),
  );
  // Otherwise the runs would show nothing.
  for (const [name, count] of Object.entries(total)) assert.ok(count > 0 || RUNS < 20, `no ${name} in ${RUNS} runs`);
});
