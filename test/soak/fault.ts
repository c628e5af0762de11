/**
 * What a fault of the soak is, and what it may use. Faults are drawn from decks, so that each kind comes up once before any comes up again.
 */
import type { ChildHook, ChildRole } from '../support/child-hook.ts';
import { type ChildStatus, processesOf } from '../support/idle.ts';
import { processEntry } from '../support/process-table.ts';
import type { Random } from '../support/random.ts';
import type { TestServer } from '../support/server.ts';
import { pause } from './tally.ts';

export interface Fault {
  readonly name: string;
  /** Takes longer than a short run can wait for. */
  readonly long?: boolean;
  /** Resolves once the fault is over; what the server makes of it may take longer. @throws Error when the server answers what it must not. */
  run(scene: Scene, random: Random): Promise<void>;
}

/** The server under test, as faults see it. */
export class Scene {
  readonly server: TestServer;
  readonly hook: ChildHook;
  /** How often the supervisor itself is standing still now: then it answers nobody. */
  paused = 0;

  constructor(server: TestServer, hook: ChildHook) {
    this.server = server;
    this.hook = hook;
  }

  async children(role: ChildRole): Promise<readonly ChildStatus[]> {
    return processesOf(await this.server.status()).filter((child) => child.role === role && child.pid !== null);
  }

  /** One of the living processes of a role; undefined while there is none. */
  async one(role: ChildRole, random: Random): Promise<number | undefined> {
    const living = await this.children(role);
    return living.length === 0 ? undefined : random.pick(living).pid;
  }

  /** Sends a signal to a child of the server; one that has ended meanwhile is left alone. */
  signal(pid: number | undefined, signal: NodeJS.Signals): void {
    if (pid === undefined || processEntry(pid)?.parent !== this.server.pid) return;
    try {
      process.kill(pid, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }

  /** Whether every model is served somewhere. */
  async isReady(): Promise<boolean> {
    if (this.paused > 0) return false;
    const { server } = (await this.server.status()) as unknown as { server: { ready: boolean } };
    return server.ready;
  }

  /** Waits until something is so, or until the time is over: what follows has to fit both. */
  async until(isSo: () => Promise<boolean>, limitMs: number): Promise<void> {
    const deadline = performance.now() + limitMs;
    while (performance.now() < deadline && !(await isSo())) await pause(20);
  }
}

/** Items in random order, each once before any comes again. */
export class Deck<T> {
  readonly #items: readonly T[];
  readonly #random: Random;
  #left: T[] = [];

  /** @param items at least one. */
  constructor(items: readonly T[], random: Random) {
    this.#items = items;
    this.#random = random;
  }

  draw(): T {
    if (this.#left.length === 0) this.#left = this.#random.shuffled(this.#items);
    return this.#left.pop()!;
  }
}
