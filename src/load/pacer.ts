/**
 * Rings when an arrival of a plan is due.
 *
 * The timers of an event loop have a grain of a millisecond, and spinning until the time takes a whole core from the server under test. So a thread of its own
 * makes the same times from the same plan and sleeps until each, to about 60 µs (the kernel's timer slack), then sends one message. Whoever gets it looks at
 * the clock and sends all that is due.
 *
 * Owns the thread. At most one message is under way at a time. The thread ends with `stop`.
 */
import { Worker } from 'node:worker_threads';
import { type ArrivalPlan, arrivalsOf } from './arrivals.ts';

/** Words of the shared memory: STOP wakes and ends the thread; RUNG is 1 while a message is under way. */
const STOP = 0;
const RUNG = 1;
const CLOCK_LOOKS = 10;

const ENTRY = new URL('../../workers/pacer.js', import.meta.url);

interface PacerData {
  readonly plan: ArrivalPlan;
  readonly words: Int32Array;
}

export class Pacer {
  readonly #worker: Worker;
  readonly #words: Int32Array;

  private constructor(worker: Worker, words: Int32Array) {
    this.#worker = worker;
    this.#words = words;
  }

  /** Starts the thread; it rings nothing yet. */
  static async start(plan: ArrivalPlan): Promise<Pacer> {
    const words = new Int32Array(new SharedArrayBuffer(8));
    const worker = new Worker(ENTRY, { workerData: { plan, words } satisfies PacerData });
    await new Promise<void>((resolve, reject) => {
      worker.once('online', resolve);
      worker.once('error', reject);
    });
    return new Pacer(worker, words);
  }

  /**
   * Begins with the plan.
   *
   * @param startMs its time 0 by `performance.now()`
   * @param due called some time after each arrival, once for several that are close together
   */
  begin(startMs: number, due: () => void): void {
    this.#worker.on('message', () => {
      // Before the clock is looked at: what comes due after that look rings again.
      Atomics.store(this.#words, RUNG, 0);
      due();
    });
    this.#worker.postMessage(startMs + offsetMs());
  }

  async stop(): Promise<void> {
    Atomics.store(this.#words, STOP, 1);
    Atomics.notify(this.#words, STOP);
    await this.#worker.terminate();
  }
}

/** The thread: sleeps and rings until the plan ends or it is stopped. */
export function ringWhenDue({ plan, words }: PacerData, startMs: number, ring: () => void): void {
  const arrivals = arrivalsOf(plan);
  const start = startMs - offsetMs();
  for (let next = arrivals.next(); next !== Number.POSITIVE_INFINITY; next = arrivals.next()) {
    for (let left = start + next - performance.now(); left > 0; left = start + next - performance.now()) {
      if (Atomics.wait(words, STOP, 0, left) !== 'timed-out') return;
    }
    if (Atomics.load(words, STOP) !== 0) return;
    if (Atomics.exchange(words, RUNG, 1) === 0) ring();
  }
}

/**
 * What to add to `performance.now()`, whose origin differs by thread, for a time that all threads understand.
 *
 * Of several looks at both clocks the closest: between two calls a thread may be put aside for milliseconds, and its first calls load code.
 */
function offsetMs(): number {
  let best = 0;
  let leastMs = Number.POSITIVE_INFINITY;
  for (let look = 0; look < CLOCK_LOOKS; look++) {
    const before = performance.now();
    const [seconds, nanoseconds] = process.hrtime();
    const tookMs = performance.now() - before;
    if (tookMs >= leastMs) continue;
    leastMs = tookMs;
    best = seconds * 1000 + nanoseconds / 1e6 - before - tookMs / 2;
  }
  return best;
}
