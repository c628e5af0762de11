/**
 * The memory of the GPUs, looked at once a second, and the wait for a dead process's memory to come back.
 *
 * The driver frees what a process held some time after the process is gone; the next one, started at once, would find the memory taken and fail for it. Where nobody
 * tells (no driver library, a driver that does not answer) nothing is waited for. Owner: the supervisor. Bounds: one question at a time a device, LIMITS.
 */
import type { Logger } from '../config/log.ts';
import { type GpuMemory, type GpuSelector, Nvml, type Unknown } from '../system/nvml.ts';

export interface GpuWatchLimits {
  readonly returnMaxMs: number;
  /** A driver in trouble keeps a call for seconds: then its answer is not waited for. */
  readonly answerMaxMs: number;
}
const LIMITS: GpuWatchLimits = { returnMaxMs: 5000, answerMaxMs: 1000 };
const RETURN_LOOK_MS = 20;
/** Memory in use that falls by more is still coming back. */
const FALLING_BYTES = 2 ** 20;
const STEADY_LOOKS = 3;

/** The part of Nvml that is used; replaced in tests. */
export type GpuSource = Pick<Nvml, 'memory'>;

export class GpuWatch {
  readonly #log: Logger;
  readonly #open: () => Promise<GpuSource | Unknown>;
  readonly #limits: GpuWatchLimits;
  readonly #latest = new Map<string, GpuMemory>();
  readonly #asking = new Set<string>();
  #source: Promise<GpuSource | undefined> | undefined;

  constructor(log: Logger, open: () => Promise<GpuSource | Unknown> = () => Nvml.open(), limits = LIMITS) {
    this.#log = log;
    this.#open = open;
    this.#limits = limits;
  }

  /** As last seen; undefined where nobody tells. */
  latest(gpu: GpuSelector): GpuMemory | undefined {
    return this.#latest.get(JSON.stringify(gpu));
  }

  /** Looks now. Undefined where nobody tells, or not in time. */
  async look(gpu: GpuSelector): Promise<GpuMemory | undefined> {
    const key = JSON.stringify(gpu);
    if (this.#asking.has(key)) return this.#latest.get(key);
    this.#asking.add(key);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<undefined>((resolve) => {
      timer = setTimeout(resolve, this.#limits.answerMaxMs, undefined);
    });
    const answer = this.#ask(gpu).finally(() => this.#asking.delete(key));
    const memory = await Promise.race([answer, late]);
    clearTimeout(timer);
    if (memory === undefined) this.#latest.delete(key);
    else this.#latest.set(key, memory);
    return memory;
  }

  /**
   * Waits until the memory of a process that has been reaped is free again: the driver lists it no more, and memory in use has stopped falling (in a container the
   * driver lists processes by numbers that are not ours).
   *
   * @returns whether that was seen in time.
   */
  async returned(gpu: GpuSelector, pid: number): Promise<boolean> {
    const until = performance.now() + this.#limits.returnMaxMs;
    let before = Number.POSITIVE_INFINITY;
    let steady = 0;
    while (performance.now() < until) {
      const memory = await this.look(gpu);
      if (memory === undefined) return true;
      const falls = before - memory.usedBytes > FALLING_BYTES;
      steady = falls || memory.processes?.has(pid) === true ? 0 : steady + 1;
      if (steady === STEADY_LOOKS) return true;
      before = memory.usedBytes;
      await new Promise((resolve) => setTimeout(resolve, RETURN_LOOK_MS));
    }
    return false;
  }

  async #ask(gpu: GpuSelector): Promise<GpuMemory | undefined> {
    this.#source ??= this.#open().then((source) => {
      if (!('unknown' in source)) return source;
      this.#log.info({ reason: source.unknown }, 'the memory of GPUs is not known');
      return undefined;
    });
    const memory = await (await this.#source)?.memory(gpu);
    return memory === undefined || 'unknown' in memory ? undefined : memory;
  }
}
