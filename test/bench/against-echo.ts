/**
 * The server against a bare echo of the same bytes: throughput, latency, and processor time of every process for a request.
 *
 * Ratios and differences are taken within a round, then the median over rounds: what slows the machine for a while slows both. Processor time per
 * request hardly depends on what else the machine does.
 */
import assert from 'node:assert/strict';
import { addressOf, rawRequest, requestBytes } from '../support/raw.ts';
import type { TestServer } from '../support/server.ts';
import { type Bench, interleave, type Measurement, pairwise, type Target } from './benchmark.ts';
import { BenchChild } from './child.ts';
import type { EchoAnswer } from './echo-server.ts';
import type { LoadGenerator } from './load.ts';
import { cpuUs } from './process-cost.ts';
import { processesOf, type Request } from './served.ts';

export interface Topology {
  /** Start of the names of its measurements. */
  readonly name: string;
  readonly connections: number;
  /** Targets by metric. */
  readonly targets?: Readonly<Record<string, Target>>;
}

/** One of the two that are compared. */
export interface Side {
  readonly load: LoadGenerator;
  readonly request: Request;
  /** Its processes by name. */
  readonly pids: ReadonlyMap<string, number>;
}

interface Round {
  readonly requestsPerS: number;
  readonly medianUs: number;
  readonly p99Us: number;
  /** Processor time for a request, µs, by process. */
  readonly cpuUs: ReadonlyMap<string, number>;
}

/** Headers that node:http adds by itself. */
const ADDED_HEADERS = new Set(['date', 'connection', 'keep-alive']);

/** Against an echo on node:http. */
export async function compareWithEcho(
  bench: Bench,
  server: TestServer,
  request: Request,
  topologies: readonly Topology[],
): Promise<Measurement[]> {
  const echo = BenchChild.start<EchoAnswer, { port: number }>(bench.cleanUp, 'echo-server');
  const answer = await answerTo(request);
  const { port } = await echo.ask(answer);
  const echoRequest = { ...request, url: request.url.replace(/:\d+\//, `:${port}/`) };
  assert.deepEqual(await answerTo(echoRequest), answer, 'the echo does not answer like the server');
  const { load } = bench;
  const serverSide = { load, request, pids: await processesOf(server) };
  const echoSide = { load, request: echoRequest, pids: new Map([['echo', echo.pid]]) };
  return compareSides(bench, serverSide, echoSide, topologies);
}

/** Measures the topologies one after another. */
export async function compareSides(
  bench: Bench,
  server: Side,
  echo: Side,
  topologies: readonly Topology[],
): Promise<Measurement[]> {
  const measurements: Measurement[] = [];
  for (const topology of topologies) measurements.push(...(await compare(bench, server, echo, topology)));
  return measurements;
}

/** What is answered to the request, without what node:http adds by itself. */
async function answerTo({ url, headers, body }: Request): Promise<EchoAnswer> {
  const bytes = requestBytes('POST', new URL(url).pathname, Object.entries(headers), body);
  const answer = await rawRequest(addressOf(url), bytes);
  assert.equal(answer.status, 200, answer.text());
  const own = answer.headers.filter(([name]) => !ADDED_HEADERS.has(name));
  return { headers: Object.fromEntries(own), body: answer.body };
}

async function compare(bench: Bench, server: Side, echo: Side, topology: Topology): Promise<Measurement[]> {
  const { rounds, roundS, warmUpS } = bench.size;
  const { name, connections, targets = {} } = topology;
  if (warmUpS > 0) for (const side of [echo, server]) await runSide(side, connections, warmUpS);
  const { ones: echoes, others: servers } = await interleave(
    rounds,
    () => runSide(echo, connections, roundS),
    () => runSide(server, connections, roundS),
  );
  const metrics: Record<string, readonly number[]> = {
    throughput_ratio: pairwise(servers, echoes, (ours, bare) => ours.requestsPerS / bare.requestsPerS),
    requests_per_s: servers.map(({ requestsPerS }) => requestsPerS),
    echo_requests_per_s: echoes.map(({ requestsPerS }) => requestsPerS),
    added_median_us: pairwise(servers, echoes, (ours, bare) => ours.medianUs - bare.medianUs),
    median_us: servers.map(({ medianUs }) => medianUs),
    echo_median_us: echoes.map(({ medianUs }) => medianUs),
    p99_ratio: pairwise(servers, echoes, (ours, bare) => ours.p99Us / bare.p99Us),
    p99_us: servers.map(({ p99Us }) => p99Us),
    echo_p99_us: echoes.map(({ p99Us }) => p99Us),
  };
  for (const process of servers[0]!.cpuUs.keys())
    metrics[`${process}_cpu_us`] = servers.map((r) => r.cpuUs.get(process)!);
  metrics.echo_cpu_us = echoes.map((round) => round.cpuUs.get('echo')!);
  return Object.entries(metrics).map(([metric, values]) => {
    const target = targets[metric];
    return { name: `${name}.${metric}`, values, ...(target === undefined ? {} : { target }) };
  });
}

async function runSide({ load, request, pids }: Side, connections: number, seconds: number): Promise<Round> {
  const before = new Map([...pids].map(([name, pid]) => [name, cpuUs(pid)]));
  const { requests, seconds: took, medianUs, p99Us, loadCpuUs } = await load.run({ ...request, connections, seconds });
  if (requests === 0) throw new Error(`${request.url} answered nothing within ${seconds} s`);
  const costs = new Map([...pids].map(([name, pid]) => [name, (cpuUs(pid) - before.get(name)!) / requests]));
  costs.set('load', loadCpuUs / requests);
  return { requestsPerS: requests / took, medianUs, p99Us, cpuUs: costs };
}
