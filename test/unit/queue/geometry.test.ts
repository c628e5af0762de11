import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  BLOCK_BYTES,
  CHUNK_BLOCKS,
  CHUNK_BYTES,
  CLAIM_DETAIL_BYTES,
  counterOffset,
  DESCRIPTOR_BYTES,
  geometryOf,
  headerWords,
  LINE_BYTES,
  planQueue,
  type QueueShape,
} from '../../../src/queue/geometry.ts';
import { BATCH_ROWS_MAX, CLAIMS_MAX, INGRESS_MAX, INSTANCES_MAX, SLABS_MAX } from '../../../src/queue/states.ts';

const SHAPE: QueueShape = {
  maxBatchRows: 33,
  slabs: 17,
  claimsPerSlab: 33,
  blocks: 3 * CHUNK_BLOCKS,
  ingressSlots: 3,
  instanceSlots: 5,
  counters: 7,
};

test('regions lie one behind the other on lines of their own, and blocks on block boundaries', () => {
  const g = geometryOf(SHAPE);
  const regions: [start: number, bytes: number][] = [
    [0, headerWords(SHAPE).byteLength],
    [g.ingressLines, SHAPE.ingressSlots * LINE_BYTES],
    [g.instanceLines, SHAPE.instanceSlots * LINE_BYTES],
    [g.slabWords, SHAPE.slabs * 4],
    [g.slabSeqs, SHAPE.slabs * 4],
    [g.slabGenerations, SHAPE.slabs * 4],
    [g.slabHashes, SHAPE.slabs * 4],
    [g.slabDescriptors, SHAPE.slabs * DESCRIPTOR_BYTES],
    [g.claimWords, SHAPE.slabs * SHAPE.claimsPerSlab * 4],
    [g.claimDetails, SHAPE.slabs * SHAPE.claimsPerSlab * CLAIM_DETAIL_BYTES],
    [g.blockOwners, SHAPE.blocks * 4],
    [g.chunkFlags, 3 * 4],
    [g.counterBlocks, 8 * LINE_BYTES],
    [g.blockArea, SHAPE.blocks * BLOCK_BYTES],
  ];
  for (let n = 0; n < regions.length; n++) {
    const [start, bytes] = regions[n]!;
    assert.equal(start % LINE_BYTES, 0);
    assert.ok(start + bytes <= (regions[n + 1]?.[0] ?? g.totalBytes), `region ${n} runs into the next`);
  }
  assert.equal(g.blockArea % BLOCK_BYTES, 0);
  assert.equal(g.totalBytes, g.blockArea + SHAPE.blocks * BLOCK_BYTES);
});

test('every slot has counters of its own', () => {
  const g = geometryOf(SHAPE);
  const offsets = [0, 1, 2].map((ingress) => counterOffset(g, { ingress }));
  for (let instance = 0; instance < 5; instance++) offsets.push(counterOffset(g, { instance }));
  for (let n = 1; n < offsets.length; n++) assert.ok(offsets[n]! - offsets[n - 1]! >= SHAPE.counters * 8);
  assert.ok(offsets[7]! + SHAPE.counters * 8 <= g.blockArea);
});

test('a plan keeps within the bounds of the words and rounds bytes up to whole chunks', () => {
  const huge = planQueue({
    maxBatchRows: 1e6,
    maxRows: 1e6,
    maxBytes: CHUNK_BYTES + 1,
    ingressSlots: 1e3,
    instanceSlots: 1e3,
    counters: 0,
  });
  assert.equal(huge.maxBatchRows, BATCH_ROWS_MAX);
  assert.equal(huge.claimsPerSlab, CLAIMS_MAX);
  assert.equal(huge.ingressSlots, INGRESS_MAX);
  assert.equal(huge.instanceSlots, INSTANCES_MAX);
  assert.equal(huge.blocks, 2 * CHUNK_BLOCKS);
  const alone = { maxBatchRows: 0, maxBytes: 0, ingressSlots: 1, instanceSlots: 2, counters: 0 };
  assert.deepEqual(
    [planQueue({ ...alone, maxRows: 100 }).slabs, planQueue({ ...alone, maxRows: 1e9 }).slabs],
    [120, SLABS_MAX],
    'without batching there is a slab for every row that may queue, as far as slabs go',
  );
  for (const plan of [huge, planQueue({ ...alone, maxRows: 1 })]) geometryOf(plan);
});

test('a shape that the words could not hold is refused', () => {
  const wrong: Partial<QueueShape>[] = [
    { maxBatchRows: 0 },
    { maxBatchRows: BATCH_ROWS_MAX + 1 },
    { claimsPerSlab: CLAIMS_MAX + 1 },
    { slabs: SLABS_MAX + 1 },
    { ingressSlots: INGRESS_MAX + 1 },
    { instanceSlots: INSTANCES_MAX + 1 },
    { blocks: CHUNK_BLOCKS + 1 },
    { blocks: 0 },
    { slabs: 1.5 },
    { counters: -1 },
  ];
  for (const change of wrong) assert.throws(() => geometryOf({ ...SHAPE, ...change }), RangeError);
});
