/** A fetch by itself: a cache in a folder of the test, connections of its own, and a clock that does not make anybody wait. */
import { Agent } from 'undici';
import { shownUrl } from '../../../src/config/weight-url.ts';
import { type Lease, WeightCache } from '../../../src/weights/cache.ts';
import { type FetchHost, fetchFile } from '../../../src/weights/fetch-file.ts';
import { Pauses } from '../../../src/weights/pauses.ts';
import { Tracker } from '../../../src/weights/tracker.ts';
import { type CleanUp, temporaryDirectory } from '../../support/repository.ts';

export class FetchRig {
  readonly cache: WeightCache;
  /** Milliseconds of each wait that was asked for. */
  readonly sleeps: number[] = [];
  readonly notes: string[] = [];
  readonly stop = new AbortController();
  /** Authorization by origin. */
  readonly authorizations = new Map<string, string>();
  nowMs = Date.now();
  readonly #agent = new Agent({ headersTimeout: 5000, bodyTimeout: 5000 });
  readonly #leases: Lease[] = [];

  constructor(cleanUp: CleanUp, options: { directory?: string; maxBytes?: number } = {}) {
    const directory = options.directory ?? temporaryDirectory(cleanUp, 'weights');
    this.cache = new WeightCache(directory, options.maxBytes);
    this.cache.prepare();
    cleanUp.after(async () => {
      this.stop.abort();
      for (const lease of this.#leases) lease.release();
      await this.#agent.destroy();
    });
  }

  async fetch(url: string, sha256: string, tracker = new Tracker('model.onnx', sha256, shownUrl(url))): Promise<Lease> {
    const lease = await fetchFile(this.host(), url, tracker);
    this.#leases.push(lease);
    return lease;
  }

  /** Gives back what has been fetched. */
  release(): void {
    for (const lease of this.#leases.splice(0)) lease.release();
  }

  host(): FetchHost {
    const pauses = new Pauses(this.cache);
    return {
      cache: this.cache,
      dispatcher: this.#agent,
      signal: this.stop.signal,
      nowMs: () => this.nowMs,
      random: () => 0,
      sleep: async (ms) => {
        this.stop.signal.throwIfAborted();
        this.sleeps.push(ms);
        this.nowMs += ms;
      },
      onNote: (_, what) => this.notes.push(what),
      authorizationFor: (origin) => this.authorizations.get(origin),
      allowed: async (origin) => {
        const leftMs = pauses.leftMs(origin, this.nowMs);
        if (leftMs > 0) await this.host().sleep(leftMs);
      },
      onPause: (origin, forS) => pauses.begin(origin, forS, this.nowMs),
    };
  }
}
