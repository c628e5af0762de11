/**
 * Nothing leaks: a child process does one thing thousands of times, and its resident memory must stay where it was.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { buildModels } from '../../support/models.ts';
import { modelFolder } from './models.ts';

/** What the heaps of V8 and malloc may differ by from one moment to another. */
const NOISE_KB = 6 * 1024;

/** Rounds to warm up and rounds counted. `ownership.test.ts` sees single objects; this sees what the library itself keeps. */
const CASES = [
  ['runs', 10_000, 50_000],
  ['strings', 10_000, 20_000],
  ['failures', 10_000, 10_000],
  ['loads', 200, 300],
  ['failed loads', 1000, 1000],
] as const;

for (const [what, warmUp, rounds] of CASES) {
  test(`${what} leave no memory behind`, (t) => {
    buildModels(modelFolder(), ['mlp', 'id_bytes', 'lookup']);
    const program = fileURLToPath(new URL('./fixtures/steady-memory.js', import.meta.url));
    const { stdout, stderr } = spawnSync(
      process.execPath,
      ['--expose-gc', program, what, modelFolder(), String(warmUp), String(rounds)],
      { encoding: 'utf8' },
    );
    const [before, after] = JSON.parse(stdout === '' ? 'null' : stdout) ?? assert.fail(stderr);
    t.diagnostic(`${what}: ${before} kB, ${rounds} rounds later ${after} kB`);
    assert(after - before < NOISE_KB, `resident memory grew from ${before} to ${after} kB`);
  });
}
