/**
 * The producing side: an ingress process puts the rows of its requests into slabs and takes the results out.
 *
 * One Producer per segment and ingress slot, used by one thread. It owns its claims until it releases them; if the process dies, the supervisor releases
 * them (reclaim.ts). Bounds: rows queued by all ingress processes of the segment ≤ maxRows (exact: publish first, then look at the others); requests
 * that wait for space are part of that count.
 *
 * Per request nothing is allocated here but the Claim itself.
 */
import { nowUs } from '../system/clock.ts';
import { type Doorbells, hear, wakeInstance } from './bells.ts';
import {
  BLOCK_BYTES,
  HEADER_OPEN_SEQ,
  HEADER_SLABS_USED,
  INGRESS_QUEUED_ROWS,
  INGRESS_WAITING,
  SLAB_ATTEMPTS,
  SLAB_BLOCKS,
  SLAB_CAPACITY_ROWS,
  SLAB_CLAIMS,
  SLAB_DEADLINE_AT,
  SLAB_DONE_AT,
  SLAB_FIRST_BLOCK,
  SLAB_HEAP_BYTES,
  SLAB_HEAP_USED,
  SLAB_LEVEL,
  SLAB_OPENED_AT,
  SLAB_RESULT_BLOCKS,
  SLAB_RESULT_FIRST,
  SLAB_RESULT_SCATTERED,
  SLAB_ROWS,
  SLAB_RUN_AT,
  SLAB_SEALED_AT,
  SLAB_WAITING_ROWS,
} from './geometry.ts';
import type { Placement, SlabLayout } from './layout.ts';
import { freeIfDone } from './release.ts';
import type { ResultReader } from './result.ts';
import type { Segment } from './segment.ts';
import {
  CLAIM_CLAIMED,
  CLAIM_EMPTY,
  CLAIM_READY,
  CLAIM_RELEASED,
  CLAIM_STOLEN,
  claimEmpty,
  claimHasGeneration,
  claimMoved,
  claimRows,
  claimState,
  claimWord,
  ingressOwner,
  SLAB_DONE,
  SLAB_FILLING,
  SLAB_FREE,
  SLAB_FREEING,
  SLAB_OPEN,
  slabHasGeneration,
  slabMoved,
  slabState,
  slabWord,
  turnDelay,
} from './states.ts';
import type { TensorBytes } from './tensor-source.ts';

/** Rows of one request inside a slab. `owner` is whatever the caller wants back with the result. */
export interface Claim<T> {
  readonly owner: T;
  readonly layout: SlabLayout;
  readonly placement: Placement;
  readonly slab: number;
  readonly generation: number;
  readonly index: number;
  readonly firstRow: number;
  readonly rows: number;
  released: boolean;
}

/** Where a producer last put rows of a layout, and what it knows of the claims there. */
interface Hint {
  slab: number;
  generation: number;
  word: number;
  nextClaim: number;
  rowsBefore: number;
  placement: Placement;
  /** Byte offset of the slab's region, checked when the hint was made: it is not read again. */
  base: number;
}

interface PendingSlab<T> {
  readonly slab: number;
  readonly generation: number;
  /** Word while OPEN and when DONE, precomputed. */
  readonly openWord: number;
  readonly doneWord: number;
  readonly claims: Claim<T>[];
  rows: number;
  sealedSeen: boolean;
}

interface Waiting<T> {
  readonly owner: T;
  readonly layout: SlabLayout;
  readonly inputs: readonly TensorBytes[];
  readonly rows: number;
  readonly bytes: number;
  readonly deadlineUs: number;
  /** Its turn among those that wait, as that of a slab. */
  readonly turn: number;
}

export interface ProducerLimits {
  /** Rows that may queue (not yet taken by an instance) over all ingress processes. */
  readonly maxRows: number;
}

/** Decides how full batches become. */
export interface BatchPolicy {
  /** Rows that a new slab should hold at most. */
  batchRows(layout: SlabLayout): number;
  /** Whether rows with this deadline (0: none) may join an open slab. Asked only where they or a row in it have one. */
  mayJoin(slab: number, rows: number, deadlineUs: number, nowUs: number): boolean;
}

