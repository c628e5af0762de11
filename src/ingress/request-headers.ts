/**
 * The few headers the server looks at, read in one pass over the raw list, so that repeated ones are seen as such.
 */
import { BatchportError } from '../config/errors.ts';

export interface RequestHeaders {
  /** -1 when there is none: the body, if any, is chunked. */
  contentLength: number;
  contentEncoding: string;
  acceptEncoding: string;
  /** The client waits to be told that it may send the body. */
  expectsContinue: boolean;
  /** Every value of Inference-Header-Content-Length. */
  inferenceHeaderLengths: string[];
}

/** @throws BAD_REQUEST for a repeated Content-Encoding. */
export function readHeaders(raw: readonly string[]): RequestHeaders {
  const headers: RequestHeaders = {
    contentLength: -1,
    contentEncoding: '',
    acceptEncoding: '',
    expectsContinue: false,
    inferenceHeaderLengths: NONE,
  };
  for (let n = 0; n + 1 < raw.length; n += 2) {
    const name = raw[n]!;
    // Lengths first: most headers are none of these.
    switch (name.length) {
      case 6:
        if (equals(name, 'expect')) headers.expectsContinue = true;
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
            throw new BatchportError('UNSUPPORTED_ENCODING', 'Only one Content-Encoding is supported.');
          headers.contentEncoding = raw[n + 1]!;
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
