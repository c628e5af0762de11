/**
 * The kinds of requests that the soak sends, each with what makes its answer right: the rows it sent itself.
 *
 * Elements of the identity models are numbers that no other request of the run has, so that a row of somebody else is recognised.
 */
import assert from 'node:assert/strict';
import type { InferRequest, InferResult } from '../../src/client/client.ts';
import type { Random } from '../support/random.ts';
import type { ModelEntry } from '../support/repository.ts';

/** A request, and a check of its answer that throws when that is not the right one. */
export interface Ask {
  readonly model: string;
  readonly request: Omit<InferRequest, 'id' | 'timeoutMs' | 'signal'>;
  check(result: InferResult): void;
}

export interface Kind {
  readonly name: string;
  /** How often it is sent, beside the others. */
  readonly weight: number;
  /** @param n number of the request, another one for every request of the run. */
  ask(n: number, random: Random): Ask;
}

/** Models of the soak's repository. */
export const MODELS: Readonly<Record<string, ModelEntry>> = {
  rows: { config: { instances: { min: 1, max: 2 } } },
  dynamic: {},
  idB: {},
  arithmetic_int32: { config: { max_queue_delay_us: 500 } },
  crash: { config: { max_batch_size: 16, max_queue_delay_us: 2000 } },
  slow: { config: { max_batch_size: 8, run_timeout_ms: 1500 } },
  wide: { config: { max_batch_size: 4 } },
  bulge: { config: { max_batch_size: 32 } },
};

const ROWS_MAX = 5;
const LARGE_MAX = 75_000;
/** FP32 holds whole numbers up to this exactly. */
const EXACT_MAX = 2 ** 24;

/** Numbers that only request `n` sends, as long as fewer than 2^24 elements lie between two that share one. */
function ownNumbers(n: number, count: number, perRequest: number): Float32Array {
  return Float32Array.from({ length: count }, (_, at) => (n * perRequest + at) % EXACT_MAX);
}

function assertSameNumbers(result: InferResult, name: string, shape: readonly number[], sent: Float32Array): void {
  const output = result.output(name, 'FP32');
  assert.deepEqual([...output.shape], [...shape]);
  for (let at = 0; at < sent.length; at++) {
    if (output.data[at] !== sent[at]) assert.fail(`element ${at} is ${output.data[at]} instead of ${sent[at]}`);
  }
}

/** Rows of numbers through an identity, in all mixtures of binary and JSON. */
function numbers(model: string, columns: (random: Random) => number, columnsMax: number): Kind['ask'] {
  return (n, random) => {
    const shape = [random.int(1, ROWS_MAX), columns(random)];
    const data = ownNumbers(n, shape[0]! * shape[1]!, ROWS_MAX * columnsMax);
    return {
      model,
      request: {
        inputs: [{ name: 'x', datatype: 'FP32', shape, data }],
        outputs: [{ name: 'y', binary: random.chance(0.5) }],
        binary: random.chance(0.5),
      },
      check: (result) => assertSameNumbers(result, 'y', shape, data),
    };
  };
}

/** A few hundred kilobytes of JSON both ways: read and written by threads of the ingress process. */
function askLarge(n: number, random: Random): Ask {
  const shape = [random.int(1, 3), random.int(15_000, 25_000)];
  const data = ownNumbers(n, shape[0]! * shape[1]!, LARGE_MAX);
  return {
    model: 'dynamic',
    request: { inputs: [{ name: 'x', datatype: 'FP32', shape, data }], binary: false },
    check: (result) => assertSameNumbers(result, 'y', shape, data),
  };
}

/** Text, zero bytes and bytes that are no UTF-8. */
function askBytes(n: number, random: Random): Ask {
  const shape = [random.int(1, ROWS_MAX), random.int(1, 3)];
  const data = Array.from({ length: shape[0]! * shape[1]! }, (_, at) =>
    Buffer.concat([Buffer.from(`${n}.${at}:`), random.bytes(random.int(0, 40))]),
  );
  return {
    model: 'idB',
    request: { inputs: [{ name: 'INPUT0', datatype: 'BYTES', shape, data }] },
    check: (result) => {
      const output = result.output('OUTPUT0', 'BYTES');
      assert.deepEqual([...output.shape], shape);
      output.data.forEach((element, at) => {
        assert(data[at]!.equals(element), `element ${at} is ${Buffer.from(element).toString('hex')}`);
      });
    },
  };
}

