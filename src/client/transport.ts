/**
 * One HTTP exchange over a pool of undici connections: sends a whole body, collects a whole answer.
 *
 * Owns the pool. Knows whether a request reached a connection, which decides if it may be sent again. An answer is bounded by `maxResponseBytes`;
 * waiting time is bounded by the call's Cancellation.
 */
import type { ConnectionOptions } from 'node:tls';
import { type Dispatcher, Pool } from 'undici';
import type { Cancellation } from './cancellation.ts';
import { badResponse, ConnectionError } from './errors.ts';

/** What https needs beyond the URL; meanings as in `tls.connect`. */
export type TlsOptions = Partial<
  Pick<ConnectionOptions, 'ca' | 'cert' | 'key' | 'passphrase' | 'rejectUnauthorized' | 'servername'>
>;

export interface TransportOptions {
  readonly connections: number;
  readonly connectTimeoutMs: number;
  readonly maxResponseBytes: number;
  readonly tls: TlsOptions | undefined;
}

export interface HttpRequest {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly headers: Record<string, string>;
  readonly body: Uint8Array | null;
}

export interface HttpAnswer {
  readonly status: number;
  /** A header that occurs more than once is an array. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: Buffer;
}

export class Transport {
  private readonly pool: Pool;
  private readonly maxResponseBytes: number;

  constructor(origin: string, options: TransportOptions) {
    this.maxResponseBytes = options.maxResponseBytes;
    this.pool = new Pool(origin, {
      connections: options.connections,
      pipelining: 1,
      allowH2: false,
      // The call's own timer covers the whole exchange.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: { ...options.tls, timeout: options.connectTimeoutMs },
    });
  }

  /** Waits for the exchanges under way, then closes the connections. */
  close(): Promise<void> {
    return this.pool.close();
  }

  /**
   * @throws ConnectionError CONNECT_FAILED, CONNECTION_LOST or BAD_RESPONSE, or the cancellation's reason.
   */
  exchange(request: HttpRequest, cancellation: Cancellation): Promise<HttpAnswer> {
    cancellation.throwIfCancelled();
    return new Promise((resolve, reject) => {
      const handler = new ExchangeHandler(this.maxResponseBytes, cancellation, resolve, reject);
      this.pool.dispatch({ ...request, idempotent: true }, handler);
    });
  }
}

class ExchangeHandler implements Dispatcher.DispatchHandler {
  private controller: Dispatcher.DispatchController | undefined;
  private settled = false;
  private cause: Error | undefined;
  private status = 0;
  private headers: HttpAnswer['headers'] = {};
  private readonly chunks: Buffer[] = [];
  private length = 0;
  private readonly limit: number;
  private readonly cancellation: Cancellation;
  private readonly resolve: (answer: HttpAnswer) => void;
  private readonly reject: (reason: unknown) => void;

  constructor(
    limit: number,
    cancellation: Cancellation,
    resolve: (answer: HttpAnswer) => void,
    reject: (reason: unknown) => void,
  ) {
    this.limit = limit;
    this.cancellation = cancellation;
    this.resolve = resolve;
    this.reject = reject;
    cancellation.onCancel = (reason) => this.fail(reason);
  }

  /** The request is about to be written to a connection. */
  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.controller = controller;
    // Given up while it waited for a connection: nothing has been written yet.
    if (this.settled) controller.abort(this.cause ?? new Error('cancelled'));
    else this.cancellation.sent = true;
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: HttpAnswer['headers']): void {
    this.status = status;
    this.headers = headers;
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    this.length += chunk.length;
    if (this.length > this.limit) this.fail(badResponse(`the answer passes maxResponseBytes (${this.limit})`));
    else if (!this.settled) this.chunks.push(chunk);
  }

  onResponseEnd(): void {
    if (this.settled) return;
    this.settled = true;
    this.cancellation.onCancel = undefined;
    const body = this.chunks.length === 1 ? this.chunks[0]! : Buffer.concat(this.chunks, this.length);
    this.resolve({ status: this.status, headers: this.headers, body });
  }

  onResponseError(_controller: Dispatcher.DispatchController, cause: Error): void {
    const sent = this.controller !== undefined;
    const what = sent ? 'the connection was lost before the whole answer came' : 'cannot connect';
    this.fail(
      new ConnectionError(sent ? 'CONNECTION_LOST' : 'CONNECT_FAILED', `${what}: ${describe(cause)}`, { sent, cause }),
    );
  }

  /** Settles the promise at once; undici lets go of the request when it next looks at it. */
  private fail(reason: unknown): void {
    if (this.settled) return;
    this.settled = true;
    this.cancellation.onCancel = undefined;
    this.chunks.length = 0;
    this.cause = reason instanceof Error ? reason : new Error('cancelled', { cause: reason });
    this.reject(reason);
    this.controller?.abort(this.cause);
  }
}

/** Message of an error; one that stands for several (both addresses of a name refused) has none of its own. */
function describe(error: Error): string {
  if (error instanceof AggregateError)
    return error.errors.map((inner: unknown) => String((inner as Error).message)).join(', ');
  return error.message || String((error as NodeJS.ErrnoException).code ?? error.name);
}