/** As full as they may be. */
const FULL_BATCHES: BatchPolicy = { batchRows: () => Number.POSITIVE_INFINITY, mayJoin: () => true };

/** Share of the blocks that results always find free: producers stop at the rest. */
const RESULT_SHARE = 0.25;
const SLAB_TARGET_MAX_BYTES = 16 * 1024 * 1024;
const HEAP_DEFAULT_BYTES = 64 * 1024;

export class Producer<T> {
  readonly #segment: Segment;
  readonly #slot: number;
  readonly #owner: number;
  readonly #bells: Doorbells;
  readonly #limits: ProducerLimits;
  readonly #policy: BatchPolicy;
  readonly #blockLimit: number;
  readonly #slabTargetBytes: number;
  readonly #hints = new Map<SlabLayout, Hint>();
  #lastLayout: SlabLayout | undefined;
  #lastHint: Hint | undefined;
  readonly #pending: PendingSlab<T>[] = [];
  readonly #onPlaced: (owner: T, claim: Claim<T>) => void;
  readonly #wake: (segment: Segment) => void;
  /** In the order of their turns. */
  #waiting: Waiting<T>[] = [];
  #waited = 0;
  #queuedRows = 0;
  /** Of the inputs kept for those that wait; at most capacityBytes. */
  #waitingBytes = 0;