/** Whole numbers modulo 97. */
function askRemainders(_n: number, random: Random): Ask {
  const rows = random.int(1, 3);
  const data = Int32Array.from({ length: rows * 4 }, () => random.int(0, 2 ** 31 - 1));
  return {
    model: 'arithmetic_int32',
    request: { inputs: [{ name: 'x', datatype: 'INT32', shape: [rows, 4], data }], binary: random.chance(0.7) },
    check: (result) => {
      assert.deepEqual(
        result.output('y', 'INT32').data,
        data.map((value) => value % 97),
      );
    },
  };
}

/** A division by the model that poison kills: these requests share their batches with it. */
function askQuotient(n: number, random: Random): Ask {
  const divisor = random.int(1, 1000);
  const quotient = n % 2_000_000;
  const input = (name: string, value: number) =>
    ({ name, datatype: 'INT32', shape: [1, 1], data: Int32Array.of(value) }) as const;
  return {
    model: 'crash',
    request: { inputs: [input('a', quotient * divisor), input('b', divisor)] },
    check: (result) => assert.deepEqual(result.output('y', 'INT32').data, Int32Array.of(quotient)),
  };
}

/** A run of up to 7 ms, whose answer is the number of its steps. */
function askSteps(_n: number, random: Random): Ask {
  const steps = BigInt(random.int(1, 200));
  return {
    model: 'slow',
    request: { inputs: [{ name: 'steps', datatype: 'INT64', shape: [1, 1], data: BigInt64Array.of(steps) }] },
    check: (result) => assert.deepEqual(result.output('y', 'INT64').data, BigInt64Array.of(steps)),
  };
}

/** One number in, 1 MiB of it out. */
function askWide(n: number): Ask {
  const value = n % EXACT_MAX;
  return {
    model: 'wide',
    request: { inputs: [{ name: 'x', datatype: 'FP32', shape: [1, 1], data: Float32Array.of(value) }] },
    check: (result) => {
      const { data } = result.output('y', 'FP32');
      assert.equal(data.length, 262_144);
      assert(
        data.every((element) => element === value),
        `not all of the answer is ${value}`,
      );
    },
  };
}

/** Rows that need 16 MiB each while they run: the account of the device's memory decides how many run together. */
function askBulge(n: number, random: Random): Ask {
  const rows = random.int(1, 3);
  const data = ownNumbers(n, rows, 3);
  return {
    model: 'bulge',
    request: { inputs: [{ name: 'x', datatype: 'FP32', shape: [rows, 1], data }] },
    check: (result) => assertSameNumbers(result, 'y', [rows, 1], data),
  };
}

export const KINDS: readonly Kind[] = [
  { name: 'rows', weight: 30, ask: numbers('rows', () => 4, 4) },
  { name: 'dynamic', weight: 20, ask: numbers('dynamic', (random) => random.pick([1, 2, 3, 7, 16, 33]), 33) },
  { name: 'bytes', weight: 15, ask: askBytes },
  { name: 'remainders', weight: 10, ask: askRemainders },
  { name: 'quotients', weight: 15, ask: askQuotient },
  { name: 'steps', weight: 9, ask: askSteps },
  { name: 'wide', weight: 1, ask: askWide },
  { name: 'large JSON', weight: 1, ask: askLarge },
  { name: 'bulge', weight: 2, ask: askBulge },
];

/** Each kind as often as its weight. */
const WEIGHED: readonly Kind[] = KINDS.flatMap((kind) => Array.from({ length: kind.weight }, () => kind));

/** One of the kinds, by their weights. */
export function pickKind(random: Random): Kind {
  return random.pick(WEIGHED);
}
