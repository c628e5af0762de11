/**
 * Where the files of a version with a source come from: the cache at once, or a thread that fetches them (src/weights/thread.ts).
 *
 *     fetch(version) ─▶ all in the cache? ─▶ leased
 *                    └▶ thread ─▶ progress: the reason of the model, /status, the log ─▶ leased by the version, until it is closed
 *
 * Versions with the same files from the same addresses share one job. The thread lives as long as there is a job. If it dies its jobs fail, and are tried again like any failed load.
 * Whether a version is still wanted is looked at whenever the thread reports. Bound: one job for each version that is kept.
 */
import { Worker } from 'node:worker_threads';
import type { Logger } from '../config/log.ts';
import type { WeightFile } from '../config/weight-url.ts';
import type { WeightCache } from '../weights/cache.ts';
import { WeightFault } from '../weights/fault.ts';
import { leaseModel } from '../weights/model-fetch.ts';
import { summary } from '../weights/progress-text.ts';
import { type CacheUse, cacheUse } from '../weights/room.ts';
import {
  type FromWeightThread,
  jobKey,
  type ToWeightThread,
  type WeightThreadData,
} from '../weights/thread-messages.ts';
import type { FileProgress } from '../weights/tracker.ts';
import type { ServedVersion } from './served-version.ts';

const ENTRY = new URL('../../workers/weights.js', import.meta.url);
/** Between two lines of the log about one job, and between two looks at the size of the cache. */
const LOG_EVERY_MS = 10_000;
const CACHE_LOOK_MS = 5000;
/** The cache may lose a file between the end of its fetch and its lease; more often than this it is no accident. */
const LEASE_TRIES_MAX = 3;

interface Job {
  readonly files: readonly WeightFile[];
  readonly versions: Set<ServedVersion>;
  progress: readonly FileProgress[];
  loggedMs: number;
  tries: number;
  readonly done: Promise<void>;
  readonly settle: (fault?: WeightFault) => void;
}

export interface WeightSupplyOptions {
  readonly cache: WeightCache;
  readonly thread: WeightThreadData;
  readonly log: Logger;
  /** What there is to say about a version has changed. */
  readonly onProgress: () => void;
}

export interface WeightTotals {
  readonly receivedBytes: number;
  readonly requests: number;
}

export class WeightSupply {
  readonly #options: WeightSupplyOptions;
  readonly #jobs = new Map<string, Job>();
  #thread: Worker | undefined;
  #totals: WeightTotals = { receivedBytes: 0, requests: 0 };
  #cacheUse: CacheUse | undefined;
  #lookedMs = Number.NEGATIVE_INFINITY;
  #used = false;

  constructor(options: WeightSupplyOptions) {
    this.#options = options;
  }

