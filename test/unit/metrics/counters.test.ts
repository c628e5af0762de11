/** Counters in a segment: each slot by itself, bounds of buckets, and a later process going on from what it finds. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  BATCH_BUCKETS_ROWS,
  COUNTER_WORDS,
  IngressCounters,
  InstanceCounters,
  LATENCY_BUCKETS_S,
  OUTCOMES,
  readIngress,
  readInstance,
  STAGES,
} from '../../../src/metrics/counters.ts';

test('a slot is written from its base to its end and no further', () => {
  const words = new Float64Array(3 * COUNTER_WORDS);
  const ingress = new IngressCounters(words, COUNTER_WORDS);
  const instance = new InstanceCounters(words, COUNTER_WORDS);
  for (let n = 0; n < OUTCOMES.length; n++) ingress.outcome(n);
  for (let n = 0; n < STAGES.length; n++) ingress.stage(n, 1e12);
  instance.batch(1e9, 1e12, 0);
  assert.ok(words.subarray(0, COUNTER_WORDS).every((word) => word === 0));
  assert.ok(words.subarray(2 * COUNTER_WORDS).every((word) => word === 0));
  assert.ok(words.some((word) => word !== 0));
});

test('every count of an ingress slot has its own place', () => {
  const words = new Float64Array(COUNTER_WORDS);
  const counters = new IngressCounters(words, 0);
  OUTCOMES.forEach((_, n) => {
    for (let count = 0; count <= n; count++) counters.outcome(n);
  });
  counters.received(100, 200);
  counters.received(1, 2);
  counters.sent(300);
  counters.inFlight(7);
  counters.inFlight(5);
  for (const us of [10, 20]) counters.cacheHit(us);
  for (const us of [1, 2, 4]) counters.cacheMiss(us);
  counters.cacheEvicted();
  counters.cacheHolds(8, 9);
  STAGES.forEach((_, n) => {
    counters.stage(n, n);
  });
  const reading = readIngress(words, 0);
  assert.deepEqual(Object.values(reading.outcomes), [1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual([reading.rows, reading.bytesIn, reading.bytesOut, reading.inFlight], [101, 202, 300, 5]);
  assert.deepEqual(reading.cache, { hits: 2, hitUs: 30, misses: 3, missUs: 7, evictions: 1, entries: 8, bytes: 9 });
  assert.deepEqual(
    STAGES.map((stage) => reading.stages[stage].sum),
    STAGES.map((_, n) => n),
  );
});

test('every count of an instance slot has its own place', () => {
  const words = new Float64Array(COUNTER_WORDS);
  const counters = new InstanceCounters(words, 0);
  counters.batch(3, 1000, 0);
  counters.batch(4, 500, 0);
  for (const [count, event] of [
    [2, () => counters.failure()],
    [3, () => counters.split()],
    [4, () => counters.outOfMemory()],
    [5, () => counters.skipped()],
    [8, () => counters.late(2)],
    [6, () => counters.gaveBack()],
    [7, () => counters.arena(8)],
  ] as const) {
    for (let n = 0; n < count; n++) event();
  }
  const { batchRows, ...counts } = readInstance(words, 0);
  assert.deepEqual(counts, {
    batches: 2,
    rows: 7,
    failures: 2,
    splits: 3,
    outOfMemory: 4,
    skipped: 5,
    lateRows: 16,
    busyUs: 1500,
    arenaHeldBytes: 8,
    gaveBack: 6,
  });
  assert.equal(batchRows.sum, 7);
});

test('a value on a bound belongs to its bucket, one above it to the next, one above all to the last', () => {
  const words = new Float64Array(2 * COUNTER_WORDS);
  const ingress = new IngressCounters(words, 0);
  const instance = new InstanceCounters(words, COUNTER_WORDS);
  for (const bound of LATENCY_BUCKETS_S) ingress.stage(0, bound * 1e6);
  ingress.stage(0, LATENCY_BUCKETS_S.at(-1)! * 1e6 + 1);
  for (const bound of BATCH_BUCKETS_ROWS) instance.batch(bound, 0, 0);
  instance.batch(BATCH_BUCKETS_ROWS.at(-1)! + 1, 0, 0);
  assert.deepEqual(readIngress(words, 0).stages[STAGES[0]].buckets, Array(LATENCY_BUCKETS_S.length + 1).fill(1));
  assert.deepEqual(readInstance(words, COUNTER_WORDS).batchRows.buckets, Array(BATCH_BUCKETS_ROWS.length + 1).fill(1));
});

test('the next process in a slot goes on from the counts of the one before', () => {
  const words = new Float64Array(COUNTER_WORDS);
  new InstanceCounters(words, 0).batch(3, 10, 0);
  new InstanceCounters(words, 0).batch(4, 20, 0);
  const { batches, rows, busyUs } = readInstance(words, 0);
  assert.deepEqual([batches, rows, busyUs], [2, 7, 30]);
});

test('a reading is a copy that later counts leave alone', () => {
  const words = new Float64Array(COUNTER_WORDS);
  const counters = new IngressCounters(words, 0);
  const before = readIngress(words, 0);
  counters.outcome(0);
  counters.stage(0, 1);
  assert.ok(Object.values(before.outcomes).every((count) => count === 0));
  assert.ok(before.stages.receive.buckets.every((count) => count === 0));
});
