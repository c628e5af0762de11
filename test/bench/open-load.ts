/**
 * An open load: requests come at their own times, whether or not earlier ones have been answered, as those of independent users do (a closed load waits with a
 * server that stands still, and so hides it).
 *
 * Each request takes an idle connection or makes a new one, so that as many are under way as it takes. The requests are runs of the `slow` fixture, whose answer is
 * the number of its steps: neighbours in a batch differ. Bound: one connection per request under way.
 */
import assert from 'node:assert/strict';
import { arrivalsOf } from '../../src/load/arrivals.ts';
import { type Answer, inferBytes, json, jsonBody } from '../support/exchange.ts';
import { RawConnection } from '../support/raw.ts';

/** About 10 ms of work. */
const STEPS_MIN = 250;
const STEPS_SPREAD = 97;
const ANSWER_LIMIT_MS = 120_000;
const CLOSED_CONNECTIONS = 16;
const RETRY_MS = 50;

/** Model that the load needs, on one thread per device; the queue holds what comes in while no device is there. */
export const LOAD_MODEL = {
  slow: { config: { max_batch_size: 4, queue: { max_rows: 16_384 }, runtime: { intra_op_threads: 1 } } },
} as const;

export interface Outcome {
  /** Status of the last answer; 0 when there was none. */
  readonly status: number;
  /** From the time it was due, later tries included. */
  readonly latencyMs: number;
  /** Our ports of the connections that were lost under it. */
  readonly lostPorts: readonly number[];
}

export interface OpenLoadOptions {
  readonly perS: number;
  readonly seconds: number;
  /** Whether a request whose connection was lost is sent again, on a new one. */
  readonly retry: boolean;
}

export class OpenLoad {
  readonly #url: string;
  readonly #idle: RawConnection[] = [];
  #next = 0;

  constructor(url: string) {
    this.#url = url;
  }

  /** Requests per second that the server answers when several connections always have one under way. */
  async capacityPerS(seconds: number): Promise<number> {
    const deadline = performance.now() + seconds * 1000;
    let answered = 0;
    await Promise.all(
      Array.from({ length: CLOSED_CONNECTIONS }, async () => {
        while (performance.now() < deadline) {
          const { status } = await this.#request(performance.now(), false);
          assert.equal(status, 200);
          answered++;
        }
      }),
    );
    return answered / seconds;
  }

  /**
   * Sends requests at random times (a Poisson process).
   *
   * @returns when the last one has been sent: what becomes of each. They reject with an AssertionError for a wrong answer.
   */
  async send({ perS, seconds, retry }: OpenLoadOptions): Promise<readonly Promise<Outcome>[]> {
    const arrivals = arrivalsOf({ kind: 'poisson', ratePerS: perS, seed: 1 });
    const outcomes: Promise<Outcome>[] = [];
    const startMs = performance.now();
    for (let atMs = arrivals.next(); atMs < seconds * 1000; atMs = arrivals.next()) {
      const dueMs = startMs + atMs;
      const leftMs = dueMs - performance.now();
      if (leftMs > 0) await new Promise((resolve) => setTimeout(resolve, leftMs));
      outcomes.push(this.#request(dueMs, retry));
    }
    return outcomes;
  }

  close(): void {
    for (const connection of this.#idle.splice(0)) connection.destroy();
  }

  async #request(dueMs: number, retry: boolean): Promise<Outcome> {
    const steps = STEPS_MIN + (this.#next++ % STEPS_SPREAD);
    const lostPorts: number[] = [];
    for (;;) {
      const answer = await this.#exchange(steps, lostPorts);
      const latencyMs = performance.now() - dueMs;
      if (answer === undefined && retry && latencyMs < ANSWER_LIMIT_MS) {
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
        continue;
      }
      return { status: answer?.status ?? 0, latencyMs, lostPorts };
    }
  }

  /** One try. Undefined when the connection is lost; its port is then among `lostPorts`. */
  async #exchange(steps: number, lostPorts: number[]): Promise<Answer | undefined> {
    const connection = this.#idle.pop() ?? (await RawConnection.open(this.#url));
    const port = connection.localPort;
    const input = `{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${steps}]}`;
    let answer: Answer;
    try {
      await connection.write(inferBytes('slow', jsonBody(`{"inputs":[${input}]}`)));
      answer = await connection.response(ANSWER_LIMIT_MS, 'POST');
    } catch {
      connection.destroy();
      lostPorts.push(port);
      return undefined;
    }
    if (answer.status === 200) {
      assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [steps], 'a wrong answer');
    }
    this.#idle.push(connection);
    return answer;
  }
}

/** Time (ms) that `fraction` of the requests did not pass. */
export function latencyMs(outcomes: readonly Outcome[], fraction: number): number {
  const sorted = outcomes.map((outcome) => outcome.latencyMs).sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * fraction))] ?? 0;
}
