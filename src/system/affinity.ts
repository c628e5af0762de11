/**
 * Which cores a process may run on: sched_getaffinity(2), sched_setaffinity(2) and the text form of a set of cores
 * ("0-3,8").
 *
 * Core numbers are the kernel's, from 0. Sets are sorted and hold each core once. Bound: core numbers below CORES_MAX.
 */
import { readdirSync } from 'node:fs';
import { ESRCH, SystemError, throwLastError } from './errno.ts';
import { addressOf, lastErrno, libc } from './libc.ts';

/** One more than the highest core number that is understood. */
export const CORES_MAX = 4096;

/** Threads may start while the mask is being set on those that are there: look again, this often at most. */
const TASK_PASSES_MAX = 16;

const sched_getaffinity: (thread: number, maskBytes: number, mask: number) => number = libc.func(
  'int sched_getaffinity(int thread, size_t mask_bytes, int64_t mask)',
);
const sched_setaffinity: (thread: number, maskBytes: number, mask: number) => number = libc.func(
  'int sched_setaffinity(int thread, size_t mask_bytes, int64_t mask)',
);

/** Cores that the calling thread may run on: at least one, ascending. */
export function getAffinity(): number[] {
  const mask = new Uint8Array(new ArrayBuffer(CORES_MAX / 8));
  if (sched_getaffinity(0, mask.byteLength, addressOf(mask.buffer)) < 0) throwLastError('sched_getaffinity');
  const cores: number[] = [];
  for (let core = 0; core < CORES_MAX; core += 1) {
    if (((mask[core >> 3] ?? 0) >> (core & 7)) & 1) cores.push(core);
  }
  return cores;
}

/**
 * Confines the whole process, with the threads it has (V8 and libuv start some before any of our code runs) and those
 * it will start, to `cores`. Children inherit the set. Cores that the machine lacks are dropped by the kernel.
 * @throws RangeError for an empty set or a number that is no core; SystemError EINVAL when none of the cores may be
 * used
 */
export function setAffinity(cores: readonly number[]): void {
  if (cores.length === 0) throw new RangeError('A set of cores needs at least one core');
  const mask = new Uint8Array(new ArrayBuffer(CORES_MAX / 8));
  for (const core of cores) {
    if (!Number.isInteger(core) || core < 0 || core >= CORES_MAX) throw new RangeError(`Not a core number: ${core}`);
    mask[core >> 3]! |= 1 << (core & 7);
  }
  const done = new Set<string>();
  for (let pass = 0; pass < TASK_PASSES_MAX; pass += 1) {
    const fresh = readdirSync('/proc/self/task').filter((thread) => !done.has(thread));
    if (fresh.length === 0) return;
    for (const thread of fresh) {
      done.add(thread);
      if (sched_setaffinity(Number(thread), mask.byteLength, addressOf(mask.buffer)) === 0) continue;
      const errno = lastErrno();
      if (errno !== ESRCH) throw new SystemError('sched_setaffinity', errno, `use cores ${formatCoreSet(cores)}`);
    }
  }
}

/**
 * Reads a set of cores: numbers and ranges with commas between them, as in "0-3,8" or /sys/devices/system/cpu/online.
 * @returns ascending, each core once
 * @throws Error that names the part which is wrong
 */
export function parseCoreSet(text: string): number[] {
  const cores = new Set<number>();
  for (const part of text.trim().split(',')) {
    const match = /^\s*(\d+)(?:\s*-\s*(\d+))?\s*$/.exec(part);
    if (match === null) {
      throw new Error(`"${part.trim()}" is not a core number or a range of them: write a set of cores like "0-3,8"`);
    }
    const first = Number(match[1]);
    const last = match[2] === undefined ? first : Number(match[2]);
    if (last >= CORES_MAX) throw new Error(`Core number ${last} is too high: the highest is ${CORES_MAX - 1}`);
    if (last < first) throw new Error(`The range "${part.trim()}" is backwards: write "${last}-${first}"`);
    for (let core = first; core <= last; core += 1) cores.add(core);
  }
  return [...cores].sort((a, b) => a - b);
}

/** Inverse of parseCoreSet: [0, 1, 2, 3, 8] → "0-3,8". */
export function formatCoreSet(cores: readonly number[]): string {
  const sorted = [...new Set(cores)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let start = 0; start < sorted.length; ) {
    let end = start;
    while (sorted[end + 1] === sorted[end]! + 1) end += 1;
    parts.push(start === end ? `${sorted[start]}` : `${sorted[start]}-${sorted[end]}`);
    start = end + 1;
  }
  return parts.join(',');
}
