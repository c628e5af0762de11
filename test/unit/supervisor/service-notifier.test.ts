/** What the service manager hears and when, with a manager that keeps its messages and a clock that the test turns. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { LOAD_EXTENSION_US, ServiceNotifier } from '../../../src/supervisor/service-notifier.ts';
import { everyRunStuck, type ServiceReport, STUCK_MARGIN_MS } from '../../../src/supervisor/service-report.ts';
import type { Notification, ServiceManager } from '../../../src/system/notify.ts';

const WATCHDOG_US = 10_000_000;
const loading: ServiceReport = {
  ready: false,
  loading: true,
  stuck: false,
  status: '0 of 1 models ready, loading m/1',
};
const ready: ServiceReport = { ready: true, loading: false, stuck: false, status: '1 of 1 models ready' };

class Manager implements ServiceManager {
  readonly present: boolean = true;
  readonly problem = undefined;
  readonly watchdogUs: number | undefined = WATCHDOG_US;
  readonly messages: Notification[] = [];
  reads = true;
  closed = false;

  notify(message: Notification): boolean {
    if (this.reads) this.messages.push(message);
    return this.reads;
  }

  close(): void {
    this.closed = true;
  }

  /** Messages since the last call. */
  take(): Notification[] {
    return this.messages.splice(0);
  }
}

function begin(t: TestContext, first: ServiceReport, manager = new Manager()) {
  t.mock.timers.enable({ apis: ['setInterval'] });
  const world = { report: first, reports: 0 };
  const notifier = new ServiceNotifier(
    manager,
    () => {
      world.reports++;
      return world.report;
    },
    createLogger('test', 'fatal'),
  );
  notifier.start();
  return { manager, notifier, world, pass: (ms: number) => t.mock.timers.tick(ms) };
}

const signsOfLife = (messages: readonly Notification[]) => messages.filter(({ WATCHDOG }) => WATCHDOG === 1).length;

test('a load is granted time at every tick, ready is said once and only when it is true', (t) => {
  const { manager, notifier, world, pass } = begin(t, loading);
  assert.deepEqual(manager.take(), [{ EXTEND_TIMEOUT_USEC: LOAD_EXTENSION_US, STATUS: loading.status }]);
  pass(3000);
  assert.deepEqual(manager.take(), Array(3).fill({ EXTEND_TIMEOUT_USEC: LOAD_EXTENSION_US }));
  world.report = ready;
  notifier.update();
  assert.deepEqual(manager.take(), [{ READY: 1, STATUS: ready.status }, { WATCHDOG: 1 }]);
  notifier.update();
  pass(1000);
  assert.deepEqual(manager.take(), [], 'nothing has changed');
});

test('where nothing is being loaded no time is asked for', (t) => {
  const { manager, pass } = begin(t, { ...loading, loading: false });
  pass(4000);
  assert.deepEqual(manager.take(), [{ STATUS: loading.status }]);
});

test('a server that is not ready any more says why, and is not started again for it', (t) => {
  const { manager, notifier, world } = begin(t, ready);
  manager.take();
  world.report = { ...loading, status: '0 of 1 models ready, m/1: its device process ended' };
  notifier.update();
  world.report = ready;
  notifier.update();
  assert.deepEqual(manager.take(), [
    { STATUS: '0 of 1 models ready, m/1: its device process ended' },
    { STATUS: ready.status },
  ]);
});

test('signs of life come at half the interval, and not while every instance is stuck', (t) => {
  const { manager, world, pass } = begin(t, ready);
  manager.take();
  pass(30_000);
  assert.equal(signsOfLife(manager.take()), 6);
  world.report = { ...ready, stuck: true };
  pass(30_000);
  assert.equal(signsOfLife(manager.take()), 0);
  world.report = ready;
  pass(5000);
  assert.equal(signsOfLife(manager.take()), 1);
});

test('a manager that expects no signs of life gets none', (t) => {
  const manager = new (class extends Manager {
    override readonly watchdogUs = undefined;
  })();
  const { pass } = begin(t, ready, manager);
  pass(60_000);
  assert.deepEqual(manager.take(), [{ READY: 1, STATUS: ready.status }]);
});

test('ready and stopping are said again until the manager has taken them', (t) => {
  const { manager, notifier, world, pass } = begin(t, loading);
  manager.take();
  manager.reads = false;
  world.report = ready;
  notifier.update();
  pass(3000);
  manager.reads = true;
  pass(1000);
  assert.deepEqual(manager.take(), [{ READY: 1, STATUS: ready.status }]);
  manager.reads = false;
  notifier.stopping(45);
  manager.reads = true;
  pass(1000);
  const [stopping] = manager.take();
  assert.deepEqual([stopping?.STOPPING, stopping?.EXTEND_TIMEOUT_USEC], [1, 45_000_000]);
});

test('after stopping neither ready nor a status is said, but signs of life are', (t) => {
  const { manager, notifier, world, pass } = begin(t, loading);
  manager.take();
  world.report = { ...loading, status: 'stopping' };
  notifier.stopping(45);
  notifier.stopping(45);
  assert.deepEqual(manager.take(), [{ STOPPING: 1, STATUS: 'stopping', EXTEND_TIMEOUT_USEC: 45_000_000 }]);
  world.report = { ...ready, status: 'another' };
  pass(10_000);
  assert.deepEqual(manager.take(), [{ WATCHDOG: 1 }, { WATCHDOG: 1 }]);
});

test('closing ends the timers and gives the socket back', (t) => {
  const { manager, notifier, pass } = begin(t, ready);
  manager.take();
  notifier.close();
  assert.equal(manager.closed, true);
  pass(60_000);
  assert.deepEqual(manager.take(), []);
});

test('without a manager nobody is asked for a report', (t) => {
  const manager = new (class extends Manager {
    override readonly present = false;
  })();
  const { notifier, world, pass } = begin(t, loading, manager);
  pass(60_000);
  notifier.update();
  notifier.stopping(1);
  assert.deepEqual([world.reports, manager.take()], [0, []]);
});

test('every instance has to be stuck, far beyond its own limit, and there has to be one', () => {
  const stuck = { forMs: 500 + STUCK_MARGIN_MS + 1, limitMs: 500 };
  const slow = { forMs: 500 + STUCK_MARGIN_MS, limitMs: 500 };
  const patient = { ...stuck, limitMs: 3_600_000 };
  const idle = { forMs: 0, limitMs: 500 };
  assert.equal(everyRunStuck([]), false);
  assert.equal(everyRunStuck([stuck]), true);
  assert.equal(everyRunStuck([stuck, stuck]), true);
  for (const other of [slow, patient, idle]) assert.equal(everyRunStuck([stuck, other]), false);
});
