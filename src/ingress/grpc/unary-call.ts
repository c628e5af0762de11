/**
 * One ModelInfer: its message, its inference, its answer.
 *
 *     metadata ─▶ message ─▶ half-close ─▶ Inference … ─▶ message, status ─▶ over
 *                                              └ client left, or deadline passed: rows given up
 *
 * Speaks to grpc-js where an interceptor does, which is below its handlers: less is made per call, and it is told when an answer has been taken. Owner: Calls, until the
 * call is over.
 */
import type { ServerHttp2Stream } from 'node:http2';
import { BatchportError } from '../../config/errors.ts';
import type { BoundRequest } from '../../protocol/bound-request.ts';
import type { EncodedResponse, OutputTensor } from '../../protocol/response-encoder.ts';
import { nowUs } from '../../system/clock.ts';
import { asBatchportError, type Inference, shuttingDown } from '../inference.ts';
import type { Serving } from '../served-model.ts';
import { type Calls, endInference, type MessageReply, type OpenCall } from './calls.ts';
import { linger } from './linger.ts';
import { OK, statusOf } from './status.ts';
import type { ServerCall, ServerListener } from './types.ts';
import { Untaken } from './untaken.ts';

export class UnaryCall implements ServerListener, MessageReply, OpenCall {
  readonly #calls: Calls;
  readonly #call: ServerCall;
  readonly #stream: ServerHttp2Stream;
  readonly #startedUs = nowUs();
  readonly #untaken: Untaken;
  #message: Buffer | undefined;
  #halfClosed = false;
  #inference: Inference | undefined;

  constructor(calls: Calls, call: ServerCall, stream: ServerHttp2Stream) {
    this.#calls = calls;
    this.#call = call;
    this.#stream = stream;
    this.#untaken = new Untaken(calls.budget, stream);
  }

  onReceiveMetadata(): void {
    this.#calls.opened(this);
    if (this.#calls.draining) this.sendError(shuttingDown());
    else this.#call.startRead();
  }

  onReceiveMessage(message: Buffer): void {
    if (this.#message === undefined) {
      this.#message = message;
      this.#call.startRead();
    } else this.sendError(new BatchportError('BAD_REQUEST', 'ModelInfer takes one message, and more have come.'));
  }

  onReceiveHalfClose(): void {
    this.#halfClosed = true;
    try {
      if (this.#message === undefined) {
        throw new BatchportError('BAD_REQUEST', 'ModelInfer takes one message, and none has come.');
      }
      this.#calls.submit(this.#message, this.#call, this.#startedUs, this);
    } catch (error) {
      this.sendError(asBatchportError(error));
    }
  }

  /** The call is over, however it has ended. */
  onCancel(): void {
    this.#calls.closed(this);
    this.#untaken.release();
    if (!this.#halfClosed) linger(this.#stream);
    if (this.#inference !== undefined && !this.#inference.finished) endInference(this.#inference, this.#call);
  }

  /** Errors of a call need no id. */
  identified(): void {}

  begun(inference: Inference): void {
    this.#inference = inference;
  }

  reserve(bytes: number): number {
    return this.#calls.budget.reserve(bytes);
  }

  unreserve(bytes: number): void {
    this.#calls.budget.give(bytes);
  }

  encode(serving: Serving, request: BoundRequest, outputs: readonly OutputTensor[]): EncodedResponse {
    return serving.messageEncoder.encode(request, outputs);
  }

  sendResult({ body }: EncodedResponse): void {
    this.#untaken.hold(body.length);
    this.#call.sendMessage(body, () => this.#untaken.taken(body.length));
    this.#call.sendStatus(OK);
  }

  sendError(error: BatchportError): void {
    this.#calls.noteFailure(error, this.#inference);
    this.#call.sendStatus(statusOf(error));
  }

  /** What is under way is finished. */
  drain(): void {}

  checkTaken(): void {
    this.#untaken.check();
  }
}
