/**
 * What is looked at again and again while the soak runs: memory and descriptors of every process, zombies, the supervisor's own health.
 *
 * Bound: one sample per process and look.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { processesOf } from '../support/idle.ts';
import { openFiles, zombiesOf } from '../support/process-table.ts';
import type { Scene } from './fault.ts';

export interface Sample {
  readonly atS: number;
  readonly role: string;
  /** What tells it from others of its role. */
  readonly place: string;
  readonly pid: number;
  readonly rssBytes: number;
  readonly descriptors: number;
}

export class Watch {
  readonly samples: Sample[] = [];
  /** What must not be, in words. */
  readonly faults: string[] = [];
  readonly #scene: Scene;
  readonly #startedMs = performance.now();
  readonly #delay = monitorEventLoopDelay();
  #zombies: ReadonlySet<number> = new Set();
  #timer: NodeJS.Timeout | undefined;
  #looking = Promise.resolve();

  constructor(scene: Scene, intervalMs: number) {
    this.#scene = scene;
    this.#delay.enable();
    this.#timer = setInterval(() => {
      this.#looking = this.#looking.then(() => this.#look());
    }, intervalMs);
  }

  /** Seconds since it began to look. */
  get nowS(): number {
    return (performance.now() - this.#startedMs) / 1000;
  }

  /** Longest time for which this very process was not given a processor, or was busy with one thing: a machine that is that slow may break limits of time. */
  get longestDelayMs(): number {
    return this.#delay.max / 1e6;
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    this.#delay.disable();
    await this.#looking;
  }

  async #look(): Promise<void> {
    // One that stands still answers nobody, and reaps nobody.
    if (this.#scene.paused > 0) return;
    try {
      const status = await this.#scene.server.status();
      await this.#scene.server.assertLive();
      const atS = this.nowS;
      for (const { role, device, slot, pid, rss_bytes: rssBytes } of processesOf(status)) {
        if (pid === null) continue;
        const descriptors = countOpenFiles(pid);
        if (rssBytes > 0 && descriptors > 0) {
          this.samples.push({ atS, role, place: String(device ?? slot ?? ''), pid, rssBytes, descriptors });
        }
      }
      this.#lookForZombies();
    } catch (error) {
      if (this.#scene.paused === 0) this.faults.push(`at ${this.nowS.toFixed(1)} s: ${(error as Error).message}`);
    }
  }

  /** One that is still there at the next look is not being reaped. */
  #lookForZombies(): void {
    const now = new Set(zombiesOf(this.#scene.server.pid));
    for (const pid of now) if (this.#zombies.has(pid)) this.faults.push(`process ${pid} is dead and not reaped`);
    this.#zombies = now;
  }
}

/** 0 when the process has ended. */
function countOpenFiles(pid: number): number {
  try {
    return openFiles(pid).length;
  } catch {
    return 0;
  }
}
