/**
 * What an instance thread and the main thread of its process share, so that the one can cancel a run of the other.
 *
 *     main: close the gate ─ same run still? ─ mark it ─ cancel ─ open      instance: run ─ failed or over ─ marked? ─ close the gate ─ reset ─ open
 *
 * The token that cancels belongs to a runner, which the instance frees in the end; the gate keeps the main thread from using it then. A run may end between the
 * look and the cancellation: the mark says which run was meant, so that the next one, hit instead, is run again.
 *
 * Owner: the main thread makes one for each instance; plain shared memory, gone with the last reference. One writer per word but for the gate.
 */
import { cancelRun } from '../runtime/runner.ts';
import { nowUs } from '../system/clock.ts';

const STARTED = 0;
const GATE = 1;
/** Number of the run: odd while it runs. */
const RUN = 2;
/** Number of the run that was cancelled; 0 for none. */
const CANCELLED = 3;
/** As doubles. */
const TOKEN = 2;
const SINCE_US = 3;
const BYTES = 32;

const OPEN = 0;
const TAKEN = 1;
const CLOSED = 2;

/** The instance takes batches; or it has ended before it could. */
export const STARTED_SERVING = 1;
export const STARTED_FAILED = 2;

export class RunControl {
  readonly memory: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #doubles: Float64Array;

  /** @param memory of the other thread's control; a new one otherwise. */
  constructor(memory: SharedArrayBuffer = new SharedArrayBuffer(BYTES)) {
    this.memory = memory;
    this.#words = new Int32Array(memory);
    this.#doubles = new Float64Array(memory);
  }

  /** STARTED_SERVING, STARTED_FAILED, or 0 while neither is certain. */
  get started(): number {
    return Atomics.load(this.#words, STARTED);
  }

  set started(value: number) {
    Atomics.store(this.#words, STARTED, value);
  }

  /** How long the run that is going on has been (ms); 0 when there is none. */
  get runningForMs(): number {
    if (!isRunning(Atomics.load(this.#words, RUN))) return 0;
    return Math.max(0, (nowUs() - this.#doubles[SINCE_US]!) / 1000);
  }

  /**
   * For the main thread: cancels the run that is going on if it is older than the limit.
   *
   * @returns whether there was one.
   */
  cancel(olderThanMs: number): boolean {
    if (Atomics.compareExchange(this.#words, GATE, OPEN, TAKEN) !== OPEN) return false; // resetting, or closed
    try {
      const run = Atomics.load(this.#words, RUN);
      const ageMs = (nowUs() - this.#doubles[SINCE_US]!) / 1000;
      if (!isRunning(run) || ageMs < olderThanMs) return false;
      Atomics.store(this.#words, CANCELLED, run);
      cancelRun(this.#doubles[TOKEN]!);
      return true;
    } finally {
      Atomics.store(this.#words, GATE, OPEN);
    }
  }

  /** For the instance: its runs can be cancelled with this from now on. */
  offer(cancelToken: number): void {
    this.#doubles[TOKEN] = cancelToken;
  }

  /** For the instance: a run begins. @returns its number. */
  begin(sinceUs: number): number {
    this.#doubles[SINCE_US] = sinceUs;
    return Atomics.add(this.#words, RUN, 1) + 1;
  }

  end(): void {
    Atomics.add(this.#words, RUN, 1);
  }

  /** For the instance: number of the run that was cancelled last and not yet reset; 0 for none. */
  get cancelled(): number {
    return Atomics.load(this.#words, CANCELLED);
  }

  /** For the instance, between runs: makes runs possible again. */
  reset(resetCancel: () => void): void {
    this.#take();
    Atomics.store(this.#words, CANCELLED, 0);
    resetCancel();
    Atomics.store(this.#words, GATE, OPEN);
  }

  /** For the instance: its token is no longer valid once this returns. */
  close(): void {
    this.#take();
    Atomics.store(this.#words, GATE, CLOSED);
  }

  /** The main thread keeps the gate for a few instructions only. */
  #take(): void {
    while (Atomics.compareExchange(this.#words, GATE, OPEN, TAKEN) !== OPEN);
  }
}

function isRunning(run: number): boolean {
  return (run & 1) === 1;
}
