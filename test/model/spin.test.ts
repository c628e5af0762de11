/**
 * Has spin search every state of the queue's protocol (queue.pml), and makes sure that it would find a fault: with one precaution taken away it has to object.
 *
 * Needs spin and gcc (Debian: `apt-get install spin gcc`); skipped where one is missing. The searches of each kind are exhaustive: a search that runs
 * out of depth or memory fails. MODEL_FULL=1 adds larger ones, which take minutes and up to 8 GB.
 */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const MODEL = fileURLToPath(new URL('../../../test/model/queue.pml', import.meta.url));
const FULL = process.env.MODEL_FULL === '1';
const LIMIT_MS = FULL ? 1_200_000 : 240_000;
const MEMORY_MAX_MB = FULL ? 8000 : 4000;
const DEPTH_MAX = 100_000;

interface Search {
  readonly about: string;
  readonly defines: readonly string[];
  /** What is looked for: faults of safety, or a run that never ends. */
  readonly kind: 'faults' | 'cycles';
  readonly full?: boolean;
}

const SOUND: readonly Search[] = [
  { about: 'every interleaving of two requests that share a slab', defines: [], kind: 'faults' },
  { about: 'two slabs', defines: ['SLABS=2', 'COARSE'], kind: 'faults' },
  { about: 'more requests than places', defines: ['REQUESTS_0=2', 'COARSE'], kind: 'faults' },
  { about: 'generations that look alike', defines: ['REQUESTS_0=3', 'COARSE'], kind: 'faults' },
  { about: 'requests given up at any time', defines: ['ABANDON', 'COARSE'], kind: 'faults' },
  { about: 'the death of a producer', defines: ['DEATHS=1', 'MORTAL_CONSUMER=0', 'COARSE'], kind: 'faults' },
  { about: 'the death of an instance', defines: ['DEATHS=1', 'MORTAL_PRODUCER=0', 'COARSE'], kind: 'faults' },
  {
    about: 'the death of the only instance, and requests given up',
    defines: ['DEATHS=1', 'MORTAL_PRODUCER=0', 'CONSUMERS=1', 'ABANDON', 'COARSE'],
    kind: 'faults',
  },
  { about: 'results looked for without a bell', defines: ['LOOK', 'COARSE'], kind: 'faults' },
  {
    about: 'the death of a producer that looks',
    defines: ['LOOK', 'DEATHS=1', 'MORTAL_CONSUMER=0', 'CONSUMERS=1', 'COARSE'],
    kind: 'faults',
  },
  { about: 'without deaths', defines: ['COARSE'], kind: 'cycles' },
  { about: 'with a death', defines: ['DEATHS=1', 'CONSUMERS=1', 'COARSE'], kind: 'cycles' },
  { about: 'every interleaving of a look', defines: ['LOOK'], kind: 'faults', full: true },
  { about: 'every interleaving, two slabs', defines: ['SLABS=2'], kind: 'faults', full: true },
  { about: 'every interleaving, three requests', defines: ['REQUESTS_0=2'], kind: 'faults', full: true },
  { about: 'every interleaving, a death', defines: ['DEATHS=1', 'CONSUMERS=1'], kind: 'faults', full: true },
  { about: 'two requests of each', defines: ['REQUESTS_0=2', 'REQUESTS_1=2', 'COARSE'], kind: 'faults', full: true },
  {
    about: 'three requests given up at any time',
    defines: ['REQUESTS_0=2', 'ABANDON', 'COARSE'],
    kind: 'faults',
    full: true,
  },
  {
    about: 'the death of an instance, and requests given up',
    defines: ['DEATHS=1', 'MORTAL_PRODUCER=0', 'ABANDON', 'COARSE'],
    kind: 'faults',
    full: true,
  },
  { about: 'two deaths', defines: ['DEATHS=2', 'CONSUMERS=1', 'COARSE'], kind: 'faults', full: true },
];

