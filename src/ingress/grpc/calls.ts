/**
 * What the calls of a gRPC server have in common: where requests go, what is held for answers, and which calls there are, for a drain and for clients that do not take
 * their answers.
 */
import type { BatchportError } from '../../config/errors.ts';
import { readInferMessage } from '../../protocol/grpc/infer-message.ts';
import { nowUs } from '../../system/clock.ts';
import type { BodyBudget } from '../body.ts';
import { sooner } from '../deadline.ts';
import { Inference, queueFull, type Reply, shuttingDown } from '../inference.ts';
import { ModelTable } from '../model-table.ts';
import type { ServerCall } from './types.ts';

/** A call that is not over. */
export interface OpenCall {
  /** The server stops: no more messages are taken. */
  drain(): void;
  /** To be called once per idle period: a client that takes nothing of its answers is given up. */
  checkTaken(): void;
}

/** A request of a call. */
export interface MessageReply extends Reply {
  /** Told as soon as the message can be read: the id it came with, '' for none. */
  identified(id: string): void;
  /** Told before the inference answers anything. */
  begun(inference: Inference): void;
}

export class Calls {
  readonly budget: BodyBudget;
  readonly #models: ModelTable;
  readonly #noteFailure: (error: BatchportError, model: string, id: string | undefined) => void;
  readonly #open = new Set<OpenCall>();
  #draining = false;

  constructor(
    models: ModelTable,
    budget: BodyBudget,
    noteFailure: (error: BatchportError, model: string, id: string | undefined) => void,
  ) {
    this.#models = models;
    this.budget = budget;
    this.#noteFailure = noteFailure;
  }

  get draining(): boolean {
    return this.#draining;
  }

  /** Calls that are not over. */
  get count(): number {
    return this.#open.size;
  }

  opened(call: OpenCall): void {
    this.#open.add(call);
  }

  closed(call: OpenCall): void {
    this.#open.delete(call);
  }

  drain(): void {
    this.#draining = true;
    for (const call of this.#open) call.drain();
  }

  checkTaken(): void {
    for (const call of this.#open) call.checkTaken();
  }

  /**
   * Brings a message to the inference path.
   *
   * @param startedUs when it came; for a call of one message, when the call came.
   * @throws BatchportError for what is wrong before there is an inference; afterwards the reply gets it.
   */
  submit(bytes: Buffer, call: ServerCall, startedUs: number, reply: MessageReply): void {
    if (this.#draining) throw shuttingDown();
    const message = readInferMessage(bytes);
    reply.identified(message.id);
    const serving = ModelTable.serving(this.#models.find(message.modelName, message.modelVersion || undefined));
    const timeoutUs = sooner(serving.sloUs, timeoutUsOf(call, startedUs));
    const inference = new Inference(serving, reply, startedUs, timeoutUs);
    reply.begun(inference);
    if (serving.decidesFromHead(bytes.length) && serving.producer.full) inference.fail(queueFull());
    else inference.submitMessage(message);
  }

  /** For whoever looks for a request of theirs. */
  noteFailure(error: BatchportError, inference: Inference | undefined): void {
    this.#noteFailure(error, inference?.model ?? '', inference?.id);
  }
}

/** Time from `startedUs` to the deadline of a call; 0 for none. */
function timeoutUsOf(call: ServerCall, startedUs: number): number {
  const deadlineMs = Number(call.getDeadline());
  return Number.isFinite(deadlineMs) ? Math.max(1, nowUs() + (deadlineMs - Date.now()) * 1000 - startedUs) : 0;
}

/** Ends the inference of a call that is over: the client has left, or its deadline has passed. */
export function endInference(inference: Inference, call: ServerCall): void {
  if (Number(call.getDeadline()) <= Date.now() + 1) inference.expire();
  else inference.cancel();
}
