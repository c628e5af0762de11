/**
 * One keep-alive connection of the load generator, with one request under way at a time: always the same bytes.
 *
 * Owns its socket. Each request that was begun ends in exactly one call of `answered` or `failed`, but for those of a connection that its owner destroys;
 * after `failed`, and after an answer that does not keep it alive, the connection is closed. No timers: whoever owns the connections looks after time.
 */
import net from 'node:net';
import tls from 'node:tls';
import { AnswerFault, AnswerReader } from './answer-reader.ts';

/** Where the requests go, and the bytes of each. */
export interface Target {
  readonly host: string;
  readonly port: number;
  /** Set for https: the name that the certificate has to have. */
  readonly serverName: string | undefined;
  /** A whole HTTP/1.1 request. */
  readonly request: Buffer;
}

export interface ConnectionOwner {
  answered(connection: Connection, reader: AnswerReader): void;
  /** @param reason an errno name, or a few words */
  failed(connection: Connection, reason: string): void;
}

/** Shared by all plain connections: what is read is looked at before the next read. */
const READ_BYTES = 64 * 1024;
const BY_SERVER = 'closed by the server';
const readBuffer = Buffer.allocUnsafeSlow(READ_BYTES);

export class Connection {
  /** When the request under way was meant to be sent; whatever clock the owner has. */
  intendedMs = 0;
  /** Whether a request is under way. */
  busy = false;
  readonly #owner: ConnectionOwner;
  readonly #request: Buffer;
  readonly #reader = new AnswerReader();
  readonly #socket: net.Socket;
  #connected = false;
  #closed = false;

  /** Begins to connect. */
  constructor(target: Target, owner: ConnectionOwner) {
    this.#owner = owner;
    this.#request = target.request;
    this.#socket = this.#open(target);
    this.#socket.on('error', (error: NodeJS.ErrnoException) => this.#end(error.code ?? error.message));
    this.#socket.on('end', () => this.#serverEnded());
    this.#socket.on('close', () => this.#serverEnded());
  }

  get isOpen(): boolean {
    return !this.#closed;
  }

  /** Address of the other side, once connected. */
  get remoteAddress(): string | undefined {
    return this.#socket.remoteAddress;
  }

  /** Sends a request, or as soon as the connection is there. None may be under way. */
  send(intendedMs: number): void {
    this.intendedMs = intendedMs;
    this.busy = true;
    if (this.#connected) this.#socket.write(this.#request);
  }

  /** Closes it; nobody is called any more. */
  destroy(): void {
    this.#closed = true;
    this.#socket.destroy();
  }

  #open({ host, port, serverName }: Target): net.Socket {
    if (serverName !== undefined) {
      const socket = tls.connect({ host, port, servername: serverName, ALPNProtocols: ['http/1.1'] });
      socket.setNoDelay(true);
      socket.on('data', (bytes: Buffer) => this.#received(bytes));
      return socket.once('secureConnect', () => this.#ready());
    }
    const callback = (length: number) => {
      this.#received(readBuffer.subarray(0, length));
      return true;
    };
    const socket = net.connect({ host, port, noDelay: true, onread: { buffer: readBuffer, callback } });
    return socket.once('connect', () => this.#ready());
  }

  #ready(): void {
    this.#connected = true;
    if (this.busy) this.#socket.write(this.#request);
  }

  #received(bytes: Buffer): void {
    if (this.#closed) return;
    let isWhole = false;
    try {
      isWhole = this.#reader.push(bytes);
    } catch (error) {
      if (!(error instanceof AnswerFault)) throw error;
      this.#end(error.message);
      return;
    }
    // An answer that nobody asked for, such as the 408 of a server that waits no longer.
    if (!this.busy) this.#end(BY_SERVER);
    else if (isWhole) this.#answered();
  }

  #serverEnded(): void {
    if (!this.#closed && this.busy && this.#reader.end()) this.#answered();
    this.#end(BY_SERVER);
  }

  #answered(): void {
    this.busy = false;
    if (!this.#reader.keepAlive) this.destroy();
    this.#owner.answered(this, this.#reader);
  }

  #end(reason: string): void {
    if (this.#closed) return;
    this.destroy();
    this.#owner.failed(this, reason);
  }
}
