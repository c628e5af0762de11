/**
 * Whole lives of a worker in a simulated world: processes that die, hang, start slowly, are stopped and killed by others, with commands in between. Seeded.
 *
 * The world keeps its own books, written without a look at the table: one process at a time, nothing started before its time, the breaker open exactly when
 * the deaths say so, and in the end either a worker that is ready (once the faults stop) or one that is stopped (when it was told to).
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type Death,
  hasProcess,
  initialLife,
  type LifePolicy,
  step,
  type WorkerEvent,
  type WorkerLife,
} from '../../../src/scheduler/worker-life.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';

const POLICY: LifePolicy = {
  restart: { floorMs: 20, baseMs: 250, capMs: 30_000, healthyMs: 10_000 },
  slow: { floorMs: 30_000, baseMs: 60_000, capMs: 600_000, healthyMs: 10_000 },
  shortLifeMs: 2000,
  ownDeathsMax: 5,
  deathsMax: 16,
  delayAtWorkMaxMs: 1000,
};
const WORLDS = 400;
const FAULTS_MS = 600_000;
const GRACE_MS = 5000;
const STOPPED_IN = ['spawning', 'loading', 'warming', 'ready', 'suspect', 'killing', 'backoff', 'broken'] as const;

interface Planned {
  readonly atMs: number;
  readonly process: number | undefined;
  readonly happen: () => void;
}

class World {
  readonly #random: Random;
  life: WorkerLife = initialLife(POLICY);
  nowMs = 0;
  #plan: Planned[] = [];
  /** The process that lives, by its number; those before are dead. */
  #process: number | undefined;
  #processes = 0;
  #readySinceMs: number | undefined;
  #worked = false;
  #faulty = true;
  /** How likely it is that a life ends while it starts. */
  readonly #dyingYoung: number;
  #stopping = false;
  #commanded = false;
  #reclaimed = true;
  /** Earliest time of the next start, from the wait that was ordered. */
  #dueMs = Number.NEGATIVE_INFINITY;
  /** Time of the one timer. */
  #timerMs: number | undefined;
  #fruitless = 0;
  #fruitlessOwn = 0;
  starts = 0;
  timesBroken = 0;
  killed = 0;

  constructor(random: Random) {
    this.#random = random;
    this.#dyingYoung = random.pick([0, 0.3, 0.9]);
  }

  get alive(): boolean {
    return this.#process !== undefined;
  }

  event(event: WorkerEvent): void {
    const { life, actions } = step(this.life, event, this.nowMs, this.#random.float());
    const before = this.life.state;
    this.life = life;
    for (const action of actions) {
      switch (action.do) {
        case 'spawn':
          this.#spawn();
          break;
        case 'kill':
          this.killed++;
          this.#later(this.#random.int(0, 500), () =>
            this.#die({ how: 'killed', blame: 'worker', worked: this.#worked }),
          );
          break;
        case 'reclaim':
          this.#reclaimed = true;
          this.event({ type: 'reclaimed' });
          break;
        case 'wait':
          assert.ok(action.ms >= POLICY.restart.floorMs && action.ms < POLICY.slow.capMs, `a wait of ${action.ms} ms`);
          assert.equal(this.#timerMs, undefined, 'one timer at a time');
          this.#dueMs = this.nowMs + action.ms;
          this.#timerMs = this.#dueMs;
          break;
        case 'cancel-wait':
          this.#timerMs = undefined;
          break;
      }
    }
    if (life.state === 'broken' && before !== 'broken') this.timesBroken++;
    if (!['exited'].includes(this.life.state)) {
      assert.equal(hasProcess(this.life.state), this.alive, `${this.life.state} after ${event.type}`);
    }
  }

  #spawn(): void {
    assert.equal(this.#process, undefined, 'two processes at once');
    assert.ok(this.#reclaimed, 'started before the dead one had been taken back');
    assert.ok(!this.#stopping, 'started although it was told to stop');
    assert.ok(this.#commanded || this.nowMs >= this.#dueMs, `started ${this.#dueMs - this.nowMs} ms before its time`);
    this.#timerMs = undefined;
    this.starts++;
    this.#process = ++this.#processes;
    this.#readySinceMs = undefined;
    this.#worked = false;
    if (this.#faulty) this.#faultyLife();
    else this.#soundLife();
  }

  #soundLife(): void {
    const startMs = this.#random.int(50, 5000);
    this.#later(startMs / 2, () => this.event({ type: 'up' }));
    this.#later(startMs, () => this.#ready());
  }

  #faultyLife(): void {
    const random = this.#random;
    const startMs = random.int(50, random.chance(0.1) ? 40_000 : 2000);
    const blame = random.pick(['worker', 'worker', 'work', 'outside'] as const);
    const die = (): void => this.#die({ how: 'signal SIGSEGV', blame, worked: this.#worked });
    if (random.chance(this.#dyingYoung)) {
      this.#later(random.int(0, startMs), die);
      return;
    }
    switch (random.int(1, 5)) {
      case 1: // never starts
        this.#later(60_000, () => this.event({ type: 'condemned', reason: 'it did not take orders' }));
        return;
      case 2: // is stopped by a signal, perhaps for good
        this.#soundLife();
        this.#later(random.int(0, 8000), () => {
          this.event({ type: 'suspected', reason: 'stopped' });
          if (random.chance(0.5)) this.#later(2000, () => this.event({ type: 'condemned', reason: 'stopped' }));
          else this.#later(random.int(1, 1999), () => this.event({ type: 'cleared' }));
        });
        return;
      default: // lives for a while
        this.#later(startMs / 3, () => this.event({ type: 'up' }));
        this.#later(startMs / 2, () => this.event({ type: 'warming' }));
        this.#later(startMs, () => {
          this.#ready();
          const endMs = random.chance(0.3) ? random.int(5000, 100_000) : random.int(0, 3000);
          if (random.chance(0.4)) this.#later(endMs / 2, () => (this.#worked = true));
          this.#later(endMs, die);
        });
    }
  }

  #ready(): void {
    if (this.#readySinceMs === undefined && !['killing', 'draining'].includes(this.life.state)) {
      this.#readySinceMs = this.nowMs;
    }
    this.event({ type: 'ready' });
  }

  #die(death: Death): void {
    this.#process = undefined;
    this.#reclaimed = false;
    this.#commanded = false;
    const fruitful =
      death.worked || (this.#readySinceMs !== undefined && this.nowMs - this.#readySinceMs >= POLICY.shortLifeMs);
    if (fruitful) {
      this.#fruitless = 0;
      this.#fruitlessOwn = 0;
    } else if (death.blame !== 'outside') {
      this.#fruitless++;
      if (death.blame === 'worker') this.#fruitlessOwn++;
    }
    this.event({ type: 'exited', death });
    const open = this.#fruitless >= POLICY.deathsMax || this.#fruitlessOwn >= POLICY.ownDeathsMax;
    if (this.#stopping) assert.equal(this.life.state, 'stopped');
    else assert.equal(this.life.state, open ? 'broken' : 'backoff');
  }

  /** Something of the process that lives now; it does not happen if that has died by then. */
  #later(ms: number, happen: () => void): void {
    this.#plan.push({ atMs: this.nowMs + ms, process: this.#process, happen });
  }

  start(): void {
    this.event({ type: 'start' });
  }

  stop(): void {
    this.#stopping = true;
    this.event({ type: 'stop' });
    if (!this.alive) return;
    if (this.#random.chance(0.7)) {
      this.#later(this.#random.int(0, 2 * GRACE_MS), () =>
        this.#die({ how: 'exit code 0', blame: 'worker', worked: this.#worked }),
      );
    }
    this.#later(GRACE_MS, () => this.event({ type: 'condemned', reason: 'it did not end in time' }));
  }

  retry(): void {
    if (this.life.state === 'broken') {
      this.#commanded = true;
      this.#fruitless = 0;
      this.#fruitlessOwn = 0;
    }
    this.event({ type: 'retry' });
  }

  endFaults(): void {
    this.#faulty = false;
    this.#plan = [];
    // The process of the faulty time is taken away by somebody.
    if (this.alive) this.#die({ how: 'signal SIGKILL', blame: 'outside', worked: this.#worked });
  }

  /** Lets what is planned happen until then, or until it is in a state. */
  runUntil(untilMs: number, state?: string): void {
    for (;;) {
      if (this.life.state === state) return;
      this.#plan = this.#plan.filter(({ process }) => process === this.#process);
      const next = this.#plan.reduce<Planned | undefined>(
        (first, one) => (first === undefined || one.atMs < first.atMs ? one : first),
        undefined,
      );
      const timerMs = this.#timerMs ?? Number.POSITIVE_INFINITY;
      if (Math.min(timerMs, next?.atMs ?? Number.POSITIVE_INFINITY) > untilMs) break;
      if (next === undefined || timerMs <= next.atMs) {
        this.nowMs = Math.max(this.nowMs, timerMs);
        this.#timerMs = undefined;
        this.event({ type: 'timer' });
      } else {
        this.nowMs = Math.max(this.nowMs, next.atMs);
        this.#plan.splice(this.#plan.indexOf(next), 1);
        next.happen();
      }
    }
    this.nowMs = untilMs;
  }
}

