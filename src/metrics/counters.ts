/**
 * Counters that live in a segment: which there are and where each lies.
 *
 * Each ingress slot and each instance slot of a model has a block of doubles with one writer, so counting is a plain addition: no atomics, no merging, and a
 * process that dies takes nothing with it. The next process in the slot goes on from there. Readers may see a value that is one event old, never
 * a torn one (8-byte aligned stores). Doubles count exactly up to 2^53.
 */

/** Upper bounds of latency histograms, seconds. */
export const LATENCY_BUCKETS_S = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
] as const;

/** Upper bounds of the batch-size histogram, rows. */
export const BATCH_BUCKETS_ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096] as const;

/** What can become of a request, as the `outcome` label. */
export const OUTCOMES = ['ok', 'invalid', 'rejected', 'failed', 'deadline', 'unavailable', 'cancelled'] as const;
export type Outcome = (typeof OUTCOMES)[number];

/** Parts of a request's life: reading it, waiting for a batch, the run, writing the answer. */
export const STAGES = ['receive', 'queue', 'run', 'send', 'total'] as const;
export type Stage = (typeof STAGES)[number];

const LATENCY_BOUNDS_US = Float64Array.from(LATENCY_BUCKETS_S, (bound) => bound * 1e6);
const BATCH_BOUNDS = Float64Array.from(BATCH_BUCKETS_ROWS);
/** Doubles of a histogram: one per bucket, one for what is above all, the sum. */
const LATENCY_WORDS = LATENCY_BUCKETS_S.length + 2;
const BATCH_WORDS = BATCH_BUCKETS_ROWS.length + 2;

const INGRESS = {
  outcomes: 0,
  rows: OUTCOMES.length,
  bytesIn: OUTCOMES.length + 1,
  bytesOut: OUTCOMES.length + 2,
  inFlight: OUTCOMES.length + 3,
  failedUs: OUTCOMES.length + 4,
  cacheHits: OUTCOMES.length + 5,
  cacheHitUs: OUTCOMES.length + 6,
  cacheMisses: OUTCOMES.length + 7,
  cacheMissUs: OUTCOMES.length + 8,
  cacheEvictions: OUTCOMES.length + 9,
  cacheEntries: OUTCOMES.length + 10,
  cacheBytes: OUTCOMES.length + 11,
  stages: OUTCOMES.length + 12,
} as const;
const INGRESS_WORDS = INGRESS.stages + STAGES.length * LATENCY_WORDS;

const INSTANCE = {
  batches: 0,
  rows: 1,
  failures: 2,
  splits: 3,
  outOfMemory: 4,
  skipped: 5,
  busyUs: 6,
  arenaHeld: 7,
  gaveBack: 8,
  lateRows: 9,
  lastRunAtUs: 10,
  batchRows: 11,
  sizes: 11 + BATCH_WORDS,
} as const;
/** Sizes of batches that are counted each by itself; above, those from one power of two up to the next are counted together. */
const SIZES_EXACT = 64;
const SIZES_LARGE = [128, 256, 512, 1024, 2048, 4096] as const;
const SIZES = SIZES_EXACT + SIZES_LARGE.length;
const INSTANCE_WORDS = INSTANCE.sizes + 2 * SIZES;

/** Where batches of a size are counted, from 0. */
function sizeIndex(rows: number): number {
  if (rows < SIZES_LARGE[0]) return Math.min(rows, SIZES_EXACT) - 1;
  return SIZES_EXACT + Math.min(SIZES_LARGE.length, 32 - Math.clz32(rows) - 7) - 1;
}

/** Doubles per slot of a segment. */
export const COUNTER_WORDS = Math.max(INGRESS_WORDS, INSTANCE_WORDS);

function observe(words: Float64Array, at: number, bounds: Float64Array, value: number): void {
  let bucket = 0;
  while (bucket < bounds.length && value > bounds[bucket]!) bucket++;
  words[at + bucket]!++;
  words[at + bounds.length + 1]! += value;
}

/** Written by an ingress process, for one model. */
export class IngressCounters {
  readonly #words: Float64Array;
  readonly #base: number;

  /** `base`: index of the slot's first double in `words`. */
  constructor(words: Float64Array, base: number) {
    this.#words = words;
    this.#base = base;
  }

