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
  eventually,
  modelsOf,
} from '../support/idle.ts';
import { Random } from '../support/random.ts';
import { type CleanUp, makeRepository } from '../support/repository.ts';
import { type LogLine, startServer, type TestServer } from '../support/server.ts';
import { Callers } from './callers.ts';
import { Deck, type Fault, Scene } from './fault.ts';
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
/** Faults that may go on at once. */
const FAULTS_MAX = 4;
/** The others hit processes that are still starting. */
const PATIENCE = 0.7;
const PATIENCE_MS = 30_000;
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
  const short = seconds < LONG_S;
  return {
    warmUpS,
    calmS,
    stormS: seconds - warmUpS - calmS,
    processFaultMs: short ? 500 : 3000,
    visitorMs: short ? 300 : 1000,
  };
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
  const faults: string[] = [];
  const blame = async (what: string, action: Promise<unknown>): Promise<void> => {
    await action.catch((error: Error) => faults.push(`${what}: ${error.message}`));
  };

  // Ready is the server with its first device.
  await assertAllAtWork(server);
  await load(server, tally, random, () => pause(pace.warmUpS * 1000));
  await useThreads(server);
  await assertIdle(server);
  const descriptors = await countDescriptors(server);
  const committed = await committedBytes(server);

  const scene = new Scene(server, hook);
  const watch = new Watch(scene, LOOK_MS);
  const drivers = new Drivers(scene, random.fork(), faults, log);
  let calmFromS = 0;
  const progress = setInterval(() => {
    const { sent, answered, faultCount } = tally;
    log(
      `${Math.round(watch.nowS)} s: ${answered} of ${sent} answered, ${drivers.count} faults, ${journal.deaths} deaths, ${faultCount + faults.length} violations`,
    );
  }, PROGRESS_S * 1000);
  await load(server, tally, random, async () => {
    const short = seconds < LONG_S;
    const processFaults = PROCESS_FAULTS.filter(({ long }) => !(short && long));
    log(`${pace.stormS.toFixed(0)} s of storm`);
    await Promise.all([
      drivers.drive(new Deck(processFaults, random.fork()), pace.processFaultMs, pace.stormS, PATIENCE),
      drivers.drive(new Deck(VISITORS, random.fork()), pace.visitorMs, pace.stormS, 0),
    ]);
    await drivers.settle();
    // Whatever has been given up meanwhile is tried again.
    server.signal('SIGHUP');
    await blame('not all at work after the storm', assertAllAtWork(server, RECOVERY_LIMIT_MS));
    calmFromS = watch.nowS;
    tally.calm = true;
    log(`${pace.calmS.toFixed(0)} s of calm`);
    await drivers.drive(new Deck(VISITORS, random.fork()), pace.visitorMs, pace.calmS, 0);
    await drivers.settle();
  });
  clearInterval(progress);
  await watch.stop();

  await blame('queues', assertIdle(server, RECOVERY_LIMIT_MS));
  await blame('descriptors', assertNoMoreDescriptors(server, descriptors));
  await blame('shared memory', assertGivenBack(server, committed));
  const exits = await unexpectedExits(server);
  const restarts = await server.metric('batchport_process_restarts_total');
  await blame('the stop', stopCleanly(server));
  const checks: Check[] = [
    ...requestChecks(tally),
    stated("longest delay of the soak's own event loop", `${Math.round(watch.longestDelayMs)} ms`),
    stated('faults', drivers.count),
    stated('deaths of processes', restarts),
    none('ends of processes that nobody caused', exits.length),
    stated('loads', journal.loads),
    none('loads that overlapped', journal.overlaps),
    none('lines in the log that tell of a bug', journal.outcryCount),
    none('looks that found something amiss', watch.faults.length),
    none('other violations', faults.length),
    ...memoryChecks(watch.samples, calmFromS),
  ];
  return { checks, faults: [...tally.faults, ...exits, ...journal.outcries, ...watch.faults, ...faults] };
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

/** Draws faults at random times. */
class Drivers {
  count = 0;
  readonly #scene: Scene;
  readonly #random: Random;
  readonly #faults: string[];
  readonly #log: (line: string) => void;
  readonly #running = new Set<Promise<void>>();

  constructor(scene: Scene, random: Random, faults: string[], log: (line: string) => void) {
    this.#scene = scene;
    this.#random = random;
    this.#faults = faults;
    this.#log = log;
  }

  /** @param patience chance that the next fault waits until the server is ready again: without that, a slow machine would never get there. */
  async drive(deck: Deck<Fault>, meanMs: number, seconds: number, patience: number): Promise<void> {
    const random = this.#random.fork();
    const deadline = performance.now() + seconds * 1000;
    while (performance.now() < deadline) {
      while (this.#running.size >= FAULTS_MAX) await Promise.race(this.#running);
      if (random.chance(patience)) await this.#scene.until(() => this.#scene.isReady(), PATIENCE_MS);
      this.#run(deck.draw(), random.fork());
      await pause(Math.min(2 * meanMs * random.float(), Math.max(0, deadline - performance.now())));
    }
  }

  #run(fault: Fault, random: Random): void {
    this.count++;
    const running = fault.run(this.#scene, random).then(
      () => {},
      (error: Error) => {
        // While the supervisor stands still, nobody can be asked for process ids.
        if (this.#scene.paused > 0 && error.name === 'TimeoutError') return;
        this.#faults.push(`${fault.name}: ${error.message}`);
        this.#log(`${fault.name}: ${error.stack}`);
      },
    );
    this.#running.add(running);
    void running.then(() => this.#running.delete(running));
  }

  /** Waits until none is going on. */
  async settle(): Promise<void> {
    await Promise.all(this.#running);
  }
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
