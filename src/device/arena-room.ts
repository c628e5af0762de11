/**
 * The room that the runs of one model have in its arena on this device, shared by the model's instances: each books what its run will take, so that several of them
 * together do not pass what is there. One that needs all of it asks to be alone.
 *
 *     enter ─ others have booked too much, or somebody wants to be alone ─▶ wait            alone ─ others run ─▶ wait (nobody enters meanwhile)
 *       └ booked ─▶ run ─▶ leave, wake the others                                            └ nobody runs ─▶ run ─▶ leave
 *
 * Owner: the device's main thread makes one for each loaded model; plain shared memory, gone with the last reference. An instance ends only between runs, and a
 * process with all its instances, so that no booking outlives its run. Bound: a wait looks again after WAIT_MS and ends with the run that it waits for, which has a
 * limit of its own.
 */

/** Runs that are going on, and runs that have ever begun. */
const RUNS = 0;
const BEGUN = 1;
/** Units booked: 0 exactly while nobody runs. */
const BOOKED = 2;
/** Most units that were booked since the last look. */
const MOST = 3;
/** How many want to be, or are, alone. */
const ALONE = 4;
/** Instances of the model. */
const INSTANCES = 5;
/** Slot of the one that looks after the arena, and 1; 0 for none. */
const LOOKER = 6;
/** Threads that wait. */
const WAITING = 7;
const WORDS = 8;

const UNIT_BYTES = 64 * 1024;
/** What one that is alone books: more than any room. */
const EVERYTHING = 2 ** 30;
/** Most that one run books where nothing bounds the room: so much that all instances there can be together stay below everything. */
const UNBOUNDED_RUN_MAX = 2 ** 22;
const WAIT_MS = 100;

export class ArenaRoom {
  readonly #words: Int32Array;
  readonly #roomUnits: number;
  readonly #runUnitsMax: number;

  /** Memory for one, to be shared by the threads of a process. */
  static memory(): SharedArrayBuffer {
    return new SharedArrayBuffer(WORDS * Int32Array.BYTES_PER_ELEMENT);
  }

  /** @param roomBytes what runs may take together, the same for all; Infinity where nothing bounds it. */
  constructor(roomBytes: number, memory: SharedArrayBuffer) {
    this.#words = new Int32Array(memory);
    this.#roomUnits = Math.min(EVERYTHING - 1, Math.floor(roomBytes / UNIT_BYTES));
    this.#runUnitsMax = roomBytes === Number.POSITIVE_INFINITY ? UNBOUNDED_RUN_MAX : Math.max(1, this.#roomUnits);
  }

  /** An instance begins to use the room. */
  join(): void {
    Atomics.add(this.#words, INSTANCES, 1);
  }

  /** It ends. */
  part(slot: number): void {
    Atomics.sub(this.#words, INSTANCES, 1);
    Atomics.compareExchange(this.#words, LOOKER, slot + 1, 0);
  }

  /** Whether this instance is the one that looks after the arena; the first to ask is, until it ends. */
  looksAfter(slot: number): boolean {
    const before = Atomics.compareExchange(this.#words, LOOKER, 0, slot + 1);
    return before === 0 || before === slot + 1;
  }

  get instances(): number {
    return Math.max(1, Atomics.load(this.#words, INSTANCES));
  }

  /** What nobody has booked now. */
  get freeBytes(): number {
    return Math.max(0, this.#roomUnits - Atomics.load(this.#words, BOOKED)) * UNIT_BYTES;
  }

  /** Whether the caller's run is the only one. */
  get isOnly(): boolean {
    return Atomics.load(this.#words, RUNS) === 1;
  }

  /** Number of runs that have begun: the same before and after a run that was the only one throughout. */
  get begun(): number {
    return Atomics.load(this.#words, BEGUN);
  }

  /**
   * Books room for a run. Blocks while others have too much of it; a run that needs more than there is runs when nobody else does.
   *
   * @param onWait called again and again while it waits.
   * @returns what to hand to leave().
   */
  enter(bytes: number, onWait: () => void): number {
    const words = this.#words;
    const units = Math.min(this.#runUnitsMax, Math.max(1, Math.ceil(bytes / UNIT_BYTES)));
    for (;;) {
      const alone = Atomics.load(words, ALONE);
      const booked = Atomics.load(words, BOOKED);
      if (alone !== 0) this.#wait(ALONE, alone, onWait);
      else if (booked !== 0 && booked + units > this.#roomUnits) this.#wait(BOOKED, booked, onWait);
      else if (Atomics.compareExchange(words, BOOKED, booked, booked + units) === booked) {
        // Others may raise it at the same time; a figure that is lost so is there again with the next run.
        if (booked + units > Atomics.load(words, MOST)) Atomics.store(words, MOST, booked + units);
        Atomics.add(words, RUNS, 1);
        Atomics.add(words, BEGUN, 1);
        return units;
      }
    }
  }

  leave(units: number): void {
    Atomics.sub(this.#words, RUNS, 1);
    Atomics.sub(this.#words, BOOKED, units);
    // Pairs with #wait(): who counts itself after this sees the new value. A call that wakes nobody costs as much as all the rest.
    if (Atomics.load(this.#words, WAITING) > 0) Atomics.notify(this.#words, BOOKED);
  }

  /** Calls `run` while no other instance runs. The caller has left. Blocks as enter() does. */
  alone<T>(run: () => T, onWait: () => void): T {
    const words = this.#words;
    Atomics.add(words, ALONE, 1);
    try {
      for (;;) {
        const booked = Atomics.compareExchange(words, BOOKED, 0, EVERYTHING);
        if (booked === 0) break;
        this.#wait(BOOKED, booked, onWait);
      }
      Atomics.add(words, RUNS, 1);
      Atomics.add(words, BEGUN, 1);
      try {
        return run();
      } finally {
        this.leave(EVERYTHING);
      }
    } finally {
      Atomics.sub(words, ALONE, 1);
      Atomics.notify(words, ALONE);
    }
  }

  /** Most that was booked at a time since the last call. */
  takeMostBytes(): number {
    return Math.min(this.#roomUnits, Atomics.exchange(this.#words, MOST, 0)) * UNIT_BYTES;
  }

  #wait(word: number, value: number, onWait: () => void): void {
    Atomics.add(this.#words, WAITING, 1);
    Atomics.wait(this.#words, word, value, WAIT_MS);
    Atomics.sub(this.#words, WAITING, 1);
    onWait();
  }
}
