/**
 * What the supervisor does with the possessions of a dead process, and how it looks at a queue.
 *
 * Called only after the process has been reaped, so it writes no more (rule 5 of states.ts); the others go on meanwhile. Every step is idempotent.
 */
import { type Doorbells, hear, wakeAllInstances, wakeInstance } from './bells.ts';
import {
  CLAIM_MARK,
  INGRESS_QUEUED_ROWS,
  INGRESS_WAITING,
  INSTANCE_EXECUTING_SINCE,
  INSTANCE_SERVING,
  INSTANCE_SLAB,
  INSTANCE_SLEEP,
  INSTANCE_STOP,
  MARK_ALONE,
  MARK_SETTLED,
  SLAB_ATTEMPTS,
  SLAB_BLOCKS,
  SLAB_FIRST_BLOCK,
  SLAB_RESULT_BLOCKS,
  SLAB_RESULT_FIRST,
  SLAB_RESULT_SCATTERED,
} from './geometry.ts';
import { allReleased, finishFreeing, freeIfDone } from './release.ts';
import { STATUS_OK, STATUS_WORKER_LOST } from './result.ts';
import { closeClaims } from './seal.ts';
import type { Segment } from './segment.ts';
import {
  CLAIM_CLAIMED,
  CLAIM_EMPTY,
  CLAIM_READY,
  CLAIM_RELEASED,
  CLAIM_SEAL,
  CLAIM_STOLEN,
  claimHasGeneration,
  claimMoved,
  claimRows,
  claimSlot,
  claimState,
  ingressOwner,
  instanceOwner,
  OWNER_SUPERVISOR,
  SLAB_DONE,
  SLAB_FILLING,
  SLAB_FREE,
  SLAB_FREEING,
  SLAB_OPEN,
  SLAB_RUNNING,
  SLAB_SEALED,
  slabMoved,
  slabOwner,
  slabState,
  slabWord,
  TAKEOVERS_MAX,
} from './states.ts';

/** Releases everything a dead ingress held. Its clients' connections died with it. */
export function reclaimIngress(segment: Segment, bells: Doorbells, slot: number): { claims: number; slabs: number } {
  const { i32, geometry } = segment;
  const owner = ingressOwner(slot);
  let claims = 0;
  let slabs = 0;
  for (let slab = 0; slab < geometry.slabs; slab++) {
    const index = segment.slabWords + slab;
    const word = Atomics.load(i32, index);
    const state = slabState(word);
    if (slabOwner(word) === owner && (state === SLAB_FILLING || state === SLAB_FREEING)) {
      if (state === SLAB_FREEING) finishFreeing(segment, slab, word);
      else {
        segment.releaseAllBlocks(slab);
        const generation = (i32[segment.slabGenerations + slab]! + 1) | 0;
        Atomics.store(i32, segment.slabGenerations + slab, generation);
        Atomics.store(i32, index, slabWord(SLAB_FREE, 0, generation));
      }
      slabs++;
      continue;
    }
    if (state === SLAB_FREE || state === SLAB_FILLING || state === SLAB_FREEING) continue;
    claims += releaseClaims(segment, slab, slot);
    freeIfDone(segment, bells, slab, OWNER_SUPERVISOR);
  }
  const line = segment.ingressLine(slot);
  Atomics.store(i32, line + INGRESS_QUEUED_ROWS, 0);
  Atomics.store(i32, line + INGRESS_WAITING, 0);
  wakeForTheDead(segment, bells);
  // The dead one may have taken a byte out of its pipe and not have heard it: nobody would ring its successor.
  hear(segment, slot);
  return { claims, slabs };
}

/**
 * Repeats every wake-up: the dead one may have left one half done (a bell turned to 1 without its byte, a slab freed or finished and nobody rung, an
 * instance's sleep word cleared without the futex call).
 */
function wakeForTheDead(segment: Segment, bells: Doorbells): void {
  bells.alarm();
  wakeAllInstances(segment);
}

function releaseClaims(segment: Segment, slab: number, slot: number): number {
  const { i32 } = segment;
  const generation = Atomics.load(i32, segment.slabGenerations + slab);
  let released = 0;
  for (let n = 0; n < segment.geometry.claimsPerSlab; n++) {
    const index = segment.claimIndex(slab) + n;
    let word = Atomics.load(i32, index);
    if (claimState(word) === CLAIM_SEAL || claimState(word) === CLAIM_EMPTY) break;
    while (
      claimSlot(word) === slot &&
      claimHasGeneration(word, generation) &&
      (claimState(word) === CLAIM_CLAIMED || claimState(word) === CLAIM_READY || claimState(word) === CLAIM_STOLEN)
    ) {
      const before = Atomics.compareExchange(i32, index, word, claimMoved(word, CLAIM_RELEASED));
      if (before === word) {
        released++;
        break;
      }
      word = before;
    }
  }
  return released;
}

/**
 * Opens a dead instance's batch for another one; answers the request that has killed it by itself.
 *
 * @returns rows given to others, and rows given up.
 */