  outcome(index: number): void {
    this.#words[this.#base + INGRESS.outcomes + index]!++;
  }

  received(rows: number, bytes: number): void {
    this.#words[this.#base + INGRESS.rows]! += rows;
    this.#words[this.#base + INGRESS.bytesIn]! += bytes;
  }

  sent(bytes: number): void {
    this.#words[this.#base + INGRESS.bytesOut]! += bytes;
  }

  /** A request was answered with an error, so many µs after it came. */
  failed(us: number): void {
    this.#words[this.#base + INGRESS.failedUs]! += us;
  }

  inFlight(requests: number): void {
    this.#words[this.#base + INGRESS.inFlight] = requests;
  }

  /** A request was answered from the cache, which took so many µs to find the answer. */
  cacheHit(us: number): void {
    this.#words[this.#base + INGRESS.cacheHits]!++;
    this.#words[this.#base + INGRESS.cacheHitUs]! += us;
  }

  /** A request was answered by a run since the cache did not have its answer; to look for it and to keep it took so many µs. */
  cacheMiss(us: number): void {
    this.#words[this.#base + INGRESS.cacheMisses]!++;
    this.#words[this.#base + INGRESS.cacheMissUs]! += us;
  }

  /** A kept answer went to make room for another one. */
  cacheEvicted(): void {
    this.#words[this.#base + INGRESS.cacheEvictions]!++;
  }

  /** What the cache of the process holds now. */
  cacheHolds(entries: number, bytes: number): void {
    this.#words[this.#base + INGRESS.cacheEntries] = entries;
    this.#words[this.#base + INGRESS.cacheBytes] = bytes;
  }

  /** Time of a stage (index in STAGES), µs. */
  stage(index: number, us: number): void {
    observe(this.#words, this.#base + INGRESS.stages + index * LATENCY_WORDS, LATENCY_BOUNDS_US, us);
  }
}

/** Written by an instance. */
export class InstanceCounters {
  readonly #words: Float64Array;
  readonly #base: number;

  constructor(words: Float64Array, base: number) {
    this.#words = words;
    this.#base = base;
  }

