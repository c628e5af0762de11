/**
 * When a call must end early: its time is over or the caller's AbortSignal fired. One timer and one listener per call, both released by
 * `release()`; whatever the call is waiting for at the moment registers itself in `onCancel`.
 */
import { ConnectionError } from './errors.ts';

export class Cancellation {
  /** Called once, at the moment of cancellation, by whoever waits then. */
  onCancel: ((reason: unknown) => void) | undefined;
  /** Whether a request of this call has reached a connection; a timeout reports it. */
  sent = false;
  private readonly startedMs = performance.now();
  private readonly timeoutMs: number;
  private readonly signal: AbortSignal | undefined;
  private readonly timer: NodeJS.Timeout | undefined;
  private cancelled: { readonly reason: unknown } | undefined;

  /**
   * @param timeoutMs 0 for no limit.
   * @throws the signal's reason when it has fired already.
   */
  constructor(timeoutMs: number, signal: AbortSignal | undefined) {
    signal?.throwIfAborted();
    this.timeoutMs = timeoutMs;
    this.signal = signal;
    signal?.addEventListener('abort', this.onAbort, { once: true });
    if (timeoutMs > 0) this.timer = setTimeout(() => this.cancel(this.timeout()), timeoutMs);
  }

  /** Time left in milliseconds, Infinity without a limit. */
  leftMs(): number {
    return this.timeoutMs === 0 ? Number.POSITIVE_INFINITY : this.timeoutMs - this.elapsedMs();
  }

  elapsedMs(): number {
    return performance.now() - this.startedMs;
  }

  /** @throws the reason, once the call is cancelled. */
  throwIfCancelled(): void {
    if (this.cancelled !== undefined) throw this.cancelled.reason;
  }

  /** Resolves after the time; rejects with the reason when the call is cancelled first. */
  sleep(durationMs: number): Promise<void> {
    this.throwIfCancelled();
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.onCancel = undefined;
        resolve();
      }, durationMs);
      this.onCancel = (reason) => {
        clearTimeout(timer);
        reject(reason);
      };
    });
  }

  release(): void {
    clearTimeout(this.timer);
    this.signal?.removeEventListener('abort', this.onAbort);
    this.onCancel = undefined;
  }

  private readonly onAbort = (): void => this.cancel(this.signal?.reason);

  private cancel(reason: unknown): void {
    if (this.cancelled !== undefined) return;
    this.cancelled = { reason };
    const notify = this.onCancel;
    this.release();
    notify?.(reason);
  }

  private timeout(): ConnectionError {
    return new ConnectionError('TIMEOUT', `no answer within ${this.timeoutMs} ms`, { sent: this.sent });
  }
}