test('in any history there is one process at a time, no start before its time, and an open breaker exactly when the deaths say so', () => {
  const seeds = seedFromEnv();
  let starts = 0;
  let broken = 0;
  let killed = 0;
  for (let n = 0; n < WORLDS; n++) {
    const random = seeds.fork();
    const world = new World(random);
    world.start();
    while (world.nowMs < FAULTS_MS) {
      world.runUntil(world.nowMs + random.int(1, 60_000));
      if (random.chance(0.1)) world.retry();
    }
    starts += world.starts;
    broken += world.timesBroken;
    killed += world.killed;
    world.endFaults();
    // The longest wait, and a start.
    world.runUntil(world.nowMs + POLICY.slow.capMs + 10_000);
    assert.equal(world.life.state, 'ready', 'ready again once the faults had stopped');
  }
  // Otherwise the worlds were too kind to tell anything.
  assert.ok(
    starts > 10 * WORLDS && broken > WORLDS / 2 && killed > WORLDS,
    `${starts} starts, ${broken} broken, ${killed} killed`,
  );
});

test('told to stop at any time, it ends in stopped, soon, and does not start again', () => {
  const seeds = seedFromEnv();
  const states = new Set<string>();
  for (let n = 0; n < 4 * WORLDS; n++) {
    const random = seeds.fork();
    const world = new World(random);
    world.start();
    if (random.chance(0.5)) world.runUntil(random.int(0, 5000));
    else world.runUntil(10 * FAULTS_MS, random.pick(STOPPED_IN));
    states.add(world.life.state);
    world.stop();
    world.runUntil(world.nowMs + 2 * GRACE_MS + 1000);
    assert.equal(world.life.state, 'stopped');
    const { starts } = world;
    world.runUntil(world.nowMs + 2 * POLICY.slow.capMs);
    assert.equal(world.starts, starts);
  }
  for (const state of STOPPED_IN) assert.ok(states.has(state), `never stopped in ${state}`);
});
