/**
 * Answers over node:http: results, JSON documents, errors. Sets every header itself; raw header lists, as objects cost time on the hot path.
 */
import type { ServerResponse } from 'node:http';
import { promisify } from 'node:util';
import { deflate, gzip } from 'node:zlib';
import type { BatchportError } from '../config/errors.ts';
import type { EncodedResponse } from '../protocol/response-encoder.ts';
import { ENCODINGS } from './expand.ts';
import { MethodNotAllowed } from './router.ts';

/** Answers shorter than this are not compressed: the saving is less than a packet. */
const COMPRESS_FROM_BYTES = 1400;
/** Speed matters more than the last percent. */
const COMPRESSION_LEVEL = 1;
/** Bodies up to this size travel in one write with their head. */
const JOINED_MAX_BYTES = 16 * 1024;

const compress = { gzip: promisify(gzip), deflate: promisify(deflate) };

/**
 * Sends a result of an inference; compressed when the client takes it and it is worth it.
 *
 * @returns undefined when it has been written, a promise when it first has to be compressed.
 */
export function sendResult(
  response: ServerResponse,
  result: EncodedResponse,
  encoding: 'gzip' | 'deflate' | undefined,
): Promise<void> | undefined {
  const { headerLength, body } = result;
  const headers =
    headerLength === undefined
      ? ['Content-Type', 'application/json']
      : ['Content-Type', 'application/octet-stream', 'Inference-Header-Content-Length', String(headerLength)];
  if (encoding !== undefined && body.length >= COMPRESS_FROM_BYTES) {
    return sendCompressed(response, headers, body, encoding);
  }
  send(response, 200, headers, body);
  return undefined;
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

/** What was asked for has been done, and there is nothing to tell. */
export function sendEmpty(response: ServerResponse): void {
  send(response, 200, [], Buffer.alloc(0));
}

/** Sends `{"error", "code"}` with the status of the error's kind. */
export function sendError(response: ServerResponse, error: BatchportError): void {
  const headers: string[] = [];
  if (error.retryAfterS !== undefined) headers.push('Retry-After', String(Math.max(1, Math.ceil(error.retryAfterS))));
  if (error instanceof MethodNotAllowed) headers.push('Allow', error.allow);
  if (error.code === 'UNSUPPORTED_ENCODING') headers.push('Accept-Encoding', ENCODINGS);
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

/** The bytes of an answer to what was no proper request, the last one of its connection. */
export function rawAnswer(status: number, phrase: string, document: unknown, headers: readonly string[] = []): string {
  const body = JSON.stringify(document);
  const lines = [
    `HTTP/1.1 ${status} ${phrase}`,
    ...headers,
    'Connection: close',
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
  ];
  return `${lines.join('\r\n')}\r\n\r\n${body}`;
}
