/**
 * Runs the queue with real processes: producers, and consumers of several threads each. This process is their supervisor: it owns the segment and the
 * doorbells, reaps the dead, reclaims what they held and starts successors, as the real one does.
 *
 * Faults are SIGKILL, and SIGSTOP followed by SIGCONT, at random moments. Bound: FINISH_MS for everything to come to its end once the faults are over.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { closeSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Doorbells } from '../../src/queue/bells.ts';
import type { QueueShape } from '../../src/queue/geometry.ts';
import { census, nudge, reclaimIngress, reclaimInstance, stopInstance } from '../../src/queue/reclaim.ts';
import { Segment } from '../../src/queue/segment.ts';
import { createPipe, type Pipe } from '../../src/system/pipe.ts';
import { auditIdle } from './queue-audit.ts';
import {
  type ConsumerOrder,
  type FromChild,
  type ModelName,
  OUTCOMES,
  type Outcome,
  outcomeIndex,
  type ToProducer,
} from './queue-stress-child.ts';
import type { Random } from './random.ts';

const PRODUCER = fileURLToPath(new URL('./queue-stress-producer.js', import.meta.url));
const CONSUMER = fileURLToPath(new URL('./queue-stress-consumer.js', import.meta.url));
const FINISH_MS = 30_000;
const NUDGE_MS = 250;

export interface StressOptions {
  readonly model: ModelName;
  readonly shape: QueueShape;
  /** Each with as many threads as the shape's instance slots divided among them. */
  readonly consumerProcesses: number;
  readonly requestsEach: number | undefined;
  readonly window: number;
  readonly maxRows: number;
  readonly slowShare: number;
}

export type StressOutcome = Record<Outcome, number> & {
  /** Asked by producers that were killed, and not answered before. */
  lost: number;
  neverAnswered: number;
  kills: number;
  stops: number;
  seconds: number;
};

interface Party {
  readonly role: 'producer' | 'consumer';
  readonly index: number;
  readonly child: ChildProcess;
  /** At work: from here on it may be a victim. */
  up: boolean;
  stopped: boolean;
  killed: boolean;
}

export class QueueStress {
  readonly segment: Segment;
  readonly #options: StressOptions;
  readonly #random: Random;
  readonly #pipes: Pipe[];
  readonly #bells: Doorbells;
  readonly #parties = new Set<Party>();
  readonly #killsOf: number[];
  readonly #timers = new Set<NodeJS.Timeout>();
  readonly #startedAt = Date.now();
  #kills = 0;
  #stops = 0;
  #ending = false;
  #failure: Error | undefined;
  #changed = () => {};

