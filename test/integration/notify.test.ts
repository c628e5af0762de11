/**
 * A whole server under a service manager that is only a socket: what it hears over a life, from the first load to the stop.
 *
 * The load is held up by the weight lock, which the test takes: so it is certain that nothing was ready before.
 */
import assert from 'node:assert/strict';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { lock, unlock } from '../../src/system/flock.ts';
import { get, infer, jsonBody } from '../support/exchange.ts';
import { processesOf } from '../support/idle.ts';
import { type Message, notifySocket } from '../support/notify-socket.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, startServer, type TestServer } from '../support/server.ts';

const VARIABLES = ['NOTIFY_SOCKET', 'WATCHDOG_USEC', 'WATCHDOG_PID'];
const WATCHDOG_US = 200_000;

const isReady = ({ READY }: Message) => READY === '1';
const isSignOfLife = ({ WATCHDOG }: Message) => WATCHDOG === '1';
const isStopping = ({ STOPPING }: Message) => STOPPING === '1';

/** The lock that a server loads weights under; it goes with the test at the latest. */
async function holdWeights(t: TestContext, file: string): Promise<() => void> {
  const fd = openSync(file, 'r');
  t.after(() => closeSync(fd));
  await lock(fd, 'exclusive', { signal: AbortSignal.timeout(30_000) });
  return () => unlock(fd);
}

/** File of the weight lock, from a server that has one. */
async function weightLockFile(server: TestServer): Promise<string> {
  const { loads } = (await server.status()) as unknown as { loads: { weight_lock: { file: string } } };
  return loads.weight_lock.file;
}

function environmentOf(pid: number): string[] {
  return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
}

// Story: the unit was killed while a large model loaded, or counted as started long before it served (systemd-notify, 80).
test('ready is told only when every model is, the stop at once, and no child can speak in the server’s name', async (t) => {
  const { dir } = makeRepository(t, ['simple', 'slow']);
  const other = await startServer(t, { repository: dir });
  const release = await holdWeights(t, await weightLockFile(other));
  const manager = notifySocket(t, join(temporaryDirectory(t), 'notify'));
  const server = launchServer(t, {
    repository: dir,
    env: { NOTIFY_SOCKET: manager.name, WATCHDOG_USEC: String(WATCHDOG_US), WATCHDOG_PID: undefined },
  });

  const waiting = await manager.message(({ STATUS }) => STATUS?.includes('waiting to load') === true);
  assert.match(
    waiting.STATUS!,
    /^0 of 2 models ready, waiting to load \w+\/1 on cpu until process \d+ has loaded its own/,
  );
  await manager.message(({ EXTEND_TIMEOUT_USEC }) => Number(EXTEND_TIMEOUT_USEC) > 0);
  assert.equal(manager.messages.some(isReady), false);

  release();
  const ready = await manager.message(isReady);
  await server.ready();
  assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
  assert.equal(ready.STATUS, `2 of 2 models ready at ${server.url}`);
  const beats = manager.messages.filter(isSignOfLife).length;
  await manager.message(() => manager.messages.filter(isSignOfLife).length > beats + 2);
  assert.equal(manager.messages.filter(isReady).length, 1);

  for (const { role, pid } of processesOf(await server.status())) {
    if (role === 'supervisor') continue;
    const names = environmentOf(pid).map((line) => line.split('=')[0]!);
    assert.deepEqual(
      names.filter((name) => VARIABLES.includes(name)),
      [],
      `environment of ${role} ${pid}`,
    );
  }

  // Long enough to be in flight when the server is told to stop.
  const steps = { inputs: [{ name: 'steps', datatype: 'INT64', shape: [1, 1], data: [10_000] }] };
  const answer = infer(server.url, 'slow', jsonBody(JSON.stringify(steps)));
  while ((await server.metric('batchport_requests_in_flight', { model: 'slow' })) === 0);
  server.signal('SIGTERM');
  const stopping = await manager.message(isStopping);
  assert.equal(stopping.STATUS, 'stopping: requests in flight are being answered');
  assert.equal(stopping.EXTEND_TIMEOUT_USEC, '45000000');
  assert.equal((await answer).status, 200);
  assert.deepEqual(await server.ended(), { code: 0, signal: null });
  manager.fetch();
  assert.deepEqual(manager.messages.slice(manager.messages.findIndex(isStopping) + 1).filter(isReady), []);
});

test('the status tells which model cannot be served, and a lost one until it is back', async (t) => {
  const repository = makeRepository(t, ['simple']);
  repository.writeFile(['broken', '1', 'model.onnx'], 'not a model');
  const manager = notifySocket(t, `@batchport-notify-test-${process.pid}`);
  const server = await startServer(t, { repository: repository.dir, env: { NOTIFY_SOCKET: manager.name } });
  const ready = await manager.message(isReady);
  assert.match(ready.STATUS!, /^1 of 2 models ready at \S+, cannot serve broken\/1: ./);

  const [device] = await server.pids('device');
  process.kill(device!, 'SIGKILL');
  const after = (earlier: Message) => manager.messages.slice(manager.messages.indexOf(earlier) + 1);
  const saysReady = (count: number) => (message: Message) =>
    message.STATUS?.startsWith(`${count} of 2 models ready`) === true;
  await manager.message(() => after(ready).some(saysReady(0)));
  const lost = after(ready).find(saysReady(0))!;
  assert.match(lost.STATUS!, /simple\/1: its device process ended/);
  await manager.message(() => after(lost).some(saysReady(1)));
  assert.equal(manager.messages.filter(isReady).length, 1, 'ready is said once');
  assert.equal(manager.messages.some(isSignOfLife), false, 'nobody asked for signs of life');
});

test('a server that cannot serve never says that it is ready', async (t) => {
  const repository = makeRepository(t, ['simple']);
  repository.writeFile(['broken', '1', 'model.onnx'], 'not a model');
  const manager = notifySocket(t, `@batchport-notify-strict-${process.pid}`);
  const server = launchServer(t, {
    repository: repository.dir,
    args: ['--strict-readiness'],
    env: { NOTIFY_SOCKET: manager.name },
  });
  await server.ready();
  await manager.message(({ STATUS }) => STATUS?.startsWith('1 of 2 models ready at') === true);
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  await manager.message(isStopping);
  assert.equal(manager.messages.some(isReady), false);
});

test('a manager that has gone, or a socket that is none, is logged and does no harm', async (t) => {
  const { dir } = makeRepository(t, ['simple']);
  const nobody = join(temporaryDirectory(t), 'nobody');
  for (const [name, message] of [
    [nobody, /does not take messages/],
    ['vsock:2:1234', /cannot be told anything/],
  ] as const) {
    const server = await startServer(t, { repository: dir, env: { NOTIFY_SOCKET: name, WATCHDOG_USEC: '200000' } });
    await server.log(({ msg }) => message.test(String(msg)));
    assert.equal((await get(server.url, '/v2/health/ready')).status, 200);
    assert.deepEqual(await server.stop(), { code: 0, signal: null });
  }
});