  /** Resolves when the version has its files. @throws WeightFault */
  async fetch(version: ServedVersion): Promise<void> {
    const { source } = version;
    if (source === undefined || version.hasFiles) return;
    this.#used = true;
    if (this.#lease(version, source.files)) return;
    const key = jobKey(source.files);
    const job = this.#jobs.get(key) ?? this.#begin(key, source.files);
    job.versions.add(version);
    version.fetching = 'its weights are fetched';
    try {
      await job.done;
    } finally {
      version.fetching = '';
    }
  }

  /** What is being fetched, and what has been. Undefined where no version has a source. */
  status(nowMs: number) {
    if (!this.#used) return undefined;
    const { cache } = this.#options;
    const { files, usedBytes } = this.cacheUse(nowMs);
    return {
      cache: { directory: cache.root, files, used_bytes: usedBytes, max_bytes: cache.maxBytes ?? null },
      received_bytes: this.#totals.receivedBytes,
      requests: this.#totals.requests,
      downloads: [...this.#jobs.values()].flatMap(({ versions, progress }) =>
        progress
          .filter(({ phase }) => phase !== 'done')
          .map((one) => ({
            models: [...versions].map(({ key }) => key),
            file: one.file,
            sha256: one.sha256,
            url: one.url,
            state: one.phase,
            bytes: one.bytes,
            size_bytes: one.sizeBytes ?? null,
            bytes_per_s: rounded(one.bytesPerS),
            remaining_s: rounded(one.remainingS),
            requests: one.requests,
            note: one.note,
          })),
      ),
    };
  }

  get totals(): WeightTotals {
    return this.#totals;
  }

  /** What the cache holds; zeros where no version has a source. Looked at now and then. */
  cacheUse(nowMs: number): CacheUse {
    const nothing = { files: 0, usedBytes: 0 };
    if (!this.#used) return nothing;
    if (nowMs - this.#lookedMs < CACHE_LOOK_MS) return this.#cacheUse ?? nothing;
    this.#lookedMs = nowMs;
    try {
      this.#cacheUse = cacheUse(this.#options.cache);
    } catch {
      this.#cacheUse = undefined; // it cannot be read, or is not there yet
    }
    return this.#cacheUse ?? nothing;
  }

  async stop(): Promise<void> {
    const thread = this.#thread;
    this.#thread = undefined;
    await thread?.terminate();
    this.#failAll('the server stops');
  }

  #lease(version: ServedVersion, files: readonly WeightFile[]): boolean {
    const leases = leaseModel(this.#options.cache, files);
    if (leases === undefined) return false;
    version.hold(leases);
    return true;
  }

  #begin(key: string, files: readonly WeightFile[]): Job {
    let settle!: Job['settle'];
    const done = new Promise<void>((resolve, reject) => {
      settle = (fault) => (fault === undefined ? resolve() : reject(fault));
    });
    const job: Job = { files, versions: new Set(), progress: [], loggedMs: performance.now(), tries: 1, done, settle };
    this.#jobs.set(key, job);
    this.#order({ type: 'fetch', key, files });
    return job;
  }

  #order(message: ToWeightThread): void {
    this.#thread ??= this.#start();
    this.#thread.postMessage(message);
  }

  #start(): Worker {
    const thread = new Worker(ENTRY, { workerData: this.#options.thread, name: 'weights' });
    thread.on('message', (message: FromWeightThread) => this.#handle(message));
    thread.on('error', (error) => this.#options.log.error({ err: error }, 'the thread that fetches weights failed'));
    thread.on('exit', () => {
      if (this.#thread !== thread) return;
      this.#thread = undefined;
      this.#failAll('the thread that fetches weights has ended');
    });
    return thread;
  }

  #handle(message: FromWeightThread): void {
    switch (message.type) {
      case 'progress':
        this.#progress(message);
        break;
      case 'note': {
        const { file, url, what } = message;
        this.#options.log.info({ file, url, what }, 'weights');
        break;
      }
      case 'done':
        this.#arrived(message.key);
        break;
      case 'failed':
        this.#end(message.key, new WeightFault(message.code, message.message));
        break;
    }
  }

  #progress({ jobs, receivedBytes, requests }: Extract<FromWeightThread, { type: 'progress' }>): void {
    this.#totals = {
      receivedBytes: this.#totals.receivedBytes + receivedBytes,
      requests: this.#totals.requests + requests,
    };
    for (const { key, files } of jobs) {
      const job = this.#jobs.get(key);
      if (job === undefined) continue;
      job.progress = files;
      const text = summary(files);
      for (const version of job.versions) version.fetching = `its weights are fetched: ${text}`;
      if ([...job.versions].every(({ withdrawn }) => withdrawn)) {
        this.#order({ type: 'forget', key });
        this.#end(key, new WeightFault('STOPPED', 'nobody wants them any more'));
      } else if (performance.now() - job.loggedMs >= LOG_EVERY_MS) {
        job.loggedMs = performance.now();
        this.#options.log.info(
          { models: [...job.versions].map((one) => one.key), progress: text },
          'weights are fetched',
        );
      }
    }
    this.#options.onProgress();
  }

  #arrived(key: string): void {
    const job = this.#jobs.get(key);
    if (job === undefined) return;
    let fault: WeightFault | undefined;
    try {
      for (const version of job.versions) if (!version.hasFiles) this.#lease(version, job.files);
    } catch (error) {
      if (!(error instanceof WeightFault)) throw error;
      fault = error;
    }
    this.#order({ type: 'forget', key });
    const missing = [...job.versions].some(({ hasFiles }) => !hasFiles);
    if (fault === undefined && missing && ++job.tries <= LEASE_TRIES_MAX) {
      this.#order({ type: 'fetch', key, files: job.files });
      return;
    }
    if (fault === undefined && missing) fault = new WeightFault('CACHE_FULL', 'its files go as soon as they have come');
    const models = [...job.versions].map((one) => one.key);
    if (fault === undefined) this.#options.log.info({ models, files: job.files.length }, 'weights are there');
    this.#end(key, fault);
  }

  #end(key: string, fault: WeightFault | undefined): void {
    const job = this.#jobs.get(key);
    this.#jobs.delete(key);
    job?.settle(fault);
    this.#lookedMs = Number.NEGATIVE_INFINITY;
    if (this.#jobs.size > 0) return;
    const thread = this.#thread;
    this.#thread = undefined;
    thread?.postMessage({ type: 'stop' } satisfies ToWeightThread);
  }

  #failAll(reason: string): void {
    for (const key of [...this.#jobs.keys()]) this.#end(key, new WeightFault('FETCHER_LOST', reason));
  }
}

function rounded(value: number | undefined): number | null {
  return value === undefined ? null : Math.round(value);
}
