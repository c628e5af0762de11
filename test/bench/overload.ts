/**
 * The latency objective under load from below capacity to ten times it: what is answered inside the objective, how late the answers are, how soon the others are refused.
 *
 * In each round the capacity is measured with a closed loop, then requests come at their own times (Poisson) at multiples of it; latency counts from the time they were due.
 * Generator and server share the machine. Below capacity the answers are held against a simulated queue whose runs take what the server says that runs take.
 */
import fs from 'node:fs';
import path from 'node:path';
import { costUs } from '../../src/scheduler/cost-curve.ts';
import { Random } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import { countOf, openLoad, p99, type Run, runCosts, SLO_MS } from './bench-command.ts';
import type { Benchmark, Measurement, Target } from './benchmark.ts';
import { DEMO_DIR } from './demo.ts';

const CLIENTS = 8;
const BELOW = 0.8;
/** Row bytes of the classifier's input: 110 KB, as a client sends a line of text. */
const OCR = 'ocr_classifier';
const OCR_SHAPE = 'x:1,3,48,192';

/** Latest of the refusals, but for one in a hundred. */
function refusedMs({ not_ok }: Run): number {
  const refused = not_ok.find(({ outcome }) => outcome === '429');
  return refused === undefined ? 0 : p99(refused.latency_ms);
}

/** Requests without any answer of the server. */
function unanswered(one: Run): number {
  return one.requests - one.ok - countOf(one, '429', '504');
}

/** p99 (ms) of a queue that never waits and runs batches of at most so many rows; the best such limit counts. */
function idealP99Ms(us: Float64Array, ratePerS: number, seed: number): number {
  let best = Number.POSITIVE_INFINITY;
  for (let rowsMax = 1; rowsMax <= 64; rowsMax *= 2) {
    const random = new Random(seed);
    const latencies: number[] = [];
    const waiting: number[] = [];
    let freeUs = 0;
    let arrivalUs = 0;
    for (let n = 0; n < 20_000; n++) {
      arrivalUs += (-Math.log(1 - random.float()) / ratePerS) * 1e6;
      while (waiting.length > 0 && Math.max(freeUs, waiting[0]!) <= arrivalUs) {
        const startUs = Math.max(freeUs, waiting[0]!);
        const there = waiting.findIndex((atUs) => atUs > startUs);
        const batch = waiting.splice(0, Math.min(rowsMax, there < 0 ? waiting.length : there));
        freeUs = startUs + costUs(us, batch.length);
        for (const atUs of batch) latencies.push(freeUs - atUs);
      }
      waiting.push(arrivalUs);
    }
    latencies.sort((a, b) => a - b);
    best = Math.min(best, latencies[Math.floor(latencies.length * 0.99)]! / 1000);
  }
  return best;
}

export const OVERLOAD: Benchmark = {
  name: 'overload',
  onlyByName: true,
  about: `an objective of ${SLO_MS} ms at ${BELOW} to 10 times the capacity: conv, and the OCR classifier with bodies of 110 KB`,
  run: async ({ size, cleanUp }) => {
    const config = { slo_ms: SLO_MS, max_batch_size: 64, runtime: { intra_op_threads: 1 } };
    const repository = makeRepository(cleanUp, { conv: { config } });
    const ocrFile = fs.readFileSync(path.join(DEMO_DIR, OCR, '1/model.onnx'));
    repository.writeFile([OCR, '1', 'model.onnx'], ocrFile);
    repository.writeConfig(OCR, { slo_ms: SLO_MS, runtime: { intra_op_threads: 1 } });
    const server = await startServer(cleanUp, { repository: repository.dir, args: ['--log-level', 'warn'] });
    const values = new Map<string, { values: number[]; target: Target | undefined }>();
    const note = (name: string, value: number, target?: Target): void => {
      const known = values.get(name) ?? { values: [], target };
      known.values.push(value);
      values.set(name, known);
    };
    for (let round = 0; round < size.rounds; round++) {
      const closed = await openLoad(server, 'conv', size.roundS, '-c', String(CLIENTS));
      note('conv.capacity_per_s', closed.ok_per_s);
      for (const factor of size.quick ? [2] : [BELOW, 1.5, 2, 3, 10]) {
        const ratePerS = Math.max(1, factor * closed.ok_per_s);
        const open = await openLoad(
          server,
          'conv',
          size.roundS,
          '--rate',
          ratePerS.toFixed(1),
          '--seed',
          String(round + 1),
        );
        const name = factor === BELOW ? 'conv-below' : `conv-${factor * 100}pct`;
        note(`${name}.p99_ms`, p99(open.latency_ms), { atMost: SLO_MS });
        note(`${name}.unanswered`, unanswered(open), { atMost: 0 });
        if (factor === BELOW) {
          note(`${name}.refused`, countOf(open, '429', '504'), { atMost: 0 });
          const ideal = idealP99Ms(await runCosts(server, 'conv'), ratePerS, round + 1);
          note(`${name}.p99_ratio`, p99(open.latency_ms) / ideal, { atMost: 1.3 });
        } else {
          note(`${name}.goodput_ratio`, (open.goodput_per_s ?? 0) / closed.ok_per_s, { atLeast: 0.95 });
          note(`${name}.refused_p99_ms`, refusedMs(open), { atMost: 20 });
        }
      }
      const shape = ['--shape', OCR_SHAPE];
      const ocr = await openLoad(server, OCR, size.roundS, '-c', String(CLIENTS), ...shape);
      const open = await openLoad(
        server,
        OCR,
        size.roundS,
        '--rate',
        Math.max(1, 2 * ocr.ok_per_s).toFixed(1),
        ...shape,
      );
      note('ocr-200pct.goodput_ratio', (open.goodput_per_s ?? 0) / ocr.ok_per_s, { atLeast: 0.8 });
      note('ocr-200pct.capacity_per_s', ocr.ok_per_s);
      note('ocr-200pct.p99_ms', p99(open.latency_ms), { atMost: SLO_MS });
    }
    return [...values].map(([name, { values: all, target }]): Measurement => {
      return { name, values: all, ...(target === undefined ? {} : { target }) };
    });
  },
};