  constructor(options: StressOptions, random: Random) {
    this.#options = options;
    this.#random = random;
    const { ingressSlots } = options.shape;
    this.segment = Segment.create('stress', { ...options.shape, counters: OUTCOMES.length });
    this.#pipes = Array.from({ length: ingressSlots }, () => createPipe());
    this.#bells = new Doorbells(
      this.segment,
      this.#pipes.map(({ writeFd }) => writeFd),
    );
    this.#killsOf = new Array(ingressSlots).fill(0);
    for (let index = 0; index < options.consumerProcesses; index++) this.#start('consumer', index);
    for (let index = 0; index < ingressSlots; index++) this.#start('producer', index);
  }

  /** Kills and stops processes for some time, and brings successors up. */
  async faults(durationMs: number): Promise<void> {
    const random = this.#random;
    const nudging = setInterval(() => {
      nudge(this.segment, this.#bells);
      this.segment.trim(this.#bells);
    }, NUDGE_MS);
    const until = Date.now() + durationMs;
    while (Date.now() < until && this.#failure === undefined) {
      await this.#pass(random.int(1, 30));
      const victims = [...this.#parties].filter(({ up, stopped, killed }) => up && !stopped && !killed);
      if (victims.length === 0) continue;
      const victim = random.pick(victims);
      if (random.chance(0.06)) this.#kill(victim);
      else this.#stop(victim, random.int(1, 40));
    }
    for (const party of this.#parties) if (party.stopped) this.#go(party);
    clearInterval(nudging);
  }

  /**
   * Lets everything come to its end, then audits the segment.
   *
   * @throws AssertionError when something does not end, or was left in the segment.
   */
  async finish(): Promise<StressOutcome> {
    if (this.#options.requestsEach === undefined) {
      // Those that were killed last have to be up again first: nobody else gives their rows back.
      await this.#until(() => [...this.#parties].every(({ killed }) => !killed));
      for (const { role, child } of this.#parties)
        if (role === 'producer') child.send({ type: 'finish' } satisfies ToProducer);
    }
    this.#ending = true;
    await this.#until(() => [...this.#parties].every(({ role }) => role === 'consumer'));
    for (let slot = 0; slot < this.#options.shape.instanceSlots; slot++) stopInstance(this.segment, slot, true);
    await this.#until(() => this.#parties.size === 0);
    const outcome = this.#outcome();
    auditIdle(this.segment);
    return outcome;
  }

  /** Ends whatever is left. */
  async close(): Promise<void> {
    this.#ending = true;
    for (const timer of this.#timers) clearTimeout(timer);
    const exits = [...this.#parties].map(({ child }) => new Promise((resolve) => child.once('exit', resolve)));
    for (const { child } of this.#parties) child.kill('SIGKILL');
    await Promise.all(exits);
    this.segment.close();
    for (const { readFd, writeFd } of this.#pipes) {
      closeSync(readFd);
      closeSync(writeFd);
    }
  }

  #start(role: Party['role'], index: number): void {
    const { model, shape, consumerProcesses, requestsEach, window, maxRows, slowShare } = this.#options;
    const common = {
      parentPid: process.pid,
      reference: this.segment.reference(),
      bellFds: this.#pipes.map(({ writeFd }) => writeFd),
      model,
      seed: this.#random.uint32(),
    };
    const child = fork(role === 'producer' ? PRODUCER : CONSUMER, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    const party: Party = { role, index, child, up: false, stopped: false, killed: false };
    this.#parties.add(party);
    child.on('message', (message: FromChild) => {
      party.up = true;
      if (message.type === 'done' && message.faults.length > 0) {
        this.#fail(new Error(`wrong answers:\n${message.faults.join('\n')}`));
      }
    });
    child.once('exit', (code, signal) => this.#reap(party, code, signal));
    if (role === 'producer') {
      const bellFd = this.#pipes[index]!.readFd;
      const order = { ...common, slot: index, bellFd, requests: requestsEach, window, maxRows };
      child.send({ type: 'start', order } satisfies ToProducer);
    } else {
      const slots = this.#slotsOf(index, shape.instanceSlots / consumerProcesses);
      child.send({ ...common, slots, slowShare } satisfies ConsumerOrder);
    }
  }

  #slotsOf(index: number, count: number): number[] {
    return Array.from({ length: count }, (_, n) => index * count + n);
  }

  /** The process has been reaped: it writes no more. */
  #reap(party: Party, code: number | null, signal: string | null): void {
    this.#parties.delete(party);
    const { role, index, killed } = party;
    if (role === 'producer') reclaimIngress(this.segment, this.#bells, index);
    else {
      const count = this.#options.shape.instanceSlots / this.#options.consumerProcesses;
      for (const slot of this.#slotsOf(index, count)) reclaimInstance(this.segment, this.#bells, slot);
    }
    if (!killed && code !== 0) this.#fail(new Error(`a ${role} ended with ${code ?? signal}`));
    else if (killed && !this.#ending) this.#start(role, index);
    this.#changed();
  }

  #kill(party: Party): void {
    party.killed = true;
    this.#kills++;
    if (party.role === 'producer') this.#killsOf[party.index]!++;
    party.child.kill('SIGKILL');
  }

  #stop(party: Party, forMs: number): void {
    party.stopped = true;
    this.#stops++;
    party.child.kill('SIGSTOP');
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      if (party.stopped) this.#go(party);
    }, forMs);
    this.#timers.add(timer);
  }

  #go(party: Party): void {
    party.stopped = false;
    party.child.kill('SIGCONT');
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    this.#changed();
  }

  #pass(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms));
  }

  async #until(reached: () => boolean): Promise<void> {
    const limit = new Promise<never>((_resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`the queue does not come to rest: ${this.#state()}`)), FINISH_MS);
      this.#timers.add(timer);
    });
    while (!reached()) {
      if (this.#failure !== undefined) throw this.#failure;
      const change = new Promise<void>((resolve) => {
        this.#changed = resolve;
      });
      await Promise.race([change, limit]);
    }
    if (this.#failure !== undefined) throw this.#failure;
    for (const timer of this.#timers) clearTimeout(timer);
  }

  #state(): string {
    const parties = [...this.#parties].map(({ role, index, killed, stopped }) => ({ role, index, killed, stopped }));
    return JSON.stringify({ parties, census: census(this.segment), outcome: this.#outcome() });
  }

  #outcome(): StressOutcome {
    const sums = Object.fromEntries(OUTCOMES.map((name) => [name, 0])) as Record<Outcome, number>;
    let lost = 0;
    let neverAnswered = 0;
    for (let slot = 0; slot < this.#options.shape.ingressSlots; slot++) {
      const of = (name: Outcome) => this.segment.f64[outcomeIndex(this.segment, slot, name)]!;
      for (const name of OUTCOMES) sums[name] += of(name);
      const left = of('asked') - of('right') - of('wrong') - of('workerLost') - of('otherStatus') - of('givenUp');
      // A killed process may have died between an answer and its count.
      const mayBeLost = this.#killsOf[slot]! * (this.#options.window + 1);
      lost += Math.min(left, mayBeLost);
      neverAnswered += Math.max(0, left - mayBeLost);
    }
    const seconds = (Date.now() - this.#startedAt) / 1000;
    return { ...sums, lost, neverAnswered, kills: this.#kills, stops: this.#stops, seconds };
  }
}

/** What may come of a request, and what may not: `acceptable` names the outcomes that may. */
export function outcomeTable(outcome: StressOutcome, acceptable: readonly (keyof StressOutcome)[]): string {
  const rows: [name: keyof StressOutcome, about: string][] = [
    ['right', 'answered with its own rows'],
    ['givenUp', 'given up by its producer'],
    ['refused', 'refused at admission, asked again'],
    ['lost', 'lost with its producer, which was killed'],
    ['workerLost', 'answered WORKER_LOST, after three deaths'],
    ['wrong', 'answered with other rows'],
    ['twice', 'answered twice'],
    ['otherStatus', 'answered with another status'],
    ['neverAnswered', 'never answered'],
  ];
  const head = `${outcome.asked} requests in ${outcome.seconds.toFixed(1)} s, ${outcome.kills} kills, ${outcome.stops} stops`;
  const lines = rows.map(([name, about]) => {
    const verdict = acceptable.includes(name) ? 'acceptable' : 'forbidden';
    return `${about.padEnd(44)} ${String(outcome[name]).padStart(8)}  ${verdict}`;
  });
  return [head, ...lines].join('\n');
}

/** @throws AssertionError when an outcome occurred that is not acceptable. */
export function assertAcceptable(outcome: StressOutcome, acceptable: readonly (keyof StressOutcome)[]): void {
  for (const name of ['wrong', 'twice', 'otherStatus', 'neverAnswered', 'lost', 'workerLost', 'refused'] as const) {
    if (!acceptable.includes(name)) assert.equal(outcome[name], 0, name);
  }
}
