/**
 * HTTP over a bare socket: sends exactly the bytes a test wants, however malformed or slow, and reads the answers.
 *
 * What is read is bounded by `READ_LIMIT_BYTES`, every wait by a timeout.
 */
import net from 'node:net';
import { Condition } from './condition.ts';

const READ_LIMIT_BYTES = 256 * 2 ** 20;
const CRLF2 = Buffer.from('\r\n\r\n');

export interface RawResponse {
  readonly status: number;
  readonly reason: string;
  /** Header lines in order, names in lower case. */
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly body: Buffer;
  /** Value of a header; repeated ones joined with ", ". */
  header(name: string): string | undefined;
  text(): string;
}

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** Host and port of an http URL. */
export function addressOf(url: string): Address {
  const { hostname, port } = new URL(url);
  return { host: hostname.replace(/^\[|\]$/g, ''), port: Number(port || 80) };
}

export class RawConnection {
  private readonly socket: net.Socket;
  private buffer = Buffer.alloc(16 * 1024);
  private length = 0;
  private ended = false;
  private failure: Error | undefined;
  private readonly condition = new Condition();

  private constructor(socket: net.Socket) {
    this.socket = socket;
    socket.on('data', (chunk: Buffer) => {
      this.append(chunk);
      if (this.length > READ_LIMIT_BYTES) socket.destroy(new Error(`more than ${READ_LIMIT_BYTES} bytes received`));
      this.condition.notify();
    });
    socket.on('error', (error) => {
      this.failure = error;
      this.ended = true;
      this.condition.notify();
    });
    socket.on('close', () => {
      this.ended = true;
      this.condition.notify();
    });
    socket.on('end', () => {
      this.ended = true;
      this.condition.notify();
    });
  }

  /** Connects to an http URL or an address. */
  static async open(target: string | Address): Promise<RawConnection> {
    const { host, port } = typeof target === 'string' ? addressOf(target) : target;
    const socket = net.connect({ host, port, noDelay: true, allowHalfOpen: true });
    await new Promise<void>((resolve, reject) => {
      socket.once('connect', resolve);
      socket.once('error', reject);
    });
    return new RawConnection(socket);
  }

  /** Error that ended the connection, such as ECONNRESET. */
  get error(): Error | undefined {
    return this.failure;
  }

  /** Our end's port. */
  get localPort(): number {
    return this.socket.localPort ?? 0;
  }

  /** Bytes that have come and that no answer took. */
  get pendingBytes(): number {
    return this.length;
  }

  /** Sends bytes as they are; a string as latin1, so that any byte can be written. Resolves when the kernel has taken them. */
  write(bytes: string | Uint8Array): Promise<void> {
    const data = typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes;
    return new Promise((resolve) => {
      if (this.socket.destroyed || !this.socket.writable) return resolve();
      this.socket.write(data, () => resolve());
    });
  }

  /** Ends the sending side only. */
  endWriting(): void {
    this.socket.end();
  }

  /** Stops reading, as a client that is too slow does; `resume` goes on. */
  pause(): void {
    this.socket.pause();
  }

  resume(): void {
    this.socket.resume();
  }

  /** Drops the connection; with `reset`, by RST. */
  destroy(reset = false): void {
    if (reset) this.socket.resetAndDestroy();
    else this.socket.destroy();
  }

  /**
   * The next answer.
   *
   * @param method Method of the request: the answer to HEAD has no body.
   * @throws Error when the connection ends or the time passes before the answer is whole.
   */
  async response(timeoutMs = 10_000, method = 'GET'): Promise<RawResponse> {
    return this.waitFor(timeoutMs, 'an answer', () => {
      const parsed = parseResponse(this.received, this.ended, method);
      if (parsed === undefined) return undefined;
      this.buffer.copyWithin(0, parsed.length, this.length);
      this.length -= parsed.length;
      // An interim answer (100 Continue) precedes the real one.
      return parsed.response.status >= 200 ? parsed.response : undefined;
    });
  }

  /** Waits until an answer has begun to come. */
  async firstByte(timeoutMs = 10_000): Promise<void> {
    await this.waitFor(timeoutMs, 'the first byte of an answer', () => (this.length > 0 ? true : undefined));
  }

  /** Waits until the server has closed, and gives the bytes that no answer took. */
  async closed(timeoutMs = 10_000): Promise<Buffer> {
    return this.waitFor(timeoutMs, 'the end of the connection', () =>
      this.ended ? Buffer.from(this.received) : undefined,
    );
  }

  private get received(): Buffer {
    return this.buffer.subarray(0, this.length);
  }

  private append(chunk: Buffer): void {
    if (this.length + chunk.length > this.buffer.length) {
      const larger = Buffer.alloc(Math.max(this.buffer.length * 2, this.length + chunk.length));
      this.buffer.copy(larger, 0, 0, this.length);
      this.buffer = larger;
    }
    chunk.copy(this.buffer, this.length);
    this.length += chunk.length;
  }

