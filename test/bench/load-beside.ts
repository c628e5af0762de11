/**
 * What the clients of a model notice of the load of another one: its p99 alone, and while a large model beside it is loaded and unloaded over and over.
 *
 * The steady one runs `conv` with one thread a run, at half of its capacity. Each load of the large one is a first one: its weights, in a file of their own, are not in
 * the page cache, and nothing is known of it, so that all trials are made.
 */
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { ControlledServer } from '../support/control.ts';
import { declare, encodeModel, externalConstant, node, spec } from '../support/onnx.ts';
import { seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { startServer } from '../support/server.ts';
import { openLoad, p99 } from './bench-command.ts';
import { type Benchmark, interleave, pairwise } from './benchmark.ts';

const CLIENTS = 8;
const LAYERS = 12;
/** Of a layer, 26 MB. */
const WIDTH = 2560;
const QUICK = { layers: 1, width: 256 };
const WEIGHTS = 'model.onnx_data';

export const LOAD_BESIDE: Benchmark = {
  name: 'load-beside',
  onlyByName: true,
  about: `a model at half of its capacity, alone and while one of ${Math.round((LAYERS * WIDTH ** 2 * 4) / 1e6)} MB is loaded over and over beside it`,
  run: async ({ size, cleanUp }) => {
    const config = { max_batch_size: 8, runtime: { intra_op_threads: 1 } };
    const repository = makeRepository(cleanUp, { steady: { fixture: 'conv', config } });
    const { layers, width } = size.quick ? QUICK : { layers: LAYERS, width: WIDTH };
    const large = repository.path('large', '1');
    writeLarge(large, layers, width);
    const args = ['--log-level', 'warn', '--model-control-mode', 'explicit', '--load-model', 'steady'];
    const server = await startServer(cleanUp, { repository: repository.dir, args });
    const control = new ControlledServer(server, repository);
    const { ok_per_s: capacityPerS } = await openLoad(server, 'steady', size.roundS, '-c', String(CLIENTS));
    const steady = async () => {
      const rate = Math.max(1, capacityPerS / 2).toFixed(1);
      return p99((await openLoad(server, 'steady', size.roundS, '--rate', rate)).latency_ms);
    };
    const beside = async () => {
      let over = false;
      const loading = loadOften(control, large, () => over);
      const p99Ms = await steady();
      over = true;
      return { p99Ms, loadsMs: await loading };
    };
    if (size.warmUpS > 0) await beside();
    const { ones, others } = await interleave(size.rounds, steady, beside);
    const loadsMs = others.flatMap((round) => round.loadsMs);
    return [
      {
        name: 'load-beside.p99_ratio',
        values: pairwise(others, ones, ({ p99Ms }, alone) => p99Ms / alone),
        target: { atMost: 1.3 },
      },
      { name: 'load-beside.p99_ms', values: others.map(({ p99Ms }) => p99Ms) },
      { name: 'load-beside.alone_p99_ms', values: ones },
      { name: 'load-beside.load_ms', values: loadsMs },
    ];
  },
};

/** Loads the model until it is told that it is over, at least once. @returns what each load took, ms. */
async function loadOften(control: ControlledServer, directory: string, over: () => boolean): Promise<number[]> {
  const tookMs: number[] = [];
  do {
    forget(directory);
    const began = performance.now();
    await succeed(control.load('large'));
    tookMs.push(performance.now() - began);
    await succeed(control.unload('large'));
  } while (!over());
  return tookMs;
}

async function succeed(answered: ReturnType<ControlledServer['load']>): Promise<void> {
  const { status, body } = await answered;
  if (status !== 200) throw new Error(`the large model: ${body}`);
}

/** Makes the files those of a model that nobody has seen: written anew, and not in the page cache. */
function forget(directory: string): void {
  const now = new Date();
  fs.utimesSync(path.join(directory, 'model.onnx'), now, now);
  const of = `of=${path.join(directory, WEIGHTS)}`;
  execFileSync('dd', [of, 'oflag=nocache', 'conv=notrunc,fdatasync', 'count=0', 'status=none']);
}

/** `x[N, width] → y`, products with `layers` square matrices one after another; their weights lie in a file beside the model. */
function writeLarge(directory: string, layers: number, width: number): void {
  const bytes = 4 * width ** 2;
  const random = seedFromEnv();
  const scale = 1 / Math.sqrt(width);
  const matrix = Float32Array.from({ length: width ** 2 }, () => (2 * random.float() - 1) * scale);
  fs.mkdirSync(directory, { recursive: true });
  const file = fs.openSync(path.join(directory, WEIGHTS), 'w');
  for (let layer = 0; layer < layers; layer++) fs.writeSync(file, new Uint8Array(matrix.buffer));
  fs.closeSync(file);
  const numbers = Array.from({ length: layers }, (_, layer) => layer);
  const model = encodeModel({
    nodes: numbers.map((n) =>
      node('MatMul', [n === 0 ? 'x' : `h${n}`, `w${n}`], [n === layers - 1 ? 'y' : `h${n + 1}`]),
    ),
    constants: numbers.map((n) => {
      return externalConstant(`w${n}`, 'FP32', [width, width], { location: WEIGHTS, offset: n * bytes, length: bytes });
    }),
    inputs: [declare(spec('x', 'FP32', ['N', width]))],
    outputs: [declare(spec('y', 'FP32', ['N', width]))],
  });
  fs.writeFileSync(path.join(directory, 'model.onnx'), model);
}
