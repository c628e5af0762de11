/**
 * The model repository of a server as a client sees it: which versions there are, and what state they are in.
 */
import { asObject, jsonValue, optionalString, requiredString } from './answer.ts';
import { badResponse } from './errors.ts';
import type { HttpAnswer } from './transport.ts';

export interface RepositoryEntry {
  readonly name: string;
  /** Empty where the server tells none. */
  readonly version: string;
  /** READY, UNAVAILABLE, LOADING or UNLOADING; a string, since a server may know more. */
  readonly state: string;
  /** Why it is not ready; of one that is, what there is to say. */
  readonly reason: string;
}

export function decodeIndex(answer: HttpAnswer): RepositoryEntry[] {
  const entries = jsonValue(answer);
  if (!Array.isArray(entries)) throw badResponse('the repository index is not a JSON array');
  return entries.map((value) => {
    const entry = asObject(value, 'an entry of the repository index');
    return {
      name: requiredString(entry, 'name'),
      version: optionalString(entry, 'version') ?? '',
      state: optionalString(entry, 'state') ?? '',
      reason: optionalString(entry, 'reason') ?? '',
    };
  });
}
