/**
 * Large JSON is read and written, and large outputs are processed, in threads of their own: a body of 20 MB takes 130 ms, for which nobody else would be answered.
 *
 *     body ──moved──▶ thread: text → typed storage ──moved──▶ bound in the event loop, as a small one is
 *     outputs, copied out of the queue ──moved──▶ thread: → text ──moved──▶ sent
 *                                      ──moved──▶ thread: processed ──moved──▶ written, as small ones are
 *
 * Owner of the threads: this object, for the life of the process; they start with the first large JSON. Of what waits or is being worked on, the memory belongs to
 * the task; when a thread dies its request is answered 503, and the next task gets a new thread.
 *
 * Bounds: as many at a time as there are threads; those that wait are counted in the budget of bodies, of which bodies may take half. What a thread makes of its
 * task is counted as long as it works, at its usual size: the storage of a body can come to four times its text, see json-tensor.ts, and were that counted, a
 * single client's large JSON would make the server refuse others.
 */
import type { Piscina } from 'piscina';
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import type { OutputJob } from '../postprocess/process.ts';
import type { BoundRequest } from '../protocol/bound-request.ts';
import type { RequestDecoder } from '../protocol/request-decoder.ts';
import type { EncodedResponse, OutputTensor, ResponseEncoder } from '../protocol/response-encoder.ts';
import type { BodyBudget } from './body.ts';
import type { Outcome, ReadResult, ReadTask, WriteTask } from './json-task.ts';
import { Turnstile } from './turnstile.ts';

/** JSON of this size and more is read in a thread. */
export const LARGE_JSON_BYTES = 256 * 1024;
/** Answers with this many bytes of tensors to be written as JSON, and more, are written in a thread. */
export const LARGE_OUTPUT_BYTES = 32 * 1024;
/** Outputs of this size and more are processed in a thread: exponentials of so many take a millisecond. */
export const LARGE_WORK_BYTES = 128 * 1024;

/** Part of the budget that bodies in line may take. */
const LINE_SHARE = 1 / 2;
/** Bytes of storage that a byte of text usually becomes at the most. */
const STORAGE_GROWTH = 1;
/** Bytes of text that a byte of a tensor usually becomes at the most. */
const TEXT_GROWTH = 3;

/** What a thread does, by the name of the function. */
const WORK = {
  readJson: "read the request's JSON",
  writeJson: "wrote the answer's JSON",
  processOutputs: 'processed the outputs',
};

/** A body with large JSON. */
export interface LargeBody {
  readonly pieces: readonly Buffer[];
  /** Of all pieces. */
  readonly length: number;
  /** As in the header; greater than 0. */
  readonly headerLength: number | undefined;
}

export interface JsonThreadsOptions {
  /** Compiled entry of the threads. */
  readonly entry: URL;
  readonly threads: number;
  readonly budget: BodyBudget;
  readonly log: Logger;
}

export class JsonThreads {
  readonly #options: JsonThreadsOptions;
  readonly #turnstile: Turnstile;
  #pool: Promise<Piscina> | undefined;
  /** Bodies that wait or are being read. */
  #lineBytes = 0;

  constructor(options: JsonThreadsOptions) {
    this.#options = options;
    this.#turnstile = new Turnstile(options.threads);
  }

