/**
 * Answers of one model that are kept for requests with the same tensors (`response_cache`).
 *
 *     request ─ key: SHA-256 of rows, shapes, the outputs and their classes, and the bytes of the inputs ─▶ kept ─────▶ answered; nothing enters the queue
 *                                                                                            └▶ not kept ─▶ queue, run ─▶ kept, unless it has failed
 *
 * The key is made of tensors, not of bodies: a request in JSON finds what one in binary or over gRPC has left, whatever its id, order of outputs, deadline and
 * priority. What is kept are tensors too, so that each is answered in its own form. No client can make two requests of one key, since the hash is one for
 * which nobody knows how. Equal requests that are under way together all run.
 *
 * Owner: the serving half of one version, after whose withdrawal nothing is found or kept any more: an answer never outlives what computed it, be it replaced by
 * a version or a file of the same number. Every ingress process has its own. Bound: `maxBytes` of answers, with what each takes beside its tensors; the
 * one that has not been asked for for longest goes first.
 */
import { createHash, hash } from 'node:crypto';
import type { IngressCounters } from '../metrics/counters.ts';
import type { BoundRequest } from '../protocol/bound-request.ts';
import type { OutputTensor } from '../protocol/response-encoder.ts';

/** Requests of more input bytes are not looked for: their hash would hold the event loop for more than 0.7 ms (1.6 GB/s, with the SHA extensions of the processor). */
export const CACHED_INPUT_BYTES_MAX = 1024 * 1024;
/** Where small inputs are put together: to hash them at once takes a third of the time, and leaves no object behind. */
const SCRATCH = Buffer.alloc(16 * 1024);
/** What an answer takes beside the bytes of its tensors, key, objects and shapes; and what each of its outputs takes. */
const ANSWER_BYTES = 320;
const OUTPUT_BYTES = 320;

export interface ResponseCacheLimits {
  readonly maxBytes: number;
  /** Time for which an answer is kept; undefined = as long as there is room. */
  readonly ttlS: number | undefined;
}

interface Kept {
  /** One for each output asked for, in the order of the signature. */
  readonly outputs: readonly OutputTensor[];
  readonly bytes: number;
  /** µs on the shared clock. */
  readonly keptAtUs: number;
}

export class ResponseCache {
  readonly #maxBytes: number;
  readonly #ttlUs: number;
  readonly #counters: IngressCounters;
  /** Those that were asked for last stand last. */
  readonly #kept = new Map<string, Kept>();
  #bytes = 0;
  #closed = false;

  constructor({ maxBytes, ttlS }: ResponseCacheLimits, counters: IngressCounters) {
    this.#maxBytes = maxBytes;
    this.#ttlUs = ttlS === undefined ? Number.POSITIVE_INFINITY : ttlS * 1e6;
    this.#counters = counters;
    this.#publish();
  }

  /** Under which the answer of a request is kept; undefined for one that is too large or has tensors in shared memory, and after the withdrawal. */
  keyOf({ template: { rows, shapeKey, classesKey }, inputs, shared }: BoundRequest): string | undefined {
    // They might be others by the time they are copied.
    if (shared !== undefined) return undefined;
    let bytes = 0;
    for (let n = 0; n < inputs.length; n++) bytes += inputs[n]!.length;
    if (bytes > CACHED_INPUT_BYTES_MAX || this.#closed) return undefined;
    // With the shapes in front, the bytes of all inputs behind one another can be told apart in one way only, BYTES included.
    const head = `${rows} ${shapeKey} ${classesKey}\n`;
    if (3 * head.length + bytes > SCRATCH.length) {
      const hash = createHash('sha256').update(head);
      for (let n = 0; n < inputs.length; n++) hash.update(inputs[n]!);
      return hash.digest('base64');
    }
    let at = SCRATCH.write(head);
    for (let n = 0; n < inputs.length; n++) {
      SCRATCH.set(inputs[n]!, at);
      at += inputs[n]!.length;
    }
    return hash('sha256', SCRATCH.subarray(0, at), 'base64');
  }

  /** The outputs that are kept, in the order of the signature; undefined for none. They must not be changed. */
  find(key: string, nowUs: number): readonly OutputTensor[] | undefined {
    const kept = this.#kept.get(key);
    if (kept === undefined) return undefined;
    this.#kept.delete(key);
    if (nowUs - kept.keptAtUs < this.#ttlUs) {
      this.#kept.set(key, kept);
      return kept.outputs;
    }
    this.#bytes -= kept.bytes;
    this.#publish();
    return undefined;
  }

  /**
   * Keeps a copy of the outputs of a run that has succeeded, unless it is larger than the whole cache.
   *
   * @param outputs in the order of the signature.
   */
  keep(key: string, outputs: readonly OutputTensor[], nowUs: number): void {
    const bytes = outputs.reduce((sum, { data }) => sum + OUTPUT_BYTES + data.length, ANSWER_BYTES);
    // An equal request may have been under way at the same time.
    if (this.#closed || bytes > this.#maxBytes || this.#kept.has(key)) return;
    for (const [oldest, { bytes: freed }] of this.#kept) {
      if (this.#bytes + bytes <= this.#maxBytes) break;
      this.#kept.delete(oldest);
      this.#bytes -= freed;
      this.#counters.cacheEvicted();
    }
    // Memory of its own: a piece of a pool would keep all of it.
    const copies = outputs.map(({ shape, data }) => ({ shape: [...shape], data: new Uint8Array(data) }));
    this.#kept.set(key, { outputs: copies, bytes, keptAtUs: nowUs });
    this.#bytes += bytes;
    this.#publish();
  }

  /** The version is withdrawn: everything is given up at once, and nothing is kept from now on. */
  close(): void {
    this.#closed = true;
    this.#kept.clear();
    this.#bytes = 0;
    this.#publish();
  }

  #publish(): void {
    this.#counters.cacheHolds(this.#kept.size, this.#bytes);
  }
}
