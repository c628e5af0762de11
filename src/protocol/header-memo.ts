/**
 * Remembers the JSON headers of binary requests and what they came to, so that a header seen before costs a comparison and no parse.
 *
 * Clients repeat themselves: all requests of one shape have the same header, but for an id. The key is therefore the header without
 * the value of an `id` that stands first and is plain ASCII; a header with an id anywhere else is not remembered. That is sound since
 * the key begins right behind the id's quote: what follows was parsed once as the rest of an object and has no second `id`. Whether
 * there was an id belongs to the key, or the rest alone would pass for a header.
 *
 * Bounds: `SETS` × 2 headers of at most `KEY_BYTES_MAX` bytes; a set drops the older of its two. Colliding headers cost a parse each.
 */

import type { TensorSpec } from '../tensor/signature.ts';
import type { RequestTemplate } from './bound-request.ts';

const SETS = 128;
const KEY_BYTES_MAX = 4096;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/** A binary tensor whose bytes must be looked at, once per request. */
export interface ContentCheck {
  readonly index: number;
  readonly spec: TensorSpec;
  readonly count: number;
}

/** All that a header says, with the id left out. Every input is binary. */
export interface HeaderMeaning {
  readonly template: RequestTemplate;
  readonly timeoutUs: number | undefined;
  readonly priority: number | undefined;
  /** Per signature input: where its bytes begin, counted from the end of the header, and how many they are. */
  readonly offsets: readonly number[];
  readonly lengths: readonly number[];
  /** Bytes behind the header. */
  readonly binaryBytes: number;
  readonly contentChecks: readonly ContentCheck[];
}

interface Entry {
  readonly afterId: boolean;
  readonly key: Buffer;
  readonly meaning: HeaderMeaning;
}

export class HeaderMemo {
  /** Two entries per set, the newer first. */
  private readonly entries: (Entry | undefined)[] = new Array(2 * SETS).fill(undefined);
  private latest: Entry | undefined = undefined;

  /**
   * Looks for the header `body[keyStart, headerLength)`.
   *
   * @param keyStart as `leadingIdEnd` gives it.
   */
  find(body: Buffer, keyStart: number, headerLength: number): HeaderMeaning | undefined {
    const { latest } = this;
    if (latest !== undefined && matches(latest, body, keyStart, headerLength)) return latest.meaning;
    const set = 2 * setOf(body, keyStart, headerLength);
    for (let way = set; way < set + 2; way++) {
      const entry = this.entries[way];
      if (entry !== undefined && matches(entry, body, keyStart, headerLength)) {
        this.latest = entry;
        return entry.meaning;
      }
    }
    return undefined;
  }

  /** Remembers a header that `find` does not know; too long a header is left out. */
  add(body: Buffer, keyStart: number, headerLength: number, meaning: HeaderMeaning): void {
    if (headerLength - keyStart > KEY_BYTES_MAX) return;
    const set = 2 * setOf(body, keyStart, headerLength);
    this.entries[set + 1] = this.entries[set];
    this.entries[set] = { afterId: keyStart > 0, key: Buffer.from(body.subarray(keyStart, headerLength)), meaning };
  }
}

function matches({ afterId, key }: Entry, body: Buffer, start: number, end: number): boolean {
  return afterId === start > 0 && key.length === end - start && body.compare(key, 0, key.length, start, end) === 0;
}

/** FNV-1a over the bytes, four at a time. */
function setOf(body: Buffer, start: number, end: number): number {
  let hash = 0x811c9dc5 ^ (end - start);
  let pos = start;
  for (; pos + 4 <= end; pos += 4) {
    const word = body[pos]! | (body[pos + 1]! << 8) | (body[pos + 2]! << 16) | (body[pos + 3]! << 24);
    hash = Math.imul(hash ^ word, 0x01000193);
    hash ^= hash >>> 15;
  }
  for (; pos < end; pos++) hash = Math.imul(hash ^ body[pos]!, 0x01000193);
  hash ^= hash >>> 15;
  return hash & (SETS - 1);
}

/**
 * Offset behind the closing quote of an id that is the first member of the header, `{"id":"…"`, and holds neither escapes nor anything but
 * ASCII; 0 when the header does not begin so. `leadingId` gives the id itself.
 */
export function leadingIdEnd(body: Buffer, headerLength: number): number {
  let pos = leadingIdStart(body);
  if (pos === 0) return 0;
  for (; pos < headerLength; pos++) {
    const byte = body[pos]!;
    if (byte === QUOTE) return pos + 1;
    if (byte === BACKSLASH || byte < 0x20 || byte >= 0x80) return 0;
  }
  return 0;
}

/** The id that ends before `end`, as `leadingIdEnd` gave it; undefined for 0. */
export function leadingId(body: Buffer, end: number): string | undefined {
  return end === 0 ? undefined : body.toString('latin1', leadingIdStart(body), end - 1);
}

/** Offset of the first byte of a leading id's value, or 0. One space behind the colon is allowed for, as Python's json puts it. */
function leadingIdStart(body: Buffer): number {
  if (body[0] !== 0x7b || body[1] !== QUOTE || body[2] !== 0x69 || body[3] !== 0x64 || body[4] !== QUOTE) return 0;
  if (body[5] !== 0x3a) return 0;
  const quote = body[6] === 0x20 ? 7 : 6;
  return body[quote] === QUOTE ? quote + 1 : 0;
}
