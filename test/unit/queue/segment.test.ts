import assert from 'node:assert/strict';
import { closeSync } from 'node:fs';
import { test } from 'node:test';
import { Doorbells } from '../../../src/queue/bells.ts';
import { BLOCK_BYTES, CHUNK_BLOCKS, CHUNK_BYTES, INGRESS_BELL, INGRESS_WAITING } from '../../../src/queue/geometry.ts';
import { Segment } from '../../../src/queue/segment.ts';
import { SystemError } from '../../../src/system/errno.ts';
import { auditIdle } from '../../support/queue-audit.ts';
import { SMALL_SHAPE } from '../../support/queue-rig.ts';
import { killAt, stopAt } from '../../support/queue-steps.ts';

const SHAPE = { ...SMALL_SHAPE, blocks: 3 * CHUNK_BLOCKS };

function withSegment(run: (segment: Segment) => void): void {
  const segment = Segment.create('test', SHAPE);
  try {
    run(segment);
  } finally {
    segment.close();
  }
}

function ownersOf(segment: Segment): number[] {
  return Array.from(segment.i32.subarray(segment.blockOwners, segment.blockOwners + SHAPE.blocks));
}

test('a new segment is idle and another mapping of it sees the same words', () => {
  withSegment((segment) => {
    auditIdle(segment);
    const other = Segment.attach(segment.reference());
    try {
      assert.notEqual(other.address, segment.address);
      Atomics.store(segment.i32, segment.slabSeqs, 4711);
      assert.equal(Atomics.load(other.i32, other.slabSeqs), 4711);
      other.u8[other.blockOffset(2) + 5] = 99;
      assert.equal(segment.u8[segment.blockOffset(2) + 5], 99);
    } finally {
      other.close();
    }
  });
});

test('attaching with another shape, to something shorter or to nothing is refused', () => {
  withSegment((segment) => {
    const reference = segment.reference();
    const other = { ...reference.shape, claimsPerSlab: reference.shape.claimsPerSlab - 1 };
    assert.throws(() => Segment.attach({ ...reference, shape: other }), /differs/);
    const longer = { ...reference.shape, blocks: 4 * CHUNK_BLOCKS };
    assert.throws(() => Segment.attach({ ...reference, shape: longer }), RangeError);
    assert.throws(() => Segment.attach({ ...reference, fd: 10_000 }), SystemError);
  });
});

test('blocks are taken first fit from below or from above, up to a limit, and never twice', () => {
  withSegment((segment) => {
    assert.equal(segment.allocate(0, 3, 10, false), 0);
    assert.equal(segment.allocate(1, 4, 10, false), 3);
    assert.equal(segment.allocate(2, 4, 10, false), -1, 'only three are left below the limit');
    assert.equal(segment.allocate(2, 3, 10, false), 7);
    assert.equal(segment.allocate(3, 5, SHAPE.blocks, true), 43);
    assert.equal(segment.allocate(4, 2, SHAPE.blocks, true), 41);
    segment.releaseBlocks(3, 4);
    assert.equal(segment.allocate(5, 5, 10, false), -1, 'four neighbours are not five');
    assert.equal(segment.allocate(5, 2, 10, false), 3);
    assert.equal(segment.allocate(3, 1, SHAPE.blocks, true), 40);
    assert.equal(segment.allocate(5, SHAPE.blocks + 1, SHAPE.blocks + 1, false), -1);
    const owners = ownersOf(segment);
    assert.deepEqual(owners.slice(0, 11), [1, 1, 1, 6, 6, 0, 0, 3, 3, 3, 0]);
    assert.deepEqual(owners.slice(39), [0, 4, 5, 5, 4, 4, 4, 4, 4]);
    segment.releaseAllBlocks(3, 40, 1);
    assert.deepEqual(ownersOf(segment).slice(39), [0, 4, 5, 5, 0, 0, 0, 0, 0], 'all but the block to be kept');
  });
});

test('from above, a run is found between two taken blocks', () => {
  withSegment((segment) => {
    segment.allocate(0, 1, SHAPE.blocks, true); // 47
    segment.allocate(1, 3, SHAPE.blocks, true); // 44–46
    segment.allocate(2, 1, SHAPE.blocks, true); // 43
    segment.releaseBlocks(44, 3);
    assert.equal(segment.allocate(3, 4, SHAPE.blocks, true), 39);
    assert.equal(segment.allocate(4, 3, SHAPE.blocks, true), 44);
  });
});

test('a loser of a race for blocks gives back what it had taken and finds others', () => {
  for (let at = 1; ; at++) {
    let reached = true;
    withSegment((segment) => {
      let mine = -1;
      let theirs = -1;
      reached = stopAt(
        at,
        () => {
          mine = segment.allocate(0, 3, 16, false);
        },
        () => {
          theirs = segment.allocate(1, 4, 16, false);
        },
      );
      if (!reached) return;
      assert.ok(mine >= 0 && theirs >= 0);
      const owners = ownersOf(segment);
      assert.equal(owners.filter((owner) => owner === 1).length, 3);
      assert.equal(owners.filter((owner) => owner === 2).length, 4);
      assert.deepEqual(owners.slice(mine, mine + 3), [1, 1, 1]);
      assert.deepEqual(owners.slice(theirs, theirs + 4), [2, 2, 2, 2]);
    });
    if (!reached) {
      assert.ok(at > 10);
      return;
    }
  }
});

