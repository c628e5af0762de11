/**
 * One child process and its lives: the mechanism that carries out what scheduler/worker-life.ts decides, and watches with scheduler/vigil.ts.
 *
 * Owner: the supervisor. Each life has an epoch; what a process held is taken back only after it has been reaped, so whoever does that is alone. Bound: one
 * process at a time, one timer, restarts no faster than the policy allows.
 */
import { fork, type ChildProcess as NodeChild } from 'node:child_process';
import type { Logger } from '../config/log.ts';
import { initialVigil, look, type RunSeen, type VigilPolicy, type VigilState } from '../scheduler/vigil.ts';
import {
  type Death,
  initialLife,
  type LifePolicy,
  mayWork,
  step,
  type WorkerEvent,
  type WorkerLife,
} from '../scheduler/worker-life.ts';
import { SUPERVISOR_PID_VARIABLE } from '../system/child.ts';
import { processState } from '../system/process.ts';
import { describeEnding, type EndingWords, type KillKind } from './exit-words.ts';
import type { OomWatch } from './oom-watch.ts';

const WATCH = { stoppedMaxMs: 2000, startMaxMs: 60_000, cancelGraceMs: 2000, lookMaxMs: 1000 } as const;

export interface ChildOptions<In> {
  readonly role: 'ingress' | 'device';
  /** What tells it from others of its role, for logs. */
  readonly label: Readonly<Record<string, string | number>>;
  readonly entry: URL;
  readonly env: Readonly<Record<string, string>>;
  readonly execArgv: readonly string[];
  /** Descriptors that the child gets as number 4 and following. */
  readonly inherit: readonly number[];
  readonly policy: LifePolicy;
  /** Longest time without a word from it. */
  readonly silentMaxMs: number;
  readonly log: Logger;
  readonly oom: OomWatch;
  readonly onMessage: (message: In) => void;
  /** The process is dead and reaped: takes back what it held. */
  readonly onExit: (how: string, blame: EndingWords['blame']) => Takeover;
  /** Waits, for a bounded time, until nothing of a dead process is left that would be in the next one's way. */
  readonly confirm?: (pid: number) => Promise<void>;
  /** Its state has changed; called after all that belongs to the change is done. */
  readonly onState: (life: WorkerLife) => void;
}

/** What was found with a dead process. */
export interface Takeover {
  readonly atWork: boolean;
  readonly worked: boolean;
  /** For the log. */
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface ExitRecord {
  readonly pid: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** In words. */
  readonly how: string;
  /** Ended by the kernel for want of memory. */
  readonly outOfMemory: boolean;
  readonly atMs: number;
}

export class ChildProcess<In extends { readonly type: string }, Out extends object> {
  readonly role: 'ingress' | 'device';
  readonly #options: ChildOptions<In>;
  #life: WorkerLife;
  #child: NodeChild | undefined;
  #timer: NodeJS.Timeout | undefined;
  #nextStartMs: number | undefined;
  #vigil: VigilState;
  #heard = false;
  #isStopped = false;
  #killedFor: { kind: KillKind; reason: string } | undefined;
  #notStartedFor: string | undefined;
  #lastExit: ExitRecord | undefined;
  readonly #exits = new Map<string, number>();
  readonly #onGone: (() => void)[] = [];

  constructor(options: ChildOptions<In>) {
    this.role = options.role;
    this.#options = options;
    this.#life = initialLife(options.policy);
    this.#vigil = initialVigil(this.#watch);
  }

  get #watch(): VigilPolicy {
    return { ...WATCH, silentMaxMs: this.#options.silentMaxMs };
  }

