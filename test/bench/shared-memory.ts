/**
 * A request with 600 KB of input: the tensor in shared memory against the same tensor behind the JSON of an HTTP request, at a model that looks at four of its values.
 *
 * The tensor is left in the region by nobody in between, as with a client that computes it there.
 */
import fs from 'node:fs';
import path from 'node:path';
import { jsonBody, send } from '../support/exchange.ts';
import { makeRepository } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import { type Benchmark, interleave, pairwise } from './benchmark.ts';
import { cpuUs } from './process-cost.ts';
import { oneRow, processesOf, type Request } from './served.ts';

const COLUMNS = 150_000;
const BYTES = 4 * COLUMNS;
const CONNECTIONS = 8;

export const SHARED_MEMORY: Benchmark = {
  name: 'shared-memory',
  about: `${BYTES / 1000} KB of input a request, ${CONNECTIONS} connections: in shared memory, against behind the JSON of an HTTP request`,
  run: async ({ size, load, cleanUp }) => {
    const { dir } = makeRepository(cleanUp, { corner: {} });
    const server = await startServer(cleanUp, {
      repository: dir,
      args: ['--log-level', 'warn', '--system-shared-memory'],
    });
    const key = `batchport-bench-${process.pid}`;
    const file = path.join('/dev/shm', key);
    fs.writeFileSync(file, new Uint8Array(BYTES));
    cleanUp.after(() => fs.rmSync(file, { force: true }));
    const body = JSON.stringify({ key, byte_size: BYTES });
    const registered = await send(server.url, '/v2/systemsharedmemory/region/x/register', jsonBody(body));
    if (registered.status !== 200) throw new Error(registered.body.toString());
    const sent = oneRow(server, 'corner', COLUMNS, true);
    const place = { shared_memory_region: 'x', shared_memory_byte_size: BYTES };
    const header = {
      inputs: [{ name: 'x', datatype: 'FP32', shape: [1, COLUMNS], parameters: place }],
      outputs: [{ name: 'y', parameters: { binary_data: true } }],
    };
    const left = { url: sent.url, headers: {}, body: Buffer.from(JSON.stringify(header)) };
    const ingress = (await processesOf(server)).get('ingress')!;
    const run = async (request: Request) => {
      const before = cpuUs(ingress);
      const seconds = size.roundS;
      const { requests, seconds: took } = await load.run({ ...request, connections: CONNECTIONS, seconds });
      return { perS: requests / took, ingressCpuUs: (cpuUs(ingress) - before) / requests };
    };
    if (size.warmUpS > 0) for (const request of [sent, left]) await run(request);
    const { ones, others } = await interleave(
      size.rounds,
      () => run(sent),
      () => run(left),
    );
    return [
      {
        name: 'shared-600kb.throughput_ratio',
        values: pairwise(others, ones, (shared, http) => shared.perS / http.perS),
        target: { atLeast: 1.5 },
      },
      { name: 'shared-600kb.requests_per_s', values: others.map(({ perS }) => perS) },
      { name: 'shared-600kb.http_requests_per_s', values: ones.map(({ perS }) => perS) },
      { name: 'shared-600kb.ingress_cpu_us', values: others.map(({ ingressCpuUs }) => ingressCpuUs) },
      { name: 'shared-600kb.http_ingress_cpu_us', values: ones.map(({ ingressCpuUs }) => ingressCpuUs) },
    ];
  },
};
