/** Steps of a postprocess, each held against a straightforward one over nested lists. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import type { PostprocessStep } from '../../../src/config/model-config.ts';
import { numbersOf, type Tensor } from '../../../src/postprocess/numbers.ts';
import { type OutputJob, processOutput } from '../../../src/postprocess/process.ts';
import { readLines, type TextLines } from '../../../src/postprocess/text-lines.ts';
import { decodeBytesTensor } from '../../../src/tensor/bytes-tensor.ts';
import type { Datatype } from '../../../src/tensor/datatype.ts';
import { elementCount } from '../../../src/tensor/shape.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';
import { randomTensor, wireBytes } from '../../support/tensor.ts';

function job(tensor: Tensor, step: PostprocessStep, besides: Partial<OutputJob> = {}): OutputJob {
  return {
    name: 'y',
    tensor,
    steps: [step],
    masks: [undefined],
    dictionaries: [undefined],
    rowDims: 1,
    classes: 0,
    labels: undefined,
    ...besides,
  };
}

function random3d(random: Random, datatype: Datatype, least = 0): Tensor {
  const shape = [random.int(least, 3), random.int(least, 5), random.int(least, 6)];
  const wire = wireBytes(randomTensor(random, datatype, shape));
  // At any alignment, and as a Buffer, which has methods of its own.
  const data = Buffer.alloc(wire.length + 1).subarray(1);
  data.set(wire);
  return { datatype, shape, data };
}

const values = ({ datatype, data }: Tensor): number[] =>
  Array.from(numbersOf(datatype, data) as ArrayLike<number | bigint>, Number);

/** Of a 3-D tensor: its lists along an axis, with the place of the other two. */
function listsAlong(tensor: Tensor, axis: number): { list: number[]; place: number[] }[] {
  const all = values(tensor);
  const [a, b, c] = tensor.shape as [number, number, number];
  const at = (i: number, j: number, k: number) => all[(i * b + j) * c + k]!;
  const lists = new Map<string, { list: number[]; place: number[] }>();
  for (let i = 0; i < a; i++) {
    for (let j = 0; j < b; j++) {
      for (let k = 0; k < c; k++) {
        const place = [i, j, k].filter((_, n) => n !== axis);
        const one = lists.get(place.join()) ?? { list: [], place };
        one.list.push(at(i, j, k));
        lists.set(place.join(), one);
      }
    }
  }
  return [...lists.values()].sort((x, y) => x.place[0]! - y.place[0]! || x.place[1]! - y.place[1]!);
}

function close(actual: readonly number[], expected: readonly number[], about: string): void {
  assert.equal(actual.length, expected.length, about);
  for (const [n, value] of actual.entries()) {
    const other = expected[n]!;
    const near = Math.abs(value - other) <= 1e-6 * Math.max(1, Math.abs(other));
    assert.ok(near || (Number.isNaN(value) && Number.isNaN(other)), `${about}: element ${n} is ${value}, not ${other}`);
  }
}

const FLOATS: readonly Datatype[] = ['FP32', 'FP64', 'FP16', 'BF16'];
const AXES = [0, 1, 2, -1, -2, -3];

for (const [op, along] of [
  [
    'softmax',
    (list: number[]) => {
      const most = Math.max(...list);
      const powers = list.map((value) => Math.exp(value - most));
      return powers.map((power) => power / powers.reduce((sum, one) => sum + one, 0));
    },
  ],
  [
    'normalize',
    (list: number[]) => {
      const norm = Math.hypot(...list);
      return list.map((value) => (norm === 0 ? 0 : value / norm));
    },
  ],
] as const) {
  test(`${op} along any axis of any floats`, () => {
    const random = seedFromEnv();
    for (let round = 0; round < 200; round++) {
      const datatype = random.pick(FLOATS);
      const axis = random.pick(AXES);
      let tensor = random3d(random, datatype);
      // Random bit patterns of 16 bits are infinities too, which are none of this test's.
      if (values(tensor).some((value) => !Number.isFinite(value))) tensor = random3d(random, 'FP32');
      const answer = processOutput(job(tensor, { op, axis }));
      assert.equal(answer.datatype, tensor.datatype === 'FP64' ? 'FP64' : 'FP32');
      assert.deepEqual(answer.shape, tensor.shape);
      const lists = listsAlong(answer, (axis + 3) % 3);
      for (const [n, { list }] of listsAlong(tensor, (axis + 3) % 3).entries()) {
        close(lists[n]!.list, along(list), `${op} ${datatype} [${tensor.shape}] ${axis}`);
      }
    }
  });
}