test('whoever dies while it takes blocks leaves them all under the name of its slab', () => {
  for (let fatal = 1; ; fatal++) {
    let died = true;
    withSegment((segment) => {
      died = killAt(fatal, () => {
        segment.allocate(4, 5, SHAPE.blocks, false);
      });
      segment.releaseAllBlocks(4);
      auditIdle(segment);
    });
    if (!died) {
      assert.ok(fatal > 10);
      return;
    }
  }
});

test('memory is committed chunk by chunk when blocks are first used, and unused chunks are given back', () => {
  withSegment((segment) => {
    const bells = new Doorbells(segment, []);
    assert.deepEqual(segment.usage(), { committedBytes: CHUNK_BYTES, usedBytes: 0 });
    const first = segment.allocate(0, CHUNK_BLOCKS + 1, SHAPE.blocks, false);
    assert.deepEqual(segment.usage(), { committedBytes: 2 * CHUNK_BYTES, usedBytes: (CHUNK_BLOCKS + 1) * BLOCK_BYTES });
    segment.allocate(1, 1, SHAPE.blocks, true);
    assert.equal(segment.usage().committedBytes, 3 * CHUNK_BYTES);
    segment.u8[segment.blockOffset(CHUNK_BLOCKS)] = 7;
    segment.u8[segment.blockOffset(SHAPE.blocks - 1)] = 8;
    assert.equal(segment.trim(bells), 0, 'every chunk has a block in use');
    segment.releaseBlocks(first, CHUNK_BLOCKS + 1);
    assert.equal(segment.trim(bells), CHUNK_BYTES);
    assert.equal(segment.usage().committedBytes, 2 * CHUNK_BYTES);
    assert.equal(segment.u8[segment.blockOffset(CHUNK_BLOCKS)], 0, 'the pages are gone');
    assert.equal(segment.u8[segment.blockOffset(SHAPE.blocks - 1)], 8, 'a chunk in use keeps its bytes');
    segment.releaseBlocks(SHAPE.blocks - 1, 1);
    assert.equal(segment.trim(bells), CHUNK_BYTES);
    assert.equal(segment.trim(bells), 0, 'the first chunk stays');
    auditIdle(segment);
    assert.equal(
      segment.allocate(2, 2 * CHUNK_BLOCKS, SHAPE.blocks, false),
      0,
      'and what was given back can be had again',
    );
  });
});

test('nobody gets a block of a chunk that is being given back, and who waits for space is rung afterwards', () => {
  for (let at = 1; ; at++) {
    let reached = true;
    withSegment((segment) => {
      const bells = new Doorbells(segment, []);
      segment.releaseBlocks(segment.allocate(0, SHAPE.blocks, SHAPE.blocks, false), SHAPE.blocks);
      const line = segment.ingressLine(1);
      let taken = -1;
      reached = stopAt(
        at,
        () => segment.trim(bells),
        () => {
          taken = segment.allocate(0, CHUNK_BLOCKS + 1, SHAPE.blocks, false);
          for (let n = 0; taken >= 0 && n <= CHUNK_BLOCKS; n++) segment.u8[segment.blockOffset(taken + n)] = 5;
          if (taken < 0) Atomics.store(segment.i32, line + INGRESS_WAITING, 1);
        },
      );
      if (!reached) return;
      if (taken < 0) assert.equal(Atomics.load(segment.i32, line + INGRESS_BELL), 1, `rung after step ${at}`);
      else {
        for (let n = 0; n <= CHUNK_BLOCKS; n++) {
          assert.equal(segment.u8[segment.blockOffset(taken + n)], 5, `bytes written at step ${at} are gone`);
        }
        segment.releaseBlocks(taken, CHUNK_BLOCKS + 1);
      }
      Atomics.store(segment.i32, line + INGRESS_WAITING, 0);
      auditIdle(segment);
    });
    if (!reached) {
      assert.ok(at > 2 * CHUNK_BLOCKS);
      return;
    }
  }
});

test('a block whose memory cannot be had is not taken', () => {
  withSegment((segment) => {
    // Without its descriptor this mapping cannot commit anything, as when memory is short.
    const other = Segment.attach(segment.reference());
    closeSync(other.fd);
    assert.equal(other.allocate(0, 2, CHUNK_BLOCKS, false), 0, 'the first chunk has its memory');
    assert.equal(other.allocate(1, 2, SHAPE.blocks, true), -1);
    assert.equal(other.allocate(1, CHUNK_BLOCKS, SHAPE.blocks, false), -1);
    segment.releaseBlocks(0, 2);
    auditIdle(segment);
  });
});
