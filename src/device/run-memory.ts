/**
 * The memory account of one instance: how many rows a run may have, what each run took, when the arena gives memory back, and what is done when it has none.
 *
 *     rows ≤ what the fit says fits ─▶ book room ─▶ run ─▶ measured, if it was larger than any before ─▶ leave
 *                                                   │ out of memory
 *                                                   ├ several rows: fewer from now on (batch-cap.ts); in an arena cut up by other sizes the same again, after it has
 *                                                   │               given back what is free
 *                                                   └ one row: once more, alone and in a clean arena; then it is an error of that row, or of the arena, where that has
 *                                                              lost room that nobody uses or was made too small: ArenaPoisoned
 *
 * Owner: the instance's thread. The allocator's statistics cost some 20 µs, so they are read only for runs larger than any before and once a second. Bound: SHAPES_MAX
 * shapes are remembered.
 */
import type { InstanceCounters } from '../metrics/counters.ts';
import type { SlabLayout } from '../queue/layout.ts';
import type { ArenaState } from '../runtime/allocator-stats.ts';
import { NO_PIECES, noPieces, notePiece } from '../scheduler/arena-pieces.ts';
import { type ArenaUpkeep, initialUpkeep, look } from '../scheduler/arena-upkeep.ts';
import { type BatchCap, NO_CAP, noteOutOfMemory, noteRun } from '../scheduler/batch-cap.ts';
import {
  bytesOf,
  fitFor,
  type KeyPoints,
  type MemoryFit,
  type MemoryPoint,
  rowsWithin,
  withMeasured,
} from '../scheduler/memory-fit.ts';
import { nowUs } from '../system/clock.ts';
import type { ArenaRoom } from './arena-room.ts';
import { isRunFailure } from './canary.ts';
import { isArenaLimit, isOutOfMemory } from './out-of-memory.ts';
import { shapeKey } from './shape-key.ts';

/** A row finds no room in an arena that nobody uses, and would in a new one, which only a new process has. */
export class ArenaPoisoned extends Error {}

export interface Measured {
  readonly key: string;
  readonly elements: number;
  readonly point: MemoryPoint;
}

export interface RunMemoryOptions {
  readonly slot: number;
  readonly room: ArenaRoom;
  /** What runs of the model may take together; Infinity where nothing bounds it. */
  readonly roomBytes: number;
  /** The arena of the next process would have more room, if runs were known to need more. */
  readonly canGrow: boolean;
  /** What the arena held right after the load, with nothing running. */
  readonly baseBytes: number;
  /** What has been measured before. */
  readonly keys: readonly KeyPoints[];
  /** Time (µs) from which on an arena may be given up. */
  readonly recycleFromUs: number;
  readonly counters: InstanceCounters;
  /** The arena now; undefined where it tells nothing. */
  readonly arena: () => ArenaState | undefined;
  /** Called while it waits for room. */
  readonly onWait: () => void;
  /** Told of a run that took more than any before. */
  readonly onMeasured: (measured: Measured) => void;
}

/** What is known about runs of one shape. */
interface Shape {
  readonly key: string;
  readonly elements: number;
  fit: MemoryFit | undefined;
  /** Of the points that the fit was made of. */
  version: number;
  cap: BatchCap;
  /** Most rows that have run in this life, and for which the allocator was asked. */
  worked: number;
  looked: number;
}

const SHAPES_MAX = 256;
/** A run is measured when it has so many times the rows of the last one that was. */
const LOOK_RATIO = 1.25;
const LOOK_EVERY_US = 1_000_000;
/** With less than this beyond the weights there is nothing to give back. */
const IDLE_MIN_BYTES = 16 * 2 ** 20;
/** Room that is lost for good: so much, and such a part of it. */
const LOST_MIN_BYTES = 2 ** 20;
const LOST_PART = 1 / 16;
const LAST_TRIES = 2;
/** A run that failed in all of the room is taken to need so many times that. */
const GROWTH = 1.5;

export class RunMemory {
  readonly #options: RunMemoryOptions;
  readonly #byLayout = new WeakMap<SlabLayout, Shape>();
  readonly #byKey = new Map<string, Shape>();
  #keys: readonly KeyPoints[];
  #version = 1;
  #upkeep: ArenaUpkeep;
  #lookedAtUs = 0;
  /** Beyond the weights, at the last look. */
  #heldBytes = Number.POSITIVE_INFINITY;
  /** A run since the last look whose need nobody knew. */
  #unknown = false;
  #giveBack = false;
  /** Nothing has run since the arena gave back what it could. */
  #clean = true;
  #pieces = NO_PIECES;

