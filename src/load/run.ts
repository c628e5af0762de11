/**
 * One run of load: closed loop (a fixed number of clients, each of which sends when it has its answer) or open loop (requests are sent at their times,
 * whatever the server does), with warm-up, measured time and the wait for what is still under way.
 *
 * In the open loop nothing is left out when the server is slow (no coordinated omission): a request that finds all connections busy waits, its time running.
 * Bounds: `connectionsMax` connections, WAITING_MAX waiting requests; each request is given up after `timeoutMs`, so a run ends that long after its last
 * request at the latest.
 */
import { type ArrivalPlan, arrivalsOf } from './arrivals.ts';
import type { Target } from './connection.ts';
import { Pacer } from './pacer.ts';
import { Sender } from './sender.ts';
import { Tally, type TallyResult } from './tally.ts';

const WAITING_MAX = 100_000;
/** How long a client of the closed loop waits after a request without an answer: a server that is not there should not be hammered. */
const FAILURE_PAUSE_MS = 10;
/** From the start of the pacing thread to time 0. */
const LEAD_MS = 10;

export interface RunLimits {
  readonly warmUpMs: number;
  /** Measured time; Infinity where `requests` or the plan ends the run. */
  readonly durationMs: number;
  /** Measured requests at most; Infinity for no bound. */
  readonly requests: number;
  readonly timeoutMs: number;
  readonly sloMs: number | undefined;
}

/** How the generator itself fared, the warm-up included. */
export interface GeneratorCost {
  /** Processor time of this process, all threads, for each request. */
  readonly cpuUsPerRequest: number;
  /** Share of the time in which its event loop was not waiting, 0 to 1. */
  readonly busy: number;
}

export interface RunResult extends TallyResult {
  readonly generator: GeneratorCost;
  readonly interrupted: boolean;
}

/** What a progress line is made of. */
export interface RunProgress {
  readonly elapsedMs: number;
  readonly tally: Tally;
  readonly inFlight: number;
}

export interface ProgressHook {
  readonly everyMs: number;
  readonly show: (progress: RunProgress) => void;
  /** Called once after the last `show`. */
  readonly end: () => void;
}

export interface RunHooks {
  /** Ends the run early; requests under way are dropped. */
  readonly signal?: AbortSignal | undefined;
  readonly progress?: ProgressHook | undefined;
}

/** A run on its way: what both loops share. */
class Run {
  readonly tally: Tally;
  readonly sender: Sender;
  readonly finished: Promise<void>;
  readonly #limits: RunLimits;
  #finish: () => void = () => {};
  #sent = 0;
  #measuredSent = 0;
  #state: 'sending' | 'sent all' | 'interrupted' = 'sending';
  #endedByTime = false;

  /** @param settled called after each request that was answered, or was not */
  constructor(
    target: Target,
    limits: RunLimits,
    connectionsMax: number,
    startMs: number,
    settled: (nowMs: number, answered: boolean) => void,
  ) {
    this.#limits = limits;
    this.tally = new Tally(limits.warmUpMs, limits.warmUpMs + limits.durationMs, limits.sloMs);
    const { timeoutMs } = limits;
    this.sender = new Sender(target, { connectionsMax, timeoutMs }, this.tally, startMs, (nowMs, answered) => {
      settled(nowMs, answered);
      this.#finishIfDone();
    });
    this.finished = new Promise((resolve) => {
      this.#finish = resolve;
    });
  }