test('softmax of large numbers stays finite, normalize of zeros stays zero, and of huge numbers has length 1', () => {
  const of = (...list: number[]): Tensor => {
    return { datatype: 'FP32', shape: [1, list.length], data: new Uint8Array(Float32Array.from(list).buffer) };
  };
  close(values(processOutput(job(of(1e30, -1e30, 1e30), { op: 'softmax', axis: -1 }))), [0.5, 0, 0.5], 'softmax');
  close(values(processOutput(job(of(0, 0), { op: 'normalize', axis: 1 }))), [0, 0], 'zeros');
  close(values(processOutput(job(of(3e38, 0), { op: 'normalize', axis: 1 }))), [1, 0], 'huge');
  close(values(processOutput(job(of(-1000, 0, 1000), { op: 'sigmoid' }))), [0, 0.5, 1], 'sigmoid');
});

test('sigmoid of each element', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 50; round++) {
    const tensor = random3d(random, random.pick(['FP32', 'FP64'] as const));
    const expected = values(tensor).map((value) => 1 / (1 + Math.exp(-value)));
    close(values(processOutput(job(tensor, { op: 'sigmoid' }))), expected, 'sigmoid');
  }
});

test('argmax along any axis of any numbers is the first of the highest', () => {
  const random = seedFromEnv();
  const types: readonly Datatype[] = ['FP32', 'FP64', 'FP16', 'INT8', 'UINT8', 'INT64', 'UINT64', 'BOOL', 'INT32'];
  for (let round = 0; round < 300; round++) {
    const axis = random.pick(AXES);
    const tensor = random3d(random, random.pick(types), 1);
    const answer = processOutput(job(tensor, { op: 'argmax', axis }));
    assert.equal(answer.datatype, 'INT64');
    assert.deepEqual(
      answer.shape,
      tensor.shape.filter((_, n) => n !== (axis + 3) % 3),
    );
    const expected = listsAlong(tensor, (axis + 3) % 3).map(({ list }) => {
      const numbers = list.map((value) => (Number.isNaN(value) ? Number.NEGATIVE_INFINITY : value));
      const best = numbers.indexOf(Math.max(...numbers));
      return list.some((value) => Number.isNaN(value)) && numbers[best] === Number.NEGATIVE_INFINITY
        ? Math.max(
            0,
            list.findIndex((value) => !Number.isNaN(value)),
          )
        : best;
    });
    assert.deepEqual(values(answer), expected, `${tensor.datatype} [${tensor.shape}] ${axis}: ${values(tensor)}`);
  }
});

test('argmax of an empty axis is the fault of the model, unless there is nothing to answer', () => {
  const empty = (...shape: number[]): Tensor => ({ datatype: 'FP32', shape, data: new Uint8Array(0) });
  assert.throws(() => processOutput(job(empty(2, 0), { op: 'argmax', axis: 1 })), {
    code: 'MODEL_FAILED',
    message: /output 'y' could not be processed: argmax has nothing to choose from/,
  });
  assert.deepEqual(processOutput(job(empty(0, 0), { op: 'argmax', axis: 1 })).shape, [0]);
});

test('mean_pool weighs by its mask, whatever lies where the mask is 0', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 200; round++) {
    const tensor = random3d(random, 'FP32');
    const [rows, steps, width] = tensor.shape as [number, number, number];
    const masked = random.chance(0.7);
    const bits = Array.from({ length: rows * steps }, () => random.int(0, 2));
    const mask: Tensor = {
      datatype: 'INT64',
      shape: [rows, steps],
      data: new Uint8Array(BigInt64Array.from(bits, BigInt).buffer),
    };
    const all = values(tensor);
    const data = Float32Array.from(all);
    for (let n = 0; n < bits.length; n++)
      if (masked && bits[n] === 0) data.fill(Number.NaN, n * width, (n + 1) * width);
    const step = { op: 'mean_pool', axis: 1, ...(masked ? { mask: 'm' } : {}) } as const;
    const input = { ...tensor, data: new Uint8Array(data.buffer) };
    const answer = processOutput(job(input, step, { masks: [masked ? mask : undefined] }));
    assert.deepEqual(answer.shape, [rows, width]);
    const expected: number[] = [];
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < width; column++) {
        let [sum, total] = [0, 0];
        for (let n = 0; n < steps; n++) {
          const weight = masked ? bits[row * steps + n]! : 1;
          sum += weight === 0 ? 0 : weight * all[(row * steps + n) * width + column]!;
          total += weight;
        }
        expected.push(total === 0 ? 0 : sum / total);
      }
    }
    close(values(answer), expected, `[${tensor.shape}] ${bits}`);
  }
});

