/**
 * What the soak's clients sent and what became of it, with the first faults in words.
 *
 * Bound: `FAULTS_SHOWN` faults, one number per answered request.
 */
import { ConnectionError, InferenceError } from '../../src/client/client.ts';

const FAULTS_SHOWN = 20;

/** Why a try may fail while processes die, without its request being lost: the client sends it again. */
const EXCUSES: ReadonlySet<string> = new Set(['CONNECTION_LOST', 'WORKER_LOST', 'NOT_READY']);

export class Tally {
  sent = 0;
  answered = 0;
  lost = 0;
  wrong = 0;
  /** Whether no process dies, so that no try may fail. */
  calm = false;
  /** Failed tries of requests, by reason. */
  readonly failedTries = new Map<string, number>();
  /** Requests sent, by kind. */
  readonly kinds = new Map<string, number>();
  /** The first of them, in words. */
  readonly faults: string[] = [];
  faultCount = 0;
  /** Times of answered requests, their retries included. */
  readonly latenciesMs: number[] = [];
  /** The slowest one, in words. */
  slowest = '';
  #slowestMs = 0;

  /** A new request. */
  send(kind: string): void {
    this.sent++;
    this.kinds.set(kind, (this.kinds.get(kind) ?? 0) + 1);
  }

  /** A right answer. */
  answer(what: string, startedMs: number): void {
    const tookMs = performance.now() - startedMs;
    this.answered++;
    this.latenciesMs.push(tookMs);
    if (tookMs <= this.#slowestMs) return;
    this.#slowestMs = tookMs;
    this.slowest = `${Math.round(tookMs)} ms: ${what}, answered at ${new Date().toISOString()}`;
  }

  lose(what: string, why: string): void {
    this.lost++;
    this.fault(`${what} is lost: ${why}`);
  }

  wrongAnswer(what: string, why: string): void {
    this.wrong++;
    this.fault(`${what} got a wrong answer: ${why}`);
  }

  /** A try that failed; a fault unless processes die and the reason is one that comes of it. */
  failTry(what: string, reason: string, message: string): void {
    this.failedTries.set(reason, (this.failedTries.get(reason) ?? 0) + 1);
    if (this.calm || !EXCUSES.has(reason)) this.fault(`a try of ${what} failed: ${reason}: ${message}`);
  }

  fault(text: string): void {
    this.faultCount++;
    if (this.faults.length < FAULTS_SHOWN) this.faults.push(`${new Date().toISOString()} ${text}`);
  }

  /** Milliseconds that `fraction` of the answers did not pass; 0 when there were none. */
  latencyMs(fraction: number): number {
    const sorted = [...this.latenciesMs].sort((a, b) => a - b);
    return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * fraction))] ?? 0;
  }
}

/** The code of an error of the client; undefined for any other error. */
export function codeOf(error: unknown): string | undefined {
  return error instanceof InferenceError || error instanceof ConnectionError ? error.code : undefined;
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
