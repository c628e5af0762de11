/**
 * grpc.health.v1.Health: whether the server as a whole is ready, for those who ask and for those who watch.
 *
 * Source: the specification of the health checking protocol in grpc/grpc. Watchers are told each change once; they are let go when the server drains.
 */
import type { Server, ServerWritableStream } from '@grpc/grpc-js';
import { BatchportError } from '../../config/errors.ts';
import { readMessage, writeMessage } from '../../protocol/grpc/message.ts';
import { HEALTH_REQUEST, HEALTH_RESPONSE } from '../../protocol/grpc/messages.ts';
import type { Documents } from '../documents.ts';
import { asBatchportError, shuttingDown } from '../inference.ts';
import { addUnary, asIs, INFERENCE_SERVICE } from './services.ts';
import { statusOf } from './status.ts';

export const HEALTH_SERVICE = 'grpc.health.v1.Health';

const SERVING = 1;
const NOT_SERVING = 2;
const SERVICE_UNKNOWN = 3;

/** The server itself goes under the empty name. */
const SERVICES: ReadonlySet<unknown> = new Set(['', INFERENCE_SERVICE]);

type Watcher = ServerWritableStream<Buffer, Buffer>;

export class Health {
  readonly #documents: Documents;
  /** Who watches, and whether it is something that the server has. */
  readonly #watchers = new Map<Watcher, boolean>();
  #told = false;

  constructor(server: Server, documents: Documents) {
    this.#documents = documents;
    addUnary(server, `/${HEALTH_SERVICE}/Check`, (message) => {
      const { service } = readMessage(HEALTH_REQUEST, message);
      if (!SERVICES.has(service)) throw new BatchportError('NOT_FOUND', 'This server has no such service.');
      return this.#status();
    });
    server.register(`/${HEALTH_SERVICE}/Watch`, (call: Watcher) => this.#watch(call), asIs, asIs, 'serverStream');
  }

  /** The server has become ready, or is no longer so. To be called whenever that may be. */
  changed(): void {
    if (this.#told === this.#documents.ready) return;
    this.#told = this.#documents.ready;
    for (const [watcher, known] of this.#watchers) if (known) watcher.write(this.#status());
  }

  drain(): void {
    for (const watcher of this.#watchers.keys()) watcher.emit('error', statusOf(shuttingDown()));
    this.#watchers.clear();
  }

  #watch(call: Watcher): void {
    let service: unknown;
    try {
      service = readMessage(HEALTH_REQUEST, call.request).service;
    } catch (error) {
      call.emit('error', statusOf(asBatchportError(error)));
      return;
    }
    const known = SERVICES.has(service);
    this.#watchers.set(call, known);
    call.on('cancelled', () => this.#watchers.delete(call));
    if (!known) {
      call.write(writeMessage(HEALTH_RESPONSE, { status: SERVICE_UNKNOWN }));
      return;
    }
    // Those before were told each change; what this one is told now is the latest for all.
    this.#told = this.#documents.ready;
    call.write(this.#status());
  }

  #status(): Buffer {
    return writeMessage(HEALTH_RESPONSE, { status: this.#documents.ready ? SERVING : NOT_SERVING });
  }
}
