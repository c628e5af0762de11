/**
 * A short soak, so that the long one keeps working: every fault that is over quickly, once or twice. And what a soak is judged by.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Random, seedFromEnv } from '../support/random.ts';
import { Deck } from './fault.ts';
import { growth, slope } from './growth.ts';
import { Journal } from './journal.ts';
import { type Check, memoryChecks, requestChecks } from './judgement.ts';
import type { Sample } from './samples.ts';
import { soak } from './soak.ts';
import { Tally } from './tally.ts';

const SECONDS = 10;
const RUN = fileURLToPath(new URL('./run.js', import.meta.url));

test('a server that is killed, stopped and pestered at random loses no request and answers none wrongly', async (t) => {
  const { seed } = seedFromEnv('SOAK_SEED');
  const { checks, faults } = await soak(t, { seconds: SECONDS, seed, log: () => {} });
  const violated = checks.filter(({ ok }) => ok === false);
  assert.deepEqual(violated, [], faults.join('\n'));
  for (const [name, least] of [
    ['requests', 100],
    ['faults', 10],
    ['deaths of processes', 2],
    ['loads', 10],
  ] as const) {
    const { value } = checks.find((check) => check.name === name)!;
    assert(Number(value) > least, `${name}: ${value}`);
    t.diagnostic(`${name}: ${value}`);
  }
});

test('wrong options end with 2 and say what is wrong; help ends with 0', () => {
  const run = (...args: string[]) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [RUN, ...args], { encoding: 'utf8' });
    return { status, output: stdout + stderr };
  };
  for (const [args, message] of [
    [['--minutes', '0.1'], /--minutes must be a number from 0.25 /],
    [['--minutes', 'ten'], /--minutes.*not ten/],
    [['--seed', '4294967296'], /--seed must be a whole number below 2\^32/],
    [['--nonsense'], /nonsense/],
  ] as const) {
    const { status, output } = run(...args);
    assert.equal(status, 2, output);
    assert.match(output, message);
  }
  const { status, output } = run('--help');
  assert.equal(status, 0);
  for (const option of ['--minutes', '--seed', '--log']) assert.match(output, new RegExp(`${option} `));
});

const MIB = 2 ** 20;

function violations(checks: readonly Check[]): string[] {
  return checks.filter(({ ok }) => ok === false).map(({ name }) => name);
}

test('a lost request, a wrong answer and a failed try without an excuse are violations', () => {
  const tally = new Tally();
  tally.send('rows');
  tally.answer('a request', 0);
  tally.send('rows');
  tally.failTry('request 1', 'CONNECTION_LOST', 'its process died');
  tally.answer('a request', 0);
  assert.deepEqual(violations(requestChecks(tally)), []);
  tally.failTry('request 2', 'QUEUE_FULL', 'nobody sends that much');
  assert.deepEqual(violations(requestChecks(tally)), ['tries that failed without an excuse']);
  tally.send('rows');
  tally.lose('request 2', 'no answer');
  tally.send('rows');
  tally.wrongAnswer('request 3', 'the rows of another');
  assert.deepEqual(violations(requestChecks(tally)).slice(0, 3), [
    'answered with their own rows',
    'lost',
    'wrong or answered twice',
  ]);
  const calm = new Tally();
  calm.calm = true;
  calm.failTry('request 1', 'CONNECTION_LOST', 'nothing died');
  assert.equal(calm.faultCount, 1);
});

/** Samples of one process, one a second. */
function samplesOf(role: string, seconds: number, rssMib: (atS: number) => number): Sample[] {
  return Array.from({ length: seconds }, (_, atS) => ({
    atS,
    role,
    place: '0',
    pid: 1,
    rssBytes: rssMib(atS) * MIB,
    descriptors: 1,
  }));
}

test('memory that grows by a tenth in the time that is judged is a violation, a sawtooth is none', () => {
  const sawtooth = samplesOf('ingress', 180, (atS) => 200 + (atS % 20));
  assert.deepEqual(violations(memoryChecks(sawtooth, 0)), []);
  const leak = samplesOf('ingress', 180, (atS) => 200 + (atS % 20) + 0.6 * atS);
  assert.deepEqual(violations(memoryChecks(leak, 0)), ['memory of ingress 0']);
  // Too short to be judged.
  assert.deepEqual(violations(memoryChecks(leak.slice(0, 60), 0)), []);
});

test('a role whose processes become larger from life to life is a violation', () => {
  const level = (after: number) => samplesOf('device', 300, (atS) => (atS < 150 ? 200 : after));
  assert.deepEqual(violations(memoryChecks(level(210), 300)), []);
  const peak = samplesOf('device', 300, (atS) => (atS > 200 && atS < 210 ? 400 : 200));
  assert.deepEqual(violations(memoryChecks(peak, 300)), []);
  assert.deepEqual(violations(memoryChecks(level(280), 300)), ['large device while processes died']);
});

test('the slope is that of most samples, whatever a few of them are', () => {
  const line = Array.from({ length: 50 }, (_, atS) => ({ atS, value: 3 * atS + 7 }));
  assert.equal(slope(line), 3);
  const withOutliers = line.map((point, n) => (n % 10 === 0 ? { ...point, value: 10_000 } : point));
  assert(Math.abs(slope(withOutliers) - 3) < 0.5);
  assert.equal(slope([]), 0);
  assert.equal(slope([{ atS: 1, value: 5 }]), 0);
  assert.deepEqual(growth(line), { by: 147, level: 82, forS: 49, samples: 50 });
});

test('loads that overlap and lines that tell of a bug are found in the log', () => {
  const journal = new Journal();
  const held = (takenUs: number, givenUs: number) => journal.take({ msg: 'weight lock given back', takenUs, givenUs });
  held(100, 200);
  held(300, 400);
  held(200, 300);
  assert.deepEqual([journal.loads, journal.overlaps], [3, 0]);
  held(350, 500);
  assert.equal(journal.overlaps, 1);
  journal.take({ msg: 'device process ended', level: 'error' });
  assert.deepEqual([journal.deaths, journal.outcryCount], [1, 0]);
  for (const line of [
    { text: 'TypeError: undefined is not a function' },
    { level: 'fatal', msg: 'x' },
    { level: 'error', msg: 'a request failed; this is a bug' },
  ]) {
    journal.take(line);
  }
  assert.equal(journal.outcryCount, 3);
});

test('every item of a deck comes up before any comes up again', () => {
  const deck = new Deck([1, 2, 3, 4, 5], new Random(1));
  for (let round = 0; round < 3; round++) {
    assert.deepEqual(Array.from({ length: 5 }, () => deck.draw()).sort(), [1, 2, 3, 4, 5]);
  }
});
