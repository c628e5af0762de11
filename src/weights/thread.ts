/**
 * The thread of the supervisor that fetches weights: hashing and writing gigabytes must not hold up the supervisor's own loop.
 *
 * Owner of its connections and of the leases of a job until the supervisor holds its own. It decides nothing: what is fetched and whether again is the supervisor's. If it
 * ends, the supervisor fails the jobs and starts another one with the next; what has come is kept. Bound: one job for each model's files.
 */
import { homedir } from 'node:os';
import type { MessagePort } from 'node:worker_threads';
import type { WeightFile } from '../config/weight-url.ts';
import { type Lease, WeightCache } from './cache.ts';
import { WeightFault } from './fault.ts';
import { Fetcher, trackerOf } from './fetcher.ts';
import { fetchModel } from './model-fetch.ts';
import type { FromWeightThread, ToWeightThread, WeightThreadData } from './thread-messages.ts';
import type { Tracker } from './tracker.ts';

const REPORT_MS = 1000;

interface Job {
  readonly trackers: readonly Tracker[];
  readonly abort: AbortController;
  leases: readonly Lease[];
}

export class WeightThread {
  readonly #port: MessagePort;
  readonly #data: WeightThreadData;
  readonly #cache: WeightCache;
  readonly #jobs = new Map<string, Job>();
  readonly #timer: NodeJS.Timeout;
  #fetcher: Fetcher | undefined;
  /** What jobs that are over have transferred, and what has been told of all. */
  #over = { receivedBytes: 0, requests: 0 };
  #told = { receivedBytes: 0, requests: 0 };

  constructor(port: MessagePort, data: WeightThreadData) {
    this.#port = port;
    this.#data = data;
    this.#cache = new WeightCache(data.cacheDirectory, data.cacheMaxBytes);
    this.#timer = setInterval(() => this.#report(), REPORT_MS);
    port.on('message', (message: ToWeightThread) => this.#handle(message));
  }

  #handle(message: ToWeightThread): void {
    switch (message.type) {
      case 'fetch':
        void this.#fetch(message.key, message.files);
        break;
      case 'forget':
        this.#forget(message.key);
        break;
      case 'stop':
        void this.#stop();
        break;
    }
  }

  async #fetch(key: string, files: readonly WeightFile[]): Promise<void> {
    const job: Job = { trackers: files.map(trackerOf), abort: new AbortController(), leases: [] };
    this.#jobs.set(key, job);
    try {
      // Made here, so that a cache that cannot be used fails the job and not the thread.
      this.#fetcher ??= this.#makeFetcher();
      job.leases = await fetchModel(this.#fetcher, this.#cache, files, job.trackers, job.abort.signal);
      // Nobody wants it any more.
      if (this.#jobs.get(key) !== job) {
        this.#end(key, job);
        return;
      }
      this.#report();
      this.#send({ type: 'done', key });
    } catch (error) {
      if (!(error instanceof WeightFault)) throw error;
      if (this.#jobs.get(key) !== job) return;
      this.#report();
      this.#end(key, job);
      this.#send({ type: 'failed', key, code: error.code, message: error.message });
    }
  }

  #makeFetcher(): Fetcher {
    const { credentialsFile } = this.#data;
    return new Fetcher({
      cache: this.#cache,
      credentials: { file: credentialsFile, env: process.env, home: homedir() },
      onNote: ({ file, url }, what) => this.#send({ type: 'note', file, url, what }),
    });
  }

  #forget(key: string): void {
    const job = this.#jobs.get(key);
    if (job === undefined) return;
    job.abort.abort();
    this.#end(key, job);
  }

  #end(key: string, job: Job): void {
    for (const lease of job.leases) lease.release();
    job.leases = [];
    if (this.#jobs.get(key) !== job) return;
    this.#jobs.delete(key);
    for (const { receivedBytes, requests } of job.trackers) {
      this.#over.receivedBytes += receivedBytes;
      this.#over.requests += requests;
    }
  }

  async #stop(): Promise<void> {
    for (const key of [...this.#jobs.keys()]) this.#forget(key);
    clearInterval(this.#timer);
    await this.#fetcher?.close();
    this.#port.close();
  }

  #report(): void {
    const nowMs = Date.now();
    let { receivedBytes, requests } = this.#over;
    const jobs = [...this.#jobs].map(([key, { trackers }]) => {
      for (const tracker of trackers) {
        receivedBytes += tracker.receivedBytes;
        requests += tracker.requests;
      }
      return { key, files: trackers.map((tracker) => tracker.progress(nowMs)) };
    });
    const told = this.#told;
    this.#told = { receivedBytes, requests };
    this.#send({
      type: 'progress',
      jobs,
      receivedBytes: receivedBytes - told.receivedBytes,
      requests: requests - told.requests,
    });
  }

  #send(message: FromWeightThread): void {
    this.#port.postMessage(message);
  }
}
