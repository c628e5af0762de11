/**
 * Reading the body of a request, with its limits: bytes of one body (as sent and after expansion), bytes of all bodies in flight, and time without progress.
 *
 * Owner: the reading request until `done` has been called, exactly once. Nothing is allocated for bytes that have not arrived.
 */
import type { IncomingMessage } from 'node:http';
import { promisify } from 'node:util';
import { gunzip, inflate, inflateRaw, type ZlibOptions } from 'node:zlib';
import { BatchportError } from '../config/errors.ts';

/** Bytes that a client has to send in each idle period to be counted as alive. */
const PROGRESS_BYTES = 1024;

/** The bodies being read or waited for by one ingress process. */
export class BodyBudget {
  readonly #maxBytes: number;
  readonly #maxBodyBytes: number;
  readonly #reading = new Set<BodyRead>();
  #bytes = 0;

  constructor(maxBytes: number, maxBodyBytes: number) {
    this.#maxBytes = maxBytes;
    this.#maxBodyBytes = maxBodyBytes;
  }

  get maxBodyBytes(): number {
    return this.#maxBodyBytes;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** @throws QUEUE_FULL when bodies in flight are too many bytes already. */
  take(bytes: number): void {
    if (this.#bytes + bytes > this.#maxBytes) {
      throw new BatchportError(
        'QUEUE_FULL',
        'The server holds as many bytes of request bodies as it may. Retry later.',
      );
    }
    this.#bytes += bytes;
  }

  give(bytes: number): void {
    this.#bytes -= bytes;
  }

  watch(read: BodyRead): void {
    this.#reading.add(read);
  }

  unwatch(read: BodyRead): void {
    this.#reading.delete(read);
  }

  /** To be called once per idle period: ends the reads that have made no progress since the last call. */
  sweep(): void {
    for (const read of this.#reading) read.checkProgress();
  }
}

export class BodyRead {
  readonly #budget: BodyBudget;
  readonly #done: (error: BatchportError | undefined, body: Buffer) => void;
  #chunks: Buffer[] | undefined;
  #first: Buffer | undefined;
  #length = 0;
  #lengthSwept = -1;
  #ended = false;

  /**
   * Starts reading. `done` gets the whole body, or the error that ended the read; in that case the connection cannot be used further.
   * Not called when the connection closes first.
   *
   * @throws BODY_TOO_LARGE, QUEUE_FULL from the headers alone.
   */
  constructor(
    request: IncomingMessage,
    declaredBytes: number | undefined,
    budget: BodyBudget,
    done: (error: BatchportError | undefined, body: Buffer) => void,
  ) {
    this.#budget = budget;
    this.#done = done;
    if (declaredBytes !== undefined && declaredBytes > budget.maxBodyBytes) throw tooLarge(budget.maxBodyBytes);
    // Declared bytes are only a promise: they are taken as they arrive, but a body that cannot fit is refused before it is read.
    if (declaredBytes !== undefined) {
      budget.take(declaredBytes);
      budget.give(declaredBytes);
    }
    budget.watch(this);
    request.on('data', (chunk: Buffer) => this.#data(chunk));
    request.on('end', () => this.#end());
    request.on('close', () => this.#release());
  }

  #data(chunk: Buffer): void {
    if (this.#ended) return;
    try {
      if (this.#length + chunk.length > this.#budget.maxBodyBytes) throw tooLarge(this.#budget.maxBodyBytes);
      this.#budget.take(chunk.length);
    } catch (error) {
      this.#finish(error as BatchportError);
      return;
    }
    this.#length += chunk.length;
    if (this.#first === undefined) this.#first = chunk;
    else if (this.#chunks === undefined) this.#chunks = [this.#first, chunk];
    else this.#chunks.push(chunk);
  }

  #end(): void {
    if (this.#ended) return;
    this.#finish(undefined);
  }

  checkProgress(): void {
    if (this.#lengthSwept >= 0 && this.#length - this.#lengthSwept < PROGRESS_BYTES) {
      this.#finish(
        new BatchportError('REQUEST_TIMEOUT', 'The body of the request came too slowly (--body-idle-timeout-s).'),
      );
      return;
    }
    this.#lengthSwept = this.#length;
  }

  #finish(error: BatchportError | undefined): void {
    const body =
      error !== undefined
        ? EMPTY
        : this.#chunks === undefined
          ? (this.#first ?? EMPTY)
          : Buffer.concat(this.#chunks, this.#length);
    this.#release();
    this.#done(error, body);
  }

  #release(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#budget.give(this.#length);
    this.#budget.unwatch(this);
    this.#first = undefined;
    this.#chunks = undefined;
  }
}

const EMPTY = Buffer.alloc(0);

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
