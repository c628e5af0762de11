/**
 * A model that the machine needs milliseconds for: the server must come close to a direct loop over ONNX Runtime with batches of the same size.
 *
 * One thread per run on both sides. 64 connections send one row each; the server forms the batches, and after each round the loop runs batches of
 * the size that they had on average. That is fair while no batch is tiny: from 8 rows on, a run of this model takes time in proportion to its rows.
 */
import path from 'node:path';
import { writeModel } from '../support/models.ts';
import { temporaryDirectory } from '../support/repository.ts';
import type { TestServer } from '../support/server.ts';
import type { Benchmark } from './benchmark.ts';
import { BenchChild } from './child.ts';
import type { DirectJob, DirectReport } from './direct-loop.ts';
import { cpuUs } from './process-cost.ts';
import { oneRow, processesOf, serve } from './served.ts';

const CONNECTIONS = 64;
const COLUMNS = 1024;
const THREADS = 1;

interface Round {
  readonly rowsPerS: number;
  readonly batchRows: number;
  /** Share of the time in which the instance was busy with a batch. */
  readonly busyRatio: number;
  readonly directRowsPerS: number;
  /** Processor time for a row, µs, of the server's processes and of the loop. */
  readonly ingressCpuUs: number;
  readonly deviceCpuUs: number;
  readonly directCpuUs: number;
}

async function counters(server: TestServer, pids: ReadonlyMap<string, number>) {
  return {
    ingressCpuUs: cpuUs(pids.get('ingress')!),
    deviceCpuUs: cpuUs(pids.get('device')!),
    batches: await server.metric('batchport_batches_total'),
    rows: await server.metric('batchport_batch_rows_executed_total'),
    busyS: await server.metric('batchport_instance_busy_seconds_total'),
  };
}

export const COMPUTE_BOUND: Benchmark = {
  name: 'compute-bound',
  about:
    'mlp_big, one row a request, 64 connections, against a direct loop over the C API with batches of the same size',
  run: async ({ size, load, cleanUp }) => {
    const config = { runtime: { intra_op_threads: THREADS } };
    const server = await serve(cleanUp, { mlp_big: { config } });
    const request = oneRow(server, 'mlp_big', COLUMNS, true);
    const modelPath = writeModel(temporaryDirectory(cleanUp, 'direct'), 'mlp_big');
    const direct = BenchChild.start<DirectJob, DirectReport>(cleanUp, 'direct-loop');
    const job = { modelPath: path.resolve(modelPath), intraOpThreads: THREADS };

    const pids = await processesOf(server);

    const round = async (seconds: number): Promise<Round> => {
      const before = await counters(server, pids);
      const { requests, seconds: took } = await load.run({ ...request, connections: CONNECTIONS, seconds });
      const after = await counters(server, pids);
      const rows = after.rows - before.rows;
      const batchRows = rows / (after.batches - before.batches);
      const directBefore = cpuUs(direct.pid);
      const loop = await direct.ask({ ...job, batchRows, seconds });
      return {
        rowsPerS: requests / took,
        batchRows,
        busyRatio: (after.busyS - before.busyS) / took,
        directRowsPerS: loop.rows / loop.seconds,
        ingressCpuUs: (after.ingressCpuUs - before.ingressCpuUs) / rows,
        deviceCpuUs: (after.deviceCpuUs - before.deviceCpuUs) / rows,
        directCpuUs: (cpuUs(direct.pid) - directBefore) / loop.rows,
      };
    };

    if (size.warmUpS > 0) await round(size.warmUpS);
    const rounds: Round[] = [];
    for (let n = 0; n < size.rounds; n++) rounds.push(await round(size.roundS));
    const values = (of: (one: Round) => number) => rounds.map(of);
    return [
      {
        name: 'mlp_big-c64.rows_ratio',
        values: values(({ rowsPerS, directRowsPerS }) => rowsPerS / directRowsPerS),
        target: { atLeast: 0.95 },
      },
      { name: 'mlp_big-c64.rows_per_s', values: values(({ rowsPerS }) => rowsPerS) },
      { name: 'mlp_big-c64.direct_rows_per_s', values: values(({ directRowsPerS }) => directRowsPerS) },
      { name: 'mlp_big-c64.batch_rows', values: values(({ batchRows }) => batchRows) },
      { name: 'mlp_big-c64.instance_busy_ratio', values: values(({ busyRatio }) => busyRatio) },
      { name: 'mlp_big-c64.ingress_cpu_us', values: values(({ ingressCpuUs }) => ingressCpuUs) },
      { name: 'mlp_big-c64.device_cpu_us', values: values(({ deviceCpuUs }) => deviceCpuUs) },
      { name: 'mlp_big-c64.direct_cpu_us', values: values(({ directCpuUs }) => directCpuUs) },
    ];
  },
};
