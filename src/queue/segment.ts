/**
 * A segment: the shared memory of one served model version, mapped into this process.
 *
 * Owner: the supervisor creates it (an anonymous memfd, nothing to leak) and keeps it across the death of every other process. Others attach through
 * /proc/<supervisor>/fd/<n>. Bound: its size is fixed at creation; blocks are committed by chunks up to that size and given back by trim().
 * Nothing read from the segment is used as an index or a length without a check.
 */
import { closeSync } from 'node:fs';
import { type Mapping, mapShared, memfdCreate, openProcessFd, punchHole, reserve, setSize } from '../system/memory.ts';
import type { Doorbells } from './bells.ts';
import {
  BLOCK_BYTES,
  CHUNK_BLOCKS,
  CHUNK_BYTES,
  CLAIM_DETAIL_BYTES,
  DESCRIPTOR_BYTES,
  type Geometry,
  geometryOf,
  headerWords,
  LINE_BYTES,
  type QueueShape,
} from './geometry.ts';
import { claimSeal, SLAB_FREE, slabWord } from './states.ts';

/** What another process needs to attach. */
export interface SegmentReference {
  readonly pid: number;
  readonly fd: number;
  readonly shape: QueueShape;
}

const CHUNK_COMMITTED = 1;
const BLOCK_TRIMMING = -1;

export class Segment {
  readonly geometry: Geometry;
  readonly fd: number;
  /** Address of the first byte in this process; below 2^47. */
  readonly address: number;
  readonly i32: Int32Array;
  readonly f64: Float64Array;
  readonly u8: Uint8Array;
  /** Index in `i32` of slab 0's word, sequence number, … : `slabWords + slab`. */
  readonly slabWords: number;
  readonly slabSeqs: number;
  readonly slabGenerations: number;
  readonly slabHashes: number;
  readonly blockOwners: number;
  readonly #mapping: Mapping;

