/**
 * Watches the messages of a call on their way in: their size, the bytes that are held for them, their progress. grpc-js gathers a message without asking anybody, up to a
 * limit of its own for each; here the limits are those of HTTP bodies, for all connections together.
 *
 *     [compressed? 1][length 4, big-endian][message] …       A message that comes in one piece with its frame costs nothing.
 *
 * A compressed message, once it is whole, counts for the most that it can become until the next one comes, since its expansion is not seen. Owner: the call; everything is given back when its stream closes.
 */
import type { ServerHttp2Stream } from 'node:http2';
import { BatchportError } from '../../config/errors.ts';
import { type BodyBudget, PROGRESS_BYTES, tooLarge } from '../body.ts';

const FRAME_BYTES = 5;
/** Deflate makes no more than this of a byte. */
const EXPANSION_MAX = 1032;

export class MessageMeter {
  /** Those in the middle of a message, or before the one that has to come. */
  static readonly #awaited = new Set<MessageMeter>();

  readonly #budget: BodyBudget;
  readonly #refuse: (error: BatchportError) => void;
  /** Bytes of the frame that are there, the length among them. */
  #frameBytes = 0;
  #compressed = false;
  #length = 0;
  /** Bytes of the message that are still to come. */
  #left = 0;
  #held = 0;
  #received = 0;
  #receivedSwept = -1;
  #over = false;

  /**
   * Has to be made before the first byte is read.
   *
   * @param single whether the call is one message, which then has to come without long pauses from the start.
   * @param refuse answers the call with an error.
   */
  constructor(stream: ServerHttp2Stream, single: boolean, budget: BodyBudget, refuse: (error: BatchportError) => void) {
    this.#budget = budget;
    this.#refuse = refuse;
    if (single) MessageMeter.#awaited.add(this);
    // Before grpc-js gets it.
    stream.prependListener('data', (chunk: Buffer) => this.#data(chunk));
    stream.once('close', () => this.#end());
  }

  /** Gives up messages without progress. To be called once per idle period. */
  static sweep(): void {
    for (const meter of MessageMeter.#awaited) meter.#checkProgress();
  }

  #data(chunk: Buffer): void {
    if (this.#over) return;
    this.#received += chunk.length;
    try {
      this.#count(chunk);
    } catch (error) {
      this.#end();
      this.#refuse(error as BatchportError);
      return;
    }
    if (this.#left > 0 || this.#frameBytes > 0) MessageMeter.#awaited.add(this);
    else MessageMeter.#awaited.delete(this);
  }

  #count(chunk: Buffer): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#left === 0) {
        at = this.#frame(chunk, at);
        if (this.#frameBytes < FRAME_BYTES) return;
        this.#frameBytes = 0;
        this.#begin(chunk.length - at);
        continue;
      }
      const step = Math.min(this.#left, chunk.length - at);
      at += step;
      this.#left -= step;
      if (this.#left > 0) this.#take(step);
      else this.#whole();
    }
  }

  #frame(chunk: Buffer, start: number): number {
    let at = start;
    while (at < chunk.length && this.#frameBytes < FRAME_BYTES) {
      const byte = chunk[at++]!;
      if (this.#frameBytes === 0) this.#compressed = byte !== 0;
      else this.#length = this.#frameBytes === 1 ? byte : this.#length * 256 + byte;
      this.#frameBytes++;
    }
    return at;
  }

  /** @param there bytes of the message that have come with its frame. */
  #begin(there: number): void {
    this.#give();
    const { maxBodyBytes } = this.#budget;
    if (this.#length > maxBodyBytes) throw tooLarge(maxBodyBytes);
    if (this.#length > there) this.#budget.check(this.#length);
    this.#left = this.#length;
  }

  #whole(): void {
    this.#give();
    if (this.#compressed) this.#take(Math.min(this.#budget.maxBodyBytes, this.#length * EXPANSION_MAX));
  }

  #take(bytes: number): void {
    this.#budget.take(bytes);
    this.#held += bytes;
  }

  #checkProgress(): void {
    if (this.#receivedSwept >= 0 && this.#received - this.#receivedSwept < PROGRESS_BYTES) {
      this.#end();
      this.#refuse(
        new BatchportError('REQUEST_TIMEOUT', 'The message of the request came too slowly (--body-idle-timeout-s).'),
      );
      return;
    }
    this.#receivedSwept = this.#received;
  }

  #give(): void {
    if (this.#held === 0) return;
    this.#budget.give(this.#held);
    this.#held = 0;
  }

  #end(): void {
    this.#over = true;
    this.#give();
    MessageMeter.#awaited.delete(this);
  }
}
