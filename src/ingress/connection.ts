/**
 * What is kept per connection: the requests on it that have not been answered. When it closes they are cancelled, so that a client that left frees its rows.
 *
 * One listener per connection instead of one per request.
 */
import type { Socket } from 'node:net';
import type { Inference } from './inference.ts';

export class Connection {
  readonly #open = new Set<Inference>();

  static readonly #ofSocket = new WeakMap<Socket, Connection>();

  static of(socket: Socket): Connection {
    let connection = Connection.#ofSocket.get(socket);
    if (connection === undefined) {
      connection = new Connection();
      Connection.#ofSocket.set(socket, connection);
      socket.once('close', () => connection?.close());
    }
    return connection;
  }

  add(inference: Inference): void {
    this.#open.add(inference);
  }

  delete(inference: Inference): void {
    this.#open.delete(inference);
  }

  get idle(): boolean {
    return this.#open.size === 0;
  }

  close(): void {
    for (const inference of this.#open) inference.cancel();
    this.#open.clear();
  }
}
