/**
 * Reading the body of a request, with its limits: bytes of one body, bytes of all bodies in flight, and time without progress.
 *
 * Owner: the connection, which stops the read when it closes. Nothing is allocated for bytes that have not arrived.
 */
import type { IncomingMessage } from 'node:http';
import { BatchportError } from '../config/errors.ts';

/** Bytes that a client has to send in each idle period to be counted as alive. */
export const PROGRESS_BYTES = 1024;
/** A body that is not wanted and no larger than this is read and dropped, so that the connection can go on. */
const DROPPED_MAX_BYTES = 256 * 1024;

/** Pieces smaller than this are gathered: a body that comes byte by byte, as chunks may, would cost a hundred times its length. */
const GATHERED_MAX_BYTES = 4096;
const BLOCK_BYTES = 16 * 1024;

/** A body on its way in. */
export interface IncomingBody {
  readonly ended: boolean;
  /** To be called once per idle period: gives the body up when it has made no progress since the last call. */
  checkProgress(): void;
  /** What came is no body: nothing of the connection can be understood from here on. */
  malformed(): void;
  /** The connection has closed. */
  stop(): void;
}

/** Bytes held by one ingress process for its clients: bodies being read or expanded, answers that are not taken. And the limits for them. */
export class BodyBudget {
  readonly maxBodyBytes: number;
  readonly maxBytes: number;
  #bytes = 0;

  constructor(maxBytes: number, maxBodyBytes: number) {
    this.maxBytes = maxBytes;
    this.maxBodyBytes = maxBodyBytes;
  }

  /** @throws BODY_TOO_LARGE, QUEUE_FULL for what a head declares, before a byte of the body has come. */
  check(declaredBytes: number): void {
    if (declaredBytes > this.maxBodyBytes) throw tooLarge(this.maxBodyBytes);
    this.#require(declaredBytes);
  }

  #require(bytes: number): void {
    if (this.#bytes + bytes <= this.maxBytes) return;
    throw new BatchportError(
      'QUEUE_FULL',
      'The server holds as many bytes of requests and answers as it may. Retry later.',
    );
  }

  /** @throws QUEUE_FULL when too many bytes are held already. */
  take(bytes: number): void {
    this.#require(bytes);
    this.#bytes += bytes;
  }

  /**
   * Takes the bytes of an answer that is to be made. One larger than the whole budget may be made when nothing else is held.
   *
   * @returns bytes counted, to be given back.
   * @throws QUEUE_FULL
   */
  reserve(bytes: number): number {
    const counted = Math.min(bytes, this.maxBytes);
    this.take(counted);
    return counted;
  }

  /** Counts what is there already and cannot be refused: an answer that its client does not take yet. New requests are refused for it. */
  hold(bytes: number): void {
    this.#bytes += bytes;
  }

  give(bytes: number): void {
    this.#bytes -= bytes;
  }
}

/** Gets the body of a request, or the error that ended its read; in that case the connection cannot be used further. */
export interface BodyReceiver {
  bodyRead(body: Buffer): void;
  /** Instead, for a body in several pieces, where they need not be joined in the event loop: 20 MB take 11 ms. */
  piecesRead?(pieces: readonly Buffer[], length: number): void;
  bodyFailed(error: BatchportError): void;
}

export class BodyRead implements IncomingBody {
  readonly #budget: BodyBudget;
  readonly #receiver: BodyReceiver;
  readonly #declaredBytes: number;
  #chunks: Buffer[] | undefined;
  /** Where small pieces are gathered. */
  #block: Buffer | undefined;
  #blockLength = 0;
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
    else if (chunk.length < GATHERED_MAX_BYTES) this.#gather(chunk);
    else {
      this.#endBlock();
      this.#chunks.push(chunk);
    }
    if (length === this.#declaredBytes) this.#end();
  }

  #gather(piece: Buffer): void {
    if (this.#blockLength + piece.length > BLOCK_BYTES) this.#endBlock();
    this.#block ??= Buffer.allocUnsafe(BLOCK_BYTES);
    this.#blockLength += piece.copy(this.#block, this.#blockLength);
  }

  #endBlock(): void {
    if (this.#blockLength === 0) return;
    this.#chunks?.push(Buffer.from(this.#block!.subarray(0, this.#blockLength)));
    this.#blockLength = 0;
  }

  #end(): void {
    if (this.#ended) return;
    this.#endBlock();
    const chunks = this.#chunks ?? [];
    const receiver = this.#receiver;
    this.stop();
    if (chunks.length === 1) receiver.bodyRead(chunks[0]!);
    else if (receiver.piecesRead !== undefined) receiver.piecesRead(chunks, this.#length);
    else receiver.bodyRead(Buffer.concat(chunks, this.#length));
  }

  #fail(error: BatchportError): void {
    this.stop();
    this.#receiver.bodyFailed(error);
  }

  get ended(): boolean {
    return this.#ended;
  }

  malformed(): void {
    if (!this.#ended) this.#fail(new BatchportError('BAD_REQUEST', 'The body of the request is not valid HTTP.'));
  }

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
    this.#block = undefined;
  }
}

export function tooLarge(maxBytes: number): BatchportError {
  return new BatchportError('BODY_TOO_LARGE', `The request body is larger than ${maxBytes} bytes (--max-body-bytes).`);
}

/** Whether the connection can go on after a body of this declared length (-1: chunked) has been dropped. */
export function canBeDropped(declaredBytes: number): boolean {
  return declaredBytes <= DROPPED_MAX_BYTES;
}

/** The body of a request that was answered without it. `giveUp` is called when it is too large or too slow to be read to its end. */
export class DroppedBody implements IncomingBody {
  ended = false;
  readonly #giveUp: () => void;
  #length = 0;
  #lengthSwept = -1;

  constructor(request: IncomingMessage, giveUp: () => void) {
    this.#giveUp = giveUp;
    request.on('data', (chunk: Buffer) => {
      this.#length += chunk.length;
      if (this.#length > DROPPED_MAX_BYTES) this.malformed();
    });
    request.on('end', () => this.stop());
  }

  checkProgress(): void {
    if (this.#lengthSwept >= 0 && this.#length - this.#lengthSwept < PROGRESS_BYTES) this.malformed();
    this.#lengthSwept = this.#length;
  }

  malformed(): void {
    if (this.ended) return;
    this.ended = true;
    this.#giveUp();
  }

  stop(): void {
    this.ended = true;
  }
}
