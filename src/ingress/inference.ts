/**
 * One inference request from the moment its body is whole to its answer.
 *
 *     decode → admit → place in a slab ──(doorbell)──▶ complete → encode → answered
 *        │       │                │                                 ▲
 *        │       └ refused        ├ deadline passed: 504, rows given up
 *        │                        └ client left: rows given up      │
 *        └ of a model with a response cache that has the answer ────┘
 *
 * Decoding and encoding are done at once, or, where JSON is large, in a thread and come back later; whoever has left by then is passed over.
 *
 * Owner: the connection it came on, until `finished`. The body is kept only while the request waits for space in the queue. What it answers goes
 * through a `Reply`, so that this file does not know what carries it.
 */
import { BatchportError, type ErrorCode } from '../config/errors.ts';
import type { Outcome } from '../metrics/counters.ts';
import { STAGES } from '../metrics/counters.ts';
import { processOutput } from '../postprocess/process.ts';
import type { BoundRequest } from '../protocol/bound-request.ts';
import type { InferMessage } from '../protocol/grpc/infer-message.ts';
import type { EncodedResponse, OutputTensor } from '../protocol/response-encoder.ts';
import { writeShared } from '../protocol/shared-memory.ts';
import type { Claim } from '../queue/producer.ts';
import {
  type ResultReader,
  STATUS_DEADLINE,
  STATUS_MODEL_FAILED,
  STATUS_OK,
  STATUS_OUT_OF_MEMORY,
  STATUS_RESULT_TOO_LARGE,
  STATUS_WORKER_LOST,
} from '../queue/result.ts';
import { copyFault } from '../queue/tensor-source.ts';
import { nowUs } from '../system/clock.ts';
import { Deadline } from './deadline.ts';
import { LARGE_JSON_BYTES, LARGE_OUTPUT_BYTES, LARGE_WORK_BYTES } from './json-threads.ts';
import type { ResponseCache } from './response-cache.ts';
import { type Binding, OUTCOME_INDEX, type Serving } from './served-model.ts';
import { type RowsOwner, type SplitReceiver, SplitRequest, type SplitTimes } from './split-request.ts';
import type { Transform } from './transform.ts';

/** What carries the answer. Called at most once, and never after the client has left. */
export interface Reply {
  /**
   * Counts the answer's bytes before there is one: requests that came together would otherwise all be accepted while nothing is held yet.
   *
   * @returns bytes counted, to be given to unreserve() once.
   * @throws QUEUE_FULL when as many bytes are held as may be.
   */
  reserve(bytes: number): number;
  unreserve(bytes: number): void;
  /** Writes the answer in the encoding that the client speaks. */
  encode(serving: Serving, request: BoundRequest, outputs: readonly OutputTensor[]): EncodedResponse;
  sendResult(response: EncodedResponse): void;
  sendError(error: BatchportError): void;
}

const [RECEIVE, QUEUE, RUN, SEND, TOTAL] = STAGES.map((_, n) => n) as [number, number, number, number, number];

const STATUS_CODES = new Map<number, ErrorCode>([
  [STATUS_MODEL_FAILED, 'MODEL_FAILED'],
  [STATUS_OUT_OF_MEMORY, 'OUT_OF_MEMORY'],
  [STATUS_WORKER_LOST, 'WORKER_LOST'],
  [STATUS_DEADLINE, 'DEADLINE_EXCEEDED'],
  [STATUS_RESULT_TOO_LARGE, 'OUT_OF_MEMORY'],
]);

const DEFAULT_MESSAGES: Partial<Record<ErrorCode, string>> = {
  WORKER_LOST:
    'The process running the request died, and so did those that tried again. The request may be sent once more.',
  DEADLINE_EXCEEDED: 'request timeout expired before its batch ran',
};

/** Answers smaller than this are bounded well enough by the number of rows that may queue. */
const RESERVED_FROM_BYTES = 64 * 1024;

/** Microseconds; `doneUs` is when the result was seen here, on the shared clock. */
interface StageTimes {
  readonly queueUs: number;
  readonly runUs: number;
  readonly doneUs: number;
}

