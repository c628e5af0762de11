/**
 * How far the fetch of one file has got, for whoever shows it: written by the fetch, read at any time.
 */
import { Meter } from './meter.ts';

/**
 * `waiting`: another process fetches it, and its figures are shown. `asking`: no byte of this attempt has come. `pausing`: until another attempt. `checking`: what an
 * earlier process left is read.
 */
export type Phase = 'queued' | 'waiting' | 'asking' | 'receiving' | 'pausing' | 'checking' | 'done';

export interface FileProgress {
  /** Name of the file in its model. */
  readonly file: string;
  readonly sha256: string;
  /** Without what could be secret. */
  readonly url: string;
  readonly phase: Phase;
  readonly bytes: number;
  readonly sizeBytes: number | undefined;
  readonly bytesPerS: number | undefined;
  readonly remainingS: number | undefined;
  /** Requests that have been sent for it. */
  readonly requests: number;
  /** What there is to say: who fetches it, or why an attempt did not get on. Empty mostly. */
  readonly note: string;
}

export class Tracker {
  readonly file: string;
  readonly sha256: string;
  readonly url: string;
  phase: Phase = 'queued';
  sizeBytes: number | undefined;
  requests = 0;
  note = '';
  /** Bytes that came over the network, again and again where that was needed. */
  receivedBytes = 0;
  #bytes = 0;
  readonly #meter = new Meter();

  /** @param url as it may be shown */
  constructor(file: string, sha256: string, url: string) {
    this.file = file;
    this.sha256 = sha256;
    this.url = url;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** So much of the file is there. */
  at(bytes: number, nowMs: number): void {
    this.#bytes = bytes;
    this.#meter.note(bytes, nowMs);
  }

  progress(nowMs: number): FileProgress {
    const moves = this.phase === 'receiving' || this.phase === 'waiting';
    return {
      file: this.file,
      sha256: this.sha256,
      url: this.url,
      phase: this.phase,
      bytes: this.#bytes,
      sizeBytes: this.sizeBytes,
      bytesPerS: moves ? this.#meter.rate(nowMs) : undefined,
      remainingS: moves ? this.#meter.remainingS(this.sizeBytes, nowMs) : undefined,
      requests: this.requests,
      note: this.note,
    };
  }
}
