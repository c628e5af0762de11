/**
 * One child process and its lives: started, ready, dead, started again after a backoff.
 *
 *     stopped ─▶ starting ─▶ ready ─▶ exited ─▶ backoff ─▶ starting …
 *                    └──────────────────▲
 *
 * Owner: the supervisor. Each life has an epoch; `exited` is announced only after the process has been reaped, so whoever reclaims what it held is
 * alone. Bound: one process at a time, restarts no faster than the backoff.
 */
import { fork, type ChildProcess as NodeChild } from 'node:child_process';
import { type BackoffState, initialBackoff, nextDelay, noteReady } from '../scheduler/backoff.ts';
import { SUPERVISOR_PID_VARIABLE } from '../system/child.ts';

export type ChildState = 'starting' | 'ready' | 'backoff' | 'stopping' | 'stopped';

export interface ChildOptions<In> {
  readonly role: 'ingress' | 'device';
  readonly entry: URL;
  readonly env: Readonly<Record<string, string>>;
  readonly execArgv: readonly string[];
  /** Descriptor that the child gets as number 4. */
  readonly inherit: number | undefined;
  readonly onMessage: (message: In) => void;
  /** The process is dead and reaped. */
  readonly onExit: (exit: ExitRecord) => void;
  readonly onStart: () => void;
}

export interface ExitRecord {
  readonly pid: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly atMs: number;
  /** Milliseconds until the next start; undefined when there is none. */
  readonly restartInMs: number | undefined;
}

const BACKOFF = { floorMs: 20, baseMs: 250, capMs: 30_000, healthyMs: 10_000 } as const;

export class ChildProcess<In, Out extends object> {
  readonly role: 'ingress' | 'device';
  readonly #options: ChildOptions<In>;
  #child: NodeChild | undefined;
  #backoff: BackoffState = initialBackoff(BACKOFF);
  #timer: NodeJS.Timeout | undefined;
  #state: ChildState = 'stopped';
  #epoch = 0;
  #restarts = 0;
  #startedMs = 0;
  #lastExit: ExitRecord | undefined;
  readonly #exits = new Map<string, number>();
  readonly #onGone: (() => void)[] = [];

  constructor(options: ChildOptions<In>) {
    this.role = options.role;
    this.#options = options;
  }

  get state(): ChildState {
    return this.#state;
  }
  get pid(): number | undefined {
    return this.#child?.pid;
  }
  /** Number of the current or last life, from 1. */
  get epoch(): number {
    return this.#epoch;
  }
  get restarts(): number {
    return this.#restarts;
  }
  get startedMs(): number {
    return this.#startedMs;
  }
  get lastExit(): ExitRecord | undefined {
    return this.#lastExit;
  }

  /** How it ended, and how often. */
  get exits(): ReadonlyMap<string, number> {
    return this.#exits;
  }

  /** Resolves when there is no process any more. */
  get gone(): Promise<void> {
    if (this.#child === undefined) return Promise.resolve();
    return new Promise((resolve) => this.#onGone.push(resolve));
  }

  /** Waits for the end of a process that was asked to end; kills it after the grace period. */
  async ended(graceMs: number): Promise<void> {
    const timer = setTimeout(() => this.kill('SIGKILL'), graceMs);
    await this.gone;
    clearTimeout(timer);
  }

  start(): void {
    const { entry, env, execArgv, inherit, onMessage, onStart } = this.#options;
    this.#epoch++;
    this.#state = 'starting';
    this.#startedMs = performance.now();
    // What children print belongs to the log, never to the supervisor's stdout.
    const stdio = ['ignore', 2, 2, 'ipc', ...(inherit === undefined ? [] : [inherit])] as Array<
      'ignore' | 'ipc' | number
    >;
    const child = fork(entry, [], {
      stdio,
      execArgv: [...execArgv],
      env: { ...process.env, ...env, [SUPERVISOR_PID_VARIABLE]: String(process.pid) },
      serialization: 'json',
    });
    this.#child = child;
    let gone = false;
    const exited = (code: number | null, signal: NodeJS.Signals | null): void => {
      if (gone) return;
      gone = true;
      this.#exited(child, code, signal);
    };
    child.on('message', (message) => onMessage(message as In));
    child.on('exit', exited);
    child.on('error', () => {
      // Could not be started at all; no exit follows.
      if (child.pid === undefined) exited(null, null);
    });
    onStart();
  }

  #exited(child: NodeChild, code: number | null, signal: NodeJS.Signals | null): void {
    this.#child = undefined;
    const stopping = this.#state === 'stopping';
    let restartInMs: number | undefined;
    if (stopping) this.#state = 'stopped';
    else {
      const next = nextDelay(this.#backoff, performance.now(), Math.random());
      this.#backoff = next.state;
      restartInMs = next.delayMs;
      this.#state = 'backoff';
    }
    this.#lastExit = { pid: child.pid ?? 0, code, signal, atMs: Date.now(), restartInMs };
    const how = describeExit(this.#lastExit);
    this.#exits.set(how, (this.#exits.get(how) ?? 0) + 1);
    this.#options.onExit(this.#lastExit);
    for (const resolve of this.#onGone.splice(0)) resolve();
    if (restartInMs === undefined) return;
    this.#timer = setTimeout(() => {
      this.#restarts++;
      this.start();
    }, restartInMs);
  }

  /** The process does its work: from now on it counts as healthy. */
  ready(): void {
    if (this.#state !== 'starting') return;
    this.#state = 'ready';
    this.#backoff = noteReady(this.#backoff, performance.now());
  }

  send(message: Out): void {
    if (this.#child?.connected) this.#child.send(message);
  }

  /** No restart from now on. The process is expected to end by itself, see kill(). */
  stopping(): void {
    clearTimeout(this.#timer);
    this.#state = this.#child === undefined ? 'stopped' : 'stopping';
  }

  kill(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }
}

/** `exit code 1`, `signal SIGKILL`. */
export function describeExit(exit: Pick<ExitRecord, 'code' | 'signal'>): string {
  if (exit.signal !== null) return `signal ${exit.signal}`;
  return exit.code === null ? 'could not be started' : `exit code ${exit.code}`;
}
