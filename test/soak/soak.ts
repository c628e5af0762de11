/**
 * The soak: a real server on two devices and two ingress processes under a steady mixed load, while processes are killed and stopped and clients misbehave, at
 * random from a seed.
 *
 *     warm up ─▶ idle: count ─▶ storm: every fault ─▶ calm: only clients' faults ─▶ idle: count again ─▶ stop
 *
 * Safety is judged all the time, liveness once the faults stop. What has to be true is in judgement.ts. The seed decides the order of the faults and what is sent,
 * not the instants at which processes are hit.
 */
import { ChildHook } from '../support/child-hook.ts';
import { sendTogether } from '../support/exchange.ts';
import {
  assertAllAtWork,
  assertIdle,
  assertNoMoreDescriptors,
  countDescriptors,
  type Descriptors,
  eventually,
  modelsOf,
} from '../support/idle.ts';
import { Random } from '../support/random.ts';
import { type CleanUp, makeRepository } from '../support/repository.ts';
import { type LogLine, startServer, type TestServer } from '../support/server.ts';
import { Callers } from './callers.ts';
import { Drivers } from './drivers.ts';
import { Deck, Scene } from './fault.ts';
import { GrpcCallers } from './grpc-callers.ts';
import { Journal } from './journal.ts';
import { type Check, memoryChecks, none, requestChecks, stated } from './judgement.ts';
import { MODELS } from './kinds.ts';
import { Pipers } from './pipers.ts';
import { PROCESS_FAULTS } from './process-faults.ts';
import { Watch } from './samples.ts';
import { pause, Tally } from './tally.ts';
import { LARGE, VISITORS } from './visitors.ts';

export interface SoakOptions {
  readonly seconds: number;
  readonly seed: number;
  /** Told how it goes. */
  readonly log: (line: string) => void;
  /** Told every line of the server's log. */
  readonly onServerLog?: (line: LogLine) => void;
}

export interface SoakReport {
  readonly checks: readonly Check[];
  /** Violations in words. */
  readonly faults: readonly string[];
}

const DEVICES = ['--device', 'cpu', '--device', 'cpu'];
/** Of a device: enough for every model, and for a few rows of the one that needs much. */
const BUDGET = '512MiB';
/** Of the faults by which processes die, as many wait until the server is ready again; the others hit processes that are still starting. */
const PATIENCE = 0.7;
/** Liveness: far beyond what a loaded machine needs to start everything again. */
const RECOVERY_LIMIT_MS = 120_000;
/** More than an ingress process has threads for. */
const LARGE_AT_ONCE = 4;
const LOOK_MS = 1000;
const PROGRESS_S = 30;
/** A run shorter than this has only the faults that are over quickly. */
const LONG_S = 120;

/** Ways in which processes are meant to end here; others are bugs. (SIGUSR2 ends one that is too young to have been told what it means.) */
const EXPECTED_EXITS =
  /^(signal SIG(KILL|SEGV|ABRT|FPE|USR2)( \(from outside\))?|killed by the supervisor \((stopped|silent|run too long)\))$/;

interface Pace {
  /** Whether there is time for faults that are not over quickly. */
  readonly long: boolean;
  readonly warmUpS: number;
  readonly stormS: number;
  readonly calmS: number;
  /** Mean time between two faults of a kind. */
  readonly processFaultMs: number;
  readonly visitorMs: number;
}

function paceOf(seconds: number): Pace {
  const warmUpS = Math.min(30, seconds * 0.1);
  const calmS = seconds * 0.35;
  const long = seconds >= LONG_S;
  return {
    long,
    warmUpS,
    calmS,
    stormS: seconds - warmUpS - calmS,
    processFaultMs: long ? 3000 : 500,
    visitorMs: long ? 1000 : 300,
  };
}

/** What was counted while nothing went on. */
interface Idle {
  readonly descriptors: Descriptors;
  /** Shared memory of the queues, bytes. */
  readonly committedBytes: number;
}

export async function soak(cleanUp: CleanUp, { seconds, seed, log, onServerLog }: SoakOptions): Promise<SoakReport> {
  const random = new Random(seed);
  const pace = paceOf(seconds);
  const journal = new Journal();
  const hook = new ChildHook(cleanUp);
  const server = await startServer(cleanUp, {
    grpc: true,
    repository: makeRepository(cleanUp, MODELS).dir,
    args: [...DEVICES, '--ingress', '2', '--max-body-bytes', '16MiB', '--memory-budget-bytes', BUDGET],
    env: hook.env,
    onLog: (line) => {
      journal.take(line);
      onServerLog?.(line);
    },
  });
  const tally = new Tally();
  const scene = new Scene(server, hook);
  const drivers = new Drivers(scene, random.fork(), log);
  const before = await warmUp(scene, tally, pace, random);
  const watch = new Watch(scene, LOOK_MS);
  const progress = setInterval(() => {
    const faultCount = tally.faultCount + drivers.faults.length + watch.faults.length;
    const { sent, answered } = tally;
    log(
      `${Math.round(watch.nowS)} s: ${answered} of ${sent} answered, ${drivers.count} faults, ${journal.deaths} deaths, ${faultCount} violations`,
    );
  }, PROGRESS_S * 1000);
  let calmFromS = 0;
  await load(server, tally, random, async () => {
    log(`${pace.stormS.toFixed(0)} s of storm`);
    await storm(drivers, pace, random);
    // Whatever has been given up meanwhile is tried again.
    server.signal('SIGHUP');
    await drivers.blame('not all at work after the storm', assertAllAtWork(server, RECOVERY_LIMIT_MS));
    log(`${pace.calmS.toFixed(0)} s of calm`);
    calmFromS = watch.nowS;
    tally.calm = true;
    await drivers.drive(new Deck(VISITORS, random.fork()), pace.visitorMs, pace.calmS, 0);
    await drivers.settle();
  });
  clearInterval(progress);
  await watch.stop();

  const { exits, deaths } = await aftermath(server, drivers, before);
  const checks: Check[] = [
    ...requestChecks(tally),
    stated("longest delay of the soak's own event loop", `${Math.round(watch.longestDelayMs)} ms`),
    stated('faults', drivers.count),
    stated('deaths of processes', deaths),
    none('ends of processes that nobody caused', exits.length),
    stated('loads', journal.loads),
    none('loads that overlapped', journal.overlaps),
    none('lines in the log that tell of a bug', journal.outcryCount),
    none('looks that found something amiss', watch.faults.length),
    none('other violations', drivers.faults.length),
    ...memoryChecks(watch.samples, calmFromS),
  ];
  return { checks, faults: [...tally.faults, ...exits, ...journal.outcries, ...watch.faults, ...drivers.faults] };
}

