import assert from 'node:assert/strict';
import { totalmem } from 'node:os';
import { test } from 'node:test';
import { availableMemory, parseMeminfo, parseStat } from '../../../src/system/host-memory.ts';

const GIB = 2 ** 30;
const MEMINFO =
  'MemTotal:       16777216 kB\nMemFree:          100000 kB\nMemAvailable:    8388608 kB\nBuffers: 1 kB\n';

function available(files: Record<string, string>) {
  return availableMemory((path) => ({ '/proc/meminfo': MEMINFO, ...files })[path]);
}

const V2 = {
  '/proc/self/cgroup': '0::/a/b\n',
  '/proc/self/mountinfo': '31 24 0:27 / /cg rw - cgroup2 cgroup2 rw\n',
};
const V1 = {
  '/proc/self/cgroup': '4:memory:/a\n',
  '/proc/self/mountinfo': '31 24 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n',
};

test('without limits the machine decides', () => {
  const machine = { totalBytes: 16 * GIB, availableBytes: 8 * GIB, source: '/proc/meminfo' };
  assert.deepEqual(available({}), machine);
  assert.deepEqual(available({ ...V2, '/cg/a/b/memory.max': 'max\n', '/cg/a/b/memory.current': '5\n' }), machine);
  const none = {
    '/cg/memory/a/memory.limit_in_bytes': '9223372036854771712\n',
    '/cg/memory/a/memory.usage_in_bytes': '5',
  };
  assert.deepEqual(available({ ...V1, ...none }), machine);
});

test('a limit of version 2 leaves what is not used or easily dropped', () => {
  const files = {
    ...V2,
    '/cg/a/b/memory.max': `${4 * GIB}\n`,
    '/cg/a/b/memory.current': `${3 * GIB}\n`,
    '/cg/a/b/memory.stat': `anon ${2 * GIB}\nfile ${GIB}\ninactive_file ${GIB / 2}\nactive_file ${GIB / 2}\n`,
  };
  assert.deepEqual(available(files), { totalBytes: 4 * GIB, availableBytes: 1.5 * GIB, source: '/cg/a/b/memory.max' });
});

test('the tightest of all groups decides what is available, the smallest limit what there is', () => {
  const files = {
    ...V2,
    '/cg/a/b/memory.max': `${4 * GIB}`,
    '/cg/a/b/memory.current': `${GIB}`,
    '/cg/a/memory.max': 'max',
    '/cg/a/memory.high': `${6 * GIB}`,
    '/cg/a/memory.current': `${5 * GIB}`,
  };
  assert.deepEqual(available(files), { totalBytes: 4 * GIB, availableBytes: GIB, source: '/cg/a/memory.high' });
});

test('a limit of version 1 counts the groups below', () => {
  const files = {
    ...V1,
    '/cg/memory/a/memory.limit_in_bytes': `${2 * GIB}\n`,
    '/cg/memory/a/memory.usage_in_bytes': `${2 * GIB}\n`,
    '/cg/memory/a/memory.stat': `inactive_file 1\ntotal_inactive_file ${GIB}\n`,
  };
  const source = '/cg/memory/a/memory.limit_in_bytes';
  assert.deepEqual(available(files), { totalBytes: 2 * GIB, availableBytes: GIB, source });
});

test('a group over its limit has nothing left, and figures that contradict each other never give more than the limit', () => {
  const limit = { ...V2, '/cg/a/b/memory.max': `${GIB}` };
  assert.equal(available({ ...limit, '/cg/a/b/memory.current': `${2 * GIB}` }).availableBytes, 0);
  const odd = { '/cg/a/b/memory.current': '5', '/cg/a/b/memory.stat': `inactive_file ${GIB}` };
  assert.equal(available({ ...limit, ...odd }).availableBytes, GIB);
});

test('a /proc that cannot be understood is an error, a missing figure of memory.stat is zero', () => {
  assert.throws(() => parseMeminfo(''), /MemTotal/);
  assert.equal(parseStat('anon 5\n', 'inactive_file'), 0);
});

test('this machine has some memory left and no more than there is', () => {
  const { totalBytes, availableBytes } = availableMemory();
  assert.ok(availableBytes > 0 && availableBytes <= totalBytes && totalBytes <= totalmem());
});
