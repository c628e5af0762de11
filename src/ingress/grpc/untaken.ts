/**
 * Answers of a call that its client has not taken yet: counted with the bodies, and the client that takes nothing at all is given up.
 */
import type { ServerHttp2Stream } from 'node:http2';
import type { BodyBudget } from '../body.ts';
import { Connection } from '../connection.ts';

export class Untaken {
  readonly #budget: BodyBudget;
  readonly #stream: ServerHttp2Stream;
  #bytes = 0;
  /** Answers taken so far, and how many they were at the last check that found something untaken. */
  #taken = 0;
  #takenChecked = -1;
  #timed = false;

  constructor(budget: BodyBudget, stream: ServerHttp2Stream) {
    this.#budget = budget;
    this.#stream = stream;
  }

  get bytes(): number {
    return this.#bytes;
  }

  hold(bytes: number): void {
    this.#bytes += bytes;
    this.#budget.hold(bytes);
  }

  taken(bytes: number): void {
    this.#taken++;
    const held = Math.min(bytes, this.#bytes);
    this.#bytes -= held;
    this.#budget.give(held);
  }

  /** The call is over. */
  release(): void {
    this.taken(this.#bytes);
  }

  /**
   * To be called once per idle period. What has been lying since the check before gets a timer that starts anew with everything that goes out: a large answer on a
   * slow line is no reason to give a client up.
   */
  check(): void {
    const lying = this.#bytes > 0 && this.#takenChecked === this.#taken;
    this.#takenChecked = this.#bytes > 0 ? this.#taken : -1;
    if (!lying || this.#timed) return;
    this.#timed = true;
    this.#stream.setTimeout(Connection.takeTimeoutMs, () => {
      if (this.#bytes > 0) this.#stream.destroy();
    });
  }
}
