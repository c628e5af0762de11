/**
 * What a fault costs clients: an open load at half of the server's capacity, while processes are killed or stopped at intervals.
 *
 * Nothing is sent twice, except where an ingress process is killed, whose connections die with it.
 */
import { ChildHook } from '../support/child-hook.ts';
import { assertAllAtWork } from '../support/idle.ts';
import { tcpConnections } from '../support/process-table.ts';
import { makeRepository } from '../support/repository.ts';
import { startServer, type TestServer } from '../support/server.ts';
import type { Bench, Measurement } from './benchmark.ts';
import { LOAD_MODEL, latencyMs, OpenLoad, type Outcome } from './open-load.ts';

/** How long a scenario takes, and how often it kills. */
interface Pace {
  readonly loadS: number;
  readonly everyMs: number;
  readonly capacityS: number;
}

const FULL: Pace = { loadS: 20, everyMs: 2000, capacityS: 4 };
const QUICK: Pace = { loadS: 1.5, everyMs: 600, capacityS: 0.3 };
const LIMIT_MS = 120_000;

interface Scenario {
  readonly name: string;
  readonly args: readonly string[];
  /** Whether requests whose connection is lost are sent again. */
  readonly retry?: boolean;
  /** Does the harm; called at every interval, with the number of times before. */
  strike(stage: Stage, before: number): Promise<void>;
  /** Whether all processes come back by themselves. */
  readonly heals: boolean;
  /** Whether it is part of the smallest size. */
  readonly quick?: true;
}

interface Stage {
  readonly server: TestServer;
  readonly hook: ChildHook;
  /** Ports of clients whose connections belonged to an ingress process that was killed. */
  readonly victims: Set<number>;
}

/** Ids of the processes of a role that live, as the status has them. */
async function living({ server }: Stage, role: 'device' | 'ingress'): Promise<number[]> {
  return (await server.pids(role)).filter((pid) => pid !== null);
}

/** One that has ended since it was looked for is left alone. */
function signal(pid: number | undefined, signal: NodeJS.Signals): void {
  if (pid === undefined) return;
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

const SCENARIOS: readonly Scenario[] = [
  {
    name: 'device-killed',
    args: [],
    heals: true,
    quick: true,
    strike: async (stage) => signal((await living(stage, 'device'))[0], 'SIGKILL'),
  },
  {
    name: 'device-stopped',
    args: [],
    heals: true,
    strike: async (stage) => signal((await living(stage, 'device'))[0], 'SIGSTOP'),
  },
  {
    name: 'ingress-killed',
    args: ['--ingress', '2'],
    retry: true,
    heals: true,
    quick: true,
    strike: async (stage, before) => {
      const pids = await living(stage, 'ingress');
      const pid = pids[before % pids.length];
      if (pid === undefined) return;
      // So that it accepts nothing between the look at its connections and its end.
      signal(pid, 'SIGSTOP');
      for (const { peerPort } of tcpConnections(pid)) stage.victims.add(peerPort);
      signal(pid, 'SIGKILL');
    },
  },
  {
    name: 'device-lost',
    args: ['--device', 'cpu', '--device', 'cpu'],
    heals: false,
    strike: async (stage, before) => {
      if (before > 0) return;
      stage.hook.crashAtStart('device');
      signal((await living(stage, 'device'))[0], 'SIGKILL');
    },
  },
];

export async function underLoad({ size, cleanUp }: Bench): Promise<Measurement[]> {
  const measurements: Measurement[] = [];
  for (const scenario of SCENARIOS.filter(({ quick }) => quick === true || !size.quick)) {
    const hook = new ChildHook(cleanUp);
    const server = await startServer(cleanUp, {
      repository: makeRepository(cleanUp, LOAD_MODEL).dir,
      args: scenario.args,
      env: hook.env,
    });
    await assertAllAtWork(server);
    const stage: Stage = { server, hook, victims: new Set() };
    measurements.push(...(await run(scenario, stage, size.quick ? QUICK : FULL)));
    await server.stop();
  }
  return measurements;
}

async function run(scenario: Scenario, stage: Stage, { loadS, everyMs, capacityS }: Pace): Promise<Measurement[]> {
  const load = new OpenLoad(stage.server.url);
  try {
    await load.capacityPerS(capacityS);
    const capacityPerS = await load.capacityPerS(capacityS);
    let strikes = 0;
    let failure: unknown;
    const timer = setInterval(() => {
      scenario.strike(stage, strikes++).catch((error) => {
        failure ??= error;
      });
    }, everyMs);
    const sent = await load
      .send({ perS: capacityPerS / 2, seconds: loadS, retry: scenario.retry === true })
      .finally(() => clearInterval(timer));
    const outcomes = await Promise.all(sent);
    if (failure !== undefined) throw failure;
    if (scenario.heals) await assertAllAtWork(stage.server, LIMIT_MS);
    return figures(scenario, stage, outcomes, capacityPerS);
  } finally {
    load.close();
  }
}

async function figures(
  { name, retry }: Scenario,
  { server, victims }: Stage,
  outcomes: readonly Outcome[],
  capacityPerS: number,
): Promise<Measurement[]> {
  const one = (metric: string, value: number, target?: Measurement['target']): Measurement => ({
    name: `${name}.${metric}`,
    values: [value],
    ...(target === undefined ? {} : { target }),
  });
  const lost = outcomes.flatMap(({ lostPorts }) => lostPorts);
  return [
    one('capacity_per_s', capacityPerS),
    one('requests', outcomes.length),
    one('deaths', await server.metric('batchport_process_exits_total')),
    one('not_200', outcomes.filter(({ status }) => status !== 200).length, { atMost: 0 }),
    ...(retry === true
      ? [
          one('connections_lost', lost.length),
          one('connections_lost_of_others', lost.filter((port) => !victims.has(port)).length, { atMost: 0 }),
        ]
      : []),
    one('median_ms', latencyMs(outcomes, 0.5)),
    one('p99_ms', latencyMs(outcomes, 0.99)),
    one('slowest_ms', latencyMs(outcomes, 1)),
  ];
}
