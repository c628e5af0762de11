import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cgroupDirectories, parseMemberships, parseMounts } from '../../../src/system/cgroup.ts';

function files(entries: Record<string, string>): (path: string) => string | undefined {
  return (path) => entries[path];
}

function paths(controller: string, cgroup: string, mountinfo: string): string[] {
  const read = files({ '/proc/self/cgroup': cgroup, '/proc/self/mountinfo': mountinfo });
  return cgroupDirectories(controller, read).map(({ version, path }) => `v${version} ${path}`);
}

const V2_MOUNT = '31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n';

test('a group of version 2 is followed upwards to the mount point', () => {
  assert.deepEqual(paths('cpu', '0::/system.slice/batchport.service\n', V2_MOUNT), [
    'v2 /sys/fs/cgroup/system.slice/batchport.service',
    'v2 /sys/fs/cgroup/system.slice',
    'v2 /sys/fs/cgroup',
  ]);
});

test('in a container with a namespace of its own the mount point is the group', () => {
  assert.deepEqual(paths('memory', '0::/\n', V2_MOUNT), ['v2 /sys/fs/cgroup']);
});

test('a path of the host is taken relative to the group that is mounted', () => {
  const mount = '640 625 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n';
  assert.deepEqual(paths('memory', '9:memory:/docker/abc/inner\n', mount), [
    'v1 /sys/fs/cgroup/memory/inner',
    'v1 /sys/fs/cgroup/memory',
  ]);
});

test('a group outside of what is mounted gives the mount point', () => {
  const mount = '640 625 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n';
  assert.deepEqual(paths('memory', '9:memory:/docker/abcd\n', mount), ['v1 /sys/fs/cgroup/memory']);
  assert.deepEqual(paths('memory', '0::/../../other\n', V2_MOUNT), ['v2 /sys/fs/cgroup']);
});

test('version 1 uses the hierarchy of the controller, and a mixed machine both versions', () => {
  const mounts = [
    '36 32 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct',
    '37 32 0:32 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory',
    '38 32 0:33 / /sys/fs/cgroup/unified rw shared:17 - cgroup2 cgroup rw',
  ].join('\n');
  const cgroup = '5:cpuacct,cpu:/a\n4:memory:/b\n1:name=systemd:/c\n0::/\n';
  assert.deepEqual(paths('cpu', cgroup, mounts), [
    'v1 /sys/fs/cgroup/cpu,cpuacct/a',
    'v1 /sys/fs/cgroup/cpu,cpuacct',
    'v2 /sys/fs/cgroup/unified',
  ]);
});

test('mount points with spaces and paths with colons are read whole', () => {
  const [mount] = parseMounts('31 24 0:27 /a\\040b /mnt/c\\134d rw - cgroup2 cgroup2 rw\n');
  assert.deepEqual([mount?.root, mount?.mountPoint], ['/a b', '/mnt/c\\d']);
  assert.deepEqual(parseMemberships('0::/a:b/c\n'), [{ version: 2, controllers: [''], path: '/a:b/c' }]);
});

test('a machine without control groups, or without /proc, has no directories', () => {
  assert.deepEqual(cgroupDirectories('cpu', files({})), []);
  assert.deepEqual(paths('cpu', '', '22 1 8:1 / / rw - ext4 /dev/sda1 rw\n'), []);
  assert.deepEqual(paths('cpu', 'garbage\n\n0:\n', V2_MOUNT), []);
});
