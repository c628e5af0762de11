/** Answers that are kept: for which requests they are found, how many there are, and when they go. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  CACHED_INPUT_BYTES_MAX,
  ResponseCache,
  type ResponseCacheLimits,
} from '../../../src/ingress/response-cache.ts';
import { COUNTER_WORDS, IngressCounters, readIngress } from '../../../src/metrics/counters.ts';
import type { BoundRequest } from '../../../src/protocol/bound-request.ts';
import type { OutputTensor } from '../../../src/protocol/response-encoder.ts';
import { encodeBytesTensor } from '../../../src/tensor/bytes-tensor.ts';

const MIB = 2 ** 20;
const SECOND_US = 1e6;

function makeCache(limits: Partial<ResponseCacheLimits> = {}) {
  const words = new Float64Array(COUNTER_WORDS);
  const cache = new ResponseCache({ maxBytes: MIB, ttlS: undefined, ...limits }, new IngressCounters(words, 0));
  return { cache, counted: () => readIngress(words, 0).cache };
}

interface Asked {
  rows?: number;
  shapes?: number[][];
  shapeKey?: string;
  classesKey?: string;
  inputs?: Uint8Array[];
}

function request({
  rows = 1,
  shapes = [[4]],
  shapeKey = 'rows|4|0',
  classesKey = '',
  inputs = [bytes(1, 2, 3, 4)],
}: Asked = {}) {
  return {
    template: {
      rows,
      whole: false,
      shapes,
      inputBytes: [4],
      outputs: [{ index: 0, binary: true, classes: 0 }],
      classesKey,
      shapeKey,
    },
    id: undefined,
    inputs,
    timeoutUs: undefined,
    priority: undefined,
  } satisfies BoundRequest;
}

const bytes = (...values: number[]) => Uint8Array.from(values);
const output = (size: number, value = 7): OutputTensor => ({
  shape: [1, size],
  data: new Uint8Array(size).fill(value),
});
const numbered = (n: number) => request({ inputs: [Uint8Array.from(new Uint8Array(Uint32Array.of(n).buffer))] });

describe('a key', () => {
  const { cache } = makeCache();
  const key = cache.keyOf(request());

  test('is the same for the same tensors, wherever they lie and whatever else the request says', () => {
    const body = Buffer.from([9, 1, 2, 3, 4, 9]);
    const other: BoundRequest = { ...request(), id: 'me', timeoutUs: 5, priority: 3, inputs: [body.subarray(1, 5)] };
    assert.equal(cache.keyOf(other), key);
  });

  for (const [what, asked] of [
    ['classes', { classesKey: '0:3' }],
    ['another byte', { inputs: [bytes(1, 2, 3, 5)] }],
    ['other rows', { rows: 2 }],
    ['another shape or set of outputs', { shapeKey: 'rows|4|1' }],
  ] as const) {
    test(`is another one for ${what}`, () => assert.notEqual(cache.keyOf(request({ ...asked } as Asked)), key));
  }

  test('tells strings apart that are one text when they are put behind one another', () => {
    const text = (...elements: string[]) => encodeBytesTensor(elements.map((element) => Buffer.from(element)));
    const keys = [
      [text('ab'), text('c')],
      [text('a'), text('bc')],
      [text('abc'), text('')],
    ].map((inputs) => cache.keyOf(request({ inputs })));
    assert.equal(new Set(keys).size, 3);
  });

  test('is not made of what is too large', () => {
    const half = new Uint8Array(CACHED_INPUT_BYTES_MAX / 2);
    assert.notEqual(cache.keyOf(request({ inputs: [half, half] })), undefined);
    assert.equal(cache.keyOf(request({ inputs: [half, half, bytes(0)] })), undefined);
  });
});

test('an answer is found again as it was, whatever becomes of the memory that it came in', () => {
  const { cache, counted } = makeCache();
  const outputs = [output(4), { shape: [2, 0], data: bytes() }];
  const key = cache.keyOf(request())!;
  assert.equal(cache.find(key, 0), undefined);
  cache.keep(key, outputs, 0);
  outputs[0]!.data.fill(0);
  assert.deepEqual(cache.find(key, 1), [output(4), { shape: [2, 0], data: bytes() }]);
  assert.equal(counted().entries, 1);
});

test('what was not asked for for longest makes room, and what no room can be made for is not kept', () => {
  const { cache, counted } = makeCache({ maxBytes: 64 * 1024 });
  const keys = Array.from({ length: 9 }, (_, n) => cache.keyOf(numbered(n))!);
  for (const [n, key] of keys.entries()) {
    cache.keep(key, [output(8000, n)], 0);
    // The first one is asked for all the time.
    assert.notEqual(cache.find(keys[0]!, 0), undefined);
    assert(counted().bytes <= 64 * 1024);
  }
  const left = keys.map((key) => cache.find(key, 0) !== undefined);
  assert.deepEqual(left, [true, false, false, true, true, true, true, true, true]);
  assert.deepEqual({ ...counted(), bytes: 0 }, { ...counted(), bytes: 0, entries: 7, evictions: 2 });
  cache.keep(cache.keyOf(numbered(9))!, [output(64 * 1024)], 0);
  assert.equal(counted().entries, 7);
});

test('equal requests that were under way together keep one answer', () => {
  const { cache, counted } = makeCache();
  const key = cache.keyOf(request())!;
  cache.keep(key, [output(100)], 0);
  const { bytes: held } = counted();
  cache.keep(key, [output(100)], 0);
  assert.deepEqual({ entries: counted().entries, bytes: counted().bytes }, { entries: 1, bytes: held });
});

test('an answer is kept for its time, from when it was computed, and no longer', () => {
  const { cache, counted } = makeCache({ ttlS: 10 });
  const key = cache.keyOf(request())!;
  cache.keep(key, [output(4)], SECOND_US);
  assert.notEqual(cache.find(key, 10.9 * SECOND_US), undefined);
  assert.equal(cache.find(key, 11 * SECOND_US), undefined);
  assert.deepEqual({ entries: counted().entries, bytes: counted().bytes }, { entries: 0, bytes: 0 });
  cache.keep(key, [output(4)], 12 * SECOND_US);
  assert.notEqual(cache.find(key, 13 * SECOND_US), undefined);
});

test('after its end nothing is found, and nothing is kept of what was under way', () => {
  const { cache, counted } = makeCache();
  const key = cache.keyOf(request())!;
  cache.keep(key, [output(4)], 0);
  cache.close();
  assert.equal(cache.find(key, 0), undefined);
  cache.keep(key, [output(4)], 0);
  assert.equal(cache.find(key, 0), undefined);
  assert.equal(cache.keyOf(request()), undefined);
  assert.deepEqual({ entries: counted().entries, bytes: counted().bytes }, { entries: 0, bytes: 0 });
});

for (const [size, count] of [
  [4, 1],
  [65, 1],
  [40, 4],
  [0, 8],
] as const) {
  test(`${count} outputs of ${size} bytes take no more memory than is counted for them`, () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const { cache, counted } = makeCache({ maxBytes: 1024 * MIB });
    const inUse = () => {
      collect();
      const { heapUsed, arrayBuffers } = process.memoryUsage();
      return heapUsed + arrayBuffers;
    };
    const before = inUse();
    for (let n = 0; n < 10_000; n++) {
      cache.keep(
        cache.keyOf(numbered(n))!,
        Array.from({ length: count }, () => output(size)),
        0,
      );
    }
    const taken = inUse() - before;
    // They are all there still.
    assert.notEqual(cache.find(cache.keyOf(numbered(0))!, 0), undefined);
    assert(taken <= counted().bytes, `${taken} bytes are taken, ${counted().bytes} counted`);
    assert(counted().bytes <= 2 * taken, `${taken} bytes are taken, ${counted().bytes} counted`);
  });
}
