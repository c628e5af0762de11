/**
 * How much of this process is in memory, and how much was at the most since a moment (proc(5): VmRSS, VmHWM, clear_refs).
 */
import { readFileSync, writeFileSync } from 'node:fs';

/** Value for clear_refs that starts the peak anew, and nothing else. */
const RESET_PEAK = '5';

/** A measurement of the most memory that is taken in addition from now on; undefined where the kernel does not let it be started. */
export class ResidentPeak {
  readonly #startBytes: number;

  private constructor(startBytes: number) {
    this.#startBytes = startBytes;
  }

  static start(): ResidentPeak | undefined {
    try {
      writeFileSync('/proc/self/clear_refs', RESET_PEAK);
    } catch {
      return undefined;
    }
    const bytes = statusBytes('VmRSS');
    return bytes === undefined ? undefined : new ResidentPeak(bytes);
  }

  /** Most bytes beyond those at the start, of all threads of the process. */
  get bytes(): number | undefined {
    const peak = statusBytes('VmHWM');
    return peak === undefined ? undefined : Math.max(0, peak - this.#startBytes);
  }
}

function statusBytes(name: 'VmRSS' | 'VmHWM'): number | undefined {
  const kb = new RegExp(`^${name}:\\s*(\\d+) kB$`, 'm').exec(readFileSync('/proc/self/status', 'utf8'))?.[1];
  return kb === undefined ? undefined : Number(kb) * 1024;
}
