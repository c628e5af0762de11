/**
 * What a process tells the kernel about itself: whom it dies with, and its name. And the number of a thread; and what the kernel tells about another process.
 */
import { readFileSync } from 'node:fs';
import { constants } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { throwLastError } from './errno.ts';
import { addressOf, libc } from './libc.ts';

const PR_SET_PDEATHSIG = 1;
const PR_SET_NAME = 15;

/** Bytes of a process name, without the terminating zero. */
const NAME_BYTES_MAX = 15;

/** Exit code of a process that finds its parent gone before it could tie itself to it. */
export const PARENT_GONE_EXIT_CODE = 71;

const prctl: (option: number, value: number, a: number, b: number, c: number) => number = libc.func(
  'int prctl(int option, int64_t value, int64_t a, int64_t b, int64_t c)',
);
const getppid: () => number = libc.func('int getppid()');
const gettid: () => number = libc.func('int gettid()');

/**
 * Ties this process to its parent: the kernel sends `signal` when the parent ends, however it ends. To be called as the
 * first act of a child, on its main thread.
 *
 * The race: a parent that ended before this call never causes the signal, and the child would live on as an orphan. So
 * the child compares its parent with the pid it was told (by argument or environment, not by asking the kernel) after
 * the kernel has taken the order, and leaves with PARENT_GONE_EXIT_CODE when it differs; if the parent ends after that
 * comparison, the signal comes.
 *
 * "Parent" is the *thread* that spawned the child: a supervisor spawns from its main thread, never from a worker. The
 * tie is per process: children of this process do not inherit it.
 */
export function dieWithParent(expectedParentPid: number, signal: number = constants.signals.SIGKILL): void {
  if (!isMainThread)
    throw new Error('dieWithParent is for the main thread: the order ends with the thread that gave it');
  if (prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0) < 0)
    throwLastError('prctl', 'set the signal of the death of the parent');
  if (getppid() !== expectedParentPid) process.exit(PARENT_GONE_EXIT_CODE);
}

/**
 * Names the calling thread; on the main thread that is the name of the process in ps, top and /proc/PID/comm. Cut to 15
 * bytes, between two characters.
 */
export function setProcessName(name: string): void {
  const bytes = new Uint8Array(new ArrayBuffer(NAME_BYTES_MAX + 1));
  new TextEncoder().encodeInto(name, bytes.subarray(0, NAME_BYTES_MAX));
  if (prctl(PR_SET_NAME, addressOf(bytes.buffer), 0, 0, 0) < 0)
    throwLastError('prctl', `set the process name "${name}"`);
}

/** Kernel's number of the calling thread: the process id on the main thread, unique in the machine at any one time. */
export function currentThreadId(): number {
  return gettid();
}

/**
 * State of a process as the kernel writes it (proc(5)): R running, S sleeping, D waiting for a device, T stopped by a signal, t by a debugger, Z dead and not
 * reaped. Undefined when there is no such process.
 */
export function processState(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name, in brackets, may hold anything; the state follows its last bracket.
    return stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3);
  } catch {
    return undefined;
  }
}
