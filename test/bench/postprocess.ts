/**
 * What the steps of a postprocess cost, in the event loop or in a thread alike, beside a copy of the same tensor; and the way to a thread and back. One row each: 1000
 * scores, 128 vectors of 384, 40 steps of 6625 classes.
 */

import { createLogger } from '../../src/config/log.ts';
import type { PostprocessStep } from '../../src/config/model-config.ts';
import { BodyBudget } from '../../src/ingress/body.ts';
import { JsonThreads } from '../../src/ingress/json-threads.ts';
import type { Tensor } from '../../src/postprocess/numbers.ts';
import { type OutputJob, processOutput } from '../../src/postprocess/process.ts';
import { readLines, type TextLines } from '../../src/postprocess/text-lines.ts';
import { nowUs } from '../../src/system/clock.ts';
import type { Benchmark, Measurement } from './benchmark.ts';

const MIB = 2 ** 20;
const SCORES = [1, 1000];
const VECTORS = [1, 128, 384];
const LINE = [1, 40, 6625];

function floats(shape: readonly number[]): Tensor {
  const values = new Float32Array(shape.reduce((product, dim) => product * dim, 1));
  for (let n = 0; n < values.length; n++) values[n] = Math.sin(n * 12.9898);
  return { datatype: 'FP32', shape, data: new Uint8Array(values.buffer) };
}

function jobOf(
  shape: readonly number[],
  step: PostprocessStep | undefined,
  besides: Partial<OutputJob> = {},
): OutputJob {
  return {
    name: 'y',
    tensor: floats(shape),
    steps: step === undefined ? [] : [step],
    masks: [undefined],
    dictionaries: [undefined],
    rowDims: 1,
    classes: 0,
    labels: undefined,
    ...besides,
  };
}

const keys = readLines(Buffer.from(Array.from({ length: LINE[2]! - 1 }, (_, n) => `${n}\n`).join(''))) as TextLines;
const mask: Tensor = {
  datatype: 'INT64',
  shape: [1, 128],
  data: new Uint8Array(new BigInt64Array(128).fill(1n).buffer),
};

const JOBS: Readonly<Record<string, OutputJob>> = {
  'softmax-1000': jobOf(SCORES, { op: 'softmax', axis: -1 }),
  'sigmoid-1000': jobOf(SCORES, { op: 'sigmoid' }),
  'argmax-1000': jobOf(SCORES, { op: 'argmax', axis: -1 }),
  'top5-1000': jobOf(SCORES, { op: 'top_k', k: 5 }),
  'classification1000-1000': jobOf(SCORES, undefined, { classes: 1000 }),
  'normalize-1000': jobOf(SCORES, { op: 'normalize', axis: -1 }),
  'mean_pool-128x384': jobOf(VECTORS, { op: 'mean_pool', axis: 1, mask: 'mask' }, { masks: [mask] }),
  'ctc_decode-40x6625': jobOf(
    LINE,
    { op: 'ctc_decode', dictionary: 'keys.txt', blank: 0, space: false },
    { dictionaries: [keys] },
  ),
};

/** µs of a call, over `ms` milliseconds. */
function timed(act: () => unknown, ms: number): number {
  const started = nowUs();
  const until = started + ms * 1000;
  let calls = 0;
  for (; nowUs() < until; calls++) act();
  return (nowUs() - started) / calls;
}

export const POSTPROCESS: Benchmark = {
  name: 'postprocess',
  about: 'steps of a postprocess for one row, beside a copy of the tensor, and the way to a thread',
  run: async ({ size: { quick, rounds } }) => {
    const ms = quick ? 2 : 200;
    const values = new Map<string, number[]>();
    const note = (name: string, value: number) => values.set(name, [...(values.get(name) ?? []), value]);
    const budget = new BodyBudget(64 * MIB, 64 * MIB);
    const entry = new URL('../../workers/json.js', import.meta.url);
    const threads = new JsonThreads({ entry, threads: 1, budget, log: createLogger('bench', 'fatal') });
    for (const job of Object.values(JOBS)) processOutput(job);
    for (let round = 0; round < rounds; round++) {
      for (const [name, job] of Object.entries(JOBS)) {
        note(
          `${name}.time_us`,
          timed(() => processOutput(job), ms),
        );
        note(
          `${name}.copy_us`,
          timed(() => job.tensor.data.slice(), ms),
        );
      }
      const started = nowUs();
      let calls = 0;
      for (; nowUs() < started + ms * 1000; calls++) {
        await threads.process([{ ...JOBS['softmax-1000']!, tensor: floats(SCORES) }], () => true);
      }
      note('thread-softmax-1000.time_us', (nowUs() - started) / calls);
    }
    return [...values].map(([name, list]): Measurement => ({ name, values: list }));
  },
};
