/**
 * How many files this process may have open: its soft limit, which node raises to the hard one when it starts, and which its children inherit.
 */
import { type ReadText, readText } from './cgroup.ts';

/** Infinity without a limit. @throws Error when /proc/self/limits cannot be understood */
export function openFilesMax(read: ReadText = readText): number {
  const soft = /^Max open files +(\d+|unlimited) /m.exec(read('/proc/self/limits') ?? '')?.[1];
  if (soft === undefined) throw new Error('/proc/self/limits has no line for open files: is /proc mounted?');
  return soft === 'unlimited' ? Number.POSITIVE_INFINITY : Number(soft);
}
