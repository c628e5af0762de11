/** What a process costs, from /proc: processor time and memory. */
import fs from 'node:fs';

/** USER_HZ is 100 on every architecture of Linux that Node.js runs on. */
const TICK_US = 10_000;

/** Fields of /proc/PID/stat from the third on, which follows the name in brackets. */
function statFields(pid: number | 'self'): string[] {
  const stat = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
}

/** Processor time of a process since its start, user and system, µs; known to 10 ms. @throws Error when it has ended. */
export function cpuUs(pid: number): number {
  const fields = statFields(pid);
  return (Number(fields[11]) + Number(fields[12])) * TICK_US;
}

/** The same of all children of this process that have ended. */
export function endedChildrenCpuUs(): number {
  const fields = statFields('self');
  return (Number(fields[13]) + Number(fields[14])) * TICK_US;
}

export interface MemoryUse {
  /** Pages in RAM. */
  readonly rssBytes: number;
  /** The same with pages that several processes share divided among them: adds up. */
  readonly pssBytes: number;
  /** Largest RSS so far. */
  readonly peakBytes: number;
}

/** Memory of a process. @throws Error when it has ended or belongs to somebody else. */
export function memoryUse(pid: number): MemoryUse {
  const rollup = fs.readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
  return {
    rssBytes: kilobytes(rollup, 'Rss'),
    pssBytes: kilobytes(rollup, 'Pss'),
    peakBytes: kilobytes(status, 'VmHWM'),
  };
}

function kilobytes(text: string, key: string): number {
  const match = new RegExp(`^${key}:\\s+(\\d+) kB$`, 'm').exec(text);
  if (match === null) throw new Error(`/proc does not tell ${key}`);
  return Number(match[1]) * 1024;
}
