/**
 * When a process was started, by which it is told from a later one of the same number.
 */
import { readFileSync } from 'node:fs';

/** Of the fields behind the name, in brackets, that proc(5) lists from 3 on. */
const START_FIELD = 22 - 3;

/** Ticks of the kernel's clock from the boot to the start; undefined when there is no such process. */
export function processStart(pid: number): number | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name may hold anything, brackets and spaces too.
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[START_FIELD]);
  } catch {
    return undefined;
  }
}
