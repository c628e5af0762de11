/** Counters of the out-of-memory killer: both versions of control groups, and the machine's where there is no group. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { oomKills, parseOomKills } from '../../../src/system/oom-kills.ts';

const MOUNT_V2 = '30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n';
const MOUNT_V1 = '35 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n';

/** A machine of a few files. */
function files(table: Record<string, string>) {
  return (path: string): string | undefined => table[path];
}

test('version 2 counts in memory.events', () => {
  const read = files({
    '/proc/self/cgroup': '0::/system.slice/batchport.service\n',
    '/proc/self/mountinfo': MOUNT_V2,
    '/sys/fs/cgroup/system.slice/batchport.service/memory.events':
      'low 0\nhigh 12\nmax 340\noom 3\noom_kill 2\noom_group_kill 0\n',
    '/sys/fs/cgroup/system.slice/memory.events': 'low 0\nhigh 0\nmax 0\noom 9\noom_kill 9\noom_group_kill 0\n',
  });
  assert.deepEqual(oomKills(read), {
    count: 2,
    source: '/sys/fs/cgroup/system.slice/batchport.service/memory.events',
  });
});

test('version 1 counts in memory.oom_control', () => {
  const read = files({
    '/proc/self/cgroup': '4:memory:/box\n0::/\n',
    '/proc/self/mountinfo': MOUNT_V1,
    '/sys/fs/cgroup/memory/box/memory.oom_control': 'oom_kill_disable 0\nunder_oom 0\noom_kill 7\n',
  });
  assert.deepEqual(oomKills(read), { count: 7, source: '/sys/fs/cgroup/memory/box/memory.oom_control' });
});

test('in the root group the counter of the machine is taken', () => {
  const read = files({
    '/proc/self/cgroup': '0::/\n',
    '/proc/self/mountinfo': MOUNT_V2,
    '/proc/vmstat': 'nr_free_pages 100\noom_kill 4\npgfault 5\n',
  });
  assert.deepEqual(oomKills(read), { count: 4, source: '/proc/vmstat' });
});

test('a kernel that does not count is no error', () => {
  assert.equal(oomKills(files({})), undefined);
});

test('oom_group_kill, oom_kill_disable and a figure that is none are not taken for it', () => {
  assert.equal(parseOomKills('oom 3\noom_group_kill 5\n'), undefined);
  assert.equal(parseOomKills('oom_kill_disable 1\nunder_oom 0\n'), undefined);
  assert.equal(parseOomKills('oom_kill x\n'), undefined);
  assert.equal(parseOomKills(undefined), undefined);
  assert.equal(parseOomKills('low 0\noom_kill 0\n'), 0);
});

test('this machine has a counter that can be read', () => {
  const kills = oomKills();
  assert.ok(kills === undefined || (Number.isInteger(kills.count) && kills.count >= 0));
});