const BROKEN: readonly Search[] = [
  { about: 'a slab closed with a plain store', defines: ['BROKEN_SEAL'], kind: 'faults' },
  { about: 'sleep without a second look', defines: ['BROKEN_WAKE'], kind: 'faults' },
  { about: 'a silence that ends without listening', defines: ['BROKEN_LOOK', 'LOOK'], kind: 'faults' },
  { about: 'a slab freed under a stolen claim', defines: ['BROKEN_STEAL'], kind: 'faults' },
  { about: 'waiting for space without a second attempt', defines: ['BROKEN_SPACE'], kind: 'faults' },
  {
    about: 'a claim whose full generation is not checked',
    defines: ['BROKEN_GENERATION', 'REQUESTS_0=3', 'COARSE'],
    kind: 'faults',
  },
  { about: 'wake-ups that the dead owed', defines: ['BROKEN_ALARM', 'DEATHS=1', 'COARSE'], kind: 'faults' },
  {
    about: 'a finished slab that the dead had yet to free',
    defines: ['BROKEN_FINISH', 'DEATHS=1', 'CONSUMERS=1', 'ABANDON', 'COARSE'],
    kind: 'faults',
  },
];

interface Found {
  readonly errors: number;
  readonly states: number;
  readonly seconds: number;
  readonly output: string;
}

function has(program: string, argument: string): boolean {
  return spawnSync(program, [argument], { stdio: 'ignore' }).status === 0;
}

function missing(): string | false {
  const programs = [
    ['spin', '-V'],
    ['gcc', '--version'],
  ].filter(([program, argument]) => !has(program!, argument!));
  if (programs.length === 0) return false;
  return `${programs.map(([program]) => program).join(' and ')} not installed: the protocol is not checked here (Debian: apt-get install spin gcc)`;
}

/** @throws Error with the output when the program fails. */
async function run(cwd: string, program: string, ...args: string[]): Promise<string> {
  const child = spawn(program, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  if (code !== 0) throw new Error(`${program} ${args.join(' ')} ended with ${code}:\n${output}`);
  return output;
}

/** Searches all states; ends at the first fault. @throws Error when not all could be searched. */
async function search(t: TestContext, { defines, kind }: Search, optimise: string): Promise<Found> {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'batchport-spin-'));
  t.after(() => fs.rmSync(dir, { recursive: true, force: true }));
  fs.copyFileSync(MODEL, path.join(dir, 'queue.pml'));
  await run(dir, 'spin', '-a', ...defines.map((define) => `-D${define}`), 'queue.pml');
  const checks = kind === 'cycles' ? '-DNP' : '-DSAFETY';
  await run(dir, 'gcc', optimise, '-w', checks, `-DMEMLIM=${MEMORY_MAX_MB}`, '-o', 'pan', 'pan.c');
  const output = await run(dir, './pan', `-m${DEPTH_MAX}`, '-w24', ...(kind === 'cycles' ? ['-l'] : []));
  const number = (pattern: RegExp) => Number(pattern.exec(output)?.[1] ?? Number.NaN);
  const found = {
    errors: number(/errors: (\d+)/),
    states: number(/(\d+) states, stored/),
    seconds: number(/elapsed time ([\d.]+)/),
    output,
  };
  assert.ok(found.errors >= 0 && found.states > 0, output);
  assert.doesNotMatch(output, /max search depth too small|out of memory|memory limit/, 'the search is not complete');
  return found;
}

const skip = missing();

describe('the protocol of the queue', { concurrency: 2, skip }, () => {
  for (const one of SOUND.filter(({ full }) => FULL || full !== true)) {
    const what = one.kind === 'cycles' ? 'spin finds no run without end' : 'spin finds no fault';
    test(`${what}: ${one.about}`, { timeout: LIMIT_MS }, async (t) => {
      const { errors, states, seconds, output } = await search(t, one, '-O1');
      assert.equal(errors, 0, output);
      console.log(`${one.about}: ${states} states in ${seconds} s`);
    });
  }

  for (const one of BROKEN) {
    test(`spin objects to ${one.about}`, { timeout: LIMIT_MS }, async (t) => {
      // These end early: compiling takes longer than searching.
      const { errors, output } = await search(t, one, '-O0');
      assert.ok(errors > 0, `nothing found:\n${output}`);
    });
  }
});
