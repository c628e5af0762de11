/**
 * What is kept per connection: the body being read on it and the requests on it that have not been answered. When it closes, the read stops and the requests are
 * cancelled, so that a client that left frees its rows.
 *
 * One listener per connection instead of several per request.
 */
import type { Socket } from 'node:net';
import type { BodyRead } from './body.ts';
import type { Inference } from './inference.ts';

export class Connection {
  static readonly #all = new Set<Connection>();
  static readonly #ofSocket = new WeakMap<Socket, Connection>();

  /** Only one body is read at a time, even when requests are pipelined. */
  reading: BodyRead | undefined;
  /** The usual one, and further ones when requests are pipelined. */
  #only: Inference | undefined;
  #more: Set<Inference> | undefined;

  static of(socket: Socket): Connection {
    let connection = Connection.#ofSocket.get(socket);
    if (connection === undefined) {
      connection = new Connection(socket);
      Connection.#ofSocket.set(socket, connection);
    }
    return connection;
  }

  private constructor(socket: Socket) {
    Connection.#all.add(this);
    socket.once('close', () => this.#close());
  }

  /** To be called once per idle period of bodies. */
  static sweep(): void {
    for (const { reading } of Connection.#all) reading?.checkProgress();
  }

  add(inference: Inference): void {
    if (this.#only === undefined) {
      this.#only = inference;
      return;
    }
    this.#more ??= new Set();
    this.#more.add(inference);
  }

  delete(inference: Inference): void {
    if (this.#only === inference) this.#only = undefined;
    else this.#more?.delete(inference);
  }

  #close(): void {
    Connection.#all.delete(this);
    this.reading?.stop();
    this.#only?.cancel();
    for (const inference of this.#more ?? []) inference.cancel();
  }
}
