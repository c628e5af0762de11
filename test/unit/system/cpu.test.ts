import assert from 'node:assert/strict';
import { test } from 'node:test';
import { availableCpu, parseCfsQuota, parseCpuMax, threadsWithin, tightestQuota } from '../../../src/system/cpu.ts';

test('quotas of version 2 are read in CPUs', () => {
  assert.equal(parseCpuMax('150000 100000\n'), 1.5);
  assert.equal(parseCpuMax('50000'), 0.5);
  assert.equal(parseCpuMax('max 100000\n'), undefined);
  assert.equal(parseCpuMax(''), undefined);
  assert.equal(parseCpuMax('100000 0'), undefined);
});

test('quotas of version 1 are read in CPUs', () => {
  assert.equal(parseCfsQuota('400000\n', '100000\n'), 4);
  assert.equal(parseCfsQuota('-1\n', '100000\n'), undefined);
  assert.equal(parseCfsQuota('', ''), undefined);
});

test('the tightest quota of all groups above counts', () => {
  const files: Record<string, string> = {
    '/g/a/b/cpu.max': 'max 100000',
    '/g/a/cpu.max': '200000 100000',
    '/g/cpu.max': '800000 100000',
    '/old/cpu.cfs_quota_us': '150000',
    '/old/cpu.cfs_period_us': '50000',
  };
  const read = (path: string) => files[path];
  const v2 = ['/g/a/b', '/g/a', '/g'].map((path) => ({ version: 2, path }) as const);
  assert.equal(tightestQuota(v2, read), 2);
  assert.equal(tightestQuota([{ version: 1, path: '/old' }], read), 3);
  assert.equal(tightestQuota(v2.slice(0, 1), read), undefined);
  assert.equal(tightestQuota([], read), undefined);
});

test('threads fit into cores and quota, and there is always one', () => {
  assert.equal(threadsWithin(8, undefined), 8);
  assert.equal(threadsWithin(8, 2.9), 2);
  assert.equal(threadsWithin(2, 64), 2);
  assert.equal(threadsWithin(8, 0.25), 1);
});

test('this machine has at least one core and one thread, and no more threads than cores', () => {
  const { cores, threads } = availableCpu();
  assert.ok(cores.length >= 1);
  assert.ok(threads >= 1 && threads <= cores.length);
});
