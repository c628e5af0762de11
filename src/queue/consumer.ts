/**
 * The consuming side: an instance seals the oldest slab, runs its rows and leaves the results.
 *
 * One Consumer per segment and instance slot, used by one thread, which blocks here and nowhere else. What it holds when its process dies is taken over
 * by another instance (reclaim.ts). The Batch object and its arrays are reused: nothing is allocated per row.
 */
import { nowUs } from '../system/clock.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { cancelSleep, type Doorbells, pause, prepareSleep, SLEEP_MAX_US, sleep, wakeInstance } from './bells.ts';
import {
  BLOCK_BYTES,
  CLAIM_MARK,
  HEADER_SLABS_USED,
  INSTANCE_EXECUTING_SINCE,
  INSTANCE_SERVING,
  INSTANCE_SLAB,
  INSTANCE_STOP,
  MARK_ALONE,
  MARK_SETTLED,
  SLAB_ATTEMPTS,
  SLAB_BLOCKS,
  SLAB_CAPACITY_ROWS,
  SLAB_CLAIMS,
  SLAB_DONE_AT,
  SLAB_FIRST_BLOCK,
  SLAB_HEAP_BYTES,
  SLAB_OPENED_AT,
  SLAB_RESULT_BLOCKS,
  SLAB_RESULT_FIRST,
  SLAB_RESULT_SCATTERED,
  SLAB_ROWS,
  SLAB_RUN_AT,
  SLAB_SEALED_AT,
} from './geometry.ts';
import { type Placement, SlabLayout } from './layout.ts';
import { freeIfDone } from './release.ts';
import { STATUS_INTERNAL } from './result.ts';
import { closeClaims } from './seal.ts';
import type { Segment } from './segment.ts';
import {
  CLAIM_CLAIMED,
  CLAIM_READY,
  CLAIM_SEAL,
  CLAIM_STOLEN,
  CLAIMS_MAX,
  claimEmpty,
  claimHasGeneration,
  claimMoved,
  claimRows,
  claimSlot,
  claimState,
  instanceOwner,
  SLAB_DONE,
  SLAB_OPEN,
  SLAB_RUNNING,
  SLAB_SEALED,
  slabHasGeneration,
  slabMoved,
  slabState,
  TAKEOVERS_MAX,
} from './states.ts';

/** A sealed batch. Reused by the consumer: valid until finish(). */
export interface Batch {
  slab: number;
  generation: number;
  layout: SlabLayout;
  placement: Placement;
  /** Byte offset of the slab's region in the segment. */
  base: number;
  rows: number;
  claims: number;
  /** Of each claim: its first row, its rows, and whether anybody still wants it. */
  readonly firstRow: Int32Array;
  readonly claimRows: Int32Array;
  readonly wanted: Uint8Array;
  wantedClaims: number;
  /** It has killed its instances as a whole: its requests are to be run one by one, each announced by alone(). */
  oneByOne: boolean;
  openedAtUs: number;
  sealedAtUs: number;
}

export interface ConsumerOptions {
  /** How long an idle instance lets a slab that is not full collect rows, counted from its opening; 0 = not at all. */
  readonly maxQueueDelayUs: number;
}

/** A producer that does not finish its copy in this time (it is stopped, or dead and not yet reclaimed) loses its place in the batch. */
const STEAL_AFTER_US = 20_000;
const SPINS = 400;
const LAYOUTS_CACHED = 64;
/** How long a result waits for space before the batch fails. */
const RESULT_WAIT_US = 2_000_000;
const MESSAGE_MAX_BYTES = 4096;

export class Consumer {
  readonly #segment: Segment;
  readonly #slot: number;
  readonly #owner: number;
  readonly #bells: Doorbells;
  readonly #signature: ModelSignature;
  readonly #options: ConsumerOptions;
  readonly #layouts = new Map<number, SlabLayout[]>();
  #layoutCount = 0;
  readonly #rung: Uint8Array;
  readonly #batch: Batch;

