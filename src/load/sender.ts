/**
 * Sends requests over connections of its own and tallies what becomes of them.
 *
 * Owns the connections: a request takes an idle one, the one used last first, or a new one while there are fewer than `connectionsMax`. Each request that was
 * sent is settled exactly once: by its answer, by a failure, by the time limit (looked at every SWEEP_MS; its connection is closed then), or by `stop`.
 * Clock: ms since the run's start.
 */
import type { AnswerReader } from './answer-reader.ts';
import { Connection, type ConnectionOwner, type Target } from './connection.ts';
import type { Tally } from './tally.ts';

const SWEEP_MS = 20;

export interface SenderLimits {
  readonly connectionsMax: number;
  /** From the intended time of sending. */
  readonly timeoutMs: number;
}

export class Sender implements ConnectionOwner {
  inFlight = 0;
  readonly #target: Target;
  readonly #limits: SenderLimits;
  readonly #tally: Tally;
  readonly #startMs: number;
  readonly #settled: (nowMs: number, answered: boolean) => void;
  readonly #connections = new Set<Connection>();
  readonly #idle: Connection[] = [];
  readonly #sweep: NodeJS.Timeout;

  /**
   * @param startMs the run's start by `performance.now()`
   * @param settled called after each request that was settled by something else than `stop`
   */
  constructor(
    target: Target,
    limits: SenderLimits,
    tally: Tally,
    startMs: number,
    settled: (nowMs: number, answered: boolean) => void,
  ) {
    this.#target = target;
    this.#limits = limits;
    this.#tally = tally;
    this.#startMs = startMs;
    this.#settled = settled;
    this.#sweep = setInterval(() => this.#sweepOverdue(), SWEEP_MS);
  }

  nowMs(): number {
    return performance.now() - this.#startMs;
  }

  /** @returns false where all connections are busy; nothing is sent or counted then. */
  send(intendedMs: number, nowMs: number): boolean {
    const connection = this.#free();
    if (connection === undefined) return false;
    this.inFlight++;
    this.#tally.sent(intendedMs, nowMs);
    connection.send(intendedMs);
    return true;
  }

  /** Closes everything; requests under way count as `interrupted`. */
  stop(): void {
    clearInterval(this.#sweep);
    const nowMs = this.nowMs();
    for (const connection of this.#connections) {
      if (connection.busy) this.#tally.failed(connection.intendedMs, nowMs, 'interrupted', '');
      connection.destroy();
    }
    this.#connections.clear();
    this.#idle.length = 0;
    this.inFlight = 0;
  }

  answered(connection: Connection, reader: AnswerReader): void {
    const nowMs = this.nowMs();
    if (reader.status < 300) this.#tally.succeeded(connection.intendedMs, nowMs);
    else this.#tally.failed(connection.intendedMs, nowMs, String(reader.status), reader.sample);
    if (connection.isOpen) this.#idle.push(connection);
    else this.#connections.delete(connection);
    this.inFlight--;
    this.#settled(nowMs, true);
  }

  failed(connection: Connection, reason: string): void {
    this.#connections.delete(connection);
    if (!connection.busy) {
      // Closed while idle; it cannot be far down, as the idle ones are used from the end.
      const at = this.#idle.lastIndexOf(connection);
      if (at >= 0) this.#idle.splice(at, 1);
      return;
    }
    this.#fail(connection, this.nowMs(), reason);
  }

  #free(): Connection | undefined {
    const idle = this.#idle.pop();
    if (idle !== undefined || this.#connections.size >= this.#limits.connectionsMax) return idle;
    const connection = new Connection(this.#target, this);
    this.#connections.add(connection);
    return connection;
  }

  #fail(connection: Connection, nowMs: number, name: string): void {
    connection.busy = false;
    this.inFlight--;
    this.#tally.failed(connection.intendedMs, nowMs, name, '');
    this.#settled(nowMs, false);
  }

  #sweepOverdue(): void {
    const nowMs = this.nowMs();
    for (const connection of this.#connections) {
      if (!connection.busy || nowMs - connection.intendedMs < this.#limits.timeoutMs) continue;
      connection.destroy();
      this.#connections.delete(connection);
      this.#fail(connection, nowMs, 'timeout');
    }
  }
}
