import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ArenaPieces, NO_PIECES, noPieces, notePiece } from '../../../src/scheduler/arena-pieces.ts';
import { seedFromEnv } from '../../support/random.ts';

const MIB = 2 ** 20;

/** Runs of these sizes one after the other: the most that the pieces added up to, in times the largest run so far, and how often they were given back. */
function serve(sizes: readonly number[], start: ArenaPieces = NO_PIECES) {
  let pieces = start;
  let times = 0;
  let most = 0;
  for (const size of sizes) {
    if (size <= pieces.largestBytes) continue;
    const noted = notePiece(pieces, size);
    pieces = noted.pieces;
    most = Math.max(most, (pieces.sumBytes - 16 * MIB) / pieces.recordBytes);
    if (!noted.giveBack) continue;
    pieces = noPieces(pieces);
    times++;
  }
  return { pieces, times, most };
}

test('sizes that grow by ones never add up to more than three times the largest', () => {
  const { most } = serve(Array.from({ length: 1000 }, (_, n) => (n + 1) * 16 * MIB));
  assert(most <= 3, `${most}`);
});

test('a large one followed by smaller ones is one piece', () => {
  const { times } = serve(Array.from({ length: 1000 }, (_, n) => (n % 64 === 0 ? 64 : n % 64) * 16 * MIB));
  assert.equal(times, 0);
});

test('little memory is not worth it', () => {
  assert.equal(serve(Array.from({ length: 1000 }, (_, n) => n + 1)).times, 0);
});

test('sizes that come again and again are disturbed a few times in all', () => {
  const random = seedFromEnv();
  for (let world = 0; world < 100; world++) {
    const largest = random.int(1, 64);
    const sizes = Array.from({ length: 20_000 }, () => random.int(1, largest) * random.int(1, 16) * MIB);
    const warm = serve(sizes);
    const { times } = serve(sizes, warm.pieces);
    assert(warm.times <= 200 && times <= 6, `${warm.times} times, then ${times}`);
  }
});
