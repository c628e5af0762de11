/**
 * Where everything lies in a segment: one table of regions, computed from a few numbers that are written into the segment's first words.
 *
 *     [header][ingress lines][instance lines][cost tables][slab words][slab descriptors][claim words][claim details][block owners][chunks][counters]
 *     [blocks …]
 *
 * Words that different processes hammer have a 64-byte line of their own. Everything but the blocks is committed when the segment is created;
 * blocks are committed by chunks when first used, so that lack of memory is an error and never a SIGBUS.
 */
import { BATCH_ROWS_MAX, CLAIMS_MAX, INGRESS_MAX, INSTANCES_MAX, SLABS_MAX } from './states.ts';

export const LINE_BYTES = 64;
export const BLOCK_BYTES = 64 * 1024;
export const CHUNK_BLOCKS = 16;
export const CHUNK_BYTES = BLOCK_BYTES * CHUNK_BLOCKS;
const SEGMENT_MAGIC = 0x62703031; // "bp01"
/** 1 TiB. */
const BLOCKS_MAX = 2 ** 24;
const COUNTERS_MAX = 4096;

/** The numbers that determine a segment. Plain data: sent to the processes that attach. */
export interface QueueShape {
  /** Most rows of one batch; 1 for a model without batching. */
  readonly maxBatchRows: number;
  readonly slabs: number;
  readonly claimsPerSlab: number;
  readonly blocks: number;
  readonly ingressSlots: number;
  readonly instanceSlots: number;
  /** Number of 8-byte counters of each ingress and instance slot. */
  readonly counters: number;
}

/** Chooses a shape for a model. `maxBytes` is rounded up to whole chunks. */
export function planQueue(options: {
  maxBatchRows: number;
  maxRows: number;
  maxBytes: number;
  ingressSlots: number;
  instanceSlots: number;
  counters: number;
}): QueueShape {
  const maxBatchRows = Math.max(1, Math.min(BATCH_ROWS_MAX, options.maxBatchRows));
  // Without batching each request has a slab of its own: as many as may queue, and as run or wait to be fetched.
  const wanted = maxBatchRows === 1 ? options.maxRows + 2 * options.instanceSlots + 16 : 256;
  return {
    maxBatchRows,
    slabs: Math.max(16, Math.min(SLABS_MAX, wanted)),
    claimsPerSlab: Math.min(CLAIMS_MAX, maxBatchRows),
    blocks: Math.max(1, Math.ceil(options.maxBytes / CHUNK_BYTES)) * CHUNK_BLOCKS,
    ingressSlots: Math.min(INGRESS_MAX, options.ingressSlots),
    instanceSlots: Math.min(INSTANCES_MAX, options.instanceSlots),
    counters: options.counters,
  };
}

/** Byte offsets of the regions and sizes; see the file header. */
export interface Geometry extends QueueShape {
  readonly ingressLines: number;
  readonly instanceLines: number;
  readonly costTables: number;
  readonly slabWords: number;
  readonly slabSeqs: number;
  readonly slabGenerations: number;
  readonly slabHashes: number;
  readonly slabDescriptors: number;
  readonly claimWords: number;
  readonly claimDetails: number;
  readonly blockOwners: number;
  readonly chunkFlags: number;
  readonly counterBlocks: number;
  readonly blockArea: number;
  readonly totalBytes: number;
}

/** Words of the header line. */
export const HEADER_OPEN_SEQ = 16; // a line of its own
/**
 * Slabs from here on have never been taken; never falls. Free ones are taken from below, so looks at all slabs that are used end here, mostly after
 * very few. Raised before a slab can be open.
 */
export const HEADER_SLABS_USED = 32; // a line of its own
const HEADER_BYTES = 4 * LINE_BYTES;

/** Words of an ingress line. */
export const INGRESS_BELL = 0;
export const INGRESS_WAITING = 1;
export const INGRESS_QUEUED_ROWS = 2;

/** Words of an instance line; the two doubles follow. */
export const INSTANCE_SLEEP = 0;
export const INSTANCE_STOP = 1;
export const INSTANCE_SLAB = 2;
/** 1 while it takes batches. */
export const INSTANCE_SERVING = 3;
/** Index, in doubles of the line, of the time (µs) at which the running batch started; 0 when none runs. */
export const INSTANCE_EXECUTING_SINCE = 2;

export const DESCRIPTOR_BYTES = 128;
/** Words of a slab descriptor. */
export const SLAB_CAPACITY_ROWS = 0;
export const SLAB_FIRST_BLOCK = 1;
export const SLAB_BLOCKS = 2;
export const SLAB_RESULT_FIRST = 3;
export const SLAB_RESULT_BLOCKS = 4;
export const SLAB_RESULT_SCATTERED = 5;
export const SLAB_ATTEMPTS = 6;
export const SLAB_HEAP_USED = 7;
export const SLAB_HEAP_BYTES = 8;
export const SLAB_ROWS = 9;
export const SLAB_CLAIMS = 10;
/**
 * Rows claimed and not given up while the slab is open, for predictions: added to after the claim, so it may be a moment behind, or short by what a
 * process took with it.
 */
