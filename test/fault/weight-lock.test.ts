/**
 * Fault: servers that start on one host at the same time, and holders of the weight lock that die or stand still.
 *
 * Safety: weights are read by one at a time, whoever started it, and the lock is never taken from a holder that lives. Liveness: a dead holder's lock is free at
 * once, with nothing to clean up. The lock is that of the whole host: servers of other tests wait meanwhile, and may be met.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createLogger } from '../../src/config/log.ts';
import { WeightLock, type WeightLockStatus } from '../../src/supervisor/weight-lock.ts';
import { lock } from '../../src/system/flock.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { eventually } from '../support/idle.ts';
import { type CleanUp, makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, type TestServer } from '../support/server.ts';
import { startFixture } from '../unit/system/child.ts';

const LIMIT_MS = 60_000;

/** The file that every server on this host locks. */
function lockFile(): string {
  const own = new WeightLock(createLogger('test', 'fatal'));
  const { file } = own.status();
  own.close();
  assert(file !== null, 'there is no place for a lock file on this machine');
  return file;
}

interface EarlyStatus {
  readonly server: { readonly pid: number; readonly ready: boolean; readonly reason: string };
  readonly loads: { readonly weight_lock: WeightLockStatus };
  readonly processes: readonly { readonly role: string; readonly pid: number; readonly state: string }[];
}

/** A server that is not waited for, with a status that can be asked for before it is ready. */
class EarlyServer {
  readonly server: TestServer;
  readonly #runtimeDir: string;

  constructor(cleanUp: CleanUp, models: number) {
    const repository = makeRepository(cleanUp, {});
    for (let n = 0; n < models; n++) repository.writeFile([`model_${n}`, '1', 'model.onnx'], plusModel(n));
    this.#runtimeDir = temporaryDirectory(cleanUp, 'runtime');
    const args = ['--runtime-dir', this.#runtimeDir];
    this.server = launchServer(cleanUp, { repository: repository.dir, args });
  }

  /** Undefined while it does not listen yet. */
  async status(): Promise<EarlyStatus | undefined> {
    try {
      const file = path.join(this.#runtimeDir, `server-${this.server.pid}.json`);
      const { metrics } = JSON.parse(fs.readFileSync(file, 'utf8')) as { metrics: string };
      const answer = await fetch(`${metrics}/status`, { signal: AbortSignal.timeout(10_000) });
      return (await answer.json()) as EarlyStatus;
    } catch {
      return undefined;
    }
  }

  /** Waits until its status fits. */
  async until(fits: (status: EarlyStatus) => boolean): Promise<EarlyStatus> {
    let found: EarlyStatus | undefined;
    await eventually(async () => {
      const status = await this.status();
      if (status === undefined) return 'no status yet';
      if (!fits(status)) return `not so far: ${JSON.stringify(status.loads)}`;
      found = status;
      return undefined;
    }, LIMIT_MS);
    return found!;
  }
}

function waitsFor(pid: number): (status: EarlyStatus) => boolean {
  return ({ loads: { weight_lock: own } }) => own.state === 'waiting' && own.holder_pid === pid;
}

function devicePid({ processes }: EarlyStatus): number {
  return processes.find(({ role }) => role === 'device')!.pid;
}

test('servers that start at the same time load one model at a time, all of them together', async (t) => {
  const servers = [1, 2, 3].map(() => new EarlyServer(t, 4).server);
  await Promise.all(servers.map((server) => server.ready(LIMIT_MS)));
  const held = servers
    .flatMap(({ pid, logs }) =>
      logs
        .filter(({ msg }) => msg === 'weight lock given back')
        .map(({ takenUs, givenUs, waitedMs }) => ({
          pid,
          takenUs: Number(takenUs),
          givenUs: Number(givenUs),
          waitedMs: Number(waitedMs),
        })),
    )
    .sort((a, b) => a.takenUs - b.takenUs);
  assert.equal(held.length, 12);
  for (const [n, { pid, takenUs, givenUs }] of held.entries()) {
    assert(givenUs > takenUs);
    const before = held[n - 1];
    assert(before === undefined || takenUs >= before.givenUs, `${pid} loaded while ${before?.pid} did`);
  }
  assert(
    held.some(({ waitedMs }) => waitedMs > 0),
    'nobody ever waited: they did not start at the same time',
  );
});

// Story: a lock was taken from a holder that was only slow, and one left by a killed holder blocked for ever (stale-lock, 51).
test('a holder that stands still keeps the lock, whoever waits tells for whom, and its death frees it', async (t) => {
  // Servers of other tests may be loading just now.
  const holder = startFixture(t, 'lock-holder', [lockFile(), 'wait']);
  assert.equal(await holder.line(), 'locked');
  holder.process.kill('SIGSTOP');
  const waiting = new EarlyServer(t, 1);
  const { server, loads } = await waiting.until(waitsFor(holder.pid));
  assert.equal(loads.weight_lock.model, 'model_0/1 on cpu');
  assert.equal(server.ready, false);
  await waiting.server.log(({ msg, holderPid }) => msg === 'waiting for the weight lock' && holderPid === holder.pid);
  // Long after a lock that goes by age or by signs of life would have been taken over.
  await waiting.until((status) => waitsFor(holder.pid)(status) && status.loads.weight_lock.for_s >= 5);
  holder.process.kill('SIGKILL');
  await waiting.server.ready(LIMIT_MS);
  assert.equal((await waiting.until(() => true)).loads.weight_lock.state, 'free');
});

test('one server holds, the other waits for it, both say so; killing the holder frees the lock', async (t) => {
  const fd = fs.openSync(lockFile(), fs.constants.O_RDONLY);
  let closed = false;
  const free = (): void => {
    if (!closed) fs.closeSync(fd);
    closed = true;
  };
  t.after(free);
  await lock(fd, 'exclusive', { signal: AbortSignal.timeout(LIMIT_MS) });
  const pair = [new EarlyServer(t, 1), new EarlyServer(t, 1)];
  const both = await Promise.all(pair.map((one) => one.until(waitsFor(process.pid))));
  // Whichever gets the lock now holds it until its device process goes on, or has been found to stand still and been killed.
  for (const status of both) process.kill(devicePid(status), 'SIGSTOP');
  free();
  let holder: EarlyServer | undefined;
  await eventually(async () => {
    const states = await Promise.all(pair.map((one) => one.status()));
    for (const [n, status] of states.entries()) {
      const other = states[1 - n];
      if (status?.loads.weight_lock.state !== 'holding' || other === undefined) continue;
      if (waitsFor(status.server.pid)(other)) holder = pair[n];
    }
    return holder === undefined
      ? `neither holds while the other waits: ${JSON.stringify(states.map((one) => one?.loads))}`
      : undefined;
  }, LIMIT_MS);
  await holder!.server.kill();
  const [left] = pair.filter((one) => one !== holder);
  const { processes } = (await left!.status())!;
  for (const { role, pid } of processes) if (role === 'device' && pid !== null) process.kill(pid, 'SIGCONT');
  await left!.server.ready(LIMIT_MS);
});
