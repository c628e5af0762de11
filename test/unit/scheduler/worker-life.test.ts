/** The life of a worker: each rule by itself. The simulation of whole lives is in worker-life-simulation.test.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type Death,
  hasProcess,
  initialLife,
  type LifePolicy,
  mayWork,
  step,
  WORKER_STATES,
  type WorkerAction,
  type WorkerEvent,
  type WorkerLife,
} from '../../../src/scheduler/worker-life.ts';

const POLICY: LifePolicy = {
  restart: { floorMs: 10, baseMs: 100, capMs: 6400, healthyMs: 10_000 },
  slow: { floorMs: 30_000, baseMs: 60_000, capMs: 600_000, healthyMs: 10_000 },
  shortLifeMs: 2000,
  ownDeathsMax: 5,
  deathsMax: 16,
  delayAtWorkMaxMs: 500,
};
const OWN: Death = { how: 'signal SIGSEGV', blame: 'worker', worked: false };
const AT_WORK: Death = { how: 'signal SIGSEGV', blame: 'work', worked: false };
const OUTSIDE: Death = { how: 'signal SIGKILL', blame: 'outside', worked: false };
/** Draws just below the ceiling of a delay, so that the ceiling can be told. */
const HIGH = 1 - 1e-9;

class Worker {
  life: WorkerLife = initialLife(POLICY);
  nowMs = 1000;
  random = HIGH;

  on(event: WorkerEvent | WorkerEvent['type']): readonly WorkerAction[] {
    const { life, actions } = step(
      this.life,
      typeof event === 'string' ? ({ type: event } as WorkerEvent) : event,
      this.nowMs,
      this.random,
    );
    this.life = life;
    return actions;
  }

  get state(): string {
    return this.life.state;
  }

  /** Starts it (first, or at the end of its wait) and brings it to `ready` after `ms`. */
  bringUp(ms = 50): this {
    this.on(this.state === 'stopped' ? 'start' : 'timer');
    this.nowMs += ms;
    for (const type of ['up', 'loading', 'warming', 'ready'] as const) this.on(type);
    return this;
  }

  /** Dies, is taken back, and tells for how long it waits then. */
  die(death: Death, afterMs = 0): number {
    this.nowMs += afterMs;
    assert.deepEqual(this.on({ type: 'exited', death }), [{ do: 'reclaim' }]);
    const [action] = this.on('reclaimed');
    return action?.do === 'wait' ? action.ms : Number.NaN;
  }

  /** Dies before it is ready, `count` times in a row. */
  dieYoung(count: number, death = OWN): number {
    let waitMs = Number.NaN;
    for (let n = 0; n < count; n++) {
      this.on(this.state === 'stopped' ? 'start' : 'timer');
      waitMs = this.die(death, 1);
    }
    return waitMs;
  }
}

test('a worker goes from its start over loading and warming to ready', () => {
  const worker = new Worker();
  assert.deepEqual(worker.on('start'), [{ do: 'spawn' }]);
  const states = [worker.state];
  for (const type of ['up', 'warming', 'loading', 'warming', 'ready'] as const) {
    assert.deepEqual(worker.on(type), []);
    states.push(worker.state);
  }
  assert.deepEqual(states, ['spawning', 'loading', 'warming', 'loading', 'warming', 'ready']);
  assert.equal(worker.life.epoch, 1);
});

test('a ready worker that loads one more model keeps the time it was ready first', () => {
  const worker = new Worker().bringUp();
  const readyMs = worker.life.readyMs;
  worker.nowMs += 5000;
  for (const type of ['loading', 'warming', 'ready'] as const) worker.on(type);
  assert.equal(worker.state, 'ready');
  assert.equal(worker.life.readyMs, readyMs);
});

test('what a dead worker held is taken back before its next start is decided', () => {
  const worker = new Worker().bringUp();
  assert.deepEqual(worker.on({ type: 'exited', death: OWN }), [{ do: 'reclaim' }]);
  assert.equal(worker.state, 'exited');
  assert.equal(worker.on('reclaimed')[0]?.do, 'wait');
  assert.equal(worker.state, 'backoff');
});

