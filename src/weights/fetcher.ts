/**
 * Fetches files of weights for one process: what its fetches share.
 *
 * Owner of the connections; `close` ends them. The proxies are those of HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Bound: FILES_AT_ONCE files at a time, whoever wants them.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type Agent, type Dispatcher, EnvHttpProxyAgent } from 'undici';
import { shownUrl, type WeightFile } from '../config/weight-url.ts';
import type { Lease, WeightCache } from './cache.ts';
import { authorizationFor, type CredentialSources } from './credentials.ts';
import { WeightFault } from './fault.ts';
import { type FetchHost, fetchFile } from './fetch-file.ts';
import { Pauses } from './pauses.ts';
import { sweep } from './room.ts';
import { Tracker } from './tracker.ts';

const FILES_AT_ONCE = 4;
const CONNECT_TIMEOUT_MS = 10_000;
/** Longest silence before and within an answer. */
const SILENCE_MS = 30_000;
/** Several that wait for the end of the same pause come one after the other within this time. */
const PAUSE_SPREAD_MS = 1000;

export interface FetcherOptions {
  readonly cache: WeightCache;
  readonly credentials: CredentialSources;
  /** Something worth a line in the log: about a file, in words. */
  readonly onNote: (tracker: Tracker, what: string) => void;
}

export class Fetcher {
  readonly #options: FetcherOptions;
  readonly #pauses: Pauses;
  #dispatcher: Dispatcher | undefined;
  #running = 0;
  readonly #waiting: (() => void)[] = [];

  /** @throws WeightFault CACHE_UNUSABLE, DISK_FULL */
  constructor(options: FetcherOptions) {
    this.#options = options;
    options.cache.prepare();
    sweep(options.cache, Date.now());
    this.#pauses = new Pauses(options.cache);
  }

  /** Puts a file into the cache. The tracker shows how far that is. @throws WeightFault */
  async fetch(file: WeightFile, tracker: Tracker, signal: AbortSignal): Promise<Lease> {
    // What is there needs no place in the line.
    const needsPlace = this.#options.cache.sizeOf(file.sha256) === undefined;
    if (needsPlace) await this.#takePlace();
    try {
      return await fetchFile(this.#host(tracker, signal), file.url, tracker);
    } catch (error) {
      if (signal.aborted) throw new WeightFault('STOPPED', 'stopped before the file was there', { cause: error });
      throw error;
    } finally {
      if (needsPlace) this.#givePlace();
    }
  }

  async #takePlace(): Promise<void> {
    if (this.#running < FILES_AT_ONCE) this.#running++;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  /** To the next in line, if there is one. */
  #givePlace(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#running--;
    else next();
  }

  async close(): Promise<void> {
    await this.#dispatcher?.destroy();
  }

  #host(tracker: Tracker, signal: AbortSignal): FetchHost {
    const { cache, credentials, onNote } = this.#options;
    const sleep = (ms: number): Promise<void> => delay(ms, undefined, { signal });
    this.#dispatcher ??= connections();
    return {
      cache,
      dispatcher: this.#dispatcher,
      signal,
      sleep,
      onNote,
      nowMs: Date.now,
      random: Math.random,
      authorizationFor: (origin) => authorizationFor(origin, credentials),
      allowed: (origin) => this.#allowed(origin, tracker, sleep),
      onPause: (origin, forS) => this.#pauses.begin(origin, forS, Date.now()),
    };
  }

  async #allowed(origin: string, tracker: Tracker, sleep: FetchHost['sleep']): Promise<void> {
    const phase = tracker.phase;
    for (
      let leftMs = this.#pauses.leftMs(origin, Date.now());
      leftMs > 0;
      leftMs = this.#pauses.leftMs(origin, Date.now())
    ) {
      tracker.phase = 'pausing';
      tracker.note = `${origin} asked to be left alone for ${Math.ceil(leftMs / 1000)} s more`;
      this.#options.onNote(tracker, tracker.note);
      await sleep(leftMs + Math.random() * PAUSE_SPREAD_MS);
    }
    tracker.phase = phase;
  }
}

/** Of a file, as it may be shown. */
export function trackerOf({ path, sha256, url }: WeightFile): Tracker {
  return new Tracker(path, sha256, shownUrl(url));
}

function connections(): Dispatcher {
  const limits: Agent.Options = {
    connect: { timeout: CONNECT_TIMEOUT_MS },
    headersTimeout: SILENCE_MS,
    bodyTimeout: SILENCE_MS,
    pipelining: 1,
    allowH2: false,
  };
  return new EnvHttpProxyAgent(limits);
}
