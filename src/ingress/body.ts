/**
 * Reading the body of a request, with its limits: bytes of one body (as sent and after expansion), bytes of all bodies in flight, and time without progress.
 *
 * Owner: the connection, which stops the read when it closes. Nothing is allocated for bytes that have not arrived.
 */
import type { IncomingMessage } from 'node:http';
import { promisify } from 'node:util';
import { gunzip, inflate, inflateRaw, type ZlibOptions } from 'node:zlib';
import { BatchportError } from '../config/errors.ts';

/** Bytes that a client has to send in each idle period to be counted as alive. */
const PROGRESS_BYTES = 1024;

/** Bytes of all bodies being read by one ingress process, and the limits for them. */
export class BodyBudget {
  readonly maxBodyBytes: number;
  readonly #maxBytes: number;
  #bytes = 0;

  constructor(maxBytes: number, maxBodyBytes: number) {
    this.#maxBytes = maxBytes;
    this.maxBodyBytes = maxBodyBytes;
  }

  /** @throws BODY_TOO_LARGE, QUEUE_FULL for what a head declares, before a byte of the body has come. */
  check(declaredBytes: number): void {
    if (declaredBytes > this.maxBodyBytes) throw tooLarge(this.maxBodyBytes);
    this.#require(declaredBytes);
  }

  #require(bytes: number): void {
    if (this.#bytes + bytes <= this.#maxBytes) return;
    throw new BatchportError('QUEUE_FULL', 'The server holds as many bytes of request bodies as it may. Retry later.');
  }

  /** @throws QUEUE_FULL when bodies in flight are too many bytes already. */
  take(bytes: number): void {
    this.#require(bytes);
    this.#bytes += bytes;
  }

  give(bytes: number): void {
    this.#bytes -= bytes;
  }
}

/** Gets the body of a request, or the error that ended its read; in that case the connection cannot be used further. */
export interface BodyReceiver {
  bodyRead(body: Buffer): void;
  bodyFailed(error: BatchportError): void;
}

export class BodyRead {
  readonly #budget: BodyBudget;
  readonly #receiver: BodyReceiver;
  readonly #declaredBytes: number;
  #chunks: Buffer[] | undefined;
  #length = 0;
  #lengthSwept = -1;
  #ended = false;

  /**
   * Starts reading a body whose declared length has been checked. The receiver is called once, or never if stop() comes first.
   *
   * A body is whole as soon as the declared bytes are there: the end event would come a turn later.
   *
   * @param declaredBytes -1 when the body is chunked.
   */
  constructor(request: IncomingMessage, declaredBytes: number, budget: BodyBudget, receiver: BodyReceiver) {
    this.#budget = budget;
    this.#receiver = receiver;
    this.#declaredBytes = declaredBytes;
    request.on('data', (chunk: Buffer) => this.#data(chunk));
    if (declaredBytes <= 0) request.on('end', () => this.#end());
  }

  #data(chunk: Buffer): void {
    if (this.#ended) return;
    const length = this.#length + chunk.length;
    if (length === this.#declaredBytes && this.#chunks === undefined) {
      // The usual case, all in one piece: nothing to count or to join.
      this.#ended = true;
      this.#receiver.bodyRead(chunk);
      return;
    }
    try {
      if (length > this.#budget.maxBodyBytes) throw tooLarge(this.#budget.maxBodyBytes);
      this.#budget.take(chunk.length);
    } catch (error) {
      this.#fail(error as BatchportError);
      return;
    }
    this.#length = length;
    if (this.#chunks === undefined) this.#chunks = [chunk];
    else this.#chunks.push(chunk);
    if (length === this.#declaredBytes) this.#end();
  }

  #end(): void {
    if (this.#ended) return;
    const chunks = this.#chunks ?? [];
    const body = chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, this.#length);
    this.stop();
    this.#receiver.bodyRead(body);
  }

  #fail(error: BatchportError): void {
    this.stop();
    this.#receiver.bodyFailed(error);
  }

  get ended(): boolean {
    return this.#ended;
  }

  /** To be called once per idle period: ends the read when it has made no progress since the last call. */
  checkProgress(): void {
    if (this.#ended) return;
    if (this.#lengthSwept >= 0 && this.#length - this.#lengthSwept < PROGRESS_BYTES) {
      this.#fail(
        new BatchportError('REQUEST_TIMEOUT', 'The body of the request came too slowly (--body-idle-timeout-s).'),
      );
      return;
    }
    this.#lengthSwept = this.#length;
  }

  /** Ends the read without a call to the receiver. */
  stop(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#budget.give(this.#length);
    this.#chunks = undefined;
  }
}

function tooLarge(maxBytes: number): BatchportError {
  return new BatchportError('BODY_TOO_LARGE', `The request body is larger than ${maxBytes} bytes (--max-body-bytes).`);
}

/** Encodings the server reads and writes, as it tells clients. */
export const ENCODINGS = 'gzip, deflate';

const gunzipBuffer = promisify<Buffer, ZlibOptions, { buffer: Buffer; engine: { bytesWritten: number } }>(
  gunzip as never,
);
const inflateBuffer = promisify<Buffer, ZlibOptions, { buffer: Buffer; engine: { bytesWritten: number } }>(
  inflate as never,
);
const inflateRawBuffer = promisify<Buffer, ZlibOptions, { buffer: Buffer; engine: { bytesWritten: number } }>(
  inflateRaw as never,
);

/**
 * Expands a body, never past `maxBytes`.
 *
 * `deflate` is zlib's format; bare deflate data, which some clients send under that name, is understood too.
 *
 * @throws BODY_TOO_LARGE, BAD_REQUEST for broken data, UNSUPPORTED_ENCODING.
 */
export async function expandBody(body: Buffer, encoding: string, maxBytes: number): Promise<Buffer> {
  const name = encoding.trim().toLowerCase();
  if (name === '' || name === 'identity') return body;
  let expand: typeof gunzipBuffer;
  if (name === 'gzip' || name === 'x-gzip') expand = gunzipBuffer;
  else if (name === 'deflate') expand = isZlib(body) ? inflateBuffer : inflateRawBuffer;
  else
    throw new BatchportError('UNSUPPORTED_ENCODING', `Content-Encoding is not supported; send ${ENCODINGS} or none.`);
  try {
    const { buffer, engine } = await expand(body, { maxOutputLength: maxBytes, info: true } as ZlibOptions);
    if (engine.bytesWritten !== body.length) throw new Error('there is more after the end of the data');
    return buffer;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE') throw tooLarge(maxBytes);
    throw new BatchportError('BAD_REQUEST', `The body is not valid ${name} data: ${(error as Error).message}.`);
  }
}

/** A zlib header: method 8, and both bytes together a multiple of 31. */
function isZlib(body: Buffer): boolean {
  return body.length >= 2 && (body[0]! & 0x0f) === 8 && ((body[0]! << 8) | body[1]!) % 31 === 0;
}
