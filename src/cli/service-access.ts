/**
 * Whether the user that a service is to run as can get at the files it needs, as far as permission bits tell. Blocks on the file system.
 *
 * Looks at each directory on the way too: a model below a closed home directory cannot be read, whatever its own permissions say.
 */
import { readdirSync, realpathSync, type Stats, statSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** `uid` undefined: a user that is made for the service, owns nothing and is in no group. */
export interface ServiceIdentity {
  readonly uid: number | undefined;
  readonly gids: readonly number[];
}

export type Access = 'read' | 'write';

const READ = 4;
const WRITE = 2;
const SEARCH = 1;

/**
 * The first thing on the way to `path` that the user may not use: an absolute path.
 *
 * @returns undefined where nothing is in the way. What is not there is in the way too.
 */
export function obstacle(path: string, access: Access, identity: ServiceIdentity): string | undefined {
  if (identity.uid === 0) return undefined;
  let real: string;
  try {
    real = realpathSync(path);
  } catch {
    return path;
  }
  const directories: string[] = [];
  for (let one = dirname(real); !directories.includes(one); one = dirname(one)) directories.unshift(one);
  const closed = directories.find((directory) => !may(statSync(directory), SEARCH, identity));
  if (closed !== undefined) return closed;
  const stat = statSync(real);
  const bits = (access === 'read' ? READ : WRITE) | (stat.isDirectory() ? SEARCH : 0);
  return may(stat, bits, identity) ? undefined : path;
}

function may({ uid, gid, mode }: Stats, bits: number, identity: ServiceIdentity): boolean {
  const shift = uid === identity.uid ? 6 : identity.gids.includes(gid) ? 3 : 0;
  return ((mode >> shift) & bits) === bits;
}

/**
 * Numbers of the groups whose membership the device files of GPUs ask for, such as "render" for /dev/dri/renderD128. None where everybody may use them.
 *
 * @param kinds of the devices, as `parseDeviceName` gives them
 */
export function deviceGroups(kinds: readonly string[], directory = '/dev'): number[] {
  const groups = new Set<number>();
  const look = (folder: string, pattern: RegExp): void => {
    for (const name of list(folder)) {
      if (!pattern.test(name)) continue;
      const { gid, mode } = statSync(join(folder, name));
      if (gid !== 0 && (mode & 0o006) !== 0o006 && (mode & 0o060) === 0o060) groups.add(gid);
    }
  };
  if (kinds.some((kind) => kind !== 'cpu')) {
    look(directory, /^nvidia/);
    look(join(directory, 'dri'), /^renderD\d+$/);
  }
  return [...groups].sort((a, b) => a - b);
}

function list(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return []; // No such devices here.
  }
}