export const SLAB_WAITING_ROWS = 11;
/** Its level of priority, for predictions. */
export const SLAB_LEVEL = 12;
/** Doubles of a slab descriptor (index within its 16 doubles): times in µs. */
export const SLAB_OPENED_AT = 8;
export const SLAB_SEALED_AT = 9;
export const SLAB_RUN_AT = 10;
export const SLAB_DONE_AT = 11;
/** Earliest deadline of its claims, 0 for none; for predictions: of two producers that lower it at once one may not be heard. */
export const SLAB_DEADLINE_AT = 12;

/**
 * Cost tables: what runs cost on each instance, by shape key (cost-table.ts). Doubles of a table: its version, then COST_KEYS entries.
 */
export const COST_KEYS = 8;
/** Rows at which a curve is kept: 1, 2, 4 … 4096. */
export const COST_POINTS = 13;
/** Doubles of an entry in front of its curve. */
export const COST_HEAD_WORDS = 6;
export const COST_ENTRY_WORDS = COST_HEAD_WORDS + COST_POINTS;
const COST_TABLE_BYTES = align((1 + COST_KEYS * COST_ENTRY_WORDS) * 8);

/**
 * Claim details: status (word 0), mark (word 1), deadline (double 1), result table's byte offset (double 2).
 *
 * Marks matter only in a batch that is run request by request because it has killed its instances as a whole.
 */
export const CLAIM_DETAIL_BYTES = 32;
export const CLAIM_MARK = 1;
/** Has its answer; survives further deaths. */
export const MARK_SETTLED = 1;
/** Is being run by itself: if the instance dies now, this request killed it. */
export const MARK_ALONE = 2;

function align(bytes: number, to = LINE_BYTES): number {
  return Math.ceil(bytes / to) * to;
}

/** @throws RangeError when a number passes the bounds of states.ts, which the words could not hold. */
export function geometryOf(shape: QueueShape): Geometry {
  const within = (name: keyof QueueShape, low: number, high: number): void => {
    const value = shape[name];
    if (!Number.isInteger(value) || value < low || value > high)
      throw new RangeError(`queue shape: ${name} is ${value}`);
  };
  within('maxBatchRows', 1, BATCH_ROWS_MAX);
  within('slabs', 1, SLABS_MAX);
  within('claimsPerSlab', 1, CLAIMS_MAX);
  within('blocks', CHUNK_BLOCKS, BLOCKS_MAX);
  within('ingressSlots', 1, INGRESS_MAX);
  within('instanceSlots', 1, INSTANCES_MAX);
  within('counters', 0, COUNTERS_MAX);
  if (shape.blocks % CHUNK_BLOCKS !== 0)
    throw new RangeError(`queue shape: ${shape.blocks} blocks are not whole chunks`);
  let at = HEADER_BYTES;
  const take = (bytes: number): number => {
    const start = at;
    at = align(at + bytes);
    return start;
  };
  const ingressLines = take(shape.ingressSlots * LINE_BYTES);
  const instanceLines = take(shape.instanceSlots * LINE_BYTES);
  const costTables = take(shape.instanceSlots * COST_TABLE_BYTES);
  const slabWords = take(shape.slabs * 4);
  const slabSeqs = take(shape.slabs * 4);
  const slabGenerations = take(shape.slabs * 4);
  const slabHashes = take(shape.slabs * 4);
  const slabDescriptors = take(shape.slabs * DESCRIPTOR_BYTES);
  const claimWords = take(shape.slabs * shape.claimsPerSlab * 4);
  const claimDetails = take(shape.slabs * shape.claimsPerSlab * CLAIM_DETAIL_BYTES);
  const blockOwners = take(shape.blocks * 4);
  const chunkFlags = take((shape.blocks / CHUNK_BLOCKS) * 4);
  const counterBlocks = take((shape.ingressSlots + shape.instanceSlots) * align(shape.counters * 8));
  const blockArea = align(at, BLOCK_BYTES);
  return {
    ...shape,
    ingressLines,
    instanceLines,
    costTables,
    slabWords,
    slabSeqs,
    slabGenerations,
    slabHashes,
    slabDescriptors,
    claimWords,
    claimDetails,
    blockOwners,
    chunkFlags,
    counterBlocks,
    blockArea,
    totalBytes: blockArea + shape.blocks * BLOCK_BYTES,
  };
}

/** Byte offset of the cost table of an instance slot. */
export function costTableOffset(geometry: Geometry, slot: number): number {
  return geometry.costTables + slot * COST_TABLE_BYTES;
}

/** Byte offset of the counters of a slot: ingress slots first, then instance slots. */
export function counterOffset(geometry: Geometry, slot: { ingress: number } | { instance: number }): number {
  const index = 'ingress' in slot ? slot.ingress : geometry.ingressSlots + slot.instance;
  return geometry.counterBlocks + index * align(geometry.counters * 8);
}

/** Where these counters begin in the segment's doubles. */
export function counterIndex(geometry: Geometry, slot: Parameters<typeof counterOffset>[1]): number {
  return counterOffset(geometry, slot) / 8;
}

/** The words written at the start of a segment, by which an attaching process checks that both sides agree. */
export function headerWords(shape: QueueShape): Int32Array {
  return Int32Array.of(
    SEGMENT_MAGIC,
    shape.maxBatchRows,
    shape.slabs,
    shape.claimsPerSlab,
    shape.blocks,
    shape.ingressSlots,
    shape.instanceSlots,
    shape.counters,
  );
}
