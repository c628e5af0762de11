/**
 * Callers of the project's client: each sends requests of all kinds one after another, checks every answer against its own rows, and tries again as the client's
 * own retries do when told that inference may be sent twice. (They are made here, so that every failed try is seen.)
 *
 * A request is lost when it has no answer within `REQUEST_LIMIT_MS`. It has an id of its own, which its answer has to carry.
 */
import { Client } from '../../src/client/client.ts';
import { DEFAULT_RETRY, type RetryPolicy, retryDelayMs } from '../../src/client/retry.ts';
import type { Random } from '../support/random.ts';
import { type Ask, pickKind } from './kinds.ts';
import { codeOf, pause, type Tally } from './tally.ts';

const CALLERS = 28;
/** Fewer than callers: some wait for a connection. */
const CONNECTIONS = 24;
const PAUSE_MAX_MS = 150;
/** Liveness: far beyond what a loaded machine needs to start everything again. */
export const REQUEST_LIMIT_MS = 180_000;

/** As many tries as the time allows. */
const RETRY: RetryPolicy = { ...DEFAULT_RETRY, attempts: 1_000_000, totalMs: REQUEST_LIMIT_MS, afterSend: true };

export class Callers {
  readonly #tally: Tally;
  readonly #client: Client;
  readonly #ends: Promise<void>[];
  #next = 0;
  #stopped = false;

  constructor(url: string, tally: Tally, random: Random) {
    this.#tally = tally;
    this.#client = new Client(url, { connections: CONNECTIONS, retry: false });
    this.#ends = Array.from({ length: CALLERS }, () => this.#call(random.fork()));
  }

  /** Resolves once every request under way has its answer or is lost, and all connections are closed. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#ends);
    await this.#client.close();
  }

  async #call(random: Random): Promise<void> {
    while (!this.#stopped) {
      const kind = pickKind(random);
      const n = this.#next++;
      this.#tally.send(kind.name);
      await this.#request(`request ${n} (${kind.name})`, kind.ask(n, random), random);
      await pause(random.float() * PAUSE_MAX_MS);
    }
  }

  async #request(id: string, { model, request, check }: Ask, random: Random): Promise<void> {
    const startedMs = performance.now();
    for (let attempt = 1; ; attempt++) {
      try {
        const leftMs = Math.max(1, startedMs + REQUEST_LIMIT_MS - performance.now());
        const result = await this.#client.infer(model, { ...request, id, timeoutMs: leftMs });
        if (result.id !== id) throw new Error(`it is that of ${result.id}`);
        check(result);
        this.#tally.answer(id, startedMs);
        return;
      } catch (error) {
        const { message } = error as Error;
        const code = codeOf(error);
        if (code === undefined) return this.#tally.wrongAnswer(id, message);
        this.#tally.failTry(id, code, message);
        const delayMs = retryDelayMs(error, attempt, performance.now() - startedMs, RETRY, random.float());
        if (delayMs === undefined) return this.#tally.lose(id, `${attempt} tries, at last ${code}: ${message}`);
        await pause(delayMs);
      }
    }
  }
}
