/**
 * The threads in which the transform of one served version runs, and nothing else does: it is code of somebody else, which may be slow, throw, hang, or end its thread.
 *
 *     tensors ──moved──▶ thread: before() or after() ──moved──▶ tensors
 *
 * Owner: the serving half of the version; the threads start with it and end when it closes. A call that takes longer than it may is ended with its thread, one that ends its
 * thread has failed; both cost no other call, and another thread takes the place.
 * Bounds: as many calls at a time as there are threads, WAITING_MAX calls of before() that wait, and those of after() for what has been run; their bytes in the budget of bodies; `timeoutMs` for each, START_MAX_MS for a thread to start;
 * HEAP_MAX_MIB of objects in a thread.
 */
import { basename } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Piscina } from 'piscina';
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import type { TensorBody, TransformOutcome, TransformStep, TransformTask } from '../transform/call.ts';
import type { BodyBudget } from './body.ts';
import { Turnstile } from './turnstile.ts';

const WAITING_MAX = 128;
const START_MAX_MS = 30_000;
const HEAP_MAX_MIB = 512;

export interface TransformThreadsOptions {
  /** Compiled entry of the threads. */
  readonly entry: URL;
  /** Absolute path of the module. */
  readonly file: string;
  readonly threads: number;
  /** Of one call. */
  readonly timeoutMs: number;
  readonly budget: BodyBudget;
  readonly log: Logger;
}

export interface TransformCall {
  readonly step: TransformStep;
  readonly id: string | undefined;
  readonly given: readonly TensorSpec[];
  /** Copied. */
  readonly tensors: readonly TensorBody[];
  readonly wanted: readonly TensorSpec[];
}

export class TransformThreads {
  readonly #options: TransformThreadsOptions;
  readonly #turnstile: Turnstile;
  readonly #pool: Promise<Piscina>;
  #waiting = 0;

  constructor(options: TransformThreadsOptions) {
    this.#options = options;
    this.#turnstile = new Turnstile(options.threads);
    this.#pool = this.#start();
  }

  /**
   * The tensors that are wanted, in their order.
   *
   * @param wanted asked before the call begins: the client may have left meanwhile.
   * @throws BAD_TENSOR what the transform says of the request; TRANSFORM_FAILED; QUEUE_FULL; CLIENT_CLOSED
   */
  async call({ tensors, ...call }: TransformCall, wanted: () => boolean): Promise<readonly TensorBody[]> {
    const { budget } = this.#options;
    const isNew = call.step === 'before';
    if (isNew && this.#waiting >= WAITING_MAX) {
      throw new BatchportError(
        'QUEUE_FULL',
        "Too many requests wait for the model's transform. Retry later, or raise transform.threads.",
      );
    }
    const bytes = tensors.reduce((sum, { data }) => sum + data.length, 0);
    // What has been run cannot be refused any more: new requests are, instead.
    if (isNew) budget.take(bytes);
    else budget.hold(bytes);
    try {
      this.#waiting++;
      try {
        const turn = this.#turnstile.enter();
        if (turn !== undefined) await turn;
      } finally {
        this.#waiting--;
      }
      try {
        if (!wanted()) throw new BatchportError('CLIENT_CLOSED', 'The client has left.');
        const own = tensors.map(({ shape, data }) => ({ shape, data: new Uint8Array(data) }));
        const begun = new Float64Array(new SharedArrayBuffer(8));
        return await this.#run(
          { ...call, tensors: own, begun },
          own.map(({ data }) => data.buffer),
        );
      } finally {
        this.#turnstile.leave();
      }
    } finally {
      budget.give(bytes);
    }
  }

  close(): void {
    void this.#pool.then((pool) => pool.destroy());
  }

  async #run(task: TransformTask, memory: ArrayBuffer[]): Promise<readonly TensorBody[]> {
    const { log, timeoutMs, file } = this.#options;
    const controller = new AbortController();
    const timer = this.#limit(task.begun, () => controller.abort());
    let outcome: TransformOutcome;
    try {
      const pool = await this.#pool;
      outcome = await pool.run(task, { name: 'call', transferList: memory, signal: controller.signal });
    } catch (error) {
      const how = controller.signal.aborted
        ? `took longer than ${timeoutMs} ms (transform.timeout_ms) and was ended with its thread`
        : `ended its thread (${(error as Error).message})`;
      log.error(
        { err: error, file, step: task.step },
        'a call of a transform failed; another thread takes the place of its own',
      );
      throw new BatchportError('TRANSFORM_FAILED', `${task.step}() of the model's transform ${how}`, { cause: error });
    } finally {
      clearTimeout(timer.handle);
    }
    if (outcome.late !== undefined) log.error({ reason: outcome.late, file }, 'a transform threw outside of its calls');
    if ('tensors' in outcome) return outcome.tensors;
    const { code, message } = outcome.refusal;
    if (code === 'TRANSFORM_FAILED') log.error({ reason: message, file }, 'a transform failed');
    throw new BatchportError(code, message);
  }

  /** The time of a call counts from when it has begun: its thread may have yet to start. */
  #limit(begun: Float64Array, end: () => void): { handle: NodeJS.Timeout | undefined } {
    const { timeoutMs } = this.#options;
    const startedMs = Date.now();
    const timer: { handle: NodeJS.Timeout | undefined } = { handle: undefined };
    const look = (): void => {
      const untilMs = begun[0] === 0 ? startedMs + START_MAX_MS + timeoutMs : begun[0]! + timeoutMs;
      const leftMs = untilMs - Date.now();
      if (leftMs <= 0) end();
      else timer.handle = setTimeout(look, Math.min(leftMs, timeoutMs) + 1);
    };
    timer.handle = setTimeout(look, timeoutMs);
    return timer;
  }

  async #start(): Promise<Piscina> {
    const { Piscina } = await import('piscina');
    const { entry, threads, file, log } = this.#options;
    const pool = new Piscina({
      filename: entry.href,
      workerData: { module: pathToFileURL(file).href },
      minThreads: threads,
      maxThreads: threads,
      maxQueue: threads,
      idleTimeout: Number.POSITIVE_INFINITY,
      atomics: 'disabled',
      concurrentTasksPerWorker: 1,
      recordTiming: false,
      resourceLimits: { maxOldGenerationSizeMb: HEAP_MAX_MIB },
    });
    pool.on('error', (error) =>
      log.error({ err: error, module: basename(file) }, 'a thread of a transform ended between calls'),
    );
    return pool;
  }
}