  constructor(segment: Segment, slot: number, bells: Doorbells, signature: ModelSignature, options: ConsumerOptions) {
    this.#segment = segment;
    this.#slot = slot;
    this.#owner = instanceOwner(slot);
    this.#bells = bells;
    this.#signature = signature;
    this.#options = options;
    this.#rung = new Uint8Array(segment.geometry.ingressSlots);
    this.#batch = {
      slab: -1,
      generation: 0,
      layout: undefined as unknown as SlabLayout, // set by the first seal, before anybody sees the batch
      placement: undefined as unknown as Placement,
      base: 0,
      rows: 0,
      claims: 0,
      firstRow: new Int32Array(CLAIMS_MAX),
      claimRows: new Int32Array(CLAIMS_MAX),
      wanted: new Uint8Array(CLAIMS_MAX),
      wantedClaims: 0,
      oneByOne: false,
      openedAtUs: 0,
      sealedAtUs: 0,
    };
    const line = segment.instanceLine(slot);
    segment.f64[line / 2 + INSTANCE_EXECUTING_SINCE] = 0;
    Atomics.store(segment.i32, line + INSTANCE_SLAB, 0);
  }

  get stopping(): boolean {
    return Atomics.load(this.#segment.i32, this.#segment.instanceLine(this.#slot) + INSTANCE_STOP) !== 0;
  }

  /** Whether this instance takes batches, for whoever predicts. */
  set serving(serving: boolean) {
    Atomics.store(this.#segment.i32, this.#segment.instanceLine(this.#slot) + INSTANCE_SERVING, serving ? 1 : 0);
  }

  /**
   * The next batch: sealed, complete, marked as running. Blocks, at most for SLEEP_MAX_US at a time.
   *
   * @returns undefined when there was nothing to do for that long, or when the instance has to stop.
   */
  next(): Batch | undefined {
    for (;;) {
      if (this.stopping) {
        // A wake-up meant for the queue may have reached us in particular.
        if (this.#oldest() >= 0) wakeInstance(this.#segment);
        return undefined;
      }
      const slab = this.#oldest();
      if (slab >= 0) {
        const wait = this.#delayLeftUs(slab);
        if (wait <= 0) {
          if (!this.#seal(slab)) continue;
          // One wake-up may have been for several slabs, or have reached us while we waited for this one to fill: it is passed on.
          if (this.#oldest() >= 0) wakeInstance(this.#segment);
          return this.#batch;
        }
        prepareSleep(this.#segment, this.#slot);
        if (this.#oldest() === slab && this.#delayLeftUs(slab) > 0 && !this.stopping)
          sleep(this.#segment, this.#slot, Math.min(wait, SLEEP_MAX_US));
        else cancelSleep(this.#segment, this.#slot);
        continue;
      }
      prepareSleep(this.#segment, this.#slot);
      if (this.#oldest() >= 0 || this.stopping) {
        cancelSleep(this.#segment, this.#slot);
        continue;
      }
      sleep(this.#segment, this.#slot, SLEEP_MAX_US);
      if (this.#oldest() < 0) return undefined;
    }
  }

  /** The open slab whose turn it is, or -1. */
  #oldest(): number {
    const { i32, slabWords, slabSeqs } = this.#segment;
    let best = -1;
    let bestSeq = 0;
    // Read before the slabs: whoever opens one behind it has yet to look whether we sleep.
    const used = Math.min(Atomics.load(i32, HEADER_SLABS_USED), this.#segment.geometry.slabs);
    for (let slab = 0; slab < used; slab++) {
      if (slabState(Atomics.load(i32, slabWords + slab)) !== SLAB_OPEN) continue;
      const seq = Atomics.load(i32, slabSeqs + slab);
      if (best < 0 || ((seq - bestSeq) | 0) < 0) {
        best = slab;
        bestSeq = seq;
      }
    }
    return best;
  }

  /** How much longer a slab may collect rows: 0 when no delay is wanted or it is full. */
  #delayLeftUs(slab: number): number {
    if (this.#options.maxQueueDelayUs <= 0) return 0;
    const { i32, f64 } = this.#segment;
    const capacity = i32[this.#segment.descriptor(slab) + SLAB_CAPACITY_ROWS]!;
    const generation = Atomics.load(i32, this.#segment.slabGenerations + slab);
    const claims = this.#segment.claimIndex(slab);
    let rows = 0;
    for (let n = 0; n < this.#segment.geometry.claimsPerSlab; n++) {
      const word = Atomics.load(i32, claims + n);
      if (word === claimEmpty(generation)) {
        const opened = f64[this.#segment.descriptorF64(slab) + SLAB_OPENED_AT]!;
        return rows >= capacity ? 0 : opened + this.#options.maxQueueDelayUs - nowUs();
      }
      if (claimState(word) === CLAIM_SEAL) return 0;
      rows += claimRows(word);
    }
    return 0;
  }

  /**
   * Takes an open slab, closes it for producers, waits for copies under way, and fills the batch.
   *
   * @returns false when another instance was faster, or the slab is damaged and its requests have been answered so.
   */
  #seal(slab: number): boolean {
    const segment = this.#segment;
    const { i32, f64 } = segment;
    const index = segment.slabWords + slab;
    const open = Atomics.load(i32, index);
    if (slabState(open) !== SLAB_OPEN) return false;
    const sealed = slabMoved(open, SLAB_SEALED, this.#owner);
    // Acquires what the opener wrote; two instances: one wins.
    if (Atomics.compareExchange(i32, index, open, sealed) !== open) return false;
    const line = segment.instanceLine(this.#slot);
    Atomics.store(i32, line + INSTANCE_SLAB, slab + 1);
    f64[line / 2 + INSTANCE_EXECUTING_SINCE] = nowUs();
    const generation = Atomics.load(i32, segment.slabGenerations + slab);
    if (!slabHasGeneration(open, generation)) throw new Error('slab word and generation disagree: this is a bug');
    const batch = this.#batch;
    batch.slab = slab;
    batch.generation = generation;
    batch.claims = closeClaims(segment, slab, generation);
    batch.oneByOne = i32[segment.descriptor(slab) + SLAB_ATTEMPTS]! >= TAKEOVERS_MAX;
    const times = segment.descriptorF64(slab);
    batch.openedAtUs = f64[times + SLAB_OPENED_AT]!;
    batch.sealedAtUs = nowUs();
    f64[times + SLAB_SEALED_AT] = batch.sealedAtUs;
    if (!this.#openRegion(batch) || !this.#awaitCopies(batch)) {
      this.#refuse(batch);
      return false;
    }
    this.#coverUnwanted(batch);
    i32[segment.descriptor(slab) + SLAB_ROWS] = batch.rows;
    i32[segment.descriptor(slab) + SLAB_CLAIMS] = batch.claims;
    Atomics.store(i32, index, slabMoved(sealed, SLAB_RUNNING, this.#owner));
    return true;
  }

  /** Finds the slab's tensors. Returns false, having followed nothing, when its descriptor or its key is damaged. */
  #openRegion(batch: Batch): boolean {
    const segment = this.#segment;
    const descriptor = segment.descriptor(batch.slab);
    const first = segment.i32[descriptor + SLAB_FIRST_BLOCK]!;
    const blocks = segment.i32[descriptor + SLAB_BLOCKS]!;
    const capacity = segment.i32[descriptor + SLAB_CAPACITY_ROWS]!;
    const heapBytes = segment.i32[descriptor + SLAB_HEAP_BYTES]!;
    if (first < 0 || blocks < 1 || first + blocks > segment.geometry.blocks) return false;
    if (capacity < 1 || capacity > segment.geometry.maxBatchRows || heapBytes < 0) return false;
    batch.base = segment.blockOffset(first);
    const layout = this.#layoutAt(batch.base, segment.i32[segment.slabHashes + batch.slab]!, blocks * BLOCK_BYTES);
    if (layout === undefined) return false;
    batch.layout = layout;
    batch.placement = layout.place(capacity, heapBytes);
    return batch.placement.blocks === blocks;
  }

  /** Answers the requests of a damaged slab: it must not reach the model, and not stop the others. */
  #refuse(batch: Batch): void {
    const message = this.message(batch, 'The request was damaged in shared memory.');
    for (let claim = 0; claim < batch.claims; claim++) this.settle(batch, claim, STATUS_INTERNAL, message);
    // Whoever frees it looks for its blocks everywhere instead of where the descriptor says.
    this.#segment.i32[this.#segment.descriptor(batch.slab) + SLAB_RESULT_SCATTERED] = 1;
    this.finish(batch);
  }

  #layoutAt(base: number, hash: number, regionBytes: number): SlabLayout | undefined {
    const { u8 } = this.#segment;
    const known = this.#layouts.get(hash);
    search: for (const layout of known ?? []) {
      for (let n = 0; n < layout.key.length; n++) if (u8[base + n] !== layout.key[n]) continue search;
      return layout;
    }
    const key = readKey(this.#segment, base, this.#signature.inputs.length, regionBytes);
    if (key === undefined) return undefined;
    let layout: SlabLayout;
    try {
      layout = new SlabLayout(this.#signature, key, this.#segment.geometry.claimsPerSlab);
    } catch {
      return undefined; // not a key of this model
    }
    if (layout.hash !== hash) return undefined; // key or hash is damaged
    if (this.#layoutCount++ >= LAYOUTS_CACHED) {
      this.#layouts.clear();
      this.#layoutCount = 1;
    }
    this.#layouts.set(hash, [...(this.#layouts.get(hash) ?? []), layout]);
    return layout;
  }

  /** Waits until every claim is ready, given up, or stolen, and fills the batch's arrays. Returns false when the claims make no sense. */
  #awaitCopies(batch: Batch): boolean {
    const { i32 } = this.#segment;
    const claims = this.#segment.claimIndex(batch.slab);
    const { maxBatchRows } = this.#segment.geometry;
    const capacity = batch.layout.whole ? 1 : Math.min(batch.placement.capacityRows, maxBatchRows);
    let rows = 0;
    batch.wantedClaims = 0;
    for (let n = 0; n < batch.claims; n++) {
      let word = Atomics.load(i32, claims + n);
      if (claimState(word) === CLAIM_CLAIMED) word = this.#awaitCopy(claims + n, word);
      if (!claimHasGeneration(word, batch.generation)) return false;
      // Only a claim in a wrong generation, given back unused, may go beyond the capacity (rule 4).
      const count = Math.min(claimRows(word), capacity - rows);
      const wanted = claimState(word) === CLAIM_READY;
      if (wanted && count !== claimRows(word)) return false;
      batch.firstRow[n] = rows;
      batch.claimRows[n] = count;
      batch.wanted[n] = wanted ? 1 : 0;
      if (wanted) batch.wantedClaims++;
      rows += count;
    }
    batch.rows = rows;
    return true;
  }

  /**
   * Gives the rows of unwanted claims the values of a wanted row: what lies there may be half a copy or a former request's, with values that make the model
   * fail for everybody. BYTES are not looked at for unwanted claims.
   */
  #coverUnwanted(batch: Batch): void {
    if (batch.wantedClaims === 0 || batch.wantedClaims === batch.claims || batch.layout.whole) return;
    const model = batch.firstRow[batch.wanted.indexOf(1)]!;
    for (let n = 0; n < batch.layout.inputs.length; n++) {
      const { rowBytes } = batch.layout.inputs[n]!;
      if (rowBytes === 0) continue;
      const start = batch.base + batch.placement.inputs[n]!;
      const from = start + model * rowBytes;
      for (let claim = 0; claim < batch.claims; claim++) {
        if (batch.wanted[claim] === 1) continue;
        const end = batch.firstRow[claim]! + batch.claimRows[claim]!;
        for (let row = batch.firstRow[claim]!; row < end; row++) {
          this.#segment.u8.copyWithin(start + row * rowBytes, from, from + rowBytes);
        }
      }
    }
  }

  #awaitCopy(index: number, claimed: number): number {
    const { i32 } = this.#segment;
    for (let spin = 0; spin < SPINS; spin++) {
      const word = Atomics.load(i32, index);
      if (claimState(word) !== CLAIM_CLAIMED) return word;
    }
    const until = nowUs() + STEAL_AFTER_US;
    while (nowUs() < until) {
      const word = Atomics.load(i32, index);
      if (claimState(word) !== CLAIM_CLAIMED) return word;
      pause(this.#segment, this.#slot, 50);
    }
    // Its slab will not be freed before the owner has seen this (rule 7), so the owner may even be in the middle of its copy.
    const stolen = claimMoved(claimed, CLAIM_STOLEN);
    const before = Atomics.compareExchange(i32, index, claimed, stolen);
    return before === claimed ? stolen : before;
  }

  /** Absolute deadline of a claim in µs, 0 for none. */
  deadlineUs(batch: Batch, claim: number): number {
    return this.#segment.f64[this.#segment.claimDetail(batch.slab, claim) / 8 + 1]!;
  }

  /** Whether the claim's owner has given it up since the batch was sealed. */
  abandoned(batch: Batch, claim: number): boolean {
    const word = Atomics.load(this.#segment.i32, this.#segment.claimIndex(batch.slab) + claim);
    return claimState(word) !== CLAIM_READY;
  }

  /**
   * A claim's serialised BYTES for input `position` of `layout.bytesInputs`.
   *
   * @returns undefined when the reference does not lie inside the heap.
   */
  bytesOf(batch: Batch, claim: number, position: number): Uint8Array | undefined {
    const { layout, placement, base } = batch;
    const at = (base + placement.heapReferences) / 8 + (claim * layout.bytesInputs.length + position) * 2;
    const offset = this.#segment.f64[at]!;
    const bytes = this.#segment.f64[at + 1]!;
    if (!Number.isInteger(offset) || !Number.isInteger(bytes) || offset < 0 || bytes < 0) return undefined;
    if (offset + bytes > placement.heapBytes) return undefined;
    return new Uint8Array(this.#segment.u8.buffer as ArrayBuffer, base + placement.heap + offset, bytes);
  }

  /** Marks the start of a further run of the same batch, for whoever watches from outside. */
  runningOn(): void {
    this.#segment.f64[this.#segment.instanceLine(this.#slot) / 2 + INSTANCE_EXECUTING_SINCE] = nowUs();
  }

  /** Marks the start of a batch's run, for whoever watches from outside. */
  running(batch: Batch): void {
    const at = nowUs();
    this.#segment.f64[this.#segment.instanceLine(this.#slot) / 2 + INSTANCE_EXECUTING_SINCE] = at;
    this.#segment.f64[this.#segment.descriptorF64(batch.slab) + SLAB_RUN_AT] = at;
  }

  /**
   * Memory for results of a slab. Waits for space, at most two seconds; results are fetched at once, so space comes free while ingress processes live.
   *
   * @returns byte offset in the segment, or -1.
   */
  allocateResult(batch: Batch, bytes: number): number {
    const segment = this.#segment;
    const blocks = Math.max(1, Math.ceil(bytes / BLOCK_BYTES));
    if (blocks > segment.geometry.blocks) return -1;
    let first = segment.allocate(batch.slab, blocks, segment.geometry.blocks, true);
    const until = nowUs() + RESULT_WAIT_US;
    while (first < 0 && nowUs() < until) {
      pause(segment, this.#slot, 1000);
      first = segment.allocate(batch.slab, blocks, segment.geometry.blocks, true);
    }
    if (first < 0) return -1;
    const descriptor = segment.descriptor(batch.slab);
    if (segment.i32[descriptor + SLAB_RESULT_BLOCKS] === 0) {
      segment.i32[descriptor + SLAB_RESULT_FIRST] = first;
      segment.i32[descriptor + SLAB_RESULT_BLOCKS] = blocks;
    } else {
      segment.i32[descriptor + SLAB_RESULT_SCATTERED] = 1;
    }
    return segment.blockOffset(first);
  }

  /** Records what became of a claim; `table` is the offset of its result table, of its message, or 0. */
  settle(batch: Batch, claim: number, status: number, table: number): void {
    const { i32, f64 } = this.#segment;
    const at = this.#segment.claimDetail(batch.slab, claim);
    i32[at / 4] = status;
    f64[at / 8 + 2] = table;
    // Last: if we die after this, the answer stands.
    if (batch.oneByOne) Atomics.store(i32, at / 4 + CLAIM_MARK, MARK_SETTLED);
  }

  /** In a batch that is run one by one: whether an earlier life has settled the claim. */
  settled(batch: Batch, claim: number): boolean {
    return this.#segment.i32[this.#segment.claimDetail(batch.slab, claim) / 4 + CLAIM_MARK] === MARK_SETTLED;
  }

  /** In a batch that is run one by one: announces that this claim is run next. If we die before it is settled, it is the guilty one. */
  alone(batch: Batch, claim: number): void {
    const at = this.#segment.claimDetail(batch.slab, claim) / 4 + CLAIM_MARK;
    Atomics.store(this.#segment.i32, at, MARK_ALONE);
  }

  /** Leaves a message for failed claims. Returns its offset for settle(), 0 when there is no space for it. */
  message(batch: Batch, text: string): number {
    const bytes = Buffer.from(text.slice(0, MESSAGE_MAX_BYTES / 4), 'utf8');
    const offset = this.allocateResult(batch, bytes.length + 8);
    if (offset < 0) return 0;
    this.#segment.f64[offset / 8] = bytes.length;
    this.#segment.u8.set(bytes, offset + 8);
    return offset;
  }

  /** Hands the results over and rings the ingress processes concerned. */
  finish(batch: Batch): void {
    const segment = this.#segment;
    const { i32, f64 } = segment;
    const line = segment.instanceLine(this.#slot);
    f64[segment.descriptorF64(batch.slab) + SLAB_DONE_AT] = nowUs();
    f64[line / 2 + INSTANCE_EXECUTING_SINCE] = 0;
    const index = segment.slabWords + batch.slab;
    const rung = this.#rung.fill(0);
    const claims = segment.claimIndex(batch.slab);
    for (let n = 0; n < batch.claims; n++) rung[claimSlot(Atomics.load(i32, claims + n))] = 1;
    // Releases the results; pairs with the load in poll().
    Atomics.store(i32, index, slabMoved(Atomics.load(i32, index), SLAB_DONE, 0));
    Atomics.store(i32, line + INSTANCE_SLAB, 0);
    for (let slot = 0; slot < rung.length; slot++) if (rung[slot] === 1) this.#bells.ring(slot);
    freeIfDone(segment, this.#bells, batch.slab, this.#owner);
  }
}

/** Copies a key out of a slab, checking every length on the way. Undefined when one is out of range. */
function readKey(segment: Segment, base: number, inputs: number, regionBytes: number): Uint8Array | undefined {
  const start = base / 8;
  const limit = Math.floor(regionBytes / 8);
  let at = 1;
  // The outputs, then the dimensions of each input: a count and that many numbers.
  for (let n = 0; n <= inputs; n++) {
    const count = segment.f64[start + at];
    if (count === undefined || !Number.isInteger(count) || count < 0 || count >= limit - at) return undefined;
    at += 1 + count;
  }
  at++; // its priority
  if (at > limit) return undefined;
  return segment.u8.slice(base, base + at * 8);
}
