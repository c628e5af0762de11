/**
 * Fault: eight device processes killed at once.
 *
 * Safety: weights are read by one at a time, and no process starts before its pause is over. Liveness: the first serves while the last still waits; in the end all
 * do.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { nowUs } from '../../src/system/clock.ts';
import { earlyStarts, startsOf } from '../support/child-log.ts';
import { infer, jsonBody } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, assertNoMoreDescriptors, countDescriptors } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { type LogLine, launchServer } from '../support/server.ts';

const DEVICES = 8;
const LIMIT_MS = 120_000;

// A model whose load is worth waiting for.
const repository = makeRepository({ after }, { conv: { config: { max_batch_size: 0 } } });
const server = launchServer(
  { after },
  {
    repository: repository.dir,
    args: Array.from({ length: DEVICES }, () => ['--device', 'cpu']).flat(),
    startLimitMs: LIMIT_MS,
  },
);

before(() => server.ready(LIMIT_MS));

const names = Array.from({ length: DEVICES }, (_, n) => (n === 0 ? 'cpu' : `cpu#${n + 1}`));
const request = jsonBody(
  JSON.stringify({
    inputs: [{ name: 'x', datatype: 'FP32', shape: [1, 64], data: new Array(64).fill(0.5) }],
  }),
);

interface Held {
  readonly model: string;
  readonly takenUs: number;
  readonly givenUs: number;
}

function locksHeld(): Held[] {
  return server.logs
    .filter(({ msg }) => msg === 'weight lock given back')
    .map((line: LogLine) => line as unknown as Held)
    .sort((a, b) => a.takenUs - b.takenUs);
}

test('eight devices killed at once come back one after the other, and the first serves before the last has loaded', async (t) => {
  await assertAllAtWork(server, LIMIT_MS);
  const descriptors = await countDescriptors(server);
  assert.equal((await infer(server.url, 'conv', request)).status, 200);
  const pids = await server.pids('device');
  assert.equal(pids.length, DEVICES);
  const loadsBefore = locksHeld().length;

  const killedMs = performance.now();
  for (const pid of pids) process.kill(pid, 'SIGKILL');
  const answer = await infer(server.url, 'conv', request);
  const answeredUs = nowUs();
  const firstAnswerMs = performance.now() - killedMs;
  assert.equal(answer.status, 200, answer.body.toString());
  await assertAllAtWork(server, LIMIT_MS);
  const allMs = performance.now() - killedMs;

  await server.log(() => locksHeld().length >= loadsBefore + DEVICES);
  const held = locksHeld();
  assert(held.at(-1)!.takenUs > answeredUs, 'the last device had begun to load before the first answer');
  for (const [n, { takenUs, model }] of held.entries()) {
    const before = held[n - 1];
    assert(before === undefined || takenUs >= before.givenUs, `${model} was loaded while ${before?.model} was`);
  }
  for (const name of names) {
    assert.deepEqual(earlyStarts(server, 'device', name), []);
    assert.equal(startsOf(server, 'device', name).length, 2, name);
  }
  const pauses = new Set(
    server.logs.flatMap(({ restartInMs }) => (typeof restartInMs === 'number' ? restartInMs : [])),
  );
  assert(pauses.size > 1, 'every device waited for the same time');
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
  t.diagnostic(
    `first answer ${Math.round(firstAnswerMs)} ms after the kill, all ${DEVICES} devices back after ${Math.round(allMs)} ms`,
  );
});