export class Inference implements RowsOwner, SplitReceiver {
  readonly #serving: Serving;
  readonly #reply: Reply;
  readonly #startedUs: number;
  /** What the client sent. */
  #request: BoundRequest | undefined;
  /** What is run for it. */
  #run: BoundRequest | undefined;
  /** Of that. */
  #binding: Binding | undefined;
  #claim: Claim<RowsOwner> | undefined;
  /** Instead of the claim, for more rows than a batch has. */
  #split: SplitRequest | undefined;
  #placedUs = 0;
  #reserved = 0;
  #deadline: Deadline | undefined;
  /** Of a model with a response cache: under which the answer is kept, and the time that the cache has taken so far, µs. */
  #cacheKey: string | undefined;
  #cacheUs = 0;
  /** Answered, given up, or refused. */
  finished = false;

  /** @param timeoutUs to the deadline, as far as it is known before the request has been read; 0 for none. */
  constructor(serving: Serving, reply: Reply, startedUs: number, timeoutUs: number) {
    this.#serving = serving;
    this.#reply = reply;
    this.#startedUs = startedUs;
    if (timeoutUs > 0) this.#deadline = new Deadline(serving.outlook, startedUs, timeoutUs);
    serving.entered();
  }

  /** It has not been refused by its head. @param bytes as declared; -1 where they are not. */
  expectBody(bytes: number): void {
    if (this.#serving.decidesFromHead(bytes)) this.#deadline?.expectBody(bytes);
  }

  /**
   * Takes the whole body. Everything that can be wrong with it is answered here; else the answer comes later.
   *
   * @param body in one piece or in several, of `length` bytes together.
   * @param headerLength of Inference-Header-Content-Length, undefined without that header.
   */
  submit(body: Buffer | readonly Buffer[], length: number, headerLength: number | undefined): void {
    if ((headerLength ?? length) >= LARGE_JSON_BYTES) {
      void this.#submitLarge(Buffer.isBuffer(body) ? [body] : body, length, headerLength);
      return;
    }
    try {
      const whole = Buffer.isBuffer(body) ? body : Buffer.concat(body, length);
      this.#enqueue(this.#serving.decoder.decode(whole, headerLength), length);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  async #submitLarge(pieces: readonly Buffer[], length: number, headerLength: number | undefined): Promise<void> {
    const { decoder, jsonThreads } = this.#serving;
    try {
      const request = await jsonThreads.read(decoder, { pieces, length, headerLength }, () => !this.finished);
      if (this.finished) return;
      const { outage } = this.#serving;
      if (outage !== undefined) throw new BatchportError('NOT_READY', outage);
      this.#enqueue(request, length);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  /** The same for a body that is nothing but the one element of a BYTES input. */
  submitPayload(body: Buffer): void {
    try {
      this.#enqueue(this.#serving.decoder.bindPayload(body), body.length);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  /** The same for a request that came over gRPC. */
  submitMessage(message: InferMessage): void {
    try {
      this.#enqueue(this.#serving.decoder.bindMessage(message), message.bytes.length);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  /** @throws BatchportError when it cannot be queued. */
  #enqueue(request: BoundRequest, bodyBytes: number): void {
    const { transform } = this.#serving;
    if (transform === undefined) this.#place(request, request, bodyBytes);
    else void this.#transform(transform, request, bodyBytes);
  }

  /** What the client sent becomes what the model takes, elsewhere and after a while. */
  async #transform(transform: Transform, received: BoundRequest, bodyBytes: number): Promise<void> {
    try {
      this.#request = received;
      const deadline = this.#deadlineWith(received.timeoutUs);
      deadline?.hasten(received.timeoutUs);
      deadline?.arm(() => this.expire());
      const run = await transform.before(received, () => !this.finished);
      if (this.finished) return;
      const { outage } = this.#serving;
      if (outage !== undefined) throw new BatchportError('NOT_READY', outage);
      this.#place(received, run, bodyBytes);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  /**
   * @param received what the client sent, and is answered.
   * @param bound what is run for it: the same, but for a model with a transform.
   * @throws BatchportError when it cannot be queued.
   */
  #place(received: BoundRequest, bound: BoundRequest, bodyBytes: number): void {
    const serving = this.#serving;
    const { rows } = bound.template;
    const binding = serving.bindingOf(bound);
    const request = binding.hasWork ? serving.outputWork.withOwnMasks(bound) : bound;
    const { layout, answerRowBytes, positions } = binding;
    if (serving.cache !== undefined && this.#answerKept(serving.cache, request, binding, bodyBytes)) return;
    const { maxBatchRows: partRows } = serving.segment.geometry;
    const { inputs, bytes: sharedBytes } = request.shared ?? { inputs: request.inputs, bytes: 0 };
    if (rows > partRows) {
      this.#split = new SplitRequest(serving.producer, { layout, rows, inputs, partRows, positions }, this);
    }
    const needed = this.#split?.neededBytes ?? serving.producer.requestBytes(layout, rows, inputs);
    if (needed > serving.producer.capacityBytes) {
      throw new BatchportError(
        'BODY_TOO_LARGE',
        `The request needs ${needed} bytes of the model's queue, which has ${serving.producer.capacityBytes} for requests; raise queue.max_bytes of the model.`,
      );
    }
    // What a row takes in a body is learnt from this: as much as it would if it had come in one.
    const broughtBytes = bodyBytes + sharedBytes;
    serving.counters.received(rows, broughtBytes);
    this.#request = received;
    this.#run = request;
    this.#binding = binding;
    const { timeoutUs } = request;
    const deadline = this.#deadlineWith(timeoutUs);
    deadline?.foresee(timeoutUs, layout, rows, broughtBytes);
    if (answerRowBytes * rows >= RESERVED_FROM_BYTES) this.#reserved = this.#reply.reserve(answerRowBytes * rows);
    if (!serving.producer.admit(rows)) throw queueFull();
    deadline?.arm(() => this.expire());
    this.#placedUs = nowUs();
    const atUs = deadline?.atUs ?? 0;
    if (this.#split !== undefined) {
      if (!this.#split.place(atUs)) throw queueFull();
      return;
    }
    const claim = serving.producer.place(this, layout, rows, inputs, atUs);
    if (claim === 'full') throw queueFull();
    if (claim !== undefined) this.placed(claim);
  }

  /**
   * Answers with what the cache has kept of an equal request.
   *
   * @returns false when it has nothing.
   * @throws BatchportError when the answer cannot be written as it is asked for, or held.
   */
  #answerKept(cache: ResponseCache, request: BoundRequest, binding: Binding, bodyBytes: number): boolean {
    const startUs = nowUs();
    const key = cache.keyOf(request);
    if (key === undefined) return false;
    const kept = cache.find(key, startUs);
    const foundUs = nowUs();
    this.#cacheUs = foundUs - startUs;
    if (kept === undefined) {
      this.#cacheKey = key;
      return false;
    }
    this.#request = request;
    this.#binding = binding;
    const { rows } = request.template;
    this.#serving.counters.received(rows, bodyBytes);
    const outputs = binding.positions.map((position) => kept[position]!);
    const bytes = outputs.reduce((sum, { data }) => sum + data.length, 0);
    if (bytes >= RESERVED_FROM_BYTES) this.#reserved = this.#reply.reserve(bytes);
    // Large JSON is written elsewhere, which takes its time.
    const deadline = this.#deadlineWith(request.timeoutUs);
    deadline?.hasten(request.timeoutUs);
    deadline?.arm(() => this.expire());
    this.#write(outputs, undefined);
    return true;
  }

  /** @param timeoutUs what the request itself asks for. */
  #deadlineWith(timeoutUs: number | undefined): Deadline | undefined {
    if (timeoutUs !== undefined) {
      this.#deadline ??= new Deadline(this.#serving.outlook, this.#startedUs, timeoutUs);
    }
    return this.#deadline;
  }

  /** Puts a copy of a run's outputs into the cache. @param outputs in the order of the request */
  #keep(key: string, outputs: readonly OutputTensor[]): void {
    const startUs = nowUs();
    const { layout, positions } = this.#binding!;
    const inOrder = layout.outputs.map((_, n) => outputs[positions.indexOf(n)]!);
    this.#serving.cache?.keep(key, inOrder, startUs);
    this.#cacheUs += nowUs() - startUs;
  }

  /** The time for the answer is over. */
  expire(): void {
    if (this.finished) return;
    this.#giveUp();
    this.fail(new BatchportError('DEADLINE_EXCEEDED', 'request timeout expired before the answer was there'));
  }

  /** Name and version of the model. */
  get model(): string {
    return this.#serving.key;
  }

  /** The id the client gave, once the request has been read. */
  get id(): string | undefined {
    return this.#request?.id;
  }

  /** The result is there. Views of the reader are valid only during this call. */
  complete(reader: ResultReader): void {
    if (this.finished) return;
    try {
      if (reader.status !== STATUS_OK) {
        this.partFailed(reader);
        return;
      }
      const { positions } = this.#binding!;
      const outputs: OutputTensor[] = [];
      for (let n = 0; n < positions.length; n++) outputs.push(reader.output(positions[n]!));
      this.#encode(outputs, reader);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  /** The run has failed. */
  partFailed(reader: ResultReader): void {
    const { status } = reader;
    const { outage } = this.#serving;
    const code = STATUS_CODES.get(status) ?? 'INTERNAL';
    if (status === STATUS_DEADLINE) this.#deadline?.missed();
    // It waited for a process that is given up: answered like those that come now.
    if (code === 'WORKER_LOST' && outage !== undefined) this.fail(new BatchportError('NOT_READY', outage));
    else this.fail(new BatchportError(code, reader.message() || DEFAULT_MESSAGES[code] || 'The run failed.'));
  }

  joined(outputs: readonly OutputTensor[], times: SplitTimes): void {
    this.#encode(outputs, times);
  }

  joinFailed(error: unknown): void {
    this.fail(asBatchportError(error));
  }

  /** @throws BatchportError for what #deliver does, and for outputs that cannot be processed */
  #encode(results: readonly OutputTensor[], { sealedAtUs, runAtUs, doneAtUs }: SplitTimes): void {
    const times = { queueUs: sealedAtUs - this.#placedUs, runUs: doneAtUs - runAtUs, doneUs: nowUs() };
    if (this.#binding!.hasWork) this.#process(results, times);
    else this.#processed(results, times);
  }

  /** Views of the queue are valid only during this call. */
  #processed(results: readonly OutputTensor[], times: StageTimes): void {
    const { transform } = this.#serving;
    if (transform?.changesOutputs === true) void this.#transformBack(transform, results.map(copyOf), times);
    else this.#deliver(results, times);
  }

  async #transformBack(transform: Transform, results: readonly OutputTensor[], times: StageTimes): Promise<void> {
    try {
      const outputs = await transform.after(this.#request!, results, () => !this.finished);
      if (!this.finished) this.#deliver(outputs, times);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  #process(results: readonly OutputTensor[], times: StageTimes): void {
    const request = this.#run!;
    const { outputWork } = this.#serving;
    if (outputWork.sizeOf(request, results) >= LARGE_WORK_BYTES) {
      void this.#processLarge(request, results.map(copyOf), times);
      return;
    }
    const processed = results.map((result, n) => {
      const needed = outputWork.isNeeded(request.template.outputs[n]!);
      return needed ? processOutput(outputWork.jobOf(request, n, result)) : result;
    });
    this.#processed(processed, times);
  }

  async #processLarge(request: BoundRequest, results: readonly OutputTensor[], times: StageTimes): Promise<void> {
    const { outputWork, jsonThreads } = this.#serving;
    const needy = results.map((_, n) => n).filter((n) => outputWork.isNeeded(request.template.outputs[n]!));
    try {
      const jobs = needy.map((n) => outputWork.jobOf(request, n, results[n]!));
      const done = await jsonThreads.process(jobs, () => !this.finished);
      if (this.finished) return;
      const processed = results.map((result, n) => done[needy.indexOf(n)] ?? result);
      this.#processed(processed, times);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  /** @throws BatchportError for values that JSON cannot say, and for outputs that have no room in their place in shared memory */
  #deliver(results: readonly OutputTensor[], times: StageTimes): void {
    const { shared } = this.#request!;
    const outputs = shared === undefined ? results : writeShared(results, shared.targets);
    if (this.#cacheKey !== undefined) this.#keep(this.#cacheKey, outputs);
    this.#write(outputs, times);
  }

  /** @param times of its run; undefined where the cache had the answer. @throws BatchportError for values that JSON cannot say */
  #write(outputs: readonly OutputTensor[], times: StageTimes | undefined): void {
    const request = this.#request!;
    if (this.#binding!.hasJson && isLarge(request, outputs))
      void this.#completeLarge(request, outputs.map(copyOf), times);
    else this.#answer(this.#reply.encode(this.#serving, request, outputs), times);
  }

  async #completeLarge(
    request: BoundRequest,
    outputs: readonly OutputTensor[],
    times: StageTimes | undefined,
  ): Promise<void> {
    const { encoder, jsonThreads } = this.#serving;
    try {
      const response = await jsonThreads.write(encoder, request, outputs, () => !this.finished);
      if (!this.finished) this.#answer(response, times);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  #answer(response: EncodedResponse, times: StageTimes | undefined): void {
    this.#finish('ok');
    this.#reply.sendResult(response);
    const { counters } = this.#serving;
    counters.sent(response.body.length);
    // All at once, so that whoever reads them in between finds as many of each.
    const nowSentUs = nowUs();
    if (times === undefined) counters.cacheHit(this.#cacheUs);
    else {
      counters.stage(RECEIVE, this.#placedUs - this.#startedUs);
      counters.stage(QUEUE, times.queueUs);
      counters.stage(RUN, times.runUs);
      counters.stage(SEND, nowSentUs - times.doneUs);
      if (this.#cacheKey !== undefined) counters.cacheMiss(this.#cacheUs);
    }
    this.#deadline?.kept(nowSentUs);
    counters.stage(TOTAL, nowSentUs - this.#startedUs);
  }

  /** Answers with an error. */
  fail(error: BatchportError): void {
    if (this.finished) return;
    this.#finish(outcomeOf(error));
    this.#serving.counters.failed(nowUs() - this.#startedUs);
    this.#reply.sendError(error);
  }

  /** The client has gone: nobody is answered, the rows are given up. */
  cancel(): void {
    if (this.finished) return;
    this.#giveUp();
    this.#finish('cancelled');
  }

  #giveUp(): void {
    const { producer } = this.#serving;
    if (this.#split !== undefined) this.#split.giveUp();
    else if (this.#claim !== undefined) producer.abandon(this.#claim);
    else if (this.#request !== undefined) producer.dropWaiting(this);
  }

  /** The rows are in the queue; told by it when they had to wait for space. */
  placed(claim: Claim<RowsOwner>): void {
    this.#claim = claim;
    const shared = this.#run?.shared;
    const fault = shared === undefined ? undefined : copyFault(shared.inputs);
    if (fault === undefined) return;
    this.#giveUp();
    this.fail(new BatchportError('BAD_TENSOR', fault));
  }

  #finish(outcome: Outcome): void {
    this.finished = true;
    this.#deadline?.close();
    if (this.#reserved > 0) this.#reply.unreserve(this.#reserved);
    this.#serving.counters.outcome(OUTCOME_INDEX[outcome]);
    this.#serving.left();
  }
}

/** Whether writing the outputs that are wanted in JSON takes long. */
function isLarge({ template }: BoundRequest, outputs: readonly OutputTensor[]): boolean {
  let bytes = 0;
  for (let n = 0; n < outputs.length; n++) if (!template.outputs[n]!.binary) bytes += outputs[n]!.data.length;
  return bytes >= LARGE_OUTPUT_BYTES;
}

/** In memory of its own. */
function copyOf(output: OutputTensor): OutputTensor {
  return { ...output, data: new Uint8Array(output.data) };
}

export function queueFull(): BatchportError {
  return new BatchportError(
    'QUEUE_FULL',
    "The model's queue is full. Retry later, or raise queue.max_rows of the model.",
  );
}

export function shuttingDown(): BatchportError {
  return new BatchportError('DRAINING', 'The server is shutting down.');
}

export function asBatchportError(error: unknown): BatchportError {
  if (error instanceof BatchportError) return error;
  return new BatchportError('INTERNAL', error instanceof Error ? error.message : String(error), { cause: error });
}

/** The metric that an error counts under. */
export function outcomeOf(error: BatchportError): Outcome {
  switch (error.code) {
    case 'QUEUE_FULL':
    case 'OVERLOADED':
      return 'rejected';
    case 'DEADLINE_EXCEEDED':
    case 'REQUEST_TIMEOUT':
      return 'deadline';
    case 'CLIENT_CLOSED':
      return 'cancelled';
    case 'NOT_READY':
    case 'DRAINING':
    case 'OUT_OF_MEMORY':
    case 'WORKER_LOST':
      return 'unavailable';
    case 'INTERNAL':
    case 'MODEL_FAILED':
      return 'failed';
    default:
      return 'invalid';
  }
}
