/**
 * Draws faults from decks and lets them happen at random times, several at once.
 *
 * Bound: `FAULTS_MAX` faults that go on at the same time.
 */
import type { Random } from '../support/random.ts';
import type { Deck, Fault, Scene } from './fault.ts';
import { pause } from './tally.ts';

const FAULTS_MAX = 4;
const PATIENCE_MS = 30_000;

export class Drivers {
  /** Faults so far. */
  count = 0;
  /** What must not be, in words. */
  readonly faults: string[] = [];
  readonly #scene: Scene;
  readonly #random: Random;
  readonly #log: (line: string) => void;
  readonly #running = new Set<Promise<void>>();

  constructor(scene: Scene, random: Random, log: (line: string) => void) {
    this.#scene = scene;
    this.#random = random;
    this.#log = log;
  }

  /** @param patience chance that the next fault waits until the server is ready again: without that, a slow machine would never get there. */
  async drive(deck: Deck<Fault>, meanMs: number, seconds: number, patience: number): Promise<void> {
    const random = this.#random.fork();
    const deadline = performance.now() + seconds * 1000;
    while (performance.now() < deadline) {
      while (this.#running.size >= FAULTS_MAX) await Promise.race(this.#running);
      if (random.chance(patience)) await this.#scene.until(() => this.#scene.isReady(), PATIENCE_MS);
      this.#run(deck.draw(), random.fork());
      await pause(Math.min(2 * meanMs * random.float(), Math.max(0, deadline - performance.now())));
    }
  }

  #run(fault: Fault, random: Random): void {
    this.count++;
    const running = fault.run(this.#scene, random).then(
      () => {},
      (error: Error) => {
        // While the supervisor stands still, nobody can be asked for process ids.
        if (this.#scene.paused > 0 && error.name === 'TimeoutError') return;
        this.faults.push(`${fault.name}: ${error.message}`);
        this.#log(`${fault.name}: ${error.stack}`);
      },
    );
    this.#running.add(running);
    void running.then(() => this.#running.delete(running));
  }

  /** Waits until none is going on. */
  async settle(): Promise<void> {
    await Promise.all(this.#running);
  }

  /** Waits for something that has to succeed; why it does not is one of the faults. */
  async blame(what: string, action: Promise<unknown>): Promise<void> {
    await action.catch((error: Error) => this.faults.push(`${what}: ${error.message}`));
  }
}
