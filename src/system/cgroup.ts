/**
 * Where the limits of the control groups around this process can be read.
 *
 * A group's limit binds all groups below it, so a limit is looked for in the process's own group and in every one
 * above, up to the point where the hierarchy is mounted. In a container, that point may stand for a group deep in the
 * host's hierarchy, and the path in /proc/self/cgroup may be the host's: /proc/self/mountinfo says which group is
 * mounted where (proc(5), cgroups(7)). Versions 1 and 2 may be mounted side by side; a controller is in one of the two.
 * What cannot be read is taken as no limit.
 */
import { readFileSync } from 'node:fs';

/** Text of a file, or undefined where there is none to read. Tests pass their own. */
export type ReadText = (path: string) => string | undefined;

export interface CgroupDirectory {
  readonly version: 1 | 2;
  /** Directory of one group, without a slash at the end. */
  readonly path: string;
}

interface CgroupMount {
  readonly version: 1 | 2;
  readonly controllers: readonly string[];
  /** Path, within the hierarchy, of the group that is seen at `mountPoint`. */
  readonly root: string;
  readonly mountPoint: string;
}

export function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

/** Directories of the groups that limit this process by `controller` ('cpu', 'memory'), from its own group upwards. */
export function cgroupDirectories(controller: string, read: ReadText = readText): CgroupDirectory[] {
  const memberships = parseMemberships(read('/proc/self/cgroup') ?? '');
  const mounts = parseMounts(read('/proc/self/mountinfo') ?? '');
  const directories: CgroupDirectory[] = [];
  for (const { version, controllers, path } of memberships) {
    if (version === 1 && !controllers.includes(controller)) continue;
    const mount = mounts.find(
      (each) => each.version === version && (version === 2 || each.controllers.includes(controller)),
    );
    if (mount === undefined) continue;
    for (let below = pathBelow(mount.root, path); ; below = below.slice(0, below.lastIndexOf('/'))) {
      directories.push({ version, path: `${mount.mountPoint}${below}` });
      if (below === '') break;
    }
  }
  return directories;
}

/** Lines of /proc/self/cgroup: "0::/a/b" for version 2, "4:cpu,cpuacct:/a/b" for a hierarchy of version 1. */
export function parseMemberships(text: string): { version: 1 | 2; controllers: string[]; path: string }[] {
  const memberships: { version: 1 | 2; controllers: string[]; path: string }[] = [];
  for (const line of text.split('\n')) {
    const match = /^(\d+):([^:]*):(\/.*)$/.exec(line);
    if (match === null) continue;
    const [, hierarchy, controllers = '', path = ''] = match;
    memberships.push({ version: hierarchy === '0' ? 2 : 1, controllers: controllers.split(','), path });
  }
  return memberships;
}

/**
 * Lines of /proc/self/mountinfo that mount control groups: "ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS [TAGS] - TYPE
 * SOURCE SUPEROPTIONS".
 */
export function parseMounts(text: string): CgroupMount[] {
  const mounts: CgroupMount[] = [];
  for (const line of text.split('\n')) {
    const [front = '', back = ''] = line.split(' - ');
    const [, , , root, mountPoint] = front.split(' ');
    const [type, , options = ''] = back.split(' ');
    if (root === undefined || mountPoint === undefined || (type !== 'cgroup' && type !== 'cgroup2')) continue;
    mounts.push({
      version: type === 'cgroup2' ? 2 : 1,
      controllers: options.split(','),
      root: unescapeOctal(root),
      mountPoint: unescapeOctal(mountPoint).replace(/\/$/, ''),
    });
  }
  return mounts;
}

/**
 * Path of a group below the mounted one; '' for the mounted one itself, also where the group lies outside of what is
 * mounted.
 */
function pathBelow(root: string, path: string): string {
  const prefix = root === '/' ? '' : root;
  const inside = path === prefix || path.startsWith(`${prefix}/`);
  if (!inside || path.split('/').includes('..')) return '';
  return path.slice(prefix.length).replace(/\/$/, '');
}

/** mountinfo writes space, tab, newline and backslash as three octal digits. */
function unescapeOctal(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}