  private constructor(fd: number, shape: QueueShape) {
    this.geometry = geometryOf(shape);
    this.fd = fd;
    this.#mapping = mapShared(fd, this.geometry.totalBytes);
    const buffer = this.#mapping.buffer;
    this.address = Number(this.#mapping.address);
    this.i32 = new Int32Array(buffer);
    this.f64 = new Float64Array(buffer);
    this.u8 = new Uint8Array(buffer);
    this.slabWords = this.geometry.slabWords >> 2;
    this.slabSeqs = this.geometry.slabSeqs >> 2;
    this.slabGenerations = this.geometry.slabGenerations >> 2;
    this.slabHashes = this.geometry.slabHashes >> 2;
    this.blockOwners = this.geometry.blockOwners >> 2;
  }

  /**
   * Creates a segment in this process.
   *
   * @throws SystemError when its memory cannot be had.
   */
  static create(name: string, shape: QueueShape): Segment {
    const geometry = geometryOf(shape);
    const fd = memfdCreate(`batchport-${name}`.slice(0, 200));
    try {
      setSize(fd, geometry.totalBytes);
      reserve(fd, 0, geometry.blockArea + Math.min(CHUNK_BYTES, geometry.blocks * BLOCK_BYTES));
      const segment = new Segment(fd, shape);
      segment.i32.set(headerWords(shape));
      for (let slab = 0; slab < shape.slabs; slab++) segment.i32[segment.slabWords + slab] = slabWord(SLAB_FREE, 0, 0);
      for (let i = 0; i < shape.slabs * shape.claimsPerSlab; i++) {
        segment.i32[(segment.geometry.claimWords >> 2) + i] = claimSeal(0);
      }
      Atomics.store(segment.i32, segment.geometry.chunkFlags >> 2, CHUNK_COMMITTED);
      return segment;
    } catch (error) {
      closeSync(fd);
      throw error;
    }
  }

  /** Maps a segment that another process created. */
  static attach(reference: SegmentReference): Segment {
    const fd = openProcessFd(reference.pid, reference.fd);
    try {
      const segment = new Segment(fd, reference.shape);
      const expected = headerWords(reference.shape);
      for (let i = 0; i < expected.length; i++) {
        if (segment.i32[i] !== expected[i])
          throw new Error(`segment header word ${i} differs: not the segment described`);
      }
      return segment;
    } catch (error) {
      closeSync(fd);
      throw error;
    }
  }

  reference(pid = process.pid): SegmentReference {
    const { maxBatchRows, slabs, claimsPerSlab, blocks, ingressSlots, instanceSlots, counters } = this.geometry;
    return {
      pid,
      fd: this.fd,
      shape: {
        maxBatchRows,
        slabs,
        claimsPerSlab,
        blocks,
        ingressSlots,
        instanceSlots,
        counters,
      },
    };
  }

  /** Unmaps. No view of the segment may be used afterwards. */
  close(): void {
    this.#mapping.unmap();
    closeSync(this.fd);
  }

  claimIndex(slab: number): number {
    return (this.geometry.claimWords >> 2) + slab * this.geometry.claimsPerSlab;
  }

  /** Byte offset of a claim's details. */
  claimDetail(slab: number, claim: number): number {
    return this.geometry.claimDetails + (slab * this.geometry.claimsPerSlab + claim) * CLAIM_DETAIL_BYTES;
  }

  /** Index in `i32` of a slab's descriptor. */
  descriptor(slab: number): number {
    return (this.geometry.slabDescriptors + slab * DESCRIPTOR_BYTES) >> 2;
  }

  /** Index in `f64` of a slab's descriptor. */
  descriptorF64(slab: number): number {
    return (this.geometry.slabDescriptors + slab * DESCRIPTOR_BYTES) >> 3;
  }

  ingressLine(slot: number): number {
    return (this.geometry.ingressLines + slot * LINE_BYTES) >> 2;
  }

  instanceLine(slot: number): number {
    return (this.geometry.instanceLines + slot * LINE_BYTES) >> 2;
  }

  /** Byte offset of a block. */
  blockOffset(block: number): number {
    return this.geometry.blockArea + block * BLOCK_BYTES;
  }

  /**
   * Takes `count` neighbouring blocks for a slab. First fit from below, or from above.
   *
   * Each block is taken by one compareExchange that names the slab, so a taker that dies leaves nothing unaccounted.
   *
   * @param limit blocks at and above this one are not considered.
   * @returns the first block, or -1 when no such run is free or memory for it cannot be had.
   */
  allocate(slab: number, count: number, limit: number, fromTop: boolean): number {
    const owner = slab + 1;
    const base = this.blockOwners;
    const i32 = this.i32;
    const end = Math.min(limit, this.geometry.blocks);
    if (count > end) return -1;
    let start = fromTop ? end - count : 0;
    search: while (start >= 0 && start + count <= end) {
      for (let n = 0; n < count; n++) {
        // From the far side, so that a taken block moves the search past itself.
        const block = fromTop ? start + n : start + count - 1 - n;
        if (Atomics.load(i32, base + block) !== 0) {
          start = fromTop ? block - count : block + 1;
          continue search;
        }
      }
      let taken = 0;
      while (taken < count && Atomics.compareExchange(i32, base + start + taken, 0, owner) === 0) taken++;
      if (taken < count) {
        for (let n = 0; n < taken; n++) Atomics.store(i32, base + start + n, 0);
        continue;
      }
      if (this.#commit(start, count)) return start;
      this.releaseBlocks(start, count);
      return -1;
    }
    return -1;
  }

  releaseBlocks(first: number, count: number): void {
    for (let block = first; block < first + count; block++) Atomics.store(this.i32, this.blockOwners + block, 0);
  }

  /** Frees every block of a slab outside [keepFirst, keepFirst + keepCount), wherever it is. */
  releaseAllBlocks(slab: number, keepFirst = 0, keepCount = 0): void {
    const owner = slab + 1;
    for (let block = 0; block < this.geometry.blocks; block++) {
      if (block >= keepFirst && block < keepFirst + keepCount) continue;
      const index = this.blockOwners + block;
      if (Atomics.load(this.i32, index) === owner) Atomics.store(this.i32, index, 0);
    }
  }

  /** Makes sure that blocks have memory behind them. */
  #commit(first: number, count: number): boolean {
    const flags = this.geometry.chunkFlags >> 2;
    const last = Math.floor((first + count - 1) / CHUNK_BLOCKS);
    for (let chunk = Math.floor(first / CHUNK_BLOCKS); chunk <= last; chunk++) {
      if (Atomics.load(this.i32, flags + chunk) === CHUNK_COMMITTED) continue;
      try {
        reserve(this.fd, this.geometry.blockArea + chunk * CHUNK_BYTES, CHUNK_BYTES);
      } catch {
        return false;
      }
      Atomics.store(this.i32, flags + chunk, CHUNK_COMMITTED);
    }
    return true;
  }

  /**
   * Gives the memory of unused chunks back to the system, but for the first. Supervisor only.
   *
   * While a chunk is punched all its blocks are held, so nobody can be writing there. A producer that found no space because of that is rung.
   *
   * @returns bytes given back.
   */
  trim(bells: Doorbells): number {
    const flags = this.geometry.chunkFlags >> 2;
    let bytes = 0;
    for (let chunk = 1; chunk < this.geometry.blocks / CHUNK_BLOCKS; chunk++) {
      if (Atomics.load(this.i32, flags + chunk) !== CHUNK_COMMITTED) continue;
      const first = this.blockOwners + chunk * CHUNK_BLOCKS;
      let held = 0;
      while (held < CHUNK_BLOCKS && Atomics.compareExchange(this.i32, first + held, 0, BLOCK_TRIMMING) === 0) held++;
      if (held === CHUNK_BLOCKS) {
        Atomics.store(this.i32, flags + chunk, 0);
        punchHole(this.fd, this.geometry.blockArea + chunk * CHUNK_BYTES, CHUNK_BYTES);
        bytes += CHUNK_BYTES;
      }
      for (let n = 0; n < held; n++) Atomics.store(this.i32, first + n, 0);
    }
    bells.ringWaiting();
    return bytes;
  }

  /** Bytes of memory committed for blocks, and blocks in use. */
  usage(): { committedBytes: number; usedBytes: number } {
    const flags = this.geometry.chunkFlags >> 2;
    let chunks = 0;
    let used = 0;
    for (let chunk = 0; chunk < this.geometry.blocks / CHUNK_BLOCKS; chunk++)
      chunks += Atomics.load(this.i32, flags + chunk);
    for (let block = 0; block < this.geometry.blocks; block++) {
      if (Atomics.load(this.i32, this.blockOwners + block) !== 0) used++;
    }
    return {
      committedBytes: chunks * CHUNK_BYTES,
      usedBytes: used * BLOCK_BYTES,
    };
  }
}
