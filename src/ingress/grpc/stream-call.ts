/**
 * One ModelStreamInfer: many messages, each an inference of its own; their answers go out in the order of the messages, whatever finishes first. What is wrong with a
 * request is told in its answer, and the stream goes on.
 *
 * Bounds: IN_FLIGHT_MAX messages without an answer and UNTAKEN_MAX_BYTES of answers that the client has not taken; beyond them nothing is read, and HTTP/2 makes the client
 * wait. Owner: Calls, until the call is over.
 */
import type { ServerHttp2Stream } from 'node:http2';
import type { BatchportError } from '../../config/errors.ts';
import type { BoundRequest } from '../../protocol/bound-request.ts';
import { streamedError } from '../../protocol/grpc/infer-response.ts';
import type { EncodedResponse, OutputTensor } from '../../protocol/response-encoder.ts';
import { nowUs } from '../../system/clock.ts';
import { asBatchportError, type Inference, shuttingDown } from '../inference.ts';
import type { Serving } from '../served-model.ts';
import { type Calls, endInference, type MessageReply, type OpenCall } from './calls.ts';
import { linger } from './linger.ts';
import { OK, statusOf } from './status.ts';
import type { ServerCall, ServerListener } from './types.ts';
import { Untaken } from './untaken.ts';

const IN_FLIGHT_MAX = 64;
const UNTAKEN_MAX_BYTES = 1024 * 1024;

export class StreamCall implements ServerListener, OpenCall {
  readonly #calls: Calls;
  readonly #call: ServerCall;
  readonly #stream: ServerHttp2Stream;
  readonly #untaken: Untaken;
  /** In the order of the messages. */
  readonly #replies: StreamedReply[] = [];
  #reading = false;
  #halfClosed = false;
  #over = false;

  constructor(calls: Calls, call: ServerCall, stream: ServerHttp2Stream) {
    this.#calls = calls;
    this.#call = call;
    this.#stream = stream;
    this.#untaken = new Untaken(calls.budget, stream);
  }

  onReceiveMetadata(): void {
    this.#calls.opened(this);
    this.#proceed();
  }

  onReceiveMessage(message: Buffer): void {
    this.#reading = false;
    const reply = new StreamedReply(this, this.#calls);
    this.#replies.push(reply);
    try {
      this.#calls.submit(message, this.#call, nowUs(), reply);
    } catch (error) {
      reply.sendError(asBatchportError(error));
    }
    this.#proceed();
  }

  onReceiveHalfClose(): void {
    this.#reading = false;
    this.#halfClosed = true;
    this.#proceed();
  }

  onCancel(): void {
    this.#over = true;
    this.#calls.closed(this);
    this.#untaken.release();
    if (!this.#halfClosed) linger(this.#stream);
    for (const { inference } of this.#replies) {
      if (inference !== undefined && !inference.finished) endInference(inference, this.#call);
    }
  }

  drain(): void {
    this.#proceed();
  }

  checkTaken(): void {
    this.#untaken.check();
  }

  /** Sends the answers whose turn it is; then reads on, or ends. */
  answered(): void {
    if (this.#over) return;
    for (let first = this.#replies[0]; first?.answer !== undefined; first = this.#replies[0]) {
      this.#replies.shift();
      this.#send(first.answer);
    }
    this.#proceed();
  }

  #send(answer: Buffer): void {
    this.#untaken.hold(answer.length);
    this.#call.sendMessage(answer, () => {
      this.#untaken.taken(answer.length);
      this.#proceed();
    });
  }

  #proceed(): void {
    if (this.#over) return;
    if (this.#replies.length === 0 && (this.#halfClosed || this.#calls.draining)) {
      this.#over = true;
      this.#call.sendStatus(this.#halfClosed ? OK : statusOf(shuttingDown()));
      return;
    }
    const room = this.#replies.length < IN_FLIGHT_MAX && this.#untaken.bytes < UNTAKEN_MAX_BYTES;
    if (this.#reading || this.#halfClosed || this.#calls.draining || !room) return;
    this.#reading = true;
    this.#call.startRead();
  }
}

/** The answer to one message of a stream. */
class StreamedReply implements MessageReply {
  readonly #stream: StreamCall;
  readonly #calls: Calls;
  inference: Inference | undefined;
  #id = '';
  answer: Buffer | undefined;

  constructor(stream: StreamCall, calls: Calls) {
    this.#stream = stream;
    this.#calls = calls;
  }

  identified(id: string): void {
    this.#id = id;
  }

  begun(inference: Inference): void {
    this.inference = inference;
  }

  reserve(bytes: number): number {
    return this.#calls.budget.reserve(bytes);
  }

  unreserve(bytes: number): void {
    this.#calls.budget.give(bytes);
  }

  encode(serving: Serving, request: BoundRequest, outputs: readonly OutputTensor[]): EncodedResponse {
    return serving.messageEncoder.encode(request, outputs, true);
  }

  sendResult({ body }: EncodedResponse): void {
    this.answer = body;
    this.#stream.answered();
  }

  sendError(error: BatchportError): void {
    this.#calls.noteFailure(error, this.inference);
    this.answer = streamedError(error.message, this.#id);
    this.#stream.answered();
  }
}