  /**
   * What `decoder.decode(body, headerLength)` gives or throws, after a while. The body is given away.
   *
   * @param wanted asked before the work begins: the client may have left meanwhile.
   * @throws BAD_REQUEST, BAD_TENSOR; QUEUE_FULL, WORKER_LOST; CLIENT_CLOSED when it was not wanted any more.
   */
  async read(decoder: RequestDecoder, body: LargeBody, wanted: () => boolean): Promise<BoundRequest> {
    const { length, headerLength } = body;
    this.#joinLine(length);
    try {
      return await this.#inTurn((headerLength ?? length) * STORAGE_GROWTH, wanted, async () => {
        const pieces = body.pieces.map(withOwnMemory);
        const task: ReadTask = { model: decoder.model, limits: decoder.limits, pieces, headerLength };
        const memory = pieces.map(({ buffer }) => buffer);
        const result = await this.#run<ReadResult>('readJson', task, memory);
        return decoder.bindDraft(result.draft, asBuffer(result.body), headerLength);
      });
    } finally {
      this.#lineBytes -= length;
      this.#options.budget.give(length);
    }
  }

  #joinLine(bytes: number): void {
    const { budget } = this.#options;
    if (this.#lineBytes > 0 && this.#lineBytes + bytes > budget.maxBytes * LINE_SHARE) {
      throw new BatchportError(
        'QUEUE_FULL',
        'The server reads as much large JSON as it may. Retry later, or send the tensors in binary.',
      );
    }
    budget.take(bytes);
    this.#lineBytes += bytes;
  }

  /**
   * What `encoder.encode(request, outputs)` gives or throws, after a while. The outputs are given away.
   *
   * @param wanted as for `read`.
   * @throws BAD_REQUEST; WORKER_LOST; CLIENT_CLOSED
   */
  async write(
    encoder: ResponseEncoder,
    request: BoundRequest,
    outputs: readonly OutputTensor[],
    wanted: () => boolean,
  ): Promise<EncodedResponse> {
    const { budget } = this.#options;
    const bytes = outputs.reduce((sum, { data }) => sum + data.length, 0);
    // It cannot be refused any more: new requests are, instead.
    budget.hold(bytes);
    try {
      return await this.#inTurn(bytes * TEXT_GROWTH, wanted, async () => {
        const { template, id } = request;
        const task: WriteTask = { model: encoder.model, template, id, outputs };
        const memory = outputs.map(({ data }) => data.buffer as ArrayBuffer);
        const { headerLength, body } = await this.#run<EncodedResponse>('writeJson', task, memory);
        return { headerLength, body: asBuffer(body) };
      });
    } finally {
      budget.give(bytes);
    }
  }

  /**
   * What `processOutput` gives for each job, after a while. Their tensors are given away.
   *
   * @param wanted as for `read`.
   * @throws MODEL_FAILED; WORKER_LOST; CLIENT_CLOSED
   */
  async process(jobs: readonly OutputJob[], wanted: () => boolean): Promise<readonly OutputTensor[]> {
    const { budget } = this.#options;
    const bytes = jobs.reduce((sum, { tensor }) => sum + tensor.data.length, 0);
    budget.hold(bytes);
    try {
      return await this.#inTurn(bytes, wanted, () => {
        // Masks are views of the request, of which no more than they are is to be copied.
        const task = jobs.map((job) => ({
          ...job,
          masks: job.masks.map((mask) => mask && { ...mask, data: new Uint8Array(mask.data) }),
        }));
        const memory = task.flatMap(({ tensor, masks }) =>
          [tensor, ...masks].flatMap((one) => (one === undefined ? [] : [one.data.buffer as ArrayBuffer])),
        );
        return this.#run<OutputTensor[]>('processOutputs', task, memory);
      });
    } finally {
      budget.give(bytes);
    }
  }

  /** `growth`: bytes that the work adds while it goes on. */
  async #inTurn<T>(growth: number, wanted: () => boolean, work: () => Promise<T>): Promise<T> {
    const { budget } = this.#options;
    const turn = this.#turnstile.enter();
    if (turn !== undefined) await turn;
    try {
      if (!wanted()) throw new BatchportError('CLIENT_CLOSED', 'The client has left.');
      budget.hold(growth);
      try {
        return await work();
      } finally {
        budget.give(growth);
      }
    } finally {
      this.#turnstile.leave();
    }
  }

  async #run<T>(name: keyof typeof WORK, task: unknown, memory: ArrayBuffer[]): Promise<T> {
    let outcome: Outcome<T>;
    try {
      this.#pool ??= this.#start();
      outcome = await (await this.#pool).run(task, { name, transferList: memory });
    } catch (error) {
      // Whatever the task itself throws is in its outcome.
      this.#options.log.error(
        { err: error },
        'a thread for large requests and answers died; another one takes its place',
      );
      throw new BatchportError(
        'WORKER_LOST',
        `The thread that ${WORK[name]} died (${(error as Error).message}). The request may be sent once more.`,
        { cause: error },
      );
    }
    if ('value' in outcome) return outcome.value;
    if ('refusal' in outcome) throw new BatchportError(outcome.refusal.code, outcome.refusal.message);
    throw outcome.bug;
  }

  async #start(): Promise<Piscina> {
    // Not before it is needed, which it never is for most servers.
    const { Piscina } = await import('piscina');
    const { entry, threads } = this.#options;
    const pool = new Piscina({
      filename: entry.href,
      // Threads that are there from the start take their tasks at once: when one dies, its task is told.
      minThreads: threads,
      maxThreads: threads,
      maxQueue: threads,
      idleTimeout: Number.POSITIVE_INFINITY,
      atomics: 'disabled',
      concurrentTasksPerWorker: 1,
      recordTiming: false,
    });
    // One that dies without a task, such as at its start. Those that wait for it are told when the pool ends.
    pool.on('error', () => {
      this.#pool = undefined;
      void pool.destroy();
    });
    return pool;
  }
}

function withOwnMemory(piece: Buffer): Uint8Array<ArrayBuffer> {
  const own = piece as Uint8Array<ArrayBuffer>;
  return own.length === own.buffer.byteLength ? own : new Uint8Array(own);
}

function asBuffer({ buffer, byteOffset, length }: Uint8Array): Buffer {
  return Buffer.from(buffer as ArrayBuffer, byteOffset, length);
}