  /**
   * @param onPlaced is told the claim of a request that had to wait for space.
   * @param wake wakes an instance for published rows. An event loop may put this off to the end of its turn: one wake-up then serves all requests that came
   *   in together, and they share a batch.
   */
  constructor(
    segment: Segment,
    slot: number,
    bells: Doorbells,
    limits: ProducerLimits,
    onPlaced: (owner: T, claim: Claim<T>) => void = () => {},
    wake: (segment: Segment) => void = wakeInstance,
    policy: BatchPolicy = FULL_BATCHES,
  ) {
    this.#policy = policy;
    this.#onPlaced = onPlaced;
    this.#wake = wake;
    this.#segment = segment;
    this.#slot = slot;
    this.#owner = ingressOwner(slot);
    this.#bells = bells;
    this.#limits = limits;
    const { blocks } = segment.geometry;
    this.#blockLimit = Math.max(1, blocks - Math.ceil(blocks * RESULT_SHARE));
    this.#slabTargetBytes = Math.min(
      SLAB_TARGET_MAX_BYTES,
      Math.max(BLOCK_BYTES, (this.#blockLimit * BLOCK_BYTES) / 8),
    );
    Atomics.store(segment.i32, segment.ingressLine(slot) + INGRESS_QUEUED_ROWS, 0);
    Atomics.store(segment.i32, segment.ingressLine(slot) + INGRESS_WAITING, 0);
    // A predecessor in this slot may have died between taking the byte out of the pipe and hearing it.
    hear(segment, slot);
  }

  /** Slabs with claims of this producer that are not yet all released. */
  get pendingSlabs(): number {
    return this.#pending.length;
  }

  /** Whether a result is there for poll() to take. */
  get resultReady(): boolean {
    const { i32, slabWords } = this.#segment;
    for (const { slab, doneWord } of this.#pending) if (Atomics.load(i32, slabWords + slab) === doneWord) return true;
    return false;
  }

  /** Requests that wait for space. */
  get waitingRequests(): number {
    return this.#waiting.length;
  }

  /** Bytes that one request with this layout needs at least; more than `capacityBytes` can never be placed. */
  requestBytes(layout: SlabLayout, rows: number, inputs: readonly TensorBytes[]): number {
    return this.#placementFor(layout, rows, heapNeed(layout, inputs)).blocks * BLOCK_BYTES;
  }

  get capacityBytes(): number {
    return this.#blockLimit * BLOCK_BYTES;
  }

  /**
   * Whether `rows` more rows may queue now. When true they are counted, and have to be given to place() next.
   */
  admit(rows: number): boolean {
    const { i32 } = this.#segment;
    const line = this.#segment.ingressLine(this.#slot) + INGRESS_QUEUED_ROWS;
    Atomics.store(i32, line, this.#queuedRows + rows);
    if (this.#totalQueued() > this.#limits.maxRows) {
      this.#refreshQueued();
      Atomics.store(i32, line, this.#queuedRows + rows);
      if (this.#totalQueued() > this.#limits.maxRows) {
        Atomics.store(i32, line, this.#queuedRows);
        return false;
      }
    }
    this.#queuedRows += rows;
    return true;
  }

  /** Rows that were admitted and are not placed after all. */
  dismiss(rows: number): void {
    this.#queuedRows -= rows;
    this.#publishQueued();
  }

  /** Whether not even one more row may queue. Cheap enough to ask before a body is read. */
  get full(): boolean {
    if (this.#totalQueued() < this.#limits.maxRows) return false;
    this.#refreshQueued();
    this.#publishQueued();
    return this.#totalQueued() >= this.#limits.maxRows;
  }

  #totalQueued(): number {
    let total = 0;
    for (let slot = 0; slot < this.#segment.geometry.ingressSlots; slot++) {
      total += Atomics.load(this.#segment.i32, this.#segment.ingressLine(slot) + INGRESS_QUEUED_ROWS);
    }
    return total;
  }

  #refreshQueued(): void {
    for (const pending of this.#pending) this.#noteSealed(pending);
  }

  #noteSealed(pending: PendingSlab<T>): void {
    if (pending.sealedSeen) return;
    if (Atomics.load(this.#segment.i32, this.#segment.slabWords + pending.slab) === pending.openWord) return;
    pending.sealedSeen = true;
    this.#queuedRows -= pending.rows;
  }

  #publishQueued(): void {
    Atomics.store(this.#segment.i32, this.#segment.ingressLine(this.#slot) + INGRESS_QUEUED_ROWS, this.#queuedRows);
  }

  /**
   * Puts an admitted request into the queue: into a slab now, or behind those that wait for space.
   *
   * `inputs` are copied before this returns, unless the request has to wait; then they are kept. Whether those that lie elsewhere could be copied is to be
   * asked of them (copyFault) once there is a claim.
   *
   * @param deadlineUs absolute, on the monotonic clock; 0 for none.
   * @returns the claim; undefined when the request waits (onPlaced is told its claim); 'full' when it may not even wait, and is no longer counted.
   */
  place(
    owner: T,
    layout: SlabLayout,
    rows: number,
    inputs: readonly TensorBytes[],
    deadlineUs: number,
  ): Claim<T> | undefined | 'full' {
    checkRequest(layout, rows, inputs, this.#segment.geometry.maxBatchRows);
    if (this.#waiting.length === 0) {
      const claim = this.#tryPlace(owner, layout, rows, inputs, deadlineUs);
      if (claim !== undefined) return claim;
    }
    const bytes = inputs.reduce((sum, input) => sum + input.length, 0);
    if (this.#waitingBytes + bytes > this.capacityBytes) {
      this.dismiss(rows);
      return 'full';
    }
    this.#waitingBytes += bytes;
    const turn = this.#waited++ + turnDelay(layout.level);
    let at = this.#waiting.length;
    while (at > 0 && this.#waiting[at - 1]!.turn > turn) at--;
    this.#waiting.splice(at, 0, { owner, layout, inputs, rows, bytes, deadlineUs, turn });
    Atomics.store(this.#segment.i32, this.#segment.ingressLine(this.#slot) + INGRESS_WAITING, 1);
    // Space may have come free between the attempt and the flag.
    if (at === 0) this.#placeWaiting();
    return undefined;
  }

  #placeWaiting(): void {
    for (let request = this.#waiting[0]; request !== undefined; request = this.#waiting[0]) {
      const claim = this.#tryPlace(request.owner, request.layout, request.rows, request.inputs, request.deadlineUs);
      if (claim === undefined) break;
      // Before the callback, which may drop others or place more.
      this.#waiting.shift();
      this.#waitingBytes -= request.bytes;
      this.#onPlaced(request.owner, claim);
    }
    if (this.#waiting.length === 0) {
      Atomics.store(this.#segment.i32, this.#segment.ingressLine(this.#slot) + INGRESS_WAITING, 0);
    }
  }

  /** Takes a request out that still waits for space. Returns false when it is not among them. */
  dropWaiting(owner: T): boolean {
    const at = this.#waiting.findIndex((request) => request.owner === owner);
    if (at < 0) return false;
    const { rows, bytes } = this.#waiting[at]!;
    this.#waitingBytes -= bytes;
    this.#waiting.splice(at, 1);
    this.dismiss(rows);
    // Those behind the first may find space where it did not.
    if (at === 0) this.#placeWaiting();
    return true;
  }

  #placementFor(layout: SlabLayout, rows: number, heapBytes: number): Placement {
    let capacity = 1;
    if (!layout.whole) {
      const fitting =
        layout.rowBytes === 0
          ? this.#segment.geometry.maxBatchRows
          : Math.floor(this.#slabTargetBytes / layout.rowBytes);
      const wanted = Math.min(fitting, this.#policy.batchRows(layout));
      capacity = Math.min(this.#segment.geometry.maxBatchRows, Math.max(rows, wanted));
    }
    let heap = 0;
    if (layout.bytesInputs.length > 0) {
      // Powers of two keep the number of different placements small.
      const wanted = layout.whole ? heapBytes : Math.max(HEAP_DEFAULT_BYTES, 2 * heapBytes);
      heap = Math.min(2 ** Math.ceil(Math.log2(Math.max(64, wanted))), Math.max(wanted, this.#slabTargetBytes));
      if (heapBytes > this.#slabTargetBytes) heap = Math.ceil(heapBytes / BLOCK_BYTES) * BLOCK_BYTES;
    }
    return layout.place(capacity, heap);
  }

  #tryPlace(
    owner: T,
    layout: SlabLayout,
    rows: number,
    inputs: readonly TensorBytes[],
    deadlineUs: number,
  ): Claim<T> | undefined {
    const heapBytes = heapNeed(layout, inputs);
    if (!layout.whole) {
      let hint = this.#lastLayout === layout ? this.#lastHint : this.#hints.get(layout);
      const known = hint?.slab ?? -1;
      if (hint === undefined) hint = this.#findOpen(layout, 0, -1);
      let from = 0;
      while (hint !== undefined) {
        const claim = this.#join(hint, owner, layout, rows, inputs, heapBytes, deadlineUs);
        if (claim !== undefined) {
          this.#remember(layout, hint);
          return claim;
        }
        this.#forget(layout);
        // The search begins anew behind a hint from earlier: another producer's open slab may lie before it.
        if (hint.slab !== known) from = hint.slab + 1;
        hint = this.#findOpen(layout, from, known);
      }
    }
    return this.#open(owner, layout, rows, inputs, heapBytes, deadlineUs);
  }

  #remember(layout: SlabLayout, hint: Hint): void {
    if (this.#lastHint === hint) return;
    if (this.#hints.size >= 256) this.#hints.clear();
    this.#hints.set(layout, hint);
    this.#lastLayout = layout;
    this.#lastHint = hint;
  }

  #forget(layout: SlabLayout): void {
    this.#hints.delete(layout);
    if (this.#lastLayout === layout) {
      this.#lastLayout = undefined;
      this.#lastHint = undefined;
    }
  }

  /** Claims rows of an open slab. Undefined when it is closed, full, or not what the hint says. */
  #join(
    hint: Hint,
    owner: T,
    layout: SlabLayout,
    rows: number,
    inputs: readonly TensorBytes[],
    heapBytes: number,
    deadlineUs: number,
  ): Claim<T> | undefined {
    const segment = this.#segment;
    const { i32 } = segment;
    const { slab, generation, placement } = hint;
    if (Atomics.load(i32, segment.slabWords + slab) !== hint.word) return undefined;
    const claims = segment.claimIndex(slab);
    const empty = claimEmpty(generation);
    const { claimsPerSlab } = segment.geometry;
    let asked = false;
    let heapAt = -1;
    for (;;) {
      if (hint.nextClaim >= claimsPerSlab || hint.rowsBefore + rows > placement.capacityRows) return undefined;
      const word = Atomics.load(i32, claims + hint.nextClaim);
      if (!claimHasGeneration(word, generation)) return undefined;
      if (word !== empty) {
        const state = claimState(word);
        if (state < CLAIM_CLAIMED || state > CLAIM_STOLEN) return undefined; // the end marker
        hint.rowsBefore += claimRows(word);
        hint.nextClaim++;
        continue;
      }
      if (!asked && (deadlineUs > 0 || segment.f64[segment.descriptorF64(slab) + SLAB_DEADLINE_AT]! > 0)) {
        if (!this.#policy.mayJoin(slab, rows, deadlineUs, nowUs())) return undefined;
        asked = true;
      }
      if (heapBytes > 0 && heapAt < 0) {
        heapAt = this.#takeHeap(slab, heapBytes);
        if (heapAt < 0) return undefined;
      }
      const claimed = claimWord(CLAIM_CLAIMED, this.#slot, rows, generation);
      // Acquires the rows; pairs with the sealer's compareExchange on the same word.
      if (Atomics.compareExchange(i32, claims + hint.nextClaim, empty, claimed) !== empty) continue;
      Atomics.add(i32, segment.descriptor(slab) + SLAB_WAITING_ROWS, rows);
      const index = hint.nextClaim++;
      const firstRow = hint.rowsBefore;
      hint.rowsBefore += rows;
      if (Atomics.load(i32, segment.slabGenerations + slab) !== generation) {
        // 2^12 generations passed between the look and the claim: not our slab. Nothing has been written.
        this.#releaseWord(claims + index, claimed);
        freeIfDone(segment, this.#bells, slab, this.#owner);
        return undefined;
      }
      const claim: Claim<T> = {
        owner,
        layout,
        placement,
        slab,
        generation,
        index,
        firstRow,
        rows,
        released: false,
      };
      this.#copy(claim, hint.base, inputs, heapAt);
      this.#detail(slab, index, deadlineUs);
      // Publishes the bytes; pairs with the load in the sealer's wait.
      if (Atomics.compareExchange(i32, claims + index, claimed, claimMoved(claimed, CLAIM_READY)) !== claimed) {
        // Stolen while we copied (this process was stopped): the batch runs without us. Give up the rows and go elsewhere.
        this.#releaseWord(claims + index, claimed);
        freeIfDone(segment, this.#bells, slab, this.#owner);
        return undefined;
      }
      this.#track(claim);
      this.#wake(segment);
      return claim;
    }
  }

  /** Looks for a slab of this key that another producer opened, or an older one of ours: the first at or above `from` that is not `except`. */
  #findOpen(layout: SlabLayout, from: number, except: number): Hint | undefined {
    const segment = this.#segment;
    const { i32 } = segment;
    const used = Math.min(Atomics.load(i32, HEADER_SLABS_USED), segment.geometry.slabs);
    for (let slab = from; slab < used; slab++) {
      const word = Atomics.load(i32, segment.slabWords + slab);
      if (slabState(word) !== SLAB_OPEN || Atomics.load(i32, segment.slabHashes + slab) !== layout.hash) continue;
      const generation = Atomics.load(i32, segment.slabGenerations + slab);
      if (!slabHasGeneration(word, generation) || slab === except) continue;
      const descriptor = segment.descriptor(slab);
      const capacity = i32[descriptor + SLAB_CAPACITY_ROWS]!;
      const heapBytes = i32[descriptor + SLAB_HEAP_BYTES]!;
      if (capacity < 1 || capacity > segment.geometry.maxBatchRows || heapBytes < 0) continue;
      const placement = layout.place(capacity, heapBytes);
      const first = i32[descriptor + SLAB_FIRST_BLOCK]!;
      const blocks = i32[descriptor + SLAB_BLOCKS]!;
      if (first < 0 || blocks !== placement.blocks || first + blocks > segment.geometry.blocks) continue;
      const at = segment.blockOffset(first);
      let same = true;
      for (let n = 0; n < layout.key.length && same; n++) same = segment.u8[at + n] === layout.key[n];
      // Still the slab we have read all this from?
      if (!same || Atomics.load(i32, segment.slabWords + slab) !== word) continue;
      return { slab, generation, word, nextClaim: 0, rowsBefore: 0, placement, base: at };
    }
    return undefined;
  }

  /** Opens a new slab with this request as its first claim. Undefined when there is no space. */
  #open(
    owner: T,
    layout: SlabLayout,
    rows: number,
    inputs: readonly TensorBytes[],
    heapBytes: number,
    deadlineUs: number,
  ): Claim<T> | undefined {
    const segment = this.#segment;
    const { i32, f64 } = segment;
    const slab = this.#takeFreeSlab();
    if (slab < 0) return undefined;
    const word = segment.slabWords + slab;
    const placement = this.#placementFor(layout, rows, heapBytes);
    const first = segment.allocate(slab, placement.blocks, this.#blockLimit, false);
    const generation = (i32[segment.slabGenerations + slab]! + 1) | 0;
    Atomics.store(i32, segment.slabGenerations + slab, generation);
    if (first < 0) {
      Atomics.store(i32, word, slabWord(SLAB_FREE, 0, generation));
      return undefined;
    }
    const descriptor = segment.descriptor(slab);
    i32[descriptor + SLAB_CAPACITY_ROWS] = placement.capacityRows;
    i32[descriptor + SLAB_FIRST_BLOCK] = first;
    i32[descriptor + SLAB_BLOCKS] = placement.blocks;
    i32[descriptor + SLAB_RESULT_FIRST] = 0;
    i32[descriptor + SLAB_RESULT_BLOCKS] = 0;
    i32[descriptor + SLAB_RESULT_SCATTERED] = 0;
    i32[descriptor + SLAB_ATTEMPTS] = 0;
    i32[descriptor + SLAB_HEAP_USED] = heapBytes;
    i32[descriptor + SLAB_HEAP_BYTES] = placement.heapBytes;
    i32[descriptor + SLAB_ROWS] = 0;
    i32[descriptor + SLAB_CLAIMS] = 0;
    i32[descriptor + SLAB_WAITING_ROWS] = rows;
    i32[descriptor + SLAB_LEVEL] = layout.level;
    i32[segment.slabHashes + slab] = layout.hash;
    const times = segment.descriptorF64(slab);
    f64[times + SLAB_OPENED_AT] = nowUs();
    f64[times + SLAB_SEALED_AT] = 0;
    f64[times + SLAB_RUN_AT] = 0;
    f64[times + SLAB_DONE_AT] = 0;
    f64[times + SLAB_DEADLINE_AT] = 0;
    const base = segment.blockOffset(first);
    segment.u8.set(layout.key, base);
    const claims = segment.claimIndex(slab);
    i32.fill(claimEmpty(generation), claims + 1, claims + segment.geometry.claimsPerSlab);
    // Statuses are cleared here and not by each claim: the supervisor may answer a slab while a claim is still being copied.
    i32.fill(0, segment.claimDetail(slab, 0) / 4, segment.claimDetail(slab, segment.geometry.claimsPerSlab) / 4);
    const claim: Claim<T> = {
      owner,
      layout,
      placement,
      slab,
      generation,
      index: 0,
      firstRow: 0,
      rows,
      released: false,
    };
    this.#copy(claim, base, inputs, 0);
    this.#detail(slab, 0, deadlineUs);
    Atomics.store(i32, claims, claimWord(CLAIM_READY, this.#slot, rows, generation));
    Atomics.store(i32, segment.slabSeqs + slab, (Atomics.add(i32, HEADER_OPEN_SEQ, 1) + turnDelay(layout.level)) | 0);
    const openWord = slabWord(SLAB_OPEN, 0, generation);
    // Publishes all of the above; pairs with the loads in seal() and findOpen().
    Atomics.store(i32, word, openWord);
    if (!layout.whole) {
      this.#remember(layout, {
        slab,
        generation,
        word: openWord,
        nextClaim: 1,
        rowsBefore: rows,
        placement,
        base,
      });
    }
    this.#track(claim);
    this.#wake(segment);
    return claim;
  }

  #takeFreeSlab(): number {
    const { i32, slabWords, geometry } = this.#segment;
    for (let slab = 0; slab < geometry.slabs; slab++) {
      const word = Atomics.load(i32, slabWords + slab);
      if (slabState(word) !== SLAB_FREE) continue;
      if (Atomics.compareExchange(i32, slabWords + slab, word, slabMoved(word, SLAB_FILLING, this.#owner)) !== word)
        continue;
      for (let used = Atomics.load(i32, HEADER_SLABS_USED); used <= slab; ) {
        const before = Atomics.compareExchange(i32, HEADER_SLABS_USED, used, slab + 1);
        if (before === used) break;
        used = before;
      }
      return slab;
    }
    return -1;
  }

  #takeHeap(slab: number, bytes: number): number {
    const { i32 } = this.#segment;
    const descriptor = this.#segment.descriptor(slab);
    for (;;) {
      const used = Atomics.load(i32, descriptor + SLAB_HEAP_USED);
      if (used < 0 || used + bytes > i32[descriptor + SLAB_HEAP_BYTES]!) return -1;
      if (Atomics.compareExchange(i32, descriptor + SLAB_HEAP_USED, used, used + bytes) === used) return used;
    }
  }

  #copy(claim: Claim<T>, base: number, inputs: readonly TensorBytes[], heapAt: number): void {
    const { layout, placement, firstRow } = claim;
    const segment = this.#segment;
    for (let n = 0; n < inputs.length; n++) {
      const { rowBytes, datatype } = layout.inputs[n]!;
      if (datatype === 'BYTES') continue;
      const input = inputs[n]!;
      const at = base + placement.inputs[n]! + firstRow * rowBytes;
      if (input instanceof Uint8Array) segment.u8.set(input, at);
      else input.copyTo(segment.u8.subarray(at, at + input.length));
    }
    let heap = heapAt;
    for (let n = 0; n < layout.bytesInputs.length; n++) {
      const data = inputs[layout.bytesInputs[n]!] as Uint8Array;
      const reference = (base + placement.heapReferences) / 8 + (claim.index * layout.bytesInputs.length + n) * 2;
      segment.f64[reference] = Math.max(0, heap);
      segment.f64[reference + 1] = data.length;
      segment.u8.set(data, base + placement.heap + heap);
      heap += data.length;
    }
  }

  #detail(slab: number, index: number, deadlineUs: number): void {
    const { f64 } = this.#segment;
    f64[this.#segment.claimDetail(slab, index) / 8 + 1] = deadlineUs;
    if (deadlineUs <= 0) return;
    const earliest = this.#segment.descriptorF64(slab) + SLAB_DEADLINE_AT;
    if (f64[earliest] === 0 || deadlineUs < f64[earliest]!) f64[earliest] = deadlineUs;
  }

  #track(claim: Claim<T>): void {
    const last = this.#pending[this.#pending.length - 1];
    let pending =
      last !== undefined && last.slab === claim.slab && last.generation === claim.generation
        ? last
        : this.#pending.find(({ slab, generation }) => slab === claim.slab && generation === claim.generation);
    if (pending === undefined) {
      const { slab, generation } = claim;
      pending = {
        slab,
        generation,
        openWord: slabWord(SLAB_OPEN, 0, generation),
        doneWord: slabWord(SLAB_DONE, 0, generation),
        claims: [],
        rows: 0,
        sealedSeen: false,
      };
      this.#pending.push(pending);
    }
    pending.claims.push(claim);
    if (pending.sealedSeen) this.#queuedRows -= claim.rows;
    else pending.rows += claim.rows;
  }

  /**
   * Takes the results that are there. For each claim `deliver` is called once; views it is given are valid only during the call.
   * Afterwards the slab is given back, and requests that waited for space are placed.
   */
  poll(reader: ResultReader, deliver: (owner: T, claim: Claim<T>, reader: ResultReader) => void): void {
    const { i32, slabWords } = this.#segment;
    let kept = 0;
    const pendingCount = this.#pending.length;
    for (let n = 0; n < pendingCount; n++) {
      const pending = this.#pending[n]!;
      // Acquires the results; pairs with the store of DONE in finish().
      const word = Atomics.load(i32, slabWords + pending.slab);
      if (word !== pending.doneWord) {
        this.#noteSealed(pending);
        // A slab whose claims here were all abandoned may be gone already: freed, or open for another generation.
        const state = slabState(word);
        if (!slabHasGeneration(word, pending.generation) || state === SLAB_FREEING || state === SLAB_FREE) {
          if (pending.claims.some(({ released }) => !released)) {
            throw new Error('a slab went away under a claim that was not released: this is a bug');
          }
          continue;
        }
        this.#pending[kept++] = pending;
        continue;
      }
      if (!pending.sealedSeen) {
        pending.sealedSeen = true;
        this.#queuedRows -= pending.rows;
      }
      for (const claim of pending.claims) {
        if (claim.released) continue;
        claim.released = true;
        reader.open(claim);
        try {
          deliver(claim.owner, claim, reader);
        } finally {
          this.#releaseClaim(claim);
        }
      }
      freeIfDone(this.#segment, this.#bells, pending.slab, this.#owner);
    }
    // Deliveries may have placed new claims behind those looked at.
    for (let n = pendingCount; n < this.#pending.length; n++) this.#pending[kept++] = this.#pending[n]!;
    this.#pending.length = kept;
    this.#publishQueued();
    if (this.#waiting.length > 0) this.#placeWaiting();
  }

  /** Gives rows up whose result nobody wants any more. They may still run; their result is dropped. */
  abandon(claim: Claim<T>): void {
    if (claim.released) return;
    claim.released = true;
    const { i32 } = this.#segment;
    // As long as we hold the claim the slab is of its generation.
    if (slabState(Atomics.load(i32, this.#segment.slabWords + claim.slab)) === SLAB_OPEN) {
      Atomics.sub(i32, this.#segment.descriptor(claim.slab) + SLAB_WAITING_ROWS, claim.rows);
    }
    this.#releaseClaim(claim);
    freeIfDone(this.#segment, this.#bells, claim.slab, this.#owner);
  }

  #releaseClaim(claim: Claim<T>): void {
    const index = this.#segment.claimIndex(claim.slab) + claim.index;
    this.#releaseWord(index, claimWord(CLAIM_READY, this.#slot, claim.rows, claim.generation));
  }

  /**
   * Releases a claim of ours, last seen as `mine`. It may have been stolen meanwhile. A word that is no longer this claim is left alone: after a claim in a
   * wrong generation (see join) the slab may have been prepared for its next use over our head.
   */
  #releaseWord(index: number, mine: number): void {
    let word = mine;
    for (;;) {
      const before = Atomics.compareExchange(this.#segment.i32, index, word, claimMoved(word, CLAIM_RELEASED));
      if (before === word) return;
      const state = claimState(before);
      const held = state === CLAIM_CLAIMED || state === CLAIM_READY || state === CLAIM_STOLEN;
      if (!held || claimMoved(before, CLAIM_EMPTY) !== claimMoved(mine, CLAIM_EMPTY)) return;
      word = before;
    }
  }
}

/** Bytes that did not fit their rows would be written over other requests' rows. */
function checkRequest(layout: SlabLayout, rows: number, inputs: readonly TensorBytes[], maxBatchRows: number): void {
  let fits = rows >= 1 && rows <= (layout.whole ? 1 : maxBatchRows) && inputs.length === layout.inputs.length;
  for (let n = 0; fits && n < inputs.length; n++) {
    const { datatype, rowBytes } = layout.inputs[n]!;
    const input = inputs[n]!;
    fits = datatype === 'BYTES' ? input instanceof Uint8Array : input.length === rows * rowBytes;
  }
  if (!fits) throw new Error('a request does not fit its layout: this is a bug');
}

/** Bytes of heap that the BYTES inputs of a request need. */
function heapNeed(layout: SlabLayout, inputs: readonly TensorBytes[]): number {
  let bytes = 0;
  for (const position of layout.bytesInputs) bytes += inputs[position]!.length;
  return bytes;
}