test('a suspect that is cleared is what it was, with what it has prepared meanwhile', () => {
  const worker = new Worker();
  worker.on('start');
  worker.on('up');
  worker.on({ type: 'suspected', reason: 'it is stopped by a signal' });
  assert.equal(worker.state, 'suspect');
  assert.equal(worker.life.reason, 'it is stopped by a signal');
  worker.on('cleared');
  assert.equal(worker.state, 'loading');
  worker.on({ type: 'suspected', reason: 'again' });
  worker.on('warming');
  worker.on('ready');
  assert.equal(worker.state, 'suspect');
  worker.on('cleared');
  assert.equal(worker.state, 'ready');
  assert.equal(worker.life.reason, '');
  assert.notEqual(worker.life.readyMs, undefined);
});

test('a condemned worker is killed once, and late messages of it change nothing', () => {
  const worker = new Worker().bringUp();
  assert.deepEqual(worker.on({ type: 'condemned', reason: 'it hangs' }), [{ do: 'kill' }]);
  assert.equal(worker.state, 'killing');
  for (const type of ['up', 'loading', 'warming', 'ready', 'cleared'] as const) assert.deepEqual(worker.on(type), []);
  assert.deepEqual(worker.on({ type: 'condemned', reason: 'it hangs' }), []);
  assert.equal(worker.state, 'killing');
  assert.equal(worker.life.reason, 'it hangs');
});

test('the ceiling of the delay doubles with every fruitless life', () => {
  const worker = new Worker();
  const waits = [1, 2, 3, 4].map(() => Math.round(worker.dieYoung(1)));
  assert.deepEqual(waits, [100, 200, 400, 800]);
});

test('a life that was ready for long enough starts the delays anew', () => {
  const worker = new Worker();
  worker.dieYoung(3);
  worker.bringUp();
  assert.equal(Math.round(worker.die(OWN, 10_000)), 100);
});

test('a life that worked for longer than its start took starts the delays anew, a shorter one does not', () => {
  const worked = { ...OWN, worked: true };
  const worker = new Worker();
  worker.dieYoung(3);
  worker.bringUp(400);
  assert.equal(Math.round(worker.die(worked, 399)), 800);
  worker.bringUp(400);
  assert.equal(Math.round(worker.die(worked, 400)), 100);
});

test('five fruitless lives in a row open the breaker, which says why', () => {
  const worker = new Worker();
  worker.dieYoung(4);
  assert.equal(worker.state, 'backoff');
  const waitMs = worker.dieYoung(1);
  assert.equal(worker.state, 'broken');
  assert.match(worker.life.reason, /died 5 times in a row .*SIGSEGV/);
  assert.equal(Math.round(waitMs), 60_000);
});

test('a life that ends a moment after it was ready is fruitless, unless it finished a batch', () => {
  const worker = new Worker();
  for (let n = 0; n < 4; n++) worker.bringUp().die(OWN, 1999);
  worker.bringUp().die({ ...OWN, worked: true }, 1);
  assert.equal(worker.state, 'backoff');
  assert.equal(worker.life.deaths, 0);
  for (let n = 0; n < 5; n++) worker.bringUp().die(OWN, 1999);
  assert.equal(worker.state, 'broken');
});

test('a life longer than a moment closes the breaker for the next ones', () => {
  const worker = new Worker();
  worker.dieYoung(4);
  worker.bringUp().die(OWN, 2000);
  worker.dieYoung(4);
  assert.equal(worker.state, 'backoff');
});

test('a broken worker that dies young again is broken at once, for longer each time up to the cap', () => {
  const worker = new Worker();
  worker.dieYoung(5);
  const waits = [1, 2, 3, 4, 5].map(() => Math.round(worker.dieYoung(1)));
  assert.equal(worker.state, 'broken');
  assert.deepEqual(waits, [120_000, 240_000, 480_000, 600_000, 600_000]);
});

test('the slow schedule never draws less than half of its first ceiling', () => {
  const worker = new Worker();
  worker.random = 0;
  assert.equal(worker.dieYoung(5), 30_000);
});

test('a command makes a broken worker try again at once, with all of its tries', () => {
  const worker = new Worker();
  worker.dieYoung(5);
  assert.deepEqual(worker.on('retry'), [{ do: 'cancel-wait' }, { do: 'spawn' }]);
  assert.equal(Math.round(worker.die(OWN, 1)), 100);
  worker.dieYoung(3);
  assert.equal(worker.state, 'backoff');
  worker.dieYoung(1);
  assert.equal(worker.state, 'broken');
});

