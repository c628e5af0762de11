/**
 * How many processes the kernel's out-of-memory killer has ended in this process's control group (those below it included).
 *
 * Version 2 counts them in memory.events, version 1 in memory.oom_control (cgroups(7), the kernel's cgroup-v2.rst and cgroup-v1/memory.rst). Where neither is
 * there to read (the root group), /proc/vmstat counts those of the whole machine, which is the same as long as nothing else runs out of memory. A
 * counter only grows; that it grew around the death of a process says who killed it.
 */
import { type CgroupDirectory, cgroupDirectories, type ReadText, readText } from './cgroup.ts';
import { parseStat } from './host-memory.ts';

export interface OomKills {
  readonly count: number;
  /** File that tells. */
  readonly source: string;
}

/** The counter of the group of this process now; undefined where nothing counts. */
export function oomKills(read: ReadText = readText): OomKills | undefined {
  for (const directory of cgroupDirectories('memory', read)) {
    const source = eventsFile(directory);
    const count = parseOomKills(read(source));
    // Groups further up count other services too.
    if (count !== undefined) return { count, source };
  }
  const source = '/proc/vmstat';
  const count = parseOomKills(read(source));
  return count === undefined ? undefined : { count, source };
}

function eventsFile({ version, path }: CgroupDirectory): string {
  return `${path}/${version === 2 ? 'memory.events' : 'memory.oom_control'}`;
}

/** The figure `oom_kill` of a file of lines "name value"; undefined where it has none. */
export function parseOomKills(text: string | undefined): number | undefined {
  return text !== undefined && /^oom_kill \d+$/m.test(text) ? parseStat(text, 'oom_kill') : undefined;
}