  get life(): WorkerLife {
    return this.#life;
  }
  get state(): WorkerLife['state'] {
    return this.#life.state;
  }
  get pid(): number | undefined {
    return this.#child?.pid;
  }
  /** Number of the current or last life, from 1. */
  get epoch(): number {
    return this.#life.epoch;
  }
  get restarts(): number {
    return Math.max(0, this.#life.epoch - 1);
  }
  get startedMs(): number {
    return this.#life.startedMs;
  }
  get lastExit(): ExitRecord | undefined {
    return this.#lastExit;
  }
  /** Milliseconds until the next start; undefined while none is planned. */
  get nextStartInMs(): number | undefined {
    return this.#nextStartMs === undefined ? undefined : Math.max(0, this.#nextStartMs - performance.now());
  }

  /** Whether it was stopped by a signal when it was last looked at. */
  get isStopped(): boolean {
    return this.#isStopped;
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
    const timer = setTimeout(() => this.condemn('did not end in time', `it did not end within ${graceMs} ms`), graceMs);
    await this.gone;
    clearTimeout(timer);
  }

  start(): void {
    this.#dispatch({ type: 'start' });
  }

  /** It takes orders. */
  up(): void {
    this.#dispatch({ type: 'up' });
  }
  loading(): void {
    this.#dispatch({ type: 'loading' });
  }
  warming(): void {
    this.#dispatch({ type: 'warming' });
  }
  /** It has nothing left to prepare. */
  ready(): void {
    this.#dispatch({ type: 'ready' });
  }

  /** Tries again at once, if it has been given up for now. */
  retry(): void {
    this.#dispatch({ type: 'retry' });
  }

  /** No restart from now on. The process is expected to end by itself, see ended(). */
  stopping(): void {
    this.#dispatch({ type: 'stop' });
  }

  /** Kills it for a reason that is told. */
  condemn(kind: KillKind, reason: string): void {
    this.#killedFor ??= { kind, reason };
    this.#dispatch({ type: 'condemned', reason });
  }

  send(message: Out): void {
    if (this.#child?.connected) this.#child.send(message);
  }

  /**
   * Looks after the process; to be called often.
   *
   * @param lookAtState whether to ask the kernel for its state as well.
   * @returns runs that have to be cancelled.
   */
  watch<Run extends RunSeen>(nowMs: number, lookAtState: boolean, runs: readonly Run[]): readonly Run[] {
    const pid = this.#child?.pid;
    if (pid === undefined || !mayWork(this.#life.state)) return [];
    // While it is stopped, every time: it must not be killed for the time between two looks.
    if (lookAtState || this.#isStopped) this.#isStopped = processState(pid) === 'T';
    const starting = this.#life.sound === 'spawning';
    const { state, verdict, cancel } = look(this.#vigil, {
      nowMs,
      starting,
      stopped: this.#isStopped,
      heard: this.#heard,
      runs,
    });
    this.#vigil = state;
    this.#heard = false;
    const { role, label, log } = this.#options;
    switch (verdict.is) {
      case 'sound':
        if (this.#life.state !== 'suspect') break;
        log.warn({ ...label, childPid: pid }, `${role} process is sound again`);
        this.#dispatch({ type: 'cleared' });
        break;
      case 'suspect':
        if (this.#life.state === 'suspect') break;
        log.warn({ ...label, childPid: pid, reason: verdict.reason }, `${role} process is suspect`);
        this.#dispatch({ type: 'suspected', reason: verdict.reason });
        break;
      case 'condemned':
        log.error({ ...label, childPid: pid, reason: verdict.reason }, `${role} process is killed`);
        this.condemn(verdict.kind, verdict.reason);
        break;
    }
    return cancel;
  }

  #dispatch(event: WorkerEvent): void {
    const before = this.#life;
    const { life, actions } = step(before, event, performance.now(), Math.random());
    this.#life = life;
    for (const action of actions) {
      switch (action.do) {
        case 'spawn':
          this.#spawn();
          break;
        case 'kill':
          this.#child?.kill('SIGKILL');
          break;
        case 'reclaim':
          // Taken back by exited(), which knows more.
          break;
        case 'wait':
          this.#wait(action.ms);
          break;
        case 'cancel-wait':
          this.#nextStartMs = undefined;
          clearTimeout(this.#timer);
          break;
      }
    }
    if (life !== before && life.state !== 'exited') this.#options.onState(life);
  }

  #wait(ms: number): void {
    this.#nextStartMs = performance.now() + ms;
    // Timers count whole milliseconds, and from the start of the loop's turn: never early.
    this.#timer = setTimeout(() => {
      if (performance.now() < this.#nextStartMs!) this.#wait(this.#nextStartMs! - performance.now());
      else this.#dispatch({ type: 'timer' });
    }, Math.ceil(ms));
  }

  #spawn(): void {
    const { role, label, entry, env, execArgv, inherit, log } = this.#options;
    this.#nextStartMs = undefined;
    this.#vigil = initialVigil(this.#watch);
    this.#isStopped = false;
    this.#killedFor = undefined;
    this.#notStartedFor = undefined;
    // What children print belongs to the log, never to the supervisor's stdout.
    const stdio = ['ignore', 2, 2, 'ipc', ...inherit] as Array<'ignore' | 'ipc' | number>;
    let child: NodeChild;
    try {
      child = fork(entry, [], {
        stdio,
        execArgv: [...execArgv],
        env: { ...process.env, ...env, [SUPERVISOR_PID_VARIABLE]: String(process.pid) },
        serialization: 'json',
      });
    } catch (error) {
      // No memory for another process, for one.
      log.error({ ...label, err: error }, `${role} process could not be started`);
      this.#notStartedFor = (error as Error).message;
      setImmediate(() => this.#exited(0, null, null));
      return;
    }
    this.#child = child;
    log.info({ ...label, childPid: child.pid, epoch: this.#life.epoch }, `${role} process started`);
    let gone = false;
    const exited = (code: number | null, signal: NodeJS.Signals | null): void => {
      if (gone) return;
      gone = true;
      this.#exited(child.pid ?? 0, code, signal);
    };
    child.on('message', (message) => {
      this.#heard = true;
      // What one says that is being killed is of no use any more.
      if ((message as In).type === 'alive' || this.#life.state === 'killing') return;
      this.#options.onMessage(message as In);
    });
    child.on('exit', exited);
    child.on('error', (error) => {
      // Could not be started at all, with too many files open for one; no exit follows.
      if (child.pid !== undefined) return;
      this.#notStartedFor = error.message;
      exited(null, null);
    });
  }

  #exited(pid: number, code: number | null, signal: NodeJS.Signals | null): void {
    const { oom, onExit } = this.#options;
    this.#child = undefined;
    const killedFor = this.#killedFor;
    const outOfMemory = signal === 'SIGKILL' && killedFor === undefined && oom.killed();
    const {
      label: exitLabel,
      how,
      blame,
    } = describeEnding({
      code,
      signal,
      killedFor,
      outOfMemory,
      notStartedFor: this.#notStartedFor,
    });
    this.#lastExit = { pid, code, signal, how, outOfMemory, atMs: Date.now() };
    this.#exits.set(exitLabel, (this.#exits.get(exitLabel) ?? 0) + 1);
    const takeover = onExit(how, blame);
    // Who was stuck in a run or crashed in it was at work; who was killed by others would have been killed anyway.
    const death: Death = {
      how,
      blame: takeover.atWork && blame === 'worker' ? 'work' : blame,
      worked: takeover.worked,
    };
    this.#dispatch({ type: 'exited', death });
    for (const resolve of this.#onGone.splice(0)) resolve();
    const { confirm } = this.#options;
    if (confirm === undefined) this.#reclaimed(pid, how, takeover);
    else void confirm(pid).finally(() => this.#reclaimed(pid, how, takeover));
  }

  /** All of a dead process has been taken back: it may be started again. */
  #reclaimed(pid: number, how: string, takeover: Takeover): void {
    const { role, label, log } = this.#options;
    this.#dispatch({ type: 'reclaimed' });
    const { state, reason } = this.#life;
    if (state !== 'stopped') {
      const restartInMs = Math.round(this.nextStartInMs ?? 0);
      log.error({ ...label, childPid: pid, how, ...takeover.fields, restartInMs }, `${role} process ended`);
      if (state === 'broken') log.error({ ...label, reason, restartInMs }, `${role} process is given up for now`);
    }
  }
}
