/** A load measures what weights and runs take; and many loads leave nothing behind. In a process of its own, whose memory nothing else moves. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type LoadResult, type LoadTask, load, unload } from '../../../src/device/loader.ts';
import { RunControl } from '../../../src/device/run-control.ts';
import { bytesOf, fitOf } from '../../../src/scheduler/memory-fit.ts';
import { BULGE_ROW_BYTES } from '../../support/fixtures-compute.ts';
import { modelPath } from '../runtime/models.ts';

const MIB = 2 ** 20;

function task(name: string, changes: Partial<LoadTask> = {}): LoadTask {
  return {
    model: name,
    path: modelPath(name),
    order: { provider: 'cpu', deviceId: 0, intraOpThreads: 1 },
    maxBatchSize: undefined,
    known: undefined,
    measured: undefined,
    filesBytes: 0,
    quiet: true,
    control: new RunControl().memory,
    runTimeoutMs: 60_000,
    ...changes,
  };
}

function loaded(of: LoadTask): LoadResult {
  const result = load(of);
  unload(of.model);
  assert(!('noMemory' in result), JSON.stringify(result));
  return result;
}

test('what a row takes is found by runs of made-up rows, and the arena is clean afterwards', () => {
  for (const arenaMaxBytes of [undefined, 200 * MIB]) {
    const order = { provider: 'cpu', deviceId: 0, intraOpThreads: 1 } as const;
    const { memory, baseBytes } = loaded(
      task('bulge', { order: arenaMaxBytes === undefined ? order : { ...order, arenaMaxBytes } }),
    );
    assert.deepEqual([memory.fixedShape, memory.keys.length, memory.keys[0]!.key], [true, 1, '1']);
    const fit = fitOf(memory.keys[0]!.points);
    const rowBytes = bytesOf(fit, fit.measuredRows) / fit.measuredRows;
    assert(rowBytes >= BULGE_ROW_BYTES && rowBytes < 1.01 * BULGE_ROW_BYTES, JSON.stringify(fit));
    assert(baseBytes < MIB, `${baseBytes} held`);
  }
});

test('the weights of a model are told, and what its load took of the host', () => {
  const { memory } = loaded(task('mlp_big'));
  assert(Math.abs(memory.weightsBytes! - 33_280_000) < MIB, `${memory.weightsBytes}`);
  assert(memory.loadPeakBytes === undefined || memory.loadPeakBytes > 0, `${memory.loadPeakBytes}`);
  assert.equal(loaded(task('mlp_big', { quiet: false })).memory.loadPeakBytes, undefined);
});

test('weights that lie outside of the arena, in a form for the processor, are counted by their file', () => {
  const filesBytes = fs.statSync(modelPath('conv')).size;
  const { memory } = loaded(task('conv', { filesBytes, measured: [], known: { maxBatchSize: 8, reason: '' } }));
  assert.equal(memory.weightsBytes, filesBytes);
  assert(memory.outsideBytes > 0.9 * filesBytes, `${memory.outsideBytes} of ${filesBytes}`);
});

test('what is known is not measured again', () => {
  const measured = [{ key: '1', elements: 1, points: [{ rows: 1, bytes: 7 }] }];
  assert.deepEqual(loaded(task('bulge', { measured, known: { maxBatchSize: 8, reason: '' } })).memory.keys, measured);
});

test('what is known of batching is not believed where the signature has no rows', () => {
  const { batching } = loaded(task('no_batch', { known: { maxBatchSize: 64, reason: 'of another model' } }));
  assert.equal(batching.maxBatchSize, 0);
  assert.match(batching.reason, /first dimension is fixed/);
});

test('weights that pass the limit are a lack of memory, with what they take', () => {
  const order = { provider: 'cpu', deviceId: 0, intraOpThreads: 1, arenaMaxBytes: 10 * MIB } as const;
  const result = load(task('mlp_big', { order }));
  assert('noMemory' in result && result.weightsBytes! > 30 * MIB, JSON.stringify(result));
});

// Story: such a model was said to be ready, and refused every request for want of memory.
test('a model that has no memory for one row is not loaded, and says how much it may take', () => {
  const order = { provider: 'cpu', deviceId: 0, intraOpThreads: 1, arenaMaxBytes: 4 * MIB } as const;
  const result = load(task('bulge', { order }));
  assert('noMemory' in result, JSON.stringify(result));
  assert.match(result.noMemory, /^a run of one row finds no place beside the weights in its share of 4 MiB \(.*bytes/);
  assert(result.weightsBytes! < MIB);
});

// Story: a batch size of 0 that a trial with too little memory had found was kept for good.
test('what a trial finds for want of memory is no fact about the model', () => {
  const order = { provider: 'cpu', deviceId: 0, intraOpThreads: 1, arenaMaxBytes: 1.5 * BULGE_ROW_BYTES } as const;
  const { batching } = loaded(task('bulge', { order }));
  assert.deepEqual([batching.maxBatchSize, batching.provisional], [0, true]);
  assert.equal(loaded(task('bulge')).batching.provisional, undefined);
});

test('a model whose rows have more than one shape, or run alone, is measured for the shape that was tried', () => {
  const dynamic = loaded(task('dynamic')).memory;
  assert.equal(dynamic.fixedShape, false);
  const alone = loaded(task('mlp', { maxBatchSize: 0 })).memory;
  for (const { key, points } of alone.keys) {
    assert.equal(key, 'whole 1x64');
    assert.deepEqual(
      points.map(({ rows }) => rows),
      [1],
    );
  }
});

// Story: every load and unload of a session kept some megabytes (session-memory-growth, 61).
test('loading and unloading a model of 33 MB fifty times leaves the process as large as it was', (t) => {
  const program = fileURLToPath(new URL('./fixtures/load-often.js', import.meta.url));
  const { stdout, stderr } = spawnSync(process.execPath, ['--expose-gc', program, modelPath('mlp_big'), '10', '50'], {
    encoding: 'utf8',
  });
  const [before, after] = JSON.parse(stdout === '' ? 'null' : stdout) ?? assert.fail(stderr);
  t.diagnostic(`${before} kB, fifty loads later ${after} kB`);
  assert(after <= before * 1.2, `resident memory grew from ${before} to ${after} kB`);
});
