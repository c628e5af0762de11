/**
 * How much more memory this process can use before something is killed for it.
 *
 * The smallest of what the kernel estimates for the machine (MemAvailable) and the headroom of each control group
 * around the process: its limit less its use, where file pages not used lately (inactive_file) count as free, since the
 * kernel drops them first. Swap counts for nothing. A figure of the moment: others take memory too.
 */
import { type CgroupDirectory, cgroupDirectories, type ReadText, readText } from './cgroup.ts';

/** Version 1 writes "no limit" as a number just below 2^63. */
const LIMIT_NONE_BYTES = 2 ** 60;

export interface AvailableMemory {
  /** Size of the machine's memory or of the smallest limit. */
  readonly totalBytes: number;
  readonly availableBytes: number;
  /** File whose figure decided `availableBytes`. */
  readonly source: string;
}

/** @throws Error when /proc/meminfo cannot be understood */
export function availableMemory(read: ReadText = readText): AvailableMemory {
  const machine = parseMeminfo(read('/proc/meminfo') ?? '');
  let { totalBytes, availableBytes } = machine;
  let source = '/proc/meminfo';
  for (const directory of cgroupDirectories('memory', read)) {
    const group = groupMemory(directory, read);
    if (group === undefined) continue;
    totalBytes = Math.min(totalBytes, group.totalBytes);
    if (group.availableBytes < availableBytes) ({ availableBytes, source } = group);
  }
  return { totalBytes, availableBytes, source };
}

/** MemTotal and MemAvailable of /proc/meminfo. */
export function parseMeminfo(text: string): { totalBytes: number; availableBytes: number } {
  const totalKb = /^MemTotal:\s*(\d+) kB$/m.exec(text)?.[1];
  const availableKb = /^MemAvailable:\s*(\d+) kB$/m.exec(text)?.[1];
  if (totalKb === undefined || availableKb === undefined) {
    throw new Error('/proc/meminfo has no MemTotal or MemAvailable: is /proc mounted?');
  }
  return { totalBytes: Number(totalKb) * 1024, availableBytes: Number(availableKb) * 1024 };
}

/** Limit and headroom of one group; undefined where it sets no limit. */
export function groupMemory({ version, path }: CgroupDirectory, read: ReadText): AvailableMemory | undefined {
  // Above memory.high a group is not killed but slowed down until it is of no use.
  const limitFiles = version === 2 ? ['memory.max', 'memory.high'] : ['memory.limit_in_bytes'];
  let limitBytes = LIMIT_NONE_BYTES;
  let source = '';
  for (const file of limitFiles) {
    const bytes = parseBytes(read(`${path}/${file}`));
    if (bytes !== undefined && bytes < limitBytes) {
      limitBytes = bytes;
      source = `${path}/${file}`;
    }
  }
  const usedBytes = parseBytes(read(`${path}/${version === 2 ? 'memory.current' : 'memory.usage_in_bytes'}`));
  if (source === '' || usedBytes === undefined) return undefined;
  // Version 1 counts the groups below only in the figures that begin with "total_".
  const droppable = parseStat(
    read(`${path}/memory.stat`) ?? '',
    version === 2 ? 'inactive_file' : 'total_inactive_file',
  );
  const availableBytes = Math.max(0, limitBytes - Math.max(0, usedBytes - droppable));
  return { totalBytes: limitBytes, availableBytes, source };
}

/** One figure of memory.stat ("name value" lines); 0 where it is missing. */
export function parseStat(text: string, name: string): number {
  for (const line of text.split('\n')) {
    const [key, value] = line.split(' ');
    if (key === name) return parseBytes(value) ?? 0;
  }
  return 0;
}

/** A whole number of bytes; undefined for "max" and for anything else. */
function parseBytes(text: string | undefined): number | undefined {
  const digits = text?.trim() ?? '';
  return /^\d+$/.test(digits) ? Number(digits) : undefined;
}