  /** Whether a request may be meant for this time; it is counted then. */
  admit(intendedMs: number): boolean {
    const { warmUpMs, durationMs, requests } = this.#limits;
    if (this.#state !== 'sending' || this.#measuredSent >= requests) return false;
    if (intendedMs >= warmUpMs + durationMs) {
      this.#endedByTime = intendedMs !== Number.POSITIVE_INFINITY;
      return false;
    }
    this.#sent++;
    if (intendedMs >= warmUpMs) this.#measuredSent++;
    return true;
  }

  /** No further request will be sent. */
  sentAll(): void {
    if (this.#state === 'sending') this.#state = 'sent all';
    this.#finishIfDone();
  }

  interrupt(): void {
    this.#state = 'interrupted';
    this.#finish();
  }

  /** Lets it go to its end. */
  async conduct({ signal, progress }: RunHooks, begin: () => void): Promise<RunResult> {
    const { sender, tally } = this;
    const show = () => progress?.show({ elapsedMs: sender.nowMs(), tally, inFlight: sender.inFlight });
    const timer = progress === undefined ? undefined : setInterval(show, progress.everyMs);
    const onAbort = () => this.interrupt();
    signal?.addEventListener('abort', onAbort);
    const cpuBefore = process.cpuUsage();
    const loopBefore = performance.eventLoopUtilization();
    try {
      begin();
      if (signal?.aborted === true) this.interrupt();
      await this.finished;
    } finally {
      signal?.removeEventListener('abort', onAbort);
      clearInterval(timer);
      progress?.end();
      sender.stop();
    }
    const { user, system } = process.cpuUsage(cpuBefore);
    const { warmUpMs, durationMs } = this.#limits;
    return {
      ...tally.result(this.#endedByTime ? warmUpMs + durationMs : undefined),
      generator: {
        cpuUsPerRequest: this.#sent === 0 ? 0 : (user + system) / this.#sent,
        busy: performance.eventLoopUtilization(loopBefore).utilization,
      },
      interrupted: this.#state === 'interrupted',
    };
  }

  #finishIfDone(): void {
    if (this.#state === 'sent all' && this.sender.inFlight === 0) this.#finish();
  }
}

/** @param concurrency clients, each with a connection of its own */
export async function runClosedLoop(
  target: Target,
  limits: RunLimits,
  concurrency: number,
  hooks: RunHooks = {},
): Promise<RunResult> {
  const sendNext = () => {
    const nowMs = run.sender.nowMs();
    if (!run.admit(nowMs)) run.sentAll();
    else if (!run.sender.send(nowMs, nowMs)) throw new Error('This is a bug: a client without a connection');
  };
  const run = new Run(target, limits, concurrency, performance.now(), (_, answered) => {
    if (answered) sendNext();
    else setTimeout(sendNext, FAILURE_PAUSE_MS);
  });
  return run.conduct(hooks, () => {
    for (let client = 0; client < concurrency; client++) sendNext();
  });
}

/** @param connectionsMax beyond it requests wait for a connection, and their latency counts on */
export async function runOpenLoop(
  target: Target,
  limits: RunLimits,
  plan: ArrivalPlan,
  connectionsMax: number,
  hooks: RunHooks = {},
): Promise<RunResult> {
  const pacer = await Pacer.start(plan);
  const arrivals = arrivalsOf(plan);
  const waiting = new WaitingLine();
  let next = arrivals.next();
  let admitted = false;

  const sendDue = (nowMs: number) => {
    const { sender, tally } = run;
    waiting.giveUp(nowMs - limits.timeoutMs, (intendedMs) => tally.unsent(intendedMs, nowMs));
    while (waiting.length > 0 && sender.send(waiting.first, nowMs)) waiting.shift();
    // The next one is admitted, or ends the run, before its time: a run does not wait for what it will not send.
    while (admitted && next <= nowMs) {
      const isFirst = waiting.length === 0;
      if (!(isFirst && sender.send(next, nowMs)) && !waiting.push(next)) tally.unsent(next, nowMs);
      next = arrivals.next();
      admitted = run.admit(next);
    }
    if (!admitted && waiting.length === 0) run.sentAll();
  };
  const startMs = performance.now() + LEAD_MS;
  const run = new Run(target, limits, connectionsMax, startMs, sendDue);
  admitted = run.admit(next);
  try {
    return await run.conduct(hooks, () => {
      pacer.begin(startMs, () => sendDue(run.sender.nowMs()));
      // A plan without any arrival in time ends at once.
      sendDue(run.sender.nowMs());
    });
  } finally {
    await pacer.stop();
  }
}

/** Intended times of requests that have no connection yet, in order. */
class WaitingLine {
  #times: number[] = [];
  #head = 0;

  get length(): number {
    return this.#times.length - this.#head;
  }

  get first(): number {
    return this.#times[this.#head]!;
  }

  /** @returns false where the line is full. */
  push(intendedMs: number): boolean {
    if (this.length >= WAITING_MAX) return false;
    this.#times.push(intendedMs);
    return true;
  }

  shift(): void {
    this.#head++;
    // Gives the front back once it is the larger half.
    if (this.#head * 2 < this.#times.length) return;
    this.#times = this.#times.slice(this.#head);
    this.#head = 0;
  }

  /** Removes those that were meant for this time or an earlier one. */
  giveUp(intendedMs: number, givenUp: (intendedMs: number) => void): void {
    while (this.length > 0 && this.first <= intendedMs) {
      givenUp(this.first);
      this.shift();
    }
  }
}
