/**
 * What lies before a request that comes now: runs that are going on and slabs that wait. A look at something that moves, for predictions only.
 *
 * Writes nothing. Everything read is checked before it is used as an index.
 */
import {
  HEADER_OPEN_SEQ,
  HEADER_SLABS_USED,
  INSTANCE_EXECUTING_SINCE,
  INSTANCE_SERVING,
  INSTANCE_SLAB,
  SLAB_CAPACITY_ROWS,
  SLAB_DEADLINE_AT,
  SLAB_LEVEL,
  SLAB_ROWS,
  SLAB_WAITING_ROWS,
} from './geometry.ts';
import type { Segment } from './segment.ts';
import { SLAB_OPEN, slabState, turnDelay } from './states.ts';

/** Tells what a run costs, µs. */
export interface RunCost {
  runUs(hash: number, rows: number): number;
}

/** Of a run that takes longer than it should, this share is assumed to be left. */
const OVERDUE_RATIO = 0.1;

export class Backlog {
  /** Instances that take batches. */
  instances = 0;
  /** What is left of the runs going on, summed over the instances, and of the one that ends first, µs. */
  runningUs = 0;
  firstFreeUs = 0;
  /** What the open slabs will take, µs. */
  waitingUs = 0;
  waitingSlabs = 0;
  /** The newest open slab of the wanted key with room for the wanted rows; -1 for none. */
  roomy = -1;
  readonly #segment: Segment;
  readonly #cost: RunCost;

  constructor(segment: Segment, cost: RunCost) {
    this.#segment = segment;
    this.#cost = cost;
  }

  /** Looks anew, at what has its turn before a request of the level that comes now, and for a slab with room for `rows` rows of the key `hash`. */
  look(nowUs: number, hash: number, rows: number, level: number): void {
    this.#lookAtInstances(nowUs);
    this.#lookAtSlabs(hash, rows, level);
  }

  #lookAtInstances(nowUs: number): void {
    const segment = this.#segment;
    const { i32, f64, geometry } = segment;
    this.instances = 0;
    this.runningUs = 0;
    this.firstFreeUs = Number.POSITIVE_INFINITY;
    for (let slot = 0; slot < geometry.instanceSlots; slot++) {
      const line = segment.instanceLine(slot);
      if (Atomics.load(i32, line + INSTANCE_SERVING) !== 1) continue;
      this.instances++;
      const slab = Atomics.load(i32, line + INSTANCE_SLAB) - 1;
      let leftUs = 0;
      if (slab >= 0 && slab < geometry.slabs) {
        const descriptor = segment.descriptor(slab);
        const rows = Math.max(1, i32[descriptor + SLAB_ROWS]! || i32[descriptor + SLAB_WAITING_ROWS]!);
        const runUs = this.#cost.runUs(i32[segment.slabHashes + slab]!, rows);
        const since = f64[line / 2 + INSTANCE_EXECUTING_SINCE]!;
        leftUs = Math.max(runUs * OVERDUE_RATIO, runUs - (since > 0 ? nowUs - since : 0));
      }
      this.runningUs += leftUs;
      this.firstFreeUs = Math.min(this.firstFreeUs, leftUs);
    }
    if (this.instances === 0) this.firstFreeUs = 0;
  }

  #lookAtSlabs(hash: number, rows: number, level: number): void {
    const segment = this.#segment;
    const { i32, slabWords, slabHashes, slabSeqs, geometry } = segment;
    let newest = 0;
    this.roomy = -1;
    this.waitingUs = 0;
    this.waitingSlabs = 0;
    const used = Math.min(Atomics.load(i32, HEADER_SLABS_USED), geometry.slabs);
    const turn = Atomics.load(i32, HEADER_OPEN_SEQ) + turnDelay(level);
    for (let slab = 0; slab < used; slab++) {
      if (slabState(Atomics.load(i32, slabWords + slab)) !== SLAB_OPEN) continue;
      if (((i32[slabSeqs + slab]! - turn) | 0) > 0) continue;
      this.waitingSlabs++;
      this.waitingUs += this.slabUs(slab, 0);
      if (i32[slabHashes + slab] !== hash) continue;
      const descriptor = segment.descriptor(slab);
      if (i32[descriptor + SLAB_LEVEL] !== level) continue;
      if (i32[descriptor + SLAB_WAITING_ROWS]! + rows > i32[descriptor + SLAB_CAPACITY_ROWS]!) continue;
      const seq = i32[slabSeqs + slab]!;
      if (this.roomy >= 0 && ((seq - newest) | 0) < 0) continue;
      this.roomy = slab;
      newest = seq;
    }
  }

  /** What a slab will take with `more` rows than it has, µs; 0 without any. */
  slabUs(slab: number, more: number): number {
    const segment = this.#segment;
    const rows = Math.max(0, segment.i32[segment.descriptor(slab) + SLAB_WAITING_ROWS]!) + more;
    return rows === 0 ? 0 : this.#cost.runUs(segment.i32[segment.slabHashes + slab]!, rows);
  }

  /** The level of priority of a slab. */
  level(slab: number): number {
    return this.#segment.i32[this.#segment.descriptor(slab) + SLAB_LEVEL]!;
  }

  /** Earliest deadline of the rows in a slab; 0 for none. */
  deadlineUs(slab: number): number {
    return this.#segment.f64[this.#segment.descriptorF64(slab) + SLAB_DEADLINE_AT]!;
  }

  /** Whether an instance would take a request at once. */
  get idle(): boolean {
    return this.waitingSlabs === 0 && this.firstFreeUs === 0;
  }
}
