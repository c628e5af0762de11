/**
 * Whether a segment is idle and whole: to be asked after every test of the queue, once all requests are answered and all deaths reclaimed.
 */
import assert from 'node:assert/strict';
import {
  INGRESS_QUEUED_ROWS,
  INGRESS_WAITING,
  INSTANCE_EXECUTING_SINCE,
  INSTANCE_SLAB,
} from '../../src/queue/geometry.ts';
import type { Segment } from '../../src/queue/segment.ts';
import {
  CLAIM_CLAIMED,
  CLAIM_READY,
  CLAIM_STOLEN,
  claimHasGeneration,
  claimState,
  SLAB_FREE,
  SLAB_STATES,
  slabHasGeneration,
  slabOwner,
  slabState,
} from '../../src/queue/states.ts';

/** What is amiss in a segment that ought to be idle, in words; empty when nothing is. */
export function idleFaults(segment: Segment): string[] {
  const { i32, f64, geometry } = segment;
  const faults: string[] = [];
  for (let slab = 0; slab < geometry.slabs; slab++) {
    const word = Atomics.load(i32, segment.slabWords + slab);
    if (slabState(word) !== SLAB_FREE) faults.push(`slab ${slab} is ${SLAB_STATES[slabState(word)]}`);
    if (slabOwner(word) !== 0) faults.push(`slab ${slab} is owned by ${slabOwner(word)}`);
    if (!slabHasGeneration(word, i32[segment.slabGenerations + slab]!)) faults.push(`slab ${slab} has two generations`);
    for (let claim = 0; claim < geometry.claimsPerSlab; claim++) {
      const claimed = Atomics.load(i32, segment.claimIndex(slab) + claim);
      // One that died while it prepared the slab may have left a word of a generation that never was.
      if (!claimHasGeneration(claimed, i32[segment.slabGenerations + slab]!)) continue;
      const state = claimState(claimed);
      if (state === CLAIM_CLAIMED || state === CLAIM_READY || state === CLAIM_STOLEN) {
        faults.push(`claim ${claim} of slab ${slab} is in state ${state}`);
      }
    }
  }
  for (let block = 0; block < geometry.blocks; block++) {
    const owner = Atomics.load(i32, segment.blockOwners + block);
    if (owner !== 0) faults.push(`block ${block} belongs to ${owner < 0 ? 'a trim' : `slab ${owner - 1}`}`);
  }
  for (let slot = 0; slot < geometry.ingressSlots; slot++) {
    const line = segment.ingressLine(slot);
    const queued = Atomics.load(i32, line + INGRESS_QUEUED_ROWS);
    if (queued !== 0) faults.push(`ingress ${slot} counts ${queued} queued rows`);
    if (Atomics.load(i32, line + INGRESS_WAITING) !== 0) faults.push(`ingress ${slot} waits for space`);
  }
  for (let slot = 0; slot < geometry.instanceSlots; slot++) {
    const line = segment.instanceLine(slot);
    if (Atomics.load(i32, line + INSTANCE_SLAB) !== 0) faults.push(`instance ${slot} holds a slab`);
    if (f64[line / 2 + INSTANCE_EXECUTING_SINCE] !== 0) faults.push(`instance ${slot} executes`);
  }
  return faults;
}

/** @throws AssertionError when anything is taken, owned or counted. */
export function auditIdle(segment: Segment): void {
  assert.deepEqual(idleFaults(segment), []);
}
