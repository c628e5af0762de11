/**
 * The JSON bodies of requests that change something of the server.
 */
import { BatchportError } from '../config/errors.ts';
import type { RegionRequest } from '../protocol/control.ts';

/** @throws BAD_REQUEST for a body that is no JSON object */
export function jsonObject(body: Buffer): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(body.toString('utf8'));
  } catch {
    throw new BatchportError('BAD_REQUEST', 'The body is not valid JSON.');
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new BatchportError('BAD_REQUEST', 'The body must be a JSON object.');
}

/** A region of shared memory to be registered: `{"key": …, "offset": …, "byte_size": …}`. @throws BAD_REQUEST */
export function regionRequest(name: string, body: Buffer): RegionRequest {
  const { key, offset = 0, byte_size: byteSize } = jsonObject(body);
  if (typeof key !== 'string') {
    throw new BatchportError('BAD_REQUEST', "'key' must be a string: the name of the shared memory.");
  }
  return { name, key, offset: count('offset', offset), byteSize: count('byte_size', byteSize) };
}

function count(name: string, value: unknown): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  throw new BatchportError('BAD_REQUEST', `'${name}' must be an integer of 0 or more.`);
}
