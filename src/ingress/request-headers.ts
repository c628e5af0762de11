/**
 * The few headers the server looks at, read in one pass over the raw list, so that repeated ones are seen as such.
 */
import { BatchportError } from '../config/errors.ts';

export interface RequestHeaders {
  /** -1 when there is none, Infinity when it cannot be told. */
  contentLength: number;
  chunked: boolean;
  contentEncoding: string;
  acceptEncoding: string;
  /** The client waits to be told that it may send the body. */
  expectsContinue: boolean;
  /** Content-Type says that the body is a picture, a sound or a film. */
  isMedia: boolean;
  /** Every value of Inference-Header-Content-Length. */
  inferenceHeaderLengths: string[];
  hosts: number;
  /** Of Batchport-Deadline-Ms: how long the client waits, from the arrival of the head, µs; 0 without it. */
  deadlineUs: number;
  /** What is wrong with them by themselves. */
  fault: BatchportError | undefined;
}

export function readHeaders(raw: readonly string[]): RequestHeaders {
  const headers: RequestHeaders = {
    contentLength: -1,
    chunked: false,
    contentEncoding: '',
    acceptEncoding: '',
    expectsContinue: false,
    isMedia: false,
    inferenceHeaderLengths: NONE,
    hosts: 0,
    deadlineUs: 0,
    fault: undefined,
  };
  for (let n = 0; n + 1 < raw.length; n += 2) {
    const name = raw[n]!;
    // Lengths first: most headers are none of these.
    switch (name.length) {
      case 4:
        if (equals(name, 'host')) headers.hosts++;
        break;
      case 6:
        if (equals(name, 'expect')) headers.expectsContinue = equals(raw[n + 1]!, '100-continue');
        break;
      case 12:
        if (equals(name, 'content-type')) headers.isMedia = MEDIA.test(raw[n + 1]!);
        break;
      case 14:
        if (equals(name, 'content-length')) headers.contentLength = Number(raw[n + 1]);
        break;
      case 15:
        if (equals(name, 'accept-encoding')) headers.acceptEncoding = raw[n + 1]!;
        break;
      case 16:
        if (equals(name, 'content-encoding')) {
          if (headers.contentEncoding !== '')
            headers.fault = new BatchportError('UNSUPPORTED_ENCODING', 'Only one Content-Encoding is supported.');
          headers.contentEncoding = raw[n + 1]!;
        }
        break;
      case 17:
        if (equals(name, 'transfer-encoding')) {
          headers.chunked = true;
          if (!equals(raw[n + 1]!, 'chunked')) {
            // Where the body ends cannot be told.
            headers.contentLength = Number.POSITIVE_INFINITY;
            headers.fault = new BatchportError('BAD_REQUEST', 'The only Transfer-Encoding supported is chunked.');
          }
        }
        break;
      case 21:
        if (equals(name, 'batchport-deadline-ms')) {
          const us = DEADLINE.test(raw[n + 1]!) ? Math.round(Number(raw[n + 1]) * 1000) : 0;
          if (us > 0) headers.deadlineUs = headers.deadlineUs === 0 ? us : Math.min(us, headers.deadlineUs);
          else headers.fault = new BatchportError('BAD_REQUEST', DEADLINE_FAULT);
        }
        break;
      case 31:
        if (equals(name, 'inference-header-content-length')) {
          if (headers.inferenceHeaderLengths === NONE) headers.inferenceHeaderLengths = [raw[n + 1]!];
          else headers.inferenceHeaderLengths.push(raw[n + 1]!);
        }
        break;
    }
  }
  return headers;
}

const NONE: string[] = [];
const MEDIA = /^(image|audio|video)\//i;
const DEADLINE = /^\d{1,9}(\.\d{1,9})?$/;
const DEADLINE_FAULT =
  'Batchport-Deadline-Ms must be a number of milliseconds above 0 and below 1000000000, in decimal digits, such as 50 or 0.5.';

function equals(name: string, lower: string): boolean {
  return name === lower || name.toLowerCase() === lower;
}

/** The encoding to answer in: `gzip`, `deflate`, or undefined for none. */
export function answerEncoding(accept: string): 'gzip' | 'deflate' | undefined {
  if (accept === '') return undefined;
  let best: 'gzip' | 'deflate' | undefined;
  let bestQuality = 0;
  for (const part of accept.slice(0, 256).split(',')) {
    const [name, ...parameters] = part.split(';').map((text) => text.trim().toLowerCase());
    if (name !== 'gzip' && name !== 'deflate') continue;
    const q = parameters.find((text) => text.startsWith('q='));
    const quality = q === undefined ? 1 : Number(q.slice(2));
    if (quality > bestQuality) {
      best = name;
      bestQuality = quality;
    }
  }
  return best;
}