  private waitFor<T>(timeoutMs: number, what: string, attempt: () => T | undefined): Promise<T> {
    const giveUp = () => (this.ended ? `connection ended (${this.failure?.message ?? 'closed'})` : undefined);
    const explain = () => `received ${JSON.stringify(this.received.subarray(0, 200).toString('latin1'))}`;
    return this.condition.until(timeoutMs, what, attempt, giveUp, explain);
  }
}

/** Sends bytes over a connection of its own and gives the answer; further parts are sent as separate writes. */
export async function rawRequest(
  target: string | Address,
  parts: string | Uint8Array | readonly (string | Uint8Array)[],
  options: { readonly timeoutMs?: number; readonly method?: string } = {},
): Promise<RawResponse> {
  const connection = await RawConnection.open(target);
  try {
    for (const part of Array.isArray(parts)
      ? (parts as readonly (string | Uint8Array)[])
      : [parts as string | Uint8Array]) {
      await connection.write(part);
    }
    return await connection.response(options.timeoutMs, options.method);
  } finally {
    connection.destroy();
  }
}

/**
 * Bytes of a well-formed request; headers are written as given, one line each, so that they may repeat or lie. Host and Content-Length are added
 * unless a header of that name is there already.
 */
export function requestBytes(
  method: string,
  path: string,
  headers: readonly (readonly [string, string])[] = [],
  body: string | Uint8Array = '',
): Buffer {
  const content = typeof body === 'string' ? Buffer.from(body, 'utf8') : body;
  const has = (name: string) => headers.some(([key]) => key.toLowerCase() === name);
  const lines = [`${method} ${path} HTTP/1.1`];
  if (!has('host')) lines.push('Host: test');
  if (!has('content-length') && !has('transfer-encoding') && (content.length > 0 || method === 'POST')) {
    lines.push(`Content-Length: ${content.length}`);
  }
  for (const [key, value] of headers) lines.push(`${key}: ${value}`);
  return Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1'), content]);
}

/** One answer at the start of `bytes` and its length, or undefined while it is not whole. */
function parseResponse(
  bytes: Buffer,
  ended: boolean,
  method: string,
): { readonly response: RawResponse; readonly length: number } | undefined {
  const headEnd = bytes.indexOf(CRLF2);
  if (headEnd < 0) return undefined;
  const [statusLine = '', ...lines] = bytes.subarray(0, headEnd).toString('latin1').split('\r\n');
  const match = /^HTTP\/1\.[01] (\d{3}) ?(.*)$/.exec(statusLine);
  if (match === null) throw new Error(`not an HTTP answer: ${JSON.stringify(statusLine)}`);
  const headers = lines.map((line) => {
    const colon = line.indexOf(':');
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()] as const;
  });
  const header = (name: string) => {
    const values = headers.filter(([key]) => key === name.toLowerCase()).map(([, value]) => value);
    return values.length === 0 ? undefined : values.join(', ');
  };
  const status = Number(match[1]);
  const finish = (slice: Buffer, length: number) => {
    const body = Buffer.from(slice); // A copy: the connection's buffer is used again.
    const response = { status, reason: match[2] ?? '', headers, body, header, text: () => body.toString('utf8') };
    return { response, length };
  };
  const start = headEnd + CRLF2.length;
  if (method === 'HEAD' || status < 200 || status === 204 || status === 304) return finish(Buffer.alloc(0), start);
  if (header('transfer-encoding')?.toLowerCase() === 'chunked') {
    const chunked = parseChunks(bytes, start);
    return chunked === undefined ? undefined : finish(chunked.body, chunked.end);
  }
  const declared = header('content-length');
  if (declared === undefined) return ended ? finish(bytes.subarray(start), bytes.length) : undefined;
  const end = start + Number(declared);
  return bytes.length < end ? undefined : finish(bytes.subarray(start, end), end);
}

function parseChunks(bytes: Buffer, start: number): { readonly body: Buffer; readonly end: number } | undefined {
  const chunks: Buffer[] = [];
  for (let at = start; ; ) {
    const lineEnd = bytes.indexOf('\r\n', at);
    if (lineEnd < 0) return undefined;
    const size = Number.parseInt(bytes.subarray(at, lineEnd).toString('latin1'), 16);
    if (Number.isNaN(size)) throw new Error('malformed chunk in an answer');
    at = lineEnd + 2;
    if (size === 0) {
      // Trailers, if any, end with an empty line.
      if (bytes.subarray(at, at + 2).toString('latin1') === '\r\n') return { body: Buffer.concat(chunks), end: at + 2 };
      const end = bytes.indexOf(CRLF2, at);
      return end < 0 ? undefined : { body: Buffer.concat(chunks), end: end + CRLF2.length };
    }
    if (bytes.length < at + size + 2) return undefined;
    chunks.push(bytes.subarray(at, at + size));
    at += size + 2;
  }
}
