/**
 * Models for tests of the queue, and requests to them whose answers can be checked against their own rows. See queue-run.ts for how they are run.
 *
 * NUMBERS: x FP32 [batch, width] and id INT32 [batch] give y = 2x + id (of known shape, bound in the slab) and r INT32 [batch, 3] = id, id + 1, id + 2 (of
 * unknown shape, in a result region). WORDS: words BYTES [batch, 2] and id give echo BYTES [batch, 2], each element reversed, and again INT32 [batch] = id.
 * MATRIX, without a batch dimension: m FP32 [a, b] gives t = its transpose [b, a].
 */
import { encodeKey, SlabLayout } from '../../src/queue/layout.ts';
import type { Claim } from '../../src/queue/producer.ts';
import type { ResultReader } from '../../src/queue/result.ts';
import { encodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import type { Datatype } from '../../src/tensor/datatype.ts';
import type { ModelSignature, TensorSpec } from '../../src/tensor/signature.ts';

/** A tensor of a signature; a string stands for a variable dimension of that name. */
export function tensor(name: string, datatype: Datatype, dims: readonly (string | number)[]): TensorSpec {
  return {
    name,
    datatype,
    shape: dims.map((dim) => (typeof dim === 'number' ? dim : -1)),
    symbols: dims.map((dim) => (typeof dim === 'number' ? '' : dim)),
  };
}

export function signature(inputs: readonly TensorSpec[], outputs: readonly TensorSpec[]): ModelSignature {
  const metadata = { producer: '', graphName: '', description: '', version: '', custom: {} };
  return { inputs, outputs, skippedOutputs: [], metadata };
}

export const NUMBERS = signature(
  [tensor('x', 'FP32', ['batch', 'width']), tensor('id', 'INT32', ['batch'])],
  [tensor('y', 'FP32', ['batch', 'width']), tensor('r', 'INT32', ['batch', ''])],
);
export const WORDS = signature(
  [tensor('words', 'BYTES', ['batch', 2]), tensor('id', 'INT32', ['batch'])],
  [tensor('echo', 'BYTES', ['batch', 2]), tensor('again', 'INT32', ['batch'])],
);
export const MATRIX = signature([tensor('m', 'FP32', ['a', 'b'])], [tensor('t', 'FP32', ['b', 'a'])]);

export const NUMBERS_Y = 0;
export const NUMBERS_R = 1;

/** Columns of output r. */
export const R_COLUMNS = 3;

/** What a request asks for, and what came of it. */
export interface Ticket {
  readonly id: number;
  readonly rows: number;
  readonly layout: SlabLayout;
  readonly inputs: readonly Uint8Array[];
  /** What is wrong with an answer in status OK; undefined when it is what its own rows call for. */
  readonly fault: (reader: ResultReader) => string | undefined;
  /** Filled by the ingress. */
  claim: Claim<Ticket> | undefined;
  answers: number;
  status: number;
}

/** Layouts by key, so that equal requests share one, as an ingress does. */
export class Layouts {
  readonly #signature: ModelSignature;
  readonly #claimsPerSlab: number;
  readonly #known = new Map<string, SlabLayout>();

  constructor(signature: ModelSignature, claimsPerSlab: number) {
    this.#signature = signature;
    this.#claimsPerSlab = claimsPerSlab;
  }

  get(whole: boolean, outputs: readonly number[], shapes: readonly (readonly number[])[], level = 0): SlabLayout {
    const id = `${whole}|${outputs}|${shapes.join(';')}|${level}`;
    let layout = this.#known.get(id);
    if (layout === undefined) {
      layout = new SlabLayout(this.#signature, encodeKey(whole, outputs, shapes, level), this.#claimsPerSlab);
      this.#known.set(id, layout);
    }
    return layout;
  }
}

function bytesOf(array: Float32Array | Int32Array): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/** A copy, because results may lie at any address. */
function floats(data: Uint8Array): Float32Array {
  return new Float32Array(data.slice().buffer);
}
function ints(data: Uint8Array): Int32Array {
  return new Int32Array(data.slice().buffer);
}

function ticket(
  id: number,
  rows: number,
  layout: SlabLayout,
  inputs: readonly Uint8Array[],
  fault: (reader: ResultReader) => string | undefined,
): Ticket {
  return { id, rows, layout, inputs, fault, claim: undefined, answers: 0, status: -1 };
}

/** A request to NUMBERS. Row values derive from `id`, which no two requests of a test share. */
export function numbersTicket(
  layouts: Layouts,
  id: number,
  rows: number,
  width: number,
  outputs: readonly number[] = [NUMBERS_Y, NUMBERS_R],
  level = 0,
): Ticket {
  const x = new Float32Array(rows * width);
  for (let n = 0; n < x.length; n++) x[n] = (id % 10007) + n;
  const ids = Int32Array.from({ length: rows }, (_, row) => id * 8 + row);
  const layout = layouts.get(false, outputs, [[width], []], level);
  return ticket(id, rows, layout, [bytesOf(x), bytesOf(ids)], (reader) => {
    const y = outputs.indexOf(NUMBERS_Y);
    if (y >= 0) {
      const { shape, data } = reader.output(y);
      if (shape.join() !== `${rows},${width}`) return `y has shape ${shape}`;
      const values = floats(data);
      for (let n = 0; n < x.length; n++) {
        const want = Math.fround(2 * x[n]! + ids[Math.floor(n / width)]!);
        if (values[n] !== want) return `y[${n}] is ${values[n]}, not ${want}`;
      }
    }
    const r = outputs.indexOf(NUMBERS_R);
    if (r >= 0) {
      const { shape, data } = reader.output(r);
      if (shape.join() !== `${rows},${R_COLUMNS}`) return `r has shape ${shape}`;
      const values = ints(data);
      for (let n = 0; n < rows * R_COLUMNS; n++) {
        const want = ids[Math.floor(n / R_COLUMNS)]! + (n % R_COLUMNS);
        if (values[n] !== want) return `r[${n}] is ${values[n]}, not ${want}`;
      }
    }
    return undefined;
  });
}

/** A request to WORDS with elements of up to `length` bytes. */
export function wordsTicket(layouts: Layouts, id: number, rows: number, length: number): Ticket {
  const elements = Array.from({ length: rows * 2 }, (_, n) =>
    Uint8Array.from({ length: (id + n) % (length + 1) }, (_, at) => (id * 31 + n * 7 + at) & 0xff),
  );
  const ids = Int32Array.from({ length: rows }, (_, row) => id * 8 + row);
  const layout = layouts.get(false, [0, 1], [[2], []]);
  return ticket(id, rows, layout, [encodeBytesTensor(elements), bytesOf(ids)], (reader) => {
    const echo = reader.output(0);
    if (echo.shape.join() !== `${rows},2`) return `echo has shape ${echo.shape}`;
    const want = encodeBytesTensor(elements.map((element) => element.slice().reverse()));
    if (!Buffer.from(echo.data).equals(want)) return 'echo has other bytes';
    const again = ints(reader.output(1).data);
    for (let row = 0; row < rows; row++) if (again[row] !== ids[row]) return `again[${row}] is ${again[row]}`;
    return undefined;
  });
}

/** A request to MATRIX, which runs alone. */
export function matrixTicket(layouts: Layouts, id: number, a: number, b: number): Ticket {
  const m = Float32Array.from({ length: a * b }, (_, n) => id + n);
  const layout = layouts.get(true, [0], [[a, b]]);
  return ticket(id, 1, layout, [bytesOf(m)], (reader) => {
    const { shape, data } = reader.output(0);
    if (shape.join() !== `${b},${a}`) return `t has shape ${shape}`;
    const values = floats(data);
    for (let n = 0; n < a * b; n++) {
      const want = m[(n % a) * b + Math.floor(n / a)];
      if (values[n] !== want) return `t[${n}] is ${values[n]}, not ${want}`;
    }
    return undefined;
  });
}