/** Has everything used once, and counts what there is while nothing goes on. */
async function warmUp({ server }: Scene, tally: Tally, pace: Pace, random: Random): Promise<Idle> {
  // Ready is the server with its first device.
  await assertAllAtWork(server);
  await load(server, tally, random, () => pause(pace.warmUpS * 1000));
  await useThreads(server);
  await assertIdle(server);
  return { descriptors: await countDescriptors(server), committedBytes: await committedBytes(server) };
}

/** Faults of processes and of clients, side by side. */
async function storm(drivers: Drivers, { stormS, processFaultMs, visitorMs, long }: Pace, random: Random) {
  const processFaults = PROCESS_FAULTS.filter((fault) => long || fault.long !== true);
  await Promise.all([
    drivers.drive(new Deck(processFaults, random.fork()), processFaultMs, stormS, PATIENCE),
    drivers.drive(new Deck(VISITORS, random.fork()), visitorMs, stormS, 0),
  ]);
  await drivers.settle();
}

/** Whether everything has been given back, and how processes ended; stops the server. */
async function aftermath(server: TestServer, drivers: Drivers, before: Idle) {
  await drivers.blame('queues', assertIdle(server, RECOVERY_LIMIT_MS));
  await drivers.blame('descriptors', assertNoMoreDescriptors(server, before.descriptors));
  await drivers.blame('shared memory', assertGivenBack(server, before.committedBytes));
  const exits = await unexpectedExits(server);
  const deaths = await server.metric('batchport_process_restarts_total');
  await drivers.blame('the stop', stopCleanly(server));
  return { exits, deaths };
}

/** Sends the load as long as `action` takes, and waits for all of its answers. */
async function load(server: TestServer, tally: Tally, random: Random, action: () => Promise<void>): Promise<void> {
  const callers = new Callers(server.url, tally, random.fork());
  const pipers = new Pipers(server.url, tally, random.fork());
  const grpcCallers = new GrpcCallers(server, tally, random.fork());
  try {
    await action();
  } finally {
    await Promise.all([callers.stop(), pipers.stop(), grpcCallers.stop()]);
  }
}

/**
 * Has every ingress process start the threads it has for large JSON, so that their descriptors are counted. While one is meant to accept, the others stand still; if
 * that takes so long that they are replaced, all is done again.
 */
async function useThreads(server: TestServer): Promise<void> {
  await eventually(async () => {
    await assertAllAtWork(server);
    const pids = await server.pids('ingress');
    for (const pid of pids) {
      const others = pids.filter((other) => other !== pid);
      for (const other of others) process.kill(other, 'SIGSTOP');
      try {
        await Promise.all(Array.from({ length: LARGE_AT_ONCE }, () => sendTogether(server.url, [LARGE])));
      } finally {
        for (const other of others) process.kill(other, 'SIGCONT');
      }
    }
    const after = await server.pids('ingress');
    return after.every((pid, slot) => pid === pids[slot]) ? undefined : 'an ingress process was replaced';
  }, RECOVERY_LIMIT_MS);
}

async function committedBytes(server: TestServer): Promise<number> {
  return modelsOf(await server.status()).reduce((sum, { queue }) => sum + (queue?.committed_bytes ?? 0), 0);
}

/** Waits until the queues hold no more shared memory than before: what is unused is given back at intervals. */
function assertGivenBack(server: TestServer, before: number): Promise<void> {
  return eventually(async () => {
    const now = await committedBytes(server);
    return now <= before ? undefined : `${now} bytes of shared memory instead of ${before}`;
  }, RECOVERY_LIMIT_MS);
}

async function unexpectedExits(server: TestServer): Promise<string[]> {
  const labels = (await server.metrics()).matchAll(/^batchport_process_exits_total\{(.*reason="([^"]*)".*)\} /gm);
  return [...labels].filter(([, , reason]) => !EXPECTED_EXITS.test(reason!)).map(([line]) => line);
}

async function stopCleanly(server: TestServer): Promise<void> {
  const { code, signal } = await server.stop();
  if (code !== 0 || signal !== null) throw new Error(`the server ended with ${code ?? signal}`);
}
