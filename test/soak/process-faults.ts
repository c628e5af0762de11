/**
 * Faults by which processes die or stand still.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { Client } from '../../src/client/client.ts';
import type { WeightLockStatus } from '../../src/supervisor/weight-lock.ts';
import { lock } from '../../src/system/flock.ts';
import { type ChildRole, STALL_SIGNAL } from '../support/child-hook.ts';
import type { Random } from '../support/random.ts';
import type { Fault, Scene } from './fault.ts';
import { codeOf, pause } from './tally.ts';

const ROLES: readonly ChildRole[] = ['device', 'ingress'];
/** What it takes until a process that stands still is replaced, and then some. */
const REPLACED_MS = 8000;
/** Until a process that crashes at every start is given up. */
const GIVEN_UP_MS = 30_000;
const POISON_LIMIT_MS = 180_000;

/** What may become of a request that kills: never an answer, and none that says something else than what happened. */
const POISON_ENDS: ReadonlySet<string> = new Set(['WORKER_LOST', 'CONNECTION_LOST', 'NOT_READY']);

function killed(role: ChildRole, signal: NodeJS.Signals): Fault {
  return {
    name: `${role} ${signal}`,
    run: async (scene, random) => scene.signal(await scene.one(role, random), signal),
  };
}

/** All processes of a role, or of both, at the same instant. */
function allKilled(name: string, roles: readonly ChildRole[]): Fault {
  return {
    name,
    run: async (scene) => {
      const children = await Promise.all(roles.map((role) => scene.children(role)));
      for (const { pid } of children.flat()) scene.signal(pid, 'SIGKILL');
    },
  };
}

/** Stopped by a signal, and going on before anybody minds, or after it has been killed for it. */
function stopped(role: ChildRole, forMs: (random: Random) => number): Fault['run'] {
  return async (scene, random) => {
    const pid = await scene.one(role, random);
    scene.signal(pid, 'SIGSTOP');
    await pause(forMs(random));
    scene.signal(pid, 'SIGCONT');
  };
}

/** Its event loop does not turn any more, and it is replaced for that. */
async function stalled(scene: Scene, random: Random): Promise<void> {
  const role = random.pick(ROLES);
  const pid = await scene.one(role, random);
  scene.signal(pid, STALL_SIGNAL);
  const isGone = async () => (await scene.children(role)).every((child) => child.pid !== pid);
  await scene.until(isGone, GIVEN_UP_MS);
}

/** Sends requests whose run ends the process, some at once: beside the callers of the same model. */
async function poison({ server }: Scene, random: Random): Promise<void> {
  const client = new Client(server.url, { retry: false, timeoutMs: POISON_LIMIT_MS });
  const input = (name: string, value: number) =>
    ({ name, datatype: 'INT32', shape: [1, 1], data: Int32Array.of(value) }) as const;
  const one = async (): Promise<void> => {
    try {
      const result = await client.infer('crash', { inputs: [input('a', -(2 ** 31)), input('b', -1)] });
      assert.fail(`a request that kills was answered ${result.outputs[0]?.data}`);
    } catch (error) {
      if (!POISON_ENDS.has(codeOf(error) ?? '')) throw error;
    }
  };
  await Promise.all(Array.from({ length: random.int(1, 2) }, one));
  await client.close();
}

/** Whoever is started anew crashes, a few times; then all is well again. */
async function crashAtStart(scene: Scene, random: Random): Promise<void> {
  const role = random.pick(ROLES);
  scene.hook.crashAtStart(role);
  try {
    scene.signal(await scene.one(role, random), 'SIGKILL');
    await pause(random.int(200, 1500));
  } finally {
    scene.hook.mend(role);
  }
}

/** A process crashes at every start until it is given up, and comes back on command. */
async function givenUp(scene: Scene, random: Random): Promise<void> {
  const role = random.pick(ROLES);
  const isBroken = async () => (await statesOf(scene, role)).includes('broken');
  scene.hook.crashAtStart(role);
  try {
    scene.signal(await scene.one(role, random), 'SIGSEGV');
    await scene.until(isBroken, GIVEN_UP_MS);
  } finally {
    scene.hook.mend(role);
    scene.server.signal('SIGHUP');
  }
}

async function statesOf({ server }: Scene, role: ChildRole): Promise<string[]> {
  const { processes } = await server.status();
  return processes.filter((child) => child.role === role).map(({ state }) => String(state));
}

/** Somebody else on the host loads weights while a device has to. */
async function lockHeld(scene: Scene, random: Random): Promise<void> {
  const { loads } = (await scene.server.status()) as unknown as { loads: { weight_lock: WeightLockStatus } };
  const { file } = loads.weight_lock;
  if (file === null) return;
  const fd = fs.openSync(file, 'r');
  try {
    await lock(fd, 'exclusive', { signal: AbortSignal.timeout(GIVEN_UP_MS) });
    scene.signal(await scene.one('device', random), 'SIGKILL');
    await pause(random.int(300, 1500));
  } finally {
    fs.closeSync(fd);
  }
}

/** The supervisor does nothing for a while: processes and requests go on, and nobody is blamed afterwards. */
async function supervisorStopped(scene: Scene, random: Random): Promise<void> {
  scene.paused++;
  scene.server.signal('SIGSTOP');
  try {
    await pause(random.int(500, 4000));
  } finally {
    scene.server.signal('SIGCONT');
    // What it has missed is done before it answers.
    await scene.server.status();
    scene.paused--;
  }
}

export const PROCESS_FAULTS: readonly Fault[] = [
  killed('device', 'SIGKILL'),
  killed('device', 'SIGKILL'),
  killed('device', 'SIGSEGV'),
  killed('device', 'SIGABRT'),
  killed('ingress', 'SIGKILL'),
  killed('ingress', 'SIGKILL'),
  killed('ingress', 'SIGSEGV'),
  allKilled('all devices SIGKILL', ['device']),
  allKilled('all ingresses SIGKILL', ['ingress']),
  allKilled('everything but the supervisor SIGKILL', ROLES),
  { name: 'device SIGSTOP for a moment', run: stopped('device', (random) => random.int(1, 1500)) },
  { name: 'ingress SIGSTOP for a moment', run: stopped('ingress', (random) => random.int(1, 1500)) },
  { name: 'device SIGSTOP for good', run: stopped('device', () => REPLACED_MS), long: true },
  { name: 'ingress SIGSTOP for good', run: stopped('ingress', () => REPLACED_MS), long: true },
  { name: 'event loop that stands still', run: stalled, long: true },
  { name: 'poison', run: poison },
  { name: 'crash at start', run: crashAtStart },
  { name: 'crash at every start', run: givenUp, long: true },
  { name: 'weight lock held by another', run: lockHeld },
  { name: 'supervisor SIGSTOP', run: supervisorStopped },
];
