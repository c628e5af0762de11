/**
 * Answers over node:http: results, JSON documents, errors. Sets every header itself; raw header lists, as objects cost time on the hot path.
 */
import type { ServerResponse } from 'node:http';
import { promisify } from 'node:util';
import { deflate, gzip } from 'node:zlib';
import type { BatchportError } from '../config/errors.ts';
import type { EncodedResponse } from '../protocol/response-encoder.ts';
import { ENCODINGS } from './body.ts';
import { MethodNotAllowed } from './router.ts';

/** Answers shorter than this are not compressed: the saving is less than a packet. */
const COMPRESS_FROM_BYTES = 1400;
/** Speed matters more than the last percent. */
const COMPRESSION_LEVEL = 1;
/** Bodies up to this size travel in one write with their head. */
const JOINED_MAX_BYTES = 16 * 1024;

const compress = { gzip: promisify(gzip), deflate: promisify(deflate) };

/** Sends a result of an inference; compressed when the client takes it and it is worth it. */
export function sendResult(
  response: ServerResponse,
  result: EncodedResponse,
  encoding: 'gzip' | 'deflate' | undefined,
): void {
  const { headerLength, body } = result;
  const headers =
    headerLength === undefined
      ? ['Content-Type', 'application/json']
      : ['Content-Type', 'application/octet-stream', 'Inference-Header-Content-Length', String(headerLength)];
  if (encoding === undefined || body.length < COMPRESS_FROM_BYTES) send(response, 200, headers, body);
  else void sendCompressed(response, headers, body, encoding);
}

async function sendCompressed(
  response: ServerResponse,
  headers: string[],
  body: Buffer,
  encoding: 'gzip' | 'deflate',
): Promise<void> {
  const compressed = await compress[encoding](body, { level: COMPRESSION_LEVEL });
  headers.push('Content-Encoding', encoding, 'Vary', 'Accept-Encoding');
  send(response, 200, headers, compressed);
}

export function sendJson(response: ServerResponse, status: number, document: unknown, headers: string[] = []): void {
  send(
    response,
    status,
    [...headers, 'Content-Type', 'application/json'],
    Buffer.from(JSON.stringify(document), 'utf8'),
  );
}

/** Sends `{"error", "code"}` with the status of the error's kind. `close`: the connection is of no further use. */
export function sendError(response: ServerResponse, error: BatchportError, close = false): void {
  const headers: string[] = [];
  if (error.retryAfterS !== undefined) headers.push('Retry-After', String(Math.max(1, Math.ceil(error.retryAfterS))));
  if (error instanceof MethodNotAllowed) headers.push('Allow', error.allow);
  if (error.code === 'UNSUPPORTED_ENCODING') headers.push('Accept-Encoding', ENCODINGS);
  if (close) {
    headers.push('Connection', 'close');
    response.shouldKeepAlive = false;
  }
  sendJson(response, error.httpStatus, { error: error.message, code: error.code }, headers);
}

function send(response: ServerResponse, status: number, headers: string[], body: Buffer): void {
  if (response.destroyed || response.headersSent) return;
  headers.push('Content-Length', String(body.length));
  response.writeHead(status, headers);
  // A short body as a string goes out in the same write as the head; latin1 keeps every byte what it is.
  if (body.length <= JOINED_MAX_BYTES) response.end(body.toString('latin1'), 'latin1');
  else response.end(body);
}
