/**
 * Every error a user can meet, in one table: stable code, HTTP status, gRPC status.
 *
 * A `BatchportError` is a fault that is handled and named. A bug is an assertion and ends its process.
 */

export interface ErrorKind {
  readonly http: number;
  readonly grpc: GrpcStatus;
  /** Default number of seconds for Retry-After; absent where a retry cannot help. */
  readonly retryAfterS?: number;
  /** One line for the table of errors in the README. */
  readonly meaning: string;
}

export type GrpcStatus =
  | 'INVALID_ARGUMENT'
  | 'NOT_FOUND'
  | 'ALREADY_EXISTS'
  | 'RESOURCE_EXHAUSTED'
  | 'CANCELLED'
  | 'INTERNAL'
  | 'UNAVAILABLE'
  | 'DEADLINE_EXCEEDED'
  | 'UNIMPLEMENTED'
  | 'FAILED_PRECONDITION';

export const ERRORS = {
  BAD_REQUEST: {
    http: 400,
    grpc: 'INVALID_ARGUMENT',
    meaning: 'The request is not valid JSON or not a valid request of the protocol.',
  },
  BAD_TENSOR: {
    http: 400,
    grpc: 'INVALID_ARGUMENT',
    meaning: 'A tensor does not fit the model: name, datatype, shape, size or value.',
  },
  BAD_URL: { http: 400, grpc: 'INVALID_ARGUMENT', meaning: 'The URL has a malformed escape or a malformed version.' },
  NOT_FOUND: { http: 404, grpc: 'NOT_FOUND', meaning: 'No such path.' },
  MODEL_NOT_FOUND: { http: 404, grpc: 'NOT_FOUND', meaning: 'No such model, or no such version of it.' },
  ALREADY_EXISTS: {
    http: 400,
    grpc: 'ALREADY_EXISTS',
    meaning: 'A region of shared memory of that name is registered.',
  },
  METHOD_NOT_ALLOWED: {
    http: 405,
    grpc: 'UNIMPLEMENTED',
    meaning: 'The path exists, but not for this method; see the Allow header.',
  },
  REQUEST_TIMEOUT: { http: 408, grpc: 'DEADLINE_EXCEEDED', meaning: 'The client did not send its request in time.' },
  BODY_TOO_LARGE: {
    http: 413,
    grpc: 'RESOURCE_EXHAUSTED',
    meaning: 'The body, as sent or after decompression, passes --max-body-bytes.',
  },
  UNSUPPORTED_ENCODING: {
    http: 415,
    grpc: 'UNIMPLEMENTED',
    meaning: 'Content-Encoding is not gzip, deflate or identity.',
  },
  QUEUE_FULL: {
    http: 429,
    grpc: 'RESOURCE_EXHAUSTED',
    retryAfterS: 1,
    meaning: "The model's queue holds as many rows or bytes as its settings allow.",
  },
  OVERLOADED: {
    http: 429,
    grpc: 'RESOURCE_EXHAUSTED',
    retryAfterS: 1,
    meaning:
      'Too much waits for the request to be answered inside its deadline. Retry-After is the time in which that drains.',
  },
  CLIENT_CLOSED: {
    http: 499,
    grpc: 'CANCELLED',
    meaning: 'The client left before its answer; seen in logs and metrics only.',
  },
  INTERNAL: { http: 500, grpc: 'INTERNAL', meaning: 'A fault of the server.' },
  MODEL_FAILED: {
    http: 500,
    grpc: 'INTERNAL',
    meaning: "The model's own run failed, with ONNX Runtime's message, or what it gave could not be processed.",
  },
  TRANSFORM_FAILED: {
    http: 500,
    grpc: 'INTERNAL',
    meaning: "The model's transform threw, took too long, ended its thread, or returned what the model cannot take.",
  },
  NOT_SUPPORTED: { http: 501, grpc: 'UNIMPLEMENTED', meaning: 'The server or the model cannot do this.' },
  NOT_READY: {
    http: 503,
    grpc: 'UNAVAILABLE',
    retryAfterS: 1,
    meaning: 'The model is loading or has failed to load; the message has the reason.',
  },
  DRAINING: { http: 503, grpc: 'UNAVAILABLE', retryAfterS: 5, meaning: 'The server is shutting down.' },
  OUT_OF_MEMORY: {
    http: 503,
    grpc: 'RESOURCE_EXHAUSTED',
    retryAfterS: 5,
    meaning: 'Not even this request alone fits into memory.',
  },
  WORKER_LOST: {
    http: 503,
    grpc: 'UNAVAILABLE',
    retryAfterS: 1,
    meaning:
      'What worked on the request died: the process that ran it, and so did the retries; or the thread for its JSON.',
  },
  DEADLINE_EXCEEDED: {
    http: 504,
    grpc: 'DEADLINE_EXCEEDED',
    meaning: 'The deadline of the request passed before its answer.',
  },
} as const satisfies Record<string, ErrorKind>;

export type ErrorCode = keyof typeof ERRORS;

export class BatchportError extends Error {
  readonly code: ErrorCode;
  /** Seconds for Retry-After, when another value than the table's is known. */
  readonly retryAfterS: number | undefined;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown; retryAfterS?: number }) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'BatchportError';
    this.code = code;
    this.retryAfterS = options?.retryAfterS ?? errorKind(code).retryAfterS;
  }

  get httpStatus(): number {
    return ERRORS[this.code].http;
  }
}

/** The table's row for a code. */
export function errorKind(code: ErrorCode): ErrorKind {
  return ERRORS[code];
}
