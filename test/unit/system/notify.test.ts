/** What a service manager is told, with a datagram socket in its place. */
import assert from 'node:assert/strict';
import { readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { type ServiceManager, takeServiceManager } from '../../../src/system/notify.ts';
import { notifySocket } from '../../support/notify-socket.ts';
import { type CleanUp, temporaryDirectory } from '../../support/repository.ts';

function manager(cleanUp: CleanUp, env: Record<string, string>, pid?: number): ServiceManager {
  const found = takeServiceManager(env, pid);
  cleanUp.after(() => found.close());
  return found;
}

let names = 0;
const abstractName = () => `@batchport-test-${process.pid}-${names++}`;

for (const kind of ['a path', 'an abstract name']) {
  test(`messages arrive at ${kind}, one datagram each, a line for each assignment`, (t) => {
    const name = kind === 'a path' ? join(temporaryDirectory(t), 'notify') : abstractName();
    const receiver = notifySocket(t, name);
    const sender = manager(t, { NOTIFY_SOCKET: name });
    assert.deepEqual([sender.present, sender.problem], [true, undefined]);
    assert.equal(sender.notify({ READY: 1, STATUS: '2 of 2 models ready: grüße' }), true);
    assert.equal(sender.notify({ WATCHDOG: 1 }), true);
    receiver.fetch();
    assert.deepEqual(receiver.messages, [{ READY: '1', STATUS: '2 of 2 models ready: grüße' }, { WATCHDOG: '1' }]);
  });
}

test('a value cannot bring an assignment of its own, and is cut when it is long', (t) => {
  const receiver = notifySocket(t, abstractName());
  const sender = manager(t, { NOTIFY_SOCKET: receiver.name });
  sender.notify({ STATUS: 'a model\nMAINPID=1\r\nREADY=1\u0000\u2028' });
  sender.notify({ STATUS: 'x'.repeat(100_000), EXTEND_TIMEOUT_USEC: 5 });
  receiver.fetch();
  assert.deepEqual(receiver.messages[0], { STATUS: 'a model MAINPID=1 READY=1 ' });
  assert.deepEqual(receiver.messages[1], { STATUS: `${'x'.repeat(499)}…`, EXTEND_TIMEOUT_USEC: '5' });
});

test('the variables are taken out of the environment, so that only the first who asks finds a manager', (t) => {
  const receiver = notifySocket(t, abstractName());
  const env = { NOTIFY_SOCKET: receiver.name, WATCHDOG_USEC: '2000000', WATCHDOG_PID: '7', PATH: '/bin' };
  assert.equal(manager(t, env, 7).watchdogUs, 2_000_000);
  assert.deepEqual(env, { PATH: '/bin' });
  assert.equal(manager(t, env, 7).present, false);
});

test('signs of life are expected only with a valid interval that is meant for this process', (t) => {
  const { name } = notifySocket(t, abstractName());
  const expected = (more: Record<string, string>) => manager(t, { NOTIFY_SOCKET: name, ...more }, 7).watchdogUs;
  assert.equal(expected({ WATCHDOG_USEC: '500' }), 500);
  assert.equal(expected({ WATCHDOG_USEC: '500', WATCHDOG_PID: '7' }), 500);
  assert.equal(expected({ WATCHDOG_USEC: '500', WATCHDOG_PID: '8' }), undefined);
  for (const text of ['', '0', '-5', '1e6', 'soon', '99999999999999999999']) {
    assert.equal(expected({ WATCHDOG_USEC: text }), undefined, text);
  }
  assert.equal(expected({}), undefined);
});

test('without a manager nothing is sent and nothing fails', (t) => {
  for (const env of [{}, { NOTIFY_SOCKET: '' }, { WATCHDOG_USEC: '1000000' }]) {
    const none = manager(t, env);
    assert.deepEqual([none.present, none.problem, none.watchdogUs], [false, undefined, undefined]);
    assert.equal(none.notify({ READY: 1 }), false);
  }
});

test('a socket that cannot be used is named as a problem instead of failing the service', (t) => {
  for (const name of ['relative/path', 'vsock:2:1234', '@', `/${'x'.repeat(107)}`, `@${'x'.repeat(108)}`]) {
    const none = manager(t, { NOTIFY_SOCKET: name });
    assert.equal(none.present, false, name);
    assert.ok(none.problem?.includes(name), name);
    assert.equal(none.notify({ READY: 1 }), false);
  }
  const longest = `@${'x'.repeat(107)}`;
  const receiver = notifySocket(t, longest);
  assert.equal(manager(t, { NOTIFY_SOCKET: longest }).notify({ READY: 1 }), true);
  assert.equal(receiver.fetch(), 1);
});

test('a manager that is gone, was never there, or comes back is no failure', (t) => {
  const path = join(temporaryDirectory(t), 'notify');
  const sender = manager(t, { NOTIFY_SOCKET: path });
  assert.equal(sender.notify({ STATUS: 'nobody yet' }), false);
  const receiver = notifySocket(t, path);
  assert.equal(sender.notify({ STATUS: 'there' }), true);
  assert.equal(receiver.fetch(), 1);
  receiver.close();
  assert.equal(sender.notify({ STATUS: 'gone' }), false);
  rmSync(path);
  const next = notifySocket(t, path);
  assert.equal(sender.notify({ STATUS: 'back' }), true);
  assert.equal(next.fetch(), 1);
});

test('a manager that does not read never makes the service wait', (t) => {
  const receiver = notifySocket(t, abstractName());
  const sender = manager(t, { NOTIFY_SOCKET: receiver.name });
  let taken = 0;
  // The kernel keeps a few hundred at most; a send that waited would wait for ever here.
  while (taken < 100_000 && sender.notify({ WATCHDOG: 1 })) taken++;
  assert.ok(taken > 0 && taken < 100_000, `${taken}`);
  assert.equal(receiver.fetch(), taken);
  assert.equal(sender.notify({ WATCHDOG: 1 }), true);
});

test('closing gives the descriptor back, twice is once, and later messages are dropped', (t) => {
  const receiver = notifySocket(t, abstractName());
  const before = readdirSync('/proc/self/fd').length;
  const sender = takeServiceManager({ NOTIFY_SOCKET: receiver.name });
  assert.equal(readdirSync('/proc/self/fd').length, before + 1);
  sender.close();
  sender.close();
  assert.equal(sender.notify({ READY: 1 }), false);
  assert.equal(readdirSync('/proc/self/fd').length, before);
  assert.equal(receiver.fetch(), 0);
});
