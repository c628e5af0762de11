/**
 * Giving a slab back. May be called by anyone who has just released a claim, or finished a batch; exactly one caller frees.
 */
import type { Doorbells } from './bells.ts';
import {
  SLAB_BLOCKS,
  SLAB_FIRST_BLOCK,
  SLAB_RESULT_BLOCKS,
  SLAB_RESULT_FIRST,
  SLAB_RESULT_SCATTERED,
} from './geometry.ts';
import type { Segment } from './segment.ts';
import {
  CLAIM_EMPTY,
  CLAIM_RELEASED,
  CLAIM_SEAL,
  claimState,
  SLAB_DONE,
  SLAB_FREE,
  SLAB_FREEING,
  slabMoved,
  slabState,
} from './states.ts';

/** Whether every claim of a slab has been released. Only meaningful once no claim can be added. */
export function allReleased(segment: Segment, slab: number): boolean {
  const claims = segment.claimIndex(slab);
  for (let n = 0; n < segment.geometry.claimsPerSlab; n++) {
    const state = claimState(Atomics.load(segment.i32, claims + n));
    if (state === CLAIM_SEAL || state === CLAIM_EMPTY) return true;
    if (state !== CLAIM_RELEASED) return false;
  }
  return true;
}

/**
 * Frees a slab that is DONE and whose claims are all released.
 *
 * @returns whether this call freed it.
 */
export function freeIfDone(segment: Segment, bells: Doorbells, slab: number, owner: number): boolean {
  const index = segment.slabWords + slab;
  const word = Atomics.load(segment.i32, index);
  if (slabState(word) !== SLAB_DONE || !allReleased(segment, slab)) return false;
  const freeing = slabMoved(word, SLAB_FREEING, owner);
  // The word carries the generation, so a slab that was freed and filled again meanwhile is not mistaken for this one.
  if (Atomics.compareExchange(segment.i32, index, word, freeing) !== word) return false;
  finishFreeing(segment, slab, freeing);
  bells.ringWaiting();
  return true;
}

/** Second half of freeing; also run by the supervisor for an owner that died in the middle. Idempotent. */
export function finishFreeing(segment: Segment, slab: number, freeing: number): void {
  const { i32 } = segment;
  const descriptor = segment.descriptor(slab);
  const first = i32[descriptor + SLAB_FIRST_BLOCK]!;
  const count = i32[descriptor + SLAB_BLOCKS]!;
  const resultFirst = i32[descriptor + SLAB_RESULT_FIRST]!;
  const resultCount = i32[descriptor + SLAB_RESULT_BLOCKS]!;
  if (
    i32[descriptor + SLAB_RESULT_SCATTERED] !== 0 ||
    !releaseOwned(segment, slab, first, count) ||
    !releaseOwned(segment, slab, resultFirst, resultCount)
  ) {
    segment.releaseAllBlocks(slab);
  }
  Atomics.store(i32, segment.slabWords + slab, slabMoved(freeing, SLAB_FREE, 0));
}

function releaseOwned(segment: Segment, slab: number, first: number, count: number): boolean {
  if (count === 0) return true;
  if (first < 0 || count < 0 || first + count > segment.geometry.blocks) return false;
  for (let block = first; block < first + count; block++) {
    if (Atomics.load(segment.i32, segment.blockOwners + block) !== slab + 1) return false;
  }
  segment.releaseBlocks(first, count);
  return true;
}
