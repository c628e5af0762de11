/**
 * Clients that write several requests at once on one connection, over a bare socket. Their answers have to come in the same order, byte for byte as expected, and
 * nothing may come behind them: an answer given twice would.
 *
 * When the connection is lost, or the server turns one away, what has no answer yet is sent again.
 */
import { inferBytes, json, jsonBody } from '../support/exchange.ts';
import type { Random } from '../support/random.ts';
import { RawConnection, type RawResponse } from '../support/raw.ts';
import { REQUEST_LIMIT_MS } from './callers.ts';
import { pause, type Tally } from './tally.ts';

const PIPERS = 4;
const BURST_MAX = 8;
const PAUSE_MAX_MS = 200;
const RETRY_MAX_MS = 200;

export class Pipers {
  readonly #url: string;
  readonly #tally: Tally;
  readonly #ends: Promise<void>[];
  #next = 0;
  #stopped = false;

  constructor(url: string, tally: Tally, random: Random) {
    this.#url = url;
    this.#tally = tally;
    this.#ends = Array.from({ length: PIPERS }, () => this.#pipe(random.fork()));
  }

  /** Resolves once every request under way has its answer or is lost, and all connections are closed. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#ends);
  }

  async #pipe(random: Random): Promise<void> {
    let connection: RawConnection | undefined;
    while (!this.#stopped) {
      const burst = Array.from({ length: random.int(1, BURST_MAX) }, () => this.#next++);
      for (const _ of burst) this.#tally.send('piped');
      connection = await this.#burst(burst, connection, random);
      await pause(random.float() * PAUSE_MAX_MS);
      if (connection === undefined || connection.pendingBytes === 0) continue;
      this.#tally.wrongAnswer(`a burst up to ${burst.at(-1)}`, `${connection.pendingBytes} bytes too many`);
    }
    connection?.destroy();
  }

  /** Sends requests until all are answered. Gives the connection back while it can be used further. */
  async #burst(
    burst: readonly number[],
    kept: RawConnection | undefined,
    random: Random,
  ): Promise<RawConnection | undefined> {
    const startedMs = performance.now();
    let connection = kept;
    let left = burst;
    for (;;) {
      try {
        connection ??= await RawConnection.open(this.#url);
        await connection.write(Buffer.concat(left.map(requestOf)));
        for (let first = left[0]; first !== undefined; first = left[0]) {
          const leftMs = Math.max(1, startedMs + REQUEST_LIMIT_MS - performance.now());
          const answer = await connection.response(leftMs, 'POST');
          if (answer.status === 503) throw new TurnedAway(String(json(answer).code), answer.text());
          this.#check(first, answer, startedMs);
          left = left.slice(1);
        }
        return connection;
      } catch (error) {
        // The answers behind one that is sent again would come in another order.
        connection?.destroy();
        connection = undefined;
        const { message } = error as Error;
        const code = error instanceof TurnedAway ? error.code : 'CONNECTION_LOST';
        this.#tally.failTry(`piped request ${left[0]}`, code, message);
        if (performance.now() - startedMs >= REQUEST_LIMIT_MS) {
          for (const n of left) this.#tally.lose(`piped request ${n}`, message);
          return undefined;
        }
        await pause(random.float() * RETRY_MAX_MS);
      }
    }
  }

  #check(n: number, answer: RawResponse, startedMs: number): void {
    const text = answer.text();
    if (answer.status === 200 && text === answerTo(n)) this.#tally.answer(`piped request ${n}`, startedMs);
    else this.#tally.wrongAnswer(`piped request ${n}`, `${answer.status} ${text.slice(0, 300)}`);
  }
}

class TurnedAway extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

/** Numbers that only this request of the pipers sends; JSON prints them as they are. */
function numbersOf(n: number): string {
  return [0, 1, 2, 3].map((at) => (4 * n + at) % 2 ** 24).join(',');
}

function requestOf(n: number): Buffer {
  const input = `{"name":"x","datatype":"FP32","shape":[1,4],"data":[${numbersOf(n)}]}`;
  return inferBytes('rows', jsonBody(`{"id":"piped ${n}","inputs":[${input}]}`));
}

function answerTo(n: number): string {
  const output = `{"name":"y","datatype":"FP32","shape":[1,4],"data":[${numbersOf(n)}]}`;
  return `{"model_name":"rows","model_version":"1","outputs":[${output}],"id":"piped ${n}"}`;
}
