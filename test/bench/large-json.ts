/** What small binary requests of a tiny model feel of another client that sends large JSON bodies back to back. */
import { type Benchmark, interleave, pairwise } from './benchmark.ts';
import { BenchChild } from './child.ts';
import type { LoadReport } from './load-count.ts';
import type { LoadJob } from './load-worker.ts';
import { oneRow, type Request, serve } from './served.ts';

const MIB = 2 ** 20;
const BODY_BYTES = 20 * MIB;
const QUICK_BODY_BYTES = MIB;
const CONNECTIONS = 16;

export const LARGE_JSON: Benchmark = {
  name: 'large-json',
  about: `tiny MLP, binary, ${CONNECTIONS} connections, alone and while one client sends JSON bodies of 20 MiB back to back`,
  run: async ({ size, load, cleanUp }) => {
    const server = await serve(cleanUp, { mlp: {}, reduce_batch: {} });
    const request = oneRow(server, 'mlp', 64, true);
    const large = sumOf(`${server.url}/v2/models/reduce_batch/infer`, size.quick ? QUICK_BODY_BYTES : BODY_BYTES);
    const neighbour = BenchChild.start<LoadJob, LoadReport>(cleanUp, 'load-worker');
    const alone = (seconds: number) => load.run({ ...request, connections: CONNECTIONS, seconds });
    const beside = async (seconds: number) => {
      const [small, bodies] = await Promise.all([alone(seconds), neighbour.ask({ ...large, connections: 1, seconds })]);
      return { ...small, bodies };
    };
    if (size.warmUpS > 0) await beside(size.warmUpS);
    const { ones, others } = await interleave(
      size.rounds,
      () => alone(size.roundS),
      () => beside(size.roundS),
    );
    return [
      { name: 'beside-large-json.p99_us', values: others.map(({ p99Us }) => p99Us) },
      { name: 'beside-large-json.median_us', values: others.map(({ medianUs }) => medianUs) },
      { name: 'beside-large-json.requests_per_s', values: others.map(perSecond) },
      { name: 'beside-large-json.bodies_per_s', values: others.map(({ bodies }) => perSecond(bodies)) },
      { name: 'beside-large-json.bodies_median_us', values: others.map(({ bodies }) => bodies.medianUs) },
      { name: 'alone.p99_us', values: ones.map(({ p99Us }) => p99Us) },
      { name: 'alone.requests_per_s', values: ones.map(perSecond) },
      { name: 'beside-large-json.p99_ratio', values: pairwise(others, ones, (a, b) => a.p99Us / b.p99Us) },
    ];
  },
};

function perSecond({ requests, seconds }: LoadReport): number {
  return requests / seconds;
}

/** A request with a body of about this size, whose answer is one number: the sum of ten integers a row. */
function sumOf(url: string, bytes: number): Request {
  const element = '1234567,';
  const rows = Math.floor(bytes / (10 * element.length));
  const head = `{"inputs":[{"name":"x","datatype":"INT64","shape":[${rows},10],"data":[`;
  const data = element.repeat(10 * rows).slice(0, -1);
  return { url, headers: {}, body: Buffer.from(`${head}${data}]}]}`) };
}
