/**
 * Errors of the one table as gRPC tells them: its status, the message, and in the metadata the stable code and when a retry makes sense.
 */
import { Metadata, status } from '@grpc/grpc-js';
import { type BatchportError, errorKind, type GrpcStatus } from '../../config/errors.ts';
import type { CallStatus } from './types.ts';

/** Key of the stable code in the trailing metadata. */
export const CODE_KEY = 'batchport-code';
/** Obeyed by clients with a retry policy. Source: gRFC A6. */
const PUSHBACK_KEY = 'grpc-retry-pushback-ms';
/** Trailers are headers: clients take some 8 KiB of them, and a character may become nine bytes. */
const DETAILS_MAX = 500;

export const OK: CallStatus = { code: status.OK, details: 'OK', metadata: null };

export function statusOf(error: BatchportError): CallStatus & { metadata: Metadata } {
  const metadata = new Metadata();
  metadata.set(CODE_KEY, error.code);
  if (error.retryAfterS !== undefined) metadata.set(PUSHBACK_KEY, String(Math.ceil(error.retryAfterS * 1000)));
  return { code: status[errorKind(error.code).grpc], details: detailsOf(error.message), metadata };
}

/** Number of a status. */
export function numberOf(name: GrpcStatus): number {
  return status[name];
}

/** grpc-js makes a URI of it, which is an error for half a surrogate pair. */
function detailsOf(message: string): string {
  const text = message.toWellFormed();
  return text.length <= DETAILS_MAX ? text : `${text.slice(0, DETAILS_MAX).replace(/[\ud800-\udbff]$/, '')}…`;
}
