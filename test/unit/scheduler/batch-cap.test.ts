import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type BatchCap, NO_CAP, noteOutOfMemory, noteRun } from '../../../src/scheduler/batch-cap.ts';

/** A device that holds `fits` rows, offered batches of `offered`: what the policy makes of it. */
function serve(cap: BatchCap, offered: number, fits: number, runs: number, startMs = 0) {
  const sizes: number[] = [];
  let state = cap;
  let failures = 0;
  let nowMs = startMs;
  for (let n = 0; n < runs; n++) {
    nowMs += 10;
    const rows = Math.min(offered, state.rows);
    if (rows > fits) {
      failures++;
      state = noteOutOfMemory(state, rows, nowMs);
    } else {
      sizes.push(rows);
      state = noteRun(state, rows, nowMs);
    }
  }
  return { state, sizes, failures, nowMs };
}

test('a model that never runs out of memory is not capped', () => {
  const { state, failures } = serve(NO_CAP, 64, 1000, 100);
  assert.equal(state.rows, Number.POSITIVE_INFINITY);
  assert.equal(failures, 0);
});

test('batches settle at the largest size that fits, after a few failures', () => {
  for (const fits of [1, 2, 7, 20, 31]) {
    const { sizes, failures } = serve(NO_CAP, 32, fits, 400);
    assert.equal(sizes.at(-1), fits, `settles at ${fits}`);
    assert.ok(failures <= 8, `${failures} failures before settling at ${fits}`);
    assert.ok(sizes.every((rows) => rows <= fits));
  }
});

test('a size that failed is tried again after a minute, not before', () => {
  const settled = serve(NO_CAP, 32, 20, 400);
  const later = serve(settled.state, 32, 20, 3000, settled.nowMs);
  assert.equal(later.failures, 0, 'within the minute');
  const afterwards = serve(settled.state, 32, 32, 200, settled.nowMs + 60_000);
  assert.equal(afterwards.sizes.at(-1), 32, 'memory has come free');
});

test('less memory than before lowers the cap again', () => {
  const settled = serve(NO_CAP, 32, 20, 400);
  const squeezed = serve(settled.state, 32, 5, 400, settled.nowMs);
  assert.equal(squeezed.sizes.at(-1), 5);
});

test('a single row that finds no memory changes nothing: there is nothing smaller', () => {
  assert.equal(noteOutOfMemory(NO_CAP, 1, 0), NO_CAP);
});