  /** @param endedUs on the shared clock */
  batch(rows: number, busyUs: number, endedUs: number): void {
    const size = this.#base + INSTANCE.sizes + 2 * sizeIndex(rows);
    this.#words[size]!++;
    this.#words[size + 1]! += busyUs;
    this.#words[this.#base + INSTANCE.lastRunAtUs] = endedUs;
    this.#words[this.#base + INSTANCE.batches]!++;
    this.#words[this.#base + INSTANCE.rows]! += rows;
    this.#words[this.#base + INSTANCE.busyUs]! += busyUs;
    observe(this.#words, this.#base + INSTANCE.batchRows, BATCH_BOUNDS, rows);
  }

  /** When the last batch ended, µs on the shared clock; 0 for never. Of an earlier life too. */
  get lastRunUs(): number {
    return this.#words[this.#base + INSTANCE.lastRunAtUs]!;
  }

  failure(): void {
    this.#words[this.#base + INSTANCE.failures]!++;
  }

  split(): void {
    this.#words[this.#base + INSTANCE.splits]!++;
  }

  outOfMemory(): void {
    this.#words[this.#base + INSTANCE.outOfMemory]!++;
  }

  /** Rows that were not run since they were, or would have been, too late. */
  late(rows: number): void {
    this.#words[this.#base + INSTANCE.lateRows]! += rows;
  }

  /** A batch that nobody wanted any more. */
  skipped(): void {
    this.#words[this.#base + INSTANCE.skipped]!++;
  }

  /** What the arena that the instance runs in holds now. */
  arena(heldBytes: number): void {
    this.#words[this.#base + INSTANCE.arenaHeld] = heldBytes;
  }

  /** The arena has given back what it did not use. */
  gaveBack(): void {
    this.#words[this.#base + INSTANCE.gaveBack]!++;
  }
}

export interface HistogramReading {
  /** Count of each bucket (not cumulative), the last one above all bounds. */
  readonly buckets: readonly number[];
  readonly sum: number;
}

function readHistogram(words: Float64Array, at: number, bounds: number): HistogramReading {
  return { buckets: Array.from(words.subarray(at, at + bounds + 1)), sum: words[at + bounds + 1]! };
}

export interface IngressReading {
  readonly outcomes: Readonly<Record<Outcome, number>>;
  readonly rows: number;
  readonly bytesIn: number;
  readonly bytesOut: number;
  readonly inFlight: number;
  readonly cache: CacheReading;
  readonly stages: Readonly<Record<Stage, HistogramReading>>;
}

/** Of the response cache; zeros for a model without one. */
export interface CacheReading {
  readonly hits: number;
  readonly hitUs: number;
  readonly misses: number;
  readonly missUs: number;
  readonly evictions: number;
  readonly entries: number;
  readonly bytes: number;
}

export function readIngress(words: Float64Array, base: number): IngressReading {
  const outcomes = Object.fromEntries(OUTCOMES.map((name, n) => [name, words[base + INGRESS.outcomes + n]!]));
  const stages = Object.fromEntries(
    STAGES.map((name, n) => [
      name,
      readHistogram(words, base + INGRESS.stages + n * LATENCY_WORDS, LATENCY_BUCKETS_S.length),
    ]),
  );
  return {
    outcomes: outcomes as Record<Outcome, number>,
    rows: words[base + INGRESS.rows]!,
    bytesIn: words[base + INGRESS.bytesIn]!,
    bytesOut: words[base + INGRESS.bytesOut]!,
    inFlight: words[base + INGRESS.inFlight]!,
    cache: {
      hits: words[base + INGRESS.cacheHits]!,
      hitUs: words[base + INGRESS.cacheHitUs]!,
      misses: words[base + INGRESS.cacheMisses]!,
      missUs: words[base + INGRESS.cacheMissUs]!,
      evictions: words[base + INGRESS.cacheEvictions]!,
      entries: words[base + INGRESS.cacheEntries]!,
      bytes: words[base + INGRESS.cacheBytes]!,
    },
    stages: stages as Record<Stage, HistogramReading>,
  };
}

export interface InstanceReading {
  readonly batches: number;
  readonly rows: number;
  readonly failures: number;
  readonly splits: number;
  readonly outOfMemory: number;
  readonly skipped: number;
  readonly lateRows: number;
  readonly busyUs: number;
  /** Of the arena, which all instances of a model on a device share; as the instance last saw it. */
  readonly arenaHeldBytes: number;
  readonly gaveBack: number;
  readonly batchRows: HistogramReading;
}

export function readInstance(words: Float64Array, base: number): InstanceReading {
  return {
    batches: words[base + INSTANCE.batches]!,
    rows: words[base + INSTANCE.rows]!,
    failures: words[base + INSTANCE.failures]!,
    splits: words[base + INSTANCE.splits]!,
    outOfMemory: words[base + INSTANCE.outOfMemory]!,
    skipped: words[base + INSTANCE.skipped]!,
    lateRows: words[base + INSTANCE.lateRows]!,
    busyUs: words[base + INSTANCE.busyUs]!,
    arenaHeldBytes: words[base + INSTANCE.arenaHeld]!,
    gaveBack: words[base + INSTANCE.gaveBack]!,
    batchRows: readHistogram(words, base + INSTANCE.batchRows, BATCH_BUCKETS_ROWS.length),
  };
}

/** Time that requests took which were answered with an error, µs. */
export function readFailedUs(words: Float64Array, base: number): number {
  return words[base + INGRESS.failedUs]!;
}

/** When the last batch of an instance ended, µs on the shared clock; 0 for never. */
export function readLastRunUs(words: Float64Array, base: number): number {
  return words[base + INSTANCE.lastRunAtUs]!;
}

/** Batches of a size. */
export interface SizeReading {
  /** Large ones stand under the power of two that they reach. */
  readonly rows: number;
  readonly batches: number;
  /** What their runs took. */
  readonly us: number;
}

/** Of the sizes that an instance has run. */
export function readSizes(words: Float64Array, base: number): SizeReading[] {
  const at = base + INSTANCE.sizes;
  const sizes: SizeReading[] = [];
  for (let n = 0; n < SIZES; n++) {
    const batches = words[at + 2 * n]!;
    if (batches === 0) continue;
    const rows = n < SIZES_EXACT ? n + 1 : SIZES_LARGE[n - SIZES_EXACT]!;
    sizes.push({ rows, batches, us: words[at + 2 * n + 1]! });
  }
  return sizes;
}