test('a command changes nothing for a worker that is not broken', () => {
  const worker = new Worker();
  worker.on('start');
  assert.deepEqual(worker.on('retry'), []);
  worker.die(OWN, 1);
  assert.deepEqual(worker.on('retry'), []);
  assert.equal(worker.state, 'backoff');
});

test('deaths at work open the breaker much later, and are followed by short delays', () => {
  const worker = new Worker();
  const waits: number[] = [];
  for (let n = 0; n < 15; n++) waits.push(worker.bringUp().die(AT_WORK, 1));
  assert.equal(worker.state, 'backoff');
  assert.equal(Math.round(Math.max(...waits)), 500);
  worker.bringUp().die(AT_WORK, 1);
  assert.equal(worker.state, 'broken');
});

test('deaths at work do not use up the few that the worker itself has', () => {
  const worker = new Worker();
  for (let n = 0; n < 4; n++) worker.bringUp().die(AT_WORK, 1);
  worker.dieYoung(4);
  assert.equal(worker.state, 'backoff');
  worker.dieYoung(1);
  assert.equal(worker.state, 'broken');
});

test('deaths by another hand never open the breaker; the delays grow all the same', () => {
  const worker = new Worker();
  let waitMs = 0;
  for (let n = 0; n < 40; n++) waitMs = worker.dieYoung(1, OUTSIDE);
  assert.equal(worker.state, 'backoff');
  assert.equal(Math.round(waitMs), 6400);
});

test('told to stop, it drains while it lives, is stopped at once where there is no process, and never starts again', () => {
  const living = new Worker().bringUp();
  living.on('stop');
  assert.equal(living.state, 'draining');
  assert.equal(Number.isNaN(living.die({ how: 'exit code 0', blame: 'worker', worked: true }, 5)), true);
  assert.equal(living.state, 'stopped');

  const waiting = new Worker();
  waiting.dieYoung(1);
  assert.deepEqual(waiting.on('stop'), [{ do: 'cancel-wait' }]);
  assert.equal(waiting.state, 'stopped');

  const broken = new Worker();
  broken.dieYoung(5);
  assert.deepEqual(broken.on('stop'), [{ do: 'cancel-wait' }]);
  assert.equal(broken.state, 'stopped');

  const dying = new Worker().bringUp();
  dying.on({ type: 'exited', death: OWN });
  dying.on('stop');
  assert.deepEqual(dying.on('reclaimed'), []);
  assert.equal(dying.state, 'stopped');
});

test('one that drains is not suspected, but can be condemned when it takes too long', () => {
  const worker = new Worker().bringUp();
  worker.on('stop');
  worker.on({ type: 'suspected', reason: 'x' });
  assert.equal(worker.state, 'draining');
  assert.deepEqual(worker.on({ type: 'condemned', reason: 'too long' }), [{ do: 'kill' }]);
  assert.equal(worker.state, 'draining');
});

test('a stopped worker can be started again, in the next epoch', () => {
  const worker = new Worker().bringUp();
  worker.on('stop');
  worker.die(OWN);
  assert.deepEqual(worker.on('start'), [{ do: 'spawn' }]);
  assert.equal(worker.life.epoch, 2);
  worker.die(OWN, 1);
  assert.equal(worker.state, 'backoff');
});

test('events that only a caller that lost count can give are bugs', () => {
  const running = new Worker().bringUp();
  for (const type of ['start', 'timer', 'reclaimed'] as const) {
    assert.throws(() => running.on(type), /This is a bug/);
  }
  const stopped = new Worker();
  assert.throws(() => stopped.on({ type: 'exited', death: OWN }), /This is a bug/);
});

test('the states with a process are told apart from those without, and those that may work from those that are to go', () => {
  assert.deepEqual(WORKER_STATES.filter(hasProcess), [
    'spawning',
    'loading',
    'warming',
    'ready',
    'suspect',
    'killing',
    'draining',
  ]);
  assert.deepEqual(WORKER_STATES.filter(mayWork), ['spawning', 'loading', 'warming', 'ready', 'suspect']);
});