test('mean_pool with a mask of another shape is the fault of the model', () => {
  const tensor: Tensor = { datatype: 'FP32', shape: [1, 2, 1], data: new Uint8Array(8) };
  const mask: Tensor = { datatype: 'BOOL', shape: [1, 3], data: new Uint8Array(3) };
  assert.throws(() => processOutput(job(tensor, { op: 'mean_pool', axis: 1, mask: 'm' }, { masks: [mask] })), {
    code: 'MODEL_FAILED',
    message: /needs a mask \[1,2\] for the shape \[1,2,1\]; the input "m" has \[1,3\]/,
  });
});

test('dequantize of every integer it takes', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 100; round++) {
    const tensor = random3d(random, random.pick(['INT8', 'UINT8', 'INT16', 'UINT16', 'INT32'] as const));
    const [scale, zero] = [random.float() * 4, random.int(-200, 200)];
    const answer = processOutput(job(tensor, { op: 'dequantize', scale, zero_point: zero }));
    assert.equal(answer.datatype, 'FP32');
    assert.deepEqual(
      values(answer),
      values(tensor).map((value) => Math.fround((value - zero) * scale)),
    );
  }
});

function linesOf(text: string): TextLines {
  const lines = readLines(Buffer.from(text));
  assert.ok(!('problem' in lines));
  return lines;
}

test('ctc_decode merges equal neighbours and leaves the blank out, wherever it is, with a space or without', () => {
  const random = seedFromEnv();
  const characters = ['a', 'é', '猫', '', 'xy'];
  for (let round = 0; round < 200; round++) {
    const space = random.chance(0.5);
    const classes = characters.length + 1 + Number(space);
    const blank = random.pick([0, -1, 2]);
    const at = blank === -1 ? classes - 1 : blank;
    const names = [...characters, ...(space ? [' '] : [])];
    names.splice(at, 0, 'BLANK');
    const [rows, steps] = [random.int(0, 3), random.int(0, 12)];
    const path = Array.from({ length: rows * steps }, () => random.int(0, classes - 1));
    const data = Float32Array.from({ length: rows * steps * classes }, (_, n) =>
      n % classes === path[Math.floor(n / classes)] ? 0.9 : random.float() * 0.8,
    );
    const tensor: Tensor = { datatype: 'FP32', shape: [rows, steps, classes], data: new Uint8Array(data.buffer) };
    const step = { op: 'ctc_decode', dictionary: 'd', blank, space } as const;
    const answer = processOutput(job(tensor, step, { dictionaries: [linesOf(`${characters.join('\n')}\n`)] }));
    assert.equal(answer.datatype, 'BYTES');
    assert.deepEqual(answer.shape, [rows]);
    const texts = decodeBytesTensor(answer.data, rows)!.map((text) => Buffer.from(text).toString());
    for (let row = 0; row < rows; row++) {
      const own = path.slice(row * steps, (row + 1) * steps);
      const expected = own.map((best, n) => (best === at || best === own[n - 1] ? '' : names[best])).join('');
      assert.equal(texts[row], expected);
    }
  }
});

test('ctc_decode of other classes than the dictionary has is the fault of the model', () => {
  const tensor: Tensor = { datatype: 'FP32', shape: [1, 1, 5], data: new Uint8Array(20) };
  const step = { op: 'ctc_decode', dictionary: 'd', blank: 0, space: false } as const;
  assert.throws(
    () => processOutput(job(tensor, step, { dictionaries: [linesOf('a\nb\nc')] })),
    (error) => {
      assert.ok(error instanceof BatchportError && error.code === 'MODEL_FAILED');
      assert.match(error.message, /a dictionary for 4 classes, and there are 5/);
      return true;
    },
  );
});

test('steps follow one another, and a classification follows the last one', () => {
  const tensor: Tensor = { datatype: 'INT8', shape: [2, 3], data: Uint8Array.of(1, 2, 3, 6, 5, 4) };
  const steps = [
    { op: 'dequantize', scale: 2, zero_point: 1 },
    { op: 'top_k', k: 2 },
  ] as const;
  const both = { masks: [undefined, undefined], dictionaries: [undefined, undefined] };
  const textsOf = ({ shape, data }: Tensor) =>
    decodeBytesTensor(data, elementCount(shape)!)!.map((text) => Buffer.from(text).toString());
  const expected = ['4:2:c', '2:1:b', '10:0:a', '8:1:b'];
  const topped = processOutput({ ...job(tensor, steps[0]), ...both, steps, labels: linesOf('a\nb\nc') });
  assert.deepEqual(topped.shape, [2, 2]);
  assert.deepEqual(textsOf(topped), expected);
  const classified = processOutput({ ...job(tensor, steps[0]), classes: 2, labels: linesOf('a\nb\nc') });
  assert.deepEqual(textsOf(classified), expected);
});
