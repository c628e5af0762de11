/**
 * The body of a request that registers a region of shared memory: `{"key": …, "offset": …, "byte_size": …}`.
 */
import { BatchportError } from '../config/errors.ts';
import type { RegionRequest } from '../protocol/control.ts';

/** @throws BAD_REQUEST */
export function regionRequest(name: string, body: Buffer): RegionRequest {
  let request: unknown;
  try {
    request = JSON.parse(body.toString('utf8'));
  } catch {
    throw new BatchportError('BAD_REQUEST', 'The body is not valid JSON.');
  }
  if (typeof request !== 'object' || request === null)
    throw new BatchportError('BAD_REQUEST', 'The body must be an object.');
  const { key, offset = 0, byte_size: byteSize } = request as Readonly<Record<string, unknown>>;
  if (typeof key !== 'string')
    throw new BatchportError('BAD_REQUEST', "'key' must be a string: the name of the shared memory.");
  return { name, key, offset: count('offset', offset), byteSize: count('byte_size', byteSize) };
}

function count(name: string, value: unknown): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  throw new BatchportError('BAD_REQUEST', `'${name}' must be an integer of 0 or more.`);
}
