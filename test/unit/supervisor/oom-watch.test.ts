/** Deaths put down to the out-of-memory killer: a counter that rose around them, once per kill. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OomWatch } from '../../../src/supervisor/oom-watch.ts';

class Kernel {
  count: number | undefined = 5;
  readonly watch = new OomWatch(0, () => this.count);
}

test('a counter that stands still explains no death', () => {
  assert.equal(new Kernel().watch.killed(), false);
});

test('a counter that rose explains one death per kill', () => {
  const kernel = new Kernel();
  kernel.count = 7;
  assert.deepEqual([kernel.watch.killed(), kernel.watch.killed(), kernel.watch.killed()], [true, true, false]);
  kernel.count = 8;
  assert.equal(kernel.watch.killed(), true);
});

test('a kill is still seen when the counter has been looked at between it and the reaping', () => {
  const kernel = new Kernel();
  kernel.watch.sample(5000);
  kernel.count = 6;
  for (let ms = 6000; ms <= 9000; ms += 100) kernel.watch.sample(ms);
  assert.equal(kernel.watch.killed(), true);
});

test('a kill of long ago, of something else in the group, explains nothing', () => {
  const kernel = new Kernel();
  kernel.count = 6;
  for (let ms = 1000; ms <= 60_000; ms += 100) kernel.watch.sample(ms);
  assert.equal(kernel.watch.killed(), false);
});

test('a machine that does not count explains nothing, also when it begins to count', () => {
  const kernel = new Kernel();
  kernel.count = undefined;
  assert.equal(kernel.watch.killed(), false);
  const late = new OomWatch(0, () => kernel.count);
  kernel.count = 3;
  assert.equal(late.killed(), false);
});
