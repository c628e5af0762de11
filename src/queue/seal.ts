/**
 * The end marker of a slab (rule 3 of states.ts). For whoever has just moved the slab from OPEN to SEALED, and for the supervisor in the name of a
 * dead one that had; nobody else may place it. Idempotent.
 */
import type { Segment } from './segment.ts';
import { claimEmpty, claimSeal } from './states.ts';

/**
 * Puts the end marker into the first claim not taken: from here on no claim can be added.
 *
 * @returns the number of claims before it.
 */
export function closeClaims(segment: Segment, slab: number, generation: number): number {
  const { i32 } = segment;
  const claims = segment.claimIndex(slab);
  const empty = claimEmpty(generation);
  const seal = claimSeal(generation);
  let n = 0;
  while (n < segment.geometry.claimsPerSlab) {
    const word = Atomics.load(i32, claims + n);
    if (word === seal) break; // placed by one that died before it could go on
    if (word !== empty) n++;
    // Pairs with the producer's compareExchange on the same word; if it was faster, we move on by one.
    else if (Atomics.compareExchange(i32, claims + n, empty, seal) === empty) break;
  }
  return n;
}
