/**
 * What becomes of a server after faults without a load to speak of: all devices killed at once, a request that kills, the supervisor killed.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { Journal } from '../soak/journal.ts';
import { earlyStarts } from '../support/child-log.ts';
import { infer, json, jsonBody } from '../support/exchange.ts';
import { assertAllAtWork, untilRunning } from '../support/idle.ts';
import { allMemoryFiles, descendants, isAlive, memoryFiles, namedMemoryFiles } from '../support/process-table.ts';
import { type CleanUp, makeRepository, temporaryDirectory } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import type { Bench, Measurement } from './benchmark.ts';

const LIMIT_MS = 120_000;
const DEVICES = 8;
const CALLERS = 16;
const POLL_MS = 1;

const one = (name: string, value: number, target?: Measurement['target']): Measurement => ({
  name,
  values: [value],
  ...(target === undefined ? {} : { target }),
});

/** Eight devices killed at once. */
export async function restartStorm({ cleanUp }: Bench): Promise<Measurement[]> {
  const journal = new Journal();
  const server = await startServer(cleanUp, {
    repository: makeRepository(cleanUp, { conv: { config: { max_batch_size: 0 } } }).dir,
    args: Array.from({ length: DEVICES }, () => ['--device', 'cpu']).flat(),
    startLimitMs: LIMIT_MS,
    onLog: (line) => journal.take(line),
  });
  await assertAllAtWork(server, LIMIT_MS);
  const data = new Array(64).fill(0.5);
  const request = jsonBody(JSON.stringify({ inputs: [{ name: 'x', datatype: 'FP32', shape: [1, 64], data }] }));
  assert.equal((await infer(server.url, 'conv', request)).status, 200);
  const pids = await server.pids('device');
  assert.equal(pids.length, DEVICES);
  const loadsBefore = journal.loads;
  const killedMs = performance.now();
  for (const pid of pids) process.kill(pid, 'SIGKILL');
  const { status } = await infer(server.url, 'conv', request);
  const firstAnswerMs = performance.now() - killedMs;
  await assertAllAtWork(server, LIMIT_MS);
  const allMs = performance.now() - killedMs;
  await server.log(() => journal.loads >= loadsBefore + DEVICES);
  const names = Array.from({ length: DEVICES }, (_, n) => (n === 0 ? 'cpu' : `cpu#${n + 1}`));
  const early = names.flatMap((name) => earlyStarts(server, 'device', name));
  await server.stop();
  return [
    one('restart-storm.not_200', status === 200 ? 0 : 1, { atMost: 0 }),
    one('restart-storm.first_answer_ms', firstAnswerMs),
    one('restart-storm.all_back_ms', allMs),
    one('restart-storm.loads_that_overlapped', journal.overlaps, { atMost: 0 }),
    one('restart-storm.starts_before_their_backoff', early.length, { atMost: 0 }),
  ];
}

/** One request that ends its process, in a batch with 15 others. */
export async function poison({ cleanUp }: Bench): Promise<Measurement[]> {
  // What kills is a division that only x64 traps.
  if (process.arch !== 'x64') return [];
  const config = { max_batch_size: CALLERS, max_queue_delay_us: 500_000, runtime: { intra_op_threads: 1 } };
  const server = await startServer(cleanUp, { repository: makeRepository(cleanUp, { crash: { config } }).dir });
  const input = (name: string, value: number) =>
    `{"name":"${name}","datatype":"INT32","shape":[1,1],"data":[${value}]}`;
  const divide = (a: number, b: number) =>
    infer(server.url, 'crash', jsonBody(`{"inputs":[${input('a', a)},${input('b', b)}]}`));
  const startedMs = performance.now();
  const answers = await Promise.all(
    Array.from({ length: CALLERS }, (_, n) => (n === 5 ? divide(-(2 ** 31), -1) : divide(100 * n, 10))),
  );
  const tookMs = performance.now() - startedMs;
  for (const [n, answer] of answers.entries()) {
    if (answer.status !== 200) continue;
    assert.deepEqual((json(answer).outputs as { data: number[] }[])[0]!.data, [10 * n], 'a wrong answer');
  }
  const deaths = await server.metric('batchport_process_exits_total', { role: 'device' });
  await assertAllAtWork(server, LIMIT_MS);
  await server.stop();
  return [
    one('poison.answers', answers.filter(({ status }) => status === 200).length, { atLeast: CALLERS - 1 }),
    one('poison.errors', answers.filter(({ status }) => status === 503).length, { atMost: 1 }),
    one('poison.deaths', deaths, { atMost: 6 }),
    one('poison.last_answer_ms', tookMs),
  ];
}

/** The supervisor killed in the middle of runs, over and over. */
export async function supervisorKilled({ size, cleanUp }: Bench): Promise<Measurement[]> {
  const repository = makeRepository(cleanUp, ['slow', 'rows']).dir;
  const runtimeDir = temporaryDirectory(cleanUp, 'runtime');
  const goneMs: number[] = [];
  const readyMs: number[] = [];
  const sharedBefore = namedMemoryFiles();
  let filesLeft = 0;
  let segmentsLeft = 0;
  for (let round = 0; round < (size.quick ? 1 : 5); round++) {
    const killed = await killSupervisor(cleanUp, repository, runtimeDir);
    goneMs.push(killed.goneMs);
    segmentsLeft += killed.segmentsLeft;
    const startedMs = performance.now();
    const next = await startServer(cleanUp, { repository, args: ['--runtime-dir', runtimeDir] });
    readyMs.push(performance.now() - startedMs);
    const own = `server-${next.pid}.json`;
    filesLeft += fs.readdirSync(runtimeDir).filter((name) => name !== own).length;
    await next.stop();
    filesLeft += fs.readdirSync(runtimeDir).length;
  }
  filesLeft += namedMemoryFiles().filter((name) => !sharedBefore.includes(name)).length;
  return [
    { name: 'supervisor-killed.children_gone_ms', values: goneMs },
    one('supervisor-killed.children_gone_at_most_ms', Math.max(...goneMs), { atMost: 2000 }),
    one('supervisor-killed.files_left', filesLeft, { atMost: 0 }),
    one('supervisor-killed.segments_left', segmentsLeft, { atMost: 0 }),
    { name: 'supervisor-killed.next_ready_ms', values: readyMs },
  ];
}

interface Killed {
  /** From the kill until no process of the server is left. */
  readonly goneMs: number;
  /** Of its shared memory, how many pieces somebody still has. */
  readonly segmentsLeft: number;
}

async function killSupervisor(cleanUp: CleanUp, repository: string, runtimeDir: string): Promise<Killed> {
  const args = ['--ingress', '2', '--device', 'cpu', '--device', 'cpu', '--runtime-dir', runtimeDir];
  const server = await startServer(cleanUp, { repository, args });
  await assertAllAtWork(server);
  const steps = '{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[20000]}]}';
  const broken = infer(server.url, 'slow', jsonBody(steps)).then(
    () => assert.fail('it was answered'),
    () => {},
  );
  await untilRunning(server, 'slow');
  const children = descendants(server.pid);
  const segments = memoryFiles(server.pid);
  const killedMs = performance.now();
  server.signal('SIGKILL');
  while (children.some(isAlive)) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  const goneMs = performance.now() - killedMs;
  await broken;
  await server.ended();
  const left = allMemoryFiles();
  return { goneMs, segmentsLeft: [...segments].filter((file) => left.has(file)).length };
}
