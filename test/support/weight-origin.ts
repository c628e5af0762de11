/**
 * A server of files for tests of downloads, over node:http: it knows ranges, If-Range and entity tags as a good one does, and can be told to be a bad one.
 *
 * Counts what it is asked for and the bytes of bodies that it sends. Ends with the test; `stop` and `start` restart it on its port.
 */
import { createHash } from 'node:crypto';
import http from 'node:http';
import type net from 'node:net';
import type { CleanUp } from './repository.ts';

/** What it does otherwise than answer well; all may be combined. */
export interface Misbehaviour {
  /** This status in the place of the file, with these headers. */
  readonly status?: number;
  readonly headers?: http.OutgoingHttpHeaders;
  readonly body?: string | Uint8Array;
  /** Closes the connection after so many bytes of the body. */
  readonly cutAfterBytes?: number;
  /** Sends so many bytes of the body, and then nothing more until `release`. */
  readonly holdAfterBytes?: number;
  readonly ignoreRange?: boolean;
  /** Without Content-Length: the end of the connection is the end of the body. */
  readonly unsized?: boolean;
  readonly withoutTag?: boolean;
}

export interface AskedRequest {
  readonly path: string;
  readonly headers: http.IncomingHttpHeaders;
  status: number;
  sentBytes: number;
}

export function sha256Of(content: string | Uint8Array): string {
  return createHash('sha256').update(content).digest('hex');
}

/** Content that is the same each time, and nowhere repeats itself within a block. */
export function madeContent(bytes: number, seed = 'weights'): Buffer {
  const parts: Buffer[] = [];
  for (let n = 0; n * 32 < bytes; n++) parts.push(createHash('sha256').update(`${seed} ${n}`).digest());
  return Buffer.concat(parts).subarray(0, bytes);
}

export class WeightOrigin {
  readonly requests: AskedRequest[] = [];
  /** For the request of this number, from 0. */
  misbehave: (index: number, request: AskedRequest) => Misbehaviour | undefined = () => undefined;
  readonly #files = new Map<string, Buffer>();
  #server: http.Server | undefined;
  #port = 0;
  readonly #held = new Set<() => void>();
  #whenHeld: (() => void)[] = [];

  static async start(cleanUp: CleanUp, files: Readonly<Record<string, Buffer>> = {}): Promise<WeightOrigin> {
    const origin = new WeightOrigin();
    for (const [path, content] of Object.entries(files)) origin.put(path, content);
    await origin.start();
    cleanUp.after(() => origin.stop());
    return origin;
  }

  put(path: string, content: Buffer): void {
    this.#files.set(path, content);
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  get sentBytes(): number {
    return this.requests.reduce((sum, { sentBytes }) => sum + sentBytes, 0);
  }

  async start(): Promise<void> {
    const server = http.createServer((request, response) => this.#answer(request, response));
    await new Promise<void>((resolve) => server.listen(this.#port, '127.0.0.1', resolve));
    this.#port = (server.address() as net.AddressInfo).port;
    this.#server = server;
  }

  /** Cuts all connections and stops listening. */
  async stop(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (server === undefined) return;
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }

  /** Resolves when a body is held. */
  held(): Promise<void> {
    if (this.#held.size > 0) return Promise.resolve();
    return new Promise((resolve) => this.#whenHeld.push(resolve));
  }

  /** Lets held bodies go on. */
  release(): void {
    for (const go of this.#held) go();
    this.#held.clear();
  }

  #answer(request: http.IncomingMessage, response: http.ServerResponse): void {
    request.resume();
    const path = (request.url ?? '').split('?')[0]!;
    const asked: AskedRequest = { path: request.url ?? '', headers: request.headers, status: 0, sentBytes: 0 };
    const odd = this.misbehave(this.requests.push(asked) - 1, asked) ?? {};
    const send = (status: number, headers: http.OutgoingHttpHeaders, body: Uint8Array): void => {
      asked.status = status;
      const sized = odd.unsized === true ? { connection: 'close' } : { 'content-length': body.length };
      if (odd.unsized === true) response.removeHeader('transfer-encoding');
      response.writeHead(status, { ...headers, ...sized, ...odd.headers });
      this.#sendBody(response, body, odd, asked);
    };
    const content = this.#files.get(path);
    if (odd.status !== undefined || content === undefined) {
      send(odd.status ?? 404, {}, Buffer.from(odd.body ?? ''));
      return;
    }
    const tag = `"${sha256Of(content).slice(0, 16)}"`;
    const headers = { 'accept-ranges': 'bytes', ...(odd.withoutTag === true ? {} : { etag: tag }) };
    const start = odd.ignoreRange === true ? undefined : rangeStart(request.headers, tag);
    if (start === undefined) send(200, headers, content);
    else if (start >= content.length) send(416, { 'content-range': `bytes */${content.length}` }, Buffer.from(''));
    else {
      const range = `bytes ${start}-${content.length - 1}/${content.length}`;
      send(206, { ...headers, 'content-range': range }, content.subarray(start));
    }
  }

  #sendBody(response: http.ServerResponse, body: Uint8Array, odd: Misbehaviour, asked: AskedRequest): void {
    const limit = odd.cutAfterBytes ?? odd.holdAfterBytes;
    if (limit === undefined || limit >= body.length) {
      asked.sentBytes += body.length;
      response.end(body);
      return;
    }
    asked.sentBytes += limit;
    response.write(body.subarray(0, limit), () => {
      if (odd.cutAfterBytes !== undefined) {
        response.destroy();
        return;
      }
      this.#held.add(() => {
        asked.sentBytes += body.length - limit;
        response.end(body.subarray(limit));
      });
      for (const tell of this.#whenHeld.splice(0)) tell();
    });
  }
}

function rangeStart({ range, 'if-range': ifRange }: http.IncomingHttpHeaders, tag: string): number | undefined {
  const start = /^bytes=(\d+)-$/.exec(range ?? '')?.[1];
  if (start === undefined || (ifRange !== undefined && ifRange !== tag)) return undefined;
  return Number(start);
}
