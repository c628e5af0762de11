/**
 * What is kept per connection: the body being read on it and the requests on it that have not been answered. When it closes, the read stops and the requests are
 * cancelled, so that a client that left frees its rows.
 *
 * One listener per connection instead of several per request. Bounds: a client that is to leave has LINGER_MS for it.
 */
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { BodyBudget, IncomingBody } from './body.ts';
import type { Inference } from './inference.ts';

/** How long a client may go on sending to a connection that is being closed. */
const LINGER_MS = 5000;
/** While draining: how long a new connection may take to bring its request. */
const FIRST_REQUEST_MS = 1000;

export class Connection {
  static readonly #all = new Set<Connection>();
  static readonly #ofSocket = new WeakMap<Socket, Connection>();
  /** How long a client may take nothing of its answer. */
  static takeTimeoutMs = 0;

  /** Only one body is read at a time, even when requests are pipelined. */
  reading: IncomingBody | undefined;
  /** The answer to the latest request, undefined as long as there was none. */
  last: ServerResponse | undefined;
  readonly #socket: Socket;
  /** The usual one, and further ones when requests are pipelined. */
  #only: Inference | undefined;
  #more: Set<Inference> | undefined;
  #lingering = false;
  readonly #openedMs = performance.now();
  /** Answers that the client has not taken yet, and where they are counted. */
  #untakenBytes = 0;
  #budget: BodyBudget | undefined;

  static of(socket: Socket): Connection {
    let connection = Connection.#ofSocket.get(socket);
    if (connection === undefined) {
      connection = new Connection(socket);
      Connection.#ofSocket.set(socket, connection);
    }
    return connection;
  }

  private constructor(socket: Socket) {
    this.#socket = socket;
    Connection.#all.add(this);
    socket.once('close', () => this.#close());
  }

  /** To be called once per idle period of bodies. */
  static sweep(): void {
    for (const { reading } of Connection.#all) reading?.checkProgress();
  }

  /** Connections with requests that have not been answered, or with answers that have not gone out. */
  static get busyCount(): number {
    let count = 0;
    for (const connection of Connection.#all) if (connection.busy) count++;
    return count;
  }

  /** Closes the connections that wait for nothing. */
  static closeIdle(): void {
    const newMs = performance.now() - FIRST_REQUEST_MS;
    for (const connection of Connection.#all) {
      if (connection.busy || connection.#lingering) continue;
      if (connection.last !== undefined || connection.#openedMs < newMs) connection.#socket.destroy();
    }
  }

  get busy(): boolean {
    return this.#answering || this.#socket.writableLength > 0;
  }

  get lingering(): boolean {
    return this.#lingering;
  }

  get #answering(): boolean {
    return this.#only !== undefined || (this.#more !== undefined && this.#more.size > 0);
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

  /** Whether every request has its answer, written to the end. */
  get allAnswered(): boolean {
    return this.last?.writableFinished ?? true;
  }

  /** Closes once all requests have been answered. */
  closeAfterAnswers(): void {
    if (this.last === undefined || this.allAnswered) this.linger();
    else this.last.once('finish', () => this.linger());
  }

  /** Counts an answer as long as the client leaves it lying. To be called once it has been written. */
  hold(response: ServerResponse, bytes: number, budget: BodyBudget): void {
    if (response.writableLength === 0) return;
    this.watch(response);
    this.#budget = budget;
    this.#untakenBytes += bytes;
    budget.hold(bytes);
    response.once('close', () => this.#letGo(bytes));
  }

  #letGo(bytes: number): void {
    const held = Math.min(bytes, this.#untakenBytes);
    this.#untakenBytes -= held;
    this.#budget?.give(held);
  }

  /** Limits the time in which nothing of an answer is taken. To be called once it has been written; usually all of it has gone then. */
  watch(response: ServerResponse): void {
    if (response.writableLength > 0) this.#socket.setTimeout(Connection.takeTimeoutMs);
  }

  /** Neither side has moved a byte for the socket's timeout. Waiting for a model is no reason to close, everything else is. */
  timedOut(): void {
    const stuckReader = this.#socket.writableLength > 0;
    const idle = this.last !== undefined && !this.#answering && (this.reading === undefined || this.reading.ended);
    if (stuckReader || idle) this.#socket.destroy();
  }

  /** The answer is the last one; what the client is still sending is of no use. */
  closeAfter(response: ServerResponse): void {
    response.shouldKeepAlive = false;
    // What node calls once the answer is written.
    this.#socket.destroySoon = () => this.linger();
  }

  /**
   * Ends the connection once everything is written, and goes on reading until the client has noticed: closing a socket with unread bytes resets it, and
   * the client would lose its answer.
   */
  linger(): void {
    if (this.#lingering) return;
    this.#lingering = true;
    const socket = this.#socket;
    socket.end();
    socket.resume();
    const timer = setTimeout(() => socket.destroy(), LINGER_MS);
    socket.once('close', () => clearTimeout(timer));
  }

  #close(): void {
    Connection.#all.delete(this);
    // Answers behind another one are not told of the close.
    this.#letGo(this.#untakenBytes);
    this.reading?.stop();
    this.#only?.cancel();
    for (const inference of this.#more ?? []) inference.cancel();
  }
}
