/**
 * Tells whether the kernel's out-of-memory killer ended a process: its counter has risen around the death, by more than the deaths that were already put down
 * to it.
 *
 * The kernel counts when it kills, and the process is reaped some time after (a large one takes a while), so the counter of a while ago is compared with.
 * Bound: one sample per SAMPLE_MS over WINDOW_MS.
 */
import { oomKills } from '../system/oom-kills.ts';

const SAMPLE_MS = 1000;
const WINDOW_MS = 10_000;

export class OomWatch {
  readonly #read: () => number | undefined;
  /** Oldest first; the first is at least as old as the window, once there has been time for that. */
  readonly #samples: { atMs: number; count: number }[] = [];
  /** Counter up to which kills have been put down to a death. */
  #explained = 0;

  /** @param read the counter now, undefined where nothing counts */
  constructor(nowMs: number, read: () => number | undefined = () => oomKills()?.count) {
    this.#read = read;
    this.sample(nowMs);
  }

  /** To be called often; looks at the counter once a second. */
  sample(nowMs: number): void {
    const last = this.#samples.at(-1);
    if (last !== undefined && nowMs - last.atMs < SAMPLE_MS) return;
    const count = this.#read();
    if (count === undefined) return;
    this.#samples.push({ atMs: nowMs, count });
    while (this.#samples.length > 1 && this.#samples[1]!.atMs <= nowMs - WINDOW_MS) this.#samples.shift();
  }

  /** Whether a process that has just been reaped after a SIGKILL was killed for want of memory. Each kill explains one death. */
  killed(): boolean {
    const count = this.#read();
    const [before] = this.#samples;
    if (count === undefined || before === undefined) return false;
    this.#explained = Math.max(this.#explained, before.count);
    if (count <= this.#explained) return false;
    this.#explained++;
    return true;
  }
}
