/** The wait for a dead process's GPU memory; the driver is made up. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { type GpuSource, GpuWatch, type GpuWatchLimits } from '../../../src/supervisor/gpu-watch.ts';
import type { GpuMemory } from '../../../src/system/nvml.ts';

const log = createLogger('test', 'fatal');
const GPU = { index: 0 };
const GIB = 2 ** 30;
const LIMITS = { returnMaxMs: 60_000, answerMaxMs: 60_000 };

/** A driver that gives these answers one after the other, the last one for ever. */
function driver(answers: readonly { used: number; pids?: readonly number[] }[], limits: GpuWatchLimits = LIMITS) {
  const asked = { times: 0 };
  const source: GpuSource = {
    memory: async (): Promise<GpuMemory> => {
      const { used, pids } = answers[Math.min(asked.times++, answers.length - 1)]!;
      const usedBytes = used * GIB;
      const processes = pids === undefined ? undefined : new Map(pids.map((pid) => [pid, GIB]));
      return { totalBytes: 8 * GIB, freeBytes: 8 * GIB - usedBytes, usedBytes, processes };
    },
  };
  return { watch: new GpuWatch(log, async () => source, limits), asked };
}

test('memory has returned once the driver lists the dead process no more', async () => {
  const listed = Array.from({ length: 7 }, () => ({ used: 4, pids: [7, 8] }));
  const { watch, asked } = driver([...listed, { used: 1, pids: [8] }]);
  assert.equal(await watch.returned(GPU, 7), true);
  assert(asked.times > listed.length, `${asked.times} looks`);
});

test('where processes have other numbers, memory in use has to have stopped falling', async () => {
  const { watch, asked } = driver([
    { used: 4, pids: [1] },
    { used: 3, pids: [1] },
    { used: 2, pids: [1] },
    { used: 1 },
  ]);
  assert.equal(await watch.returned(GPU, 7), true);
  assert(asked.times >= 6, `${asked.times} looks`);
});

test('a process that the driver never lets go of is waited for until the limit', async () => {
  const { watch, asked } = driver([{ used: 4, pids: [7] }], { ...LIMITS, returnMaxMs: 100 });
  assert.equal(await watch.returned(GPU, 7), false);
  assert(asked.times > 1);
});

test('without a driver nothing is waited for', async () => {
  const watch = new GpuWatch(log, async () => ({ unknown: 'there is none' }));
  assert.equal(await watch.returned(GPU, 7), true);
  assert.equal(watch.latest(GPU), undefined);
});

test('a driver that does not answer holds nobody up, and is not asked twice at a time', async () => {
  let asked = 0;
  const source: GpuSource = {
    memory: () => {
      asked++;
      return new Promise(() => {});
    },
  };
  const watch = new GpuWatch(log, async () => source, { ...LIMITS, answerMaxMs: 20 });
  assert.equal(await watch.look(GPU), undefined);
  assert.equal(await watch.look(GPU), undefined);
  assert.equal(asked, 1);
});
