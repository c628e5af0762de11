/** Memory of the server with the demo repository loaded and nothing to do, beside one process that holds the same models. */
import type { CleanUp } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import { type Benchmark, CleanUps, type Measurement } from './benchmark.ts';
import { BenchChild } from './child.ts';
import { DEMO_DIR, demoModels } from './demo.ts';
import { type MemoryUse, memoryUse } from './process-cost.ts';
import { processesOf } from './served.ts';

/** Until the garbage of the start has been collected, as far as it will be. */
const SETTLE_MS = 2000;

/** Memory by process. The one side must be gone before the other is measured: pages of a library that both map would be shared between them. */
async function measure(
  settleMs: number,
  start: (cleanUp: CleanUp) => Promise<ReadonlyMap<string, number>>,
): Promise<Map<string, MemoryUse>> {
  const cleanUp = new CleanUps();
  try {
    const pids = await start(cleanUp);
    await new Promise((resolve) => setTimeout(resolve, settleMs));
    return new Map([...pids].map(([name, pid]) => [name, memoryUse(pid)]));
  } finally {
    await cleanUp.run();
  }
}

async function startServed(cleanUp: CleanUp): Promise<ReadonlyMap<string, number>> {
  return processesOf(await startServer(cleanUp, { repository: DEMO_DIR, args: ['--log-level', 'warn'] }));
}

async function startBare(cleanUp: CleanUp): Promise<ReadonlyMap<string, number>> {
  const bare = BenchChild.start<readonly string[], number>(cleanUp, 'bare-sessions');
  await bare.ask(demoModels());
  return new Map([['bare', bare.pid]]);
}

export const IDLE_MEMORY: Benchmark = {
  name: 'idle-memory',
  about:
    'memory of each process with the demo repository and no request, beside one process that holds the same models',
  run: async ({ size }) => {
    const settleMs = size.quick ? 0 : SETTLE_MS;
    const served: Map<string, MemoryUse>[] = [];
    const bare: Map<string, MemoryUse>[] = [];
    for (let round = 0; round < size.rounds; round++) {
      served.push(await measure(settleMs, startServed));
      bare.push(await measure(settleMs, startBare));
    }
    const measurements: Measurement[] = [];
    for (const kind of ['pss', 'rss', 'peak'] as const) {
      const add = (what: string, values: number[]) =>
        measurements.push({ name: `idle-demo.${what}_${kind}_bytes`, values });
      const of = (process: string) => (round: Map<string, MemoryUse>) => round.get(process)![`${kind}Bytes`];
      add(
        'total',
        served.map((round) => [...round.keys()].reduce((sum, process) => sum + of(process)(round), 0)),
      );
      for (const process of served[0]!.keys()) add(process, served.map(of(process)));
      add('bare', bare.map(of('bare')));
    }
    return measurements;
  },
};