export function reclaimInstance(
  segment: Segment,
  bells: Doorbells,
  slot: number,
): { requeuedRows: number; lostRows: number } {
  const { i32, f64, geometry } = segment;
  const owner = instanceOwner(slot);
  let requeuedRows = 0;
  let lostRows = 0;
  for (let slab = 0; slab < geometry.slabs; slab++) {
    const index = segment.slabWords + slab;
    const word = Atomics.load(i32, index);
    const state = slabState(word);
    // It may have died after the hand-over and before its look at the claims, and they may all have been released before (rule 6).
    if (state === SLAB_DONE) freeIfDone(segment, bells, slab, OWNER_SUPERVISOR);
    if (slabOwner(word) !== owner) continue;
    if (state === SLAB_FREEING) {
      finishFreeing(segment, slab, word);
      continue;
    }
    if (state !== SLAB_SEALED && state !== SLAB_RUNNING) continue;
    // Whether or not the dead one got as far as the end marker: nobody is to join a batch that may be what killed it.
    const claims = closeClaims(segment, slab, Atomics.load(i32, segment.slabGenerations + slab));
    const rows = claimedRows(segment, slab);
    const lost = takeOver(segment, slab, claims);
    if (isSettled(segment, slab, claims)) {
      Atomics.store(i32, index, slabMoved(word, SLAB_DONE, 0));
      freeIfDone(segment, bells, slab, OWNER_SUPERVISOR);
    } else {
      Atomics.store(i32, index, slabMoved(word, SLAB_OPEN, 0));
      requeuedRows += rows - lost;
    }
    lostRows += lost;
  }
  const line = segment.instanceLine(slot);
  Atomics.store(i32, line + INSTANCE_SERVING, 0);
  f64[line / 2 + INSTANCE_EXECUTING_SINCE] = 0;
  Atomics.store(i32, line + INSTANCE_SLAB, 0);
  Atomics.store(i32, line + INSTANCE_SLEEP, 0);
  Atomics.store(i32, line + INSTANCE_STOP, 0);
  wakeForTheDead(segment, bells);
  return { requeuedRows, lostRows };
}

/**
 * Prepares a dead instance's slab for the next one: as a whole at first, request by request once it has killed twice (deaths while sealing count as
 * well: a slab that kills whoever looks at it must not do so for ever).
 *
 * @returns rows that are answered WORKER_LOST.
 */
function takeOver(segment: Segment, slab: number, claims: number): number {
  const { i32 } = segment;
  const descriptor = segment.descriptor(slab);
  const deaths = i32[descriptor + SLAB_ATTEMPTS]! + 1;
  i32[descriptor + SLAB_ATTEMPTS] = deaths;
  if (deaths <= TAKEOVERS_MAX) {
    // Nothing of it is settled for good: results go back, statuses are cleared.
    segment.releaseAllBlocks(slab, i32[descriptor + SLAB_FIRST_BLOCK]!, i32[descriptor + SLAB_BLOCKS]!);
    i32[descriptor + SLAB_RESULT_FIRST] = 0;
    i32[descriptor + SLAB_RESULT_BLOCKS] = 0;
    i32[descriptor + SLAB_RESULT_SCATTERED] = 0;
    settleAll(segment, slab, STATUS_OK);
    return 0;
  }
  // Results of requests that have their answer are kept; whoever frees the slab looks for them everywhere.
  i32[descriptor + SLAB_RESULT_SCATTERED] = 1;
  let settled = 0;
  let alone = false;
  for (let n = 0; n < claims; n++) {
    const mark = i32[segment.claimDetail(slab, n) / 4 + CLAIM_MARK];
    if (mark === MARK_SETTLED) settled++;
    else if (mark === MARK_ALONE) alone = true;
  }
  // It died between two requests, and every death since has at least brought an answer: on with the next.
  if (!alone && deaths - TAKEOVERS_MAX <= settled) return 0;
  let lost = 0;
  for (let n = 0; n < claims; n++) {
    const detail = segment.claimDetail(slab, n) / 4;
    const mark = i32[detail + CLAIM_MARK];
    // If it died before it had begun with any request, none of them can be told from the others.
    if (mark === MARK_SETTLED || (alone && mark !== MARK_ALONE)) continue;
    i32[detail] = STATUS_WORKER_LOST;
    segment.f64[detail / 2 + 2] = 0;
    i32[detail + CLAIM_MARK] = MARK_SETTLED;
    lost += claimRows(Atomics.load(i32, segment.claimIndex(slab) + n));
  }
  return lost;
}

/** Whether every claim has its answer, or nobody wants one. */
function isSettled(segment: Segment, slab: number, claims: number): boolean {
  for (let n = 0; n < claims; n++) {
    const state = claimState(Atomics.load(segment.i32, segment.claimIndex(slab) + n));
    if (state === CLAIM_RELEASED) continue;
    if (segment.i32[segment.claimDetail(slab, n) / 4 + CLAIM_MARK] !== MARK_SETTLED) return false;
  }
  return true;
}

