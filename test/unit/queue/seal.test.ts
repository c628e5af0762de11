import assert from 'node:assert/strict';
import { test } from 'node:test';
import { closeClaims } from '../../../src/queue/seal.ts';
import { Segment } from '../../../src/queue/segment.ts';
import { CLAIM_READY, claimEmpty, claimSeal, claimWord } from '../../../src/queue/states.ts';
import { SMALL_SHAPE } from '../../support/queue-rig.ts';
import { killAt, stopAt } from '../../support/queue-steps.ts';

const GENERATION = 4711;
const EMPTY = claimEmpty(GENERATION);
const SEAL = claimSeal(GENERATION);
const TAKEN = claimWord(CLAIM_READY, 1, 2, GENERATION);

/** A slab of which the first `taken` claims are taken. */
function withSlab(taken: number, run: (segment: Segment, claims: Int32Array) => void): void {
  const segment = Segment.create('test', SMALL_SHAPE);
  try {
    const first = segment.claimIndex(3);
    const claims = segment.i32.subarray(first, first + SMALL_SHAPE.claimsPerSlab);
    claims.fill(EMPTY).fill(TAKEN, 0, taken);
    run(segment, claims);
  } finally {
    segment.close();
  }
}

test('the end marker stands in the first claim not taken, and in none when all are', () => {
  for (let taken = 0; taken <= SMALL_SHAPE.claimsPerSlab; taken++) {
    withSlab(taken, (segment, claims) => {
      assert.equal(closeClaims(segment, 3, GENERATION), taken);
      assert.equal(closeClaims(segment, 3, GENERATION), taken, 'a second time');
      assert.deepEqual(
        [...claims],
        Array.from(claims, (_, n) => (n < taken ? TAKEN : n === taken ? SEAL : EMPTY)),
      );
    });
  }
});

test('a claim made while the slab is being closed is before the marker, or is not made', () => {
  for (let at = 1, reached = true; reached; at++) {
    withSlab(2, (segment, claims) => {
      // The producer looked at the slab before it was sealed; what is left of its claim is this compareExchange.
      let next = 2;
      const claim = () => {
        if (Atomics.compareExchange(claims, next, EMPTY, TAKEN) === EMPTY) next++;
      };
      let count = 0;
      reached = stopAt(
        at,
        () => {
          count = closeClaims(segment, 3, GENERATION);
        },
        claim,
      );
      claim();
      assert.equal(count, next, `claimed at step ${at}`);
      assert.equal(claims[count], SEAL);
    });
  }
});

test('closing is finished by another one when the first dies', () => {
  for (let fatal = 1, died = true; died; fatal++) {
    withSlab(3, (segment, claims) => {
      died = killAt(fatal, () => closeClaims(segment, 3, GENERATION));
      assert.equal(closeClaims(segment, 3, GENERATION), 3);
      assert.equal(claims.indexOf(SEAL), 3);
      assert.equal(claims.lastIndexOf(SEAL), 3);
    });
  }
});
