/**
 * Callers over gRPC: each has a connection of its own, sends rows that nobody else sends, checks every answer, and sends again what was lost with its connection or
 * turned away.
 */
import assert from 'node:assert/strict';
import { type ServiceError, status } from '@grpc/grpc-js';
import { GrpcClients, type Message, rawRequest, tensorsOf } from '../support/grpc.ts';
import type { Random } from '../support/random.ts';
import type { CleanUp } from '../support/repository.ts';
import type { TestServer } from '../support/server.ts';
import { assertSameTensor, type TestTensor, tensor } from '../support/tensor.ts';
import { REQUEST_LIMIT_MS } from './callers.ts';
import { pause, type Tally } from './tally.ts';

const CALLERS = 4;
const PAUSE_MAX_MS = 150;
const RETRY_MAX_MS = 500;
const ROWS_MAX = 5;
const COLUMNS = 4;

/** A channel waits longer and longer before it connects again; here the server is always soon back. */
const CHANNEL = { 'grpc.initial_reconnect_backoff_ms': 100, 'grpc.max_reconnect_backoff_ms': 1000 };

export class GrpcCallers implements CleanUp {
  readonly #server: TestServer;
  readonly #tally: Tally;
  readonly #ends: Promise<void>[];
  #next = 0;
  #stopped = false;
  #close: () => void | Promise<void> = () => {};

  constructor(server: TestServer, tally: Tally, random: Random) {
    this.#server = server;
    this.#tally = tally;
    const clients = new GrpcClients(this, this.#server);
    this.#ends = Array.from({ length: CALLERS }, () => this.#call(clients, random.fork()));
  }

  after(action: () => void | Promise<void>): void {
    this.#close = action;
  }

  /** Resolves once every call under way has its answer or is lost, and all connections are closed. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#ends);
    await this.#close();
  }

  async #call(clients: GrpcClients, random: Random): Promise<void> {
    const client = clients.open(CHANNEL);
    while (!this.#stopped) {
      const n = this.#next++;
      this.#tally.send('gRPC');
      const x = rowsOf(n, random.int(1, ROWS_MAX));
      const id = `call ${n} (gRPC)`;
      const deadline = Date.now() + REQUEST_LIMIT_MS;
      await this.#request(id, x, random, () =>
        client.call('ModelInfer', rawRequest('rows', new Map([['x', x]]), { id }), { deadline }),
      );
      await pause(random.float() * PAUSE_MAX_MS);
    }
  }

  async #request(id: string, x: TestTensor, random: Random, send: () => Promise<Message>): Promise<void> {
    const startedMs = performance.now();
    for (;;) {
      let answer: Message;
      try {
        answer = await send();
      } catch (error) {
        const { code, details } = error as ServiceError;
        const reason = reasonOf(error as ServiceError);
        this.#tally.failTry(id, reason, details);
        if (code === status.DEADLINE_EXCEEDED || performance.now() - startedMs >= REQUEST_LIMIT_MS) {
          return this.#tally.lose(id, details);
        }
        await pause(random.float() * RETRY_MAX_MS);
        continue;
      }
      try {
        assert.equal(answer.id, id);
        assertSameTensor(tensorsOf(answer).get('y'), x);
      } catch (error) {
        return this.#tally.wrongAnswer(id, (error as Error).message);
      }
      return this.#tally.answer(id, startedMs);
    }
  }
}

/** The server's own code where there is one; a call without it was lost with its connection. */
function reasonOf({ code, metadata }: ServiceError): string {
  const [own] = metadata.get('batchport-code');
  if (own !== undefined) return String(own);
  return code === status.UNAVAILABLE ? 'CONNECTION_LOST' : (status[code] ?? String(code));
}

function rowsOf(n: number, rows: number): TestTensor {
  const numbers = Float32Array.from({ length: rows * COLUMNS }, (_, at) => (n * ROWS_MAX * COLUMNS + at) % 2 ** 24);
  return tensor('FP32', [rows, COLUMNS], numbers);
}