  constructor(options: RunMemoryOptions) {
    this.#options = options;
    this.#keys = options.keys;
    this.#upkeep = initialUpkeep(nowUs() / 1000);
    options.room.join();
  }

  /** The instance ends. */
  close(): void {
    this.#options.room.part(this.#options.slot);
  }

  /** Most rows that a run of this layout should have now; at least 1. */
  rowsMax(layout: SlabLayout): number {
    const shape = this.#shapeOf(layout);
    const { fit, cap } = shape;
    const { room, roomBytes } = this.#options;
    if (fit === undefined || roomBytes === Number.POSITIVE_INFINITY) return cap.rows;
    // What others have not booked, or the instance's part: for that it waits.
    const fits = Math.max(rowsWithin(fit, room.freeBytes), rowsWithin(fit, roomBytes / room.instances));
    return Math.max(1, Math.min(cap.rows, fits));
  }

  /**
   * Carries out a run of so many rows, which `attempt` does, as often as it is called; told to, it lets the arena give memory back afterwards.
   *
   * @throws what `attempt` throws; ArenaPoisoned
   */
  run<T>(layout: SlabLayout, rows: number, attempt: (giveBack: boolean) => T): T {
    const { room, onWait, counters } = this.#options;
    const shape = this.#shapeOf(layout);
    const { fit } = shape;
    if (fit === undefined) this.#unknown = true;
    const booked = room.enter(fit === undefined ? 0 : bytesOf(fit, rows), onWait);
    let failure: unknown;
    try {
      return this.#attempt(shape, rows, attempt);
    } catch (error) {
      if (!isOutOfMemory(error)) throw error;
      failure = error;
      counters.outOfMemory();
      // Cut up by runs of other sizes, the arena may hold enough and not in one piece: then it is to give back what is free, which it does at the end of a run that
      // fails as well, and the size is held against the model only if it fails after that.
      const fits = rows <= shape.worked || (fit !== undefined && bytesOf(fit, rows) <= this.#options.roomBytes);
      if (this.#clean || !fits) shape.cap = noteOutOfMemory(shape.cap, rows, nowUs() / 1000);
      this.#clean = this.#giveBack;
      this.#giveBack = !this.#clean;
      if (rows > 1) throw error;
    } finally {
      room.leave(booked);
    }
    return room.alone(() => this.#lastTry(shape, attempt, failure), onWait);
  }

  /** Between batches, when there have been none for a moment: `run` is a small run after which the arena gives back what it can. */
  idle(run: (() => void) | undefined): void {
    const now = nowUs();
    if (this.#heldBytes < IDLE_MIN_BYTES || now - this.#lookedAtUs < LOOK_EVERY_US) return;
    this.#look(now);
    if (!this.#giveBack || run === undefined) return;
    try {
      this.#options.room.alone(run, this.#options.onWait);
    } catch (error) {
      // Nobody waits for it, and the next batch will show what is wrong.
      if (!isRunFailure(error)) throw error;
    }
    this.#gaveBack();
  }

  /** One row that found no memory, alone now. */
  #lastTry<T>(shape: Shape, attempt: (giveBack: boolean) => T, first: unknown): T {
    let failure = first;
    for (let n = 0; n < LAST_TRIES; n++) {
      this.#giveBack = true;
      try {
        return this.#attempt(shape, 1, attempt);
      } catch (error) {
        if (!isOutOfMemory(error)) throw error;
        this.#options.counters.outOfMemory();
        failure = error;
      }
    }
    if (!isArenaLimit(failure) || nowUs() < this.#options.recycleFromUs) throw failure;
    const lostBytes = this.#lostBytes();
    if (shape.worked > 0 && lostBytes > 0) {
      throw new ArenaPoisoned(
        `A row that has fitted before finds no memory, since ${mib(lostBytes)} of the arena are lost: ${(failure as Error).message}`,
      );
    }
    if (!this.#options.canGrow) throw failure;
    this.#note(shape, { rows: 1, bytes: Math.ceil(this.#options.roomBytes * GROWTH) });
    throw new ArenaPoisoned(
      `A row needs more than the ${mib(this.#options.roomBytes)} that runs were thought to take, and is given more room now: ${(failure as Error).message}`,
    );
  }

  /** What an arena in which nothing runs holds more than after the load; 0 where that explains nothing. */
  #lostBytes(): number {
    const { arena, baseBytes, roomBytes } = this.#options;
    const lost = (arena()?.heldBytes ?? 0) - baseBytes;
    return lost >= Math.max(LOST_MIN_BYTES, roomBytes * LOST_PART) ? lost : 0;
  }

  #attempt<T>(shape: Shape, rows: number, attempt: (giveBack: boolean) => T): T {
    const { room, arena } = this.#options;
    const { begun } = room;
    const before = rows >= shape.looked * LOOK_RATIO && room.isOnly ? arena() : undefined;
    const giveBack = this.#giveBack;
    const result = attempt(giveBack);
    const now = nowUs();
    if (before !== undefined && room.isOnly && room.begun === begun) this.#measure(shape, rows, before);
    if (giveBack) this.#gaveBack();
    else this.#ran(shape.fit, rows);
    shape.cap = noteRun(shape.cap, rows, now / 1000);
    if (rows > shape.worked) shape.worked = rows;
    if (now - this.#lookedAtUs >= LOOK_EVERY_US) this.#look(now);
    return result;
  }

  /** A run that was alone has ended: whether the arena was fuller in it than ever before tells what it took. */
  #measure(shape: Shape, rows: number, before: ArenaState): void {
    const after = this.#options.arena();
    shape.looked = rows;
    if (after === undefined || after.peakBytes <= before.peakBytes) return;
    this.#note(shape, { rows, bytes: Math.max(0, after.peakBytes - before.inUseBytes) });
  }

  #note({ key, elements }: Shape, point: MemoryPoint): void {
    const keys = withMeasured(this.#keys, { key, elements, point });
    if (keys === this.#keys) return;
    this.#keys = keys;
    this.#version++;
    this.#options.onMeasured({ key, elements, point });
  }

  #look(now: number): void {
    this.#lookedAtUs = now;
    const { room, slot, arena, baseBytes, counters } = this.#options;
    const state = arena();
    if (state === undefined) return;
    counters.arena(state.heldBytes);
    this.#heldBytes = Math.max(0, state.heldBytes - baseBytes);
    // One instance looks after the arena that all of them share.
    if (!room.looksAfter(slot)) return;
    const neededBytes = this.#unknown ? undefined : room.takeMostBytes();
    this.#unknown = false;
    const next = look(this.#upkeep, { nowMs: now / 1000, heldBytes: this.#heldBytes, neededBytes });
    this.#upkeep = next.state;
    this.#giveBack ||= next.giveBack;
  }

  #ran(fit: MemoryFit | undefined, rows: number): void {
    this.#clean = false;
    if (fit === undefined) return;
    const bytes = bytesOf(fit, rows);
    if (bytes <= this.#pieces.largestBytes) return;
    const { pieces, giveBack } = notePiece(this.#pieces, bytes);
    this.#pieces = pieces;
    this.#giveBack ||= giveBack;
  }

  #gaveBack(): void {
    this.#giveBack = false;
    this.#clean = true;
    this.#pieces = noPieces(this.#pieces);
    this.#options.counters.gaveBack();
  }

  #shapeOf(layout: SlabLayout): Shape {
    let shape = this.#byLayout.get(layout);
    if (shape === undefined) {
      shape = this.#shapeOfKey(layout);
      this.#byLayout.set(layout, shape);
    }
    if (shape.version !== this.#version) {
      shape.fit = fitFor(this.#keys, shape.key, shape.elements);
      shape.version = this.#version;
    }
    return shape;
  }

  #shapeOfKey({ whole, inputs }: SlabLayout): Shape {
    const { key, elements } = shapeKey(
      whole,
      inputs.map(({ dims }) => dims),
    );
    let shape = this.#byKey.get(key);
    if (shape === undefined) {
      shape = { key, elements, fit: undefined, version: 0, cap: NO_CAP, worked: 0, looked: 0 };
      if (this.#byKey.size >= SHAPES_MAX) this.#byKey.clear();
      this.#byKey.set(key, shape);
    }
    return shape;
  }
}

function mib(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}