/** Sets the status of every claim of a slab, without a table. For the holder of a sealed slab. */
function settleAll(segment: Segment, slab: number, status: number): void {
  for (let n = 0; n < segment.geometry.claimsPerSlab; n++) {
    const detail = segment.claimDetail(slab, n);
    segment.i32[detail / 4] = status;
    segment.i32[detail / 4 + CLAIM_MARK] = 0;
    segment.f64[detail / 8 + 2] = 0;
  }
}

function claimedRows(segment: Segment, slab: number): number {
  let rows = 0;
  for (let n = 0; n < segment.geometry.claimsPerSlab; n++) {
    const word = Atomics.load(segment.i32, segment.claimIndex(slab) + n);
    const state = claimState(word);
    if (state === CLAIM_EMPTY || state === CLAIM_SEAL) break;
    if (state !== CLAIM_RELEASED) rows += claimRows(word);
  }
  return rows;
}

/** Answers everything that waits in the queue with a status: nobody will run it any more (the model is gone for good). */
export function failQueued(segment: Segment, bells: Doorbells, status: number): number {
  const { i32, geometry } = segment;
  let failed = 0;
  for (let slab = 0; slab < geometry.slabs; slab++) {
    const index = segment.slabWords + slab;
    const word = Atomics.load(i32, index);
    if (slabState(word) !== SLAB_OPEN) continue;
    const sealed = slabMoved(word, SLAB_SEALED, OWNER_SUPERVISOR);
    if (Atomics.compareExchange(i32, index, word, sealed) !== word) continue;
    failed += closeClaims(segment, slab, Atomics.load(i32, segment.slabGenerations + slab));
    settleAll(segment, slab, status);
    // A claim still being copied keeps the slab from being freed; its owner finds the status afterwards like everybody else.
    Atomics.store(i32, index, slabMoved(sealed, SLAB_DONE, 0));
    freeIfDone(segment, bells, slab, OWNER_SUPERVISOR);
  }
  for (let ingress = 0; ingress < geometry.ingressSlots; ingress++) bells.ring(ingress);
  return failed;
}

/** Asks an instance to stop after its batch. */
export function stopInstance(segment: Segment, slot: number, stop: boolean): void {
  Atomics.store(segment.i32, segment.instanceLine(slot) + INSTANCE_STOP, stop ? 1 : 0);
  wakeAllInstances(segment);
}

/** Time (µs) since which an instance has been running its batch; 0 when it is not. */
export function executingSinceUs(segment: Segment, slot: number): number {
  return segment.f64[segment.instanceLine(slot) / 2 + INSTANCE_EXECUTING_SINCE]!;
}

/** Whether an instance runs a batch that nobody waits for any more. Once that is so of a batch it stays so. */
export function runsForNobody(segment: Segment, slot: number): boolean {
  const slab = Atomics.load(segment.i32, segment.instanceLine(slot) + INSTANCE_SLAB) - 1;
  if (slab < 0 || slab >= segment.geometry.slabs) return false;
  const word = Atomics.load(segment.i32, segment.slabWords + slab);
  return slabState(word) === SLAB_RUNNING && slabOwner(word) === instanceOwner(slot) && allReleased(segment, slab);
}

export interface QueueCensus {
  readonly slabs: Readonly<Record<'free' | 'filling' | 'open' | 'sealed' | 'running' | 'done' | 'freeing', number>>;
  /** Rows in open slabs, and in sealed or running ones. */
  readonly queuedRows: number;
  readonly runningRows: number;
  readonly committedBytes: number;
  readonly usedBytes: number;
}

/** Counts what is in a queue. A snapshot of something that moves: exact when nothing does. */
export function census(segment: Segment): QueueCensus {
  const counts = [0, 0, 0, 0, 0, 0, 0, 0];
  let queuedRows = 0;
  let runningRows = 0;
  for (let slab = 0; slab < segment.geometry.slabs; slab++) {
    const state = slabState(Atomics.load(segment.i32, segment.slabWords + slab));
    counts[state]!++;
    if (state === SLAB_OPEN) queuedRows += claimedRows(segment, slab);
    else if (state === SLAB_SEALED || state === SLAB_RUNNING) runningRows += claimedRows(segment, slab);
  }
  const [free, filling, open, sealed, running, done, freeing] = counts as [
    number,
    number,
    number,
    number,
    number,
    number,
    number,
  ];
  return {
    slabs: { free, filling, open, sealed, running, done, freeing },
    queuedRows,
    runningRows,
    ...segment.usage(),
  };
}

/**
 * The supervisor's look after the queue, to be called every second or so: wakes an instance if rows wait, and rings again who was rung or waits for
 * space, in case the process that owed the wake-up is stopped.
 */
export function nudge(segment: Segment, bells: Doorbells): void {
  bells.remind();
  for (let slab = 0; slab < segment.geometry.slabs; slab++) {
    if (slabState(Atomics.load(segment.i32, segment.slabWords + slab)) === SLAB_OPEN) {
      wakeInstance(segment);
      return;
    }
  }
}
