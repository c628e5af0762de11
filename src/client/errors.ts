/**
 * The two ways in which a call fails for reasons outside the caller's program. Wrong arguments are TypeError and RangeError, thrown before
 * anything is sent; an aborted call rejects with the signal's own reason.
 */

/** The server answered, and the answer is an error. */
export class InferenceError extends Error {
  /** HTTP status. */
  readonly status: number;
  /** The server's stable code, such as `QUEUE_FULL`; `HTTP_<status>` from a server that gives none. */
  readonly code: string;
  /** The wait that the server asks for before another try. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, details: { status: number; code: string; retryAfterMs?: number | undefined }) {
    super(message);
    this.name = 'InferenceError';
    this.status = details.status;
    this.code = details.code;
    this.retryAfterMs = details.retryAfterMs;
  }
}

/**
 * - `CONNECT_FAILED`: no connection could be made; nothing was sent.
 * - `CONNECTION_LOST`: the connection ended before the whole answer was there.
 * - `TIMEOUT`: the call's `timeoutMs` passed.
 * - `BAD_RESPONSE`: an answer came that is not one of the protocol, is damaged, or passes `maxResponseBytes`.
 * - `TOO_MANY_PENDING`: the client already has `maxPending` calls under way.
 * - `CLIENT_CLOSED`: `close()` was called before.
 */
export type ConnectionErrorCode =
  | 'CONNECT_FAILED'
  | 'CONNECTION_LOST'
  | 'TIMEOUT'
  | 'BAD_RESPONSE'
  | 'TOO_MANY_PENDING'
  | 'CLIENT_CLOSED';

/** There is no usable answer. */
export class ConnectionError extends Error {
  readonly code: ConnectionErrorCode;
  /** Whether the server may have received the request, wholly or in part. */
  readonly sent: boolean;

  constructor(code: ConnectionErrorCode, message: string, options: { sent: boolean; cause?: unknown }) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'ConnectionError';
    this.code = code;
    this.sent = options.sent;
  }
}

/** An answer that breaks the protocol. */
export function badResponse(message: string, cause?: unknown): ConnectionError {
  return new ConnectionError('BAD_RESPONSE', message, { sent: true, cause });
}
