/**
 * Which versions of a model are served, by its version policy. Pure.
 *
 * Versions order as numbers, the highest first. A version that `latest` would choose but which is not complete (its directory
 * is there, its model file is not: an upload under way) is passed over for the next lower one.
 * Bound: SERVED_VERSIONS_MAX versions.
 */
import type { VersionPolicy } from '../config/model-config.ts';
import { SERVED_VERSIONS_MAX } from '../config/model-config-schema.ts';
import { compareVersionNames } from '../config/version-name.ts';

export interface VersionChoice {
  /** Highest first. */
  readonly served: readonly string[];
  /** Looked at and passed over, because `isComplete` said no. */
  readonly incomplete: readonly string[];
  /** Asked for by name in the policy, but not among the versions. */
  readonly missing: readonly string[];
  /** How many more the policy would serve, beyond the bound. */
  readonly beyondBound: number;
}

/**
 * @param versions valid version names, each once, in any order
 * @param isComplete asked once for each version that the policy may serve, highest first, until there are enough
 */
export function chooseVersions(
  versions: readonly string[],
  policy: VersionPolicy,
  isComplete: (version: string) => boolean,
): VersionChoice {
  const wanted = new Set(policy.kind === 'specific' ? policy.versions : versions);
  const candidates = versions.filter((version) => wanted.has(version)).toSorted((a, b) => compareVersionNames(b, a));
  const countMax = policy.kind === 'latest' ? Math.min(policy.count, SERVED_VERSIONS_MAX) : SERVED_VERSIONS_MAX;
  const served: string[] = [];
  const incomplete: string[] = [];
  let looked = 0;
  while (served.length < countMax && looked < candidates.length) {
    const version = candidates[looked++]!;
    (isComplete(version) ? served : incomplete).push(version);
  }
  const present = new Set(versions);
  return {
    served,
    incomplete,
    missing: policy.kind === 'specific' ? policy.versions.filter((version) => !present.has(version)) : [],
    beyondBound: policy.kind === 'latest' ? 0 : candidates.length - looked,
  };
}
