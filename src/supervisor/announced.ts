/**
 * Which of the versions that the supervisor keeps are told to others: for each model and version number one, though an old and a new one of the same number may be there
 * for a while.
 */
import type { ServedVersion } from './served-version.ts';

/** The one that serves stands for its number until a newer one takes over. */
export function announced(versions: readonly ServedVersion[]): ServedVersion[] {
  const best = new Map<string, ServedVersion>();
  for (const version of versions) {
    const number = JSON.stringify([version.name, version.version]);
    const other = best.get(number);
    if (other === undefined || isBetter(version, other)) best.set(number, version);
  }
  return [...best.values()];
}

function isBetter(one: ServedVersion, other: ServedVersion): boolean {
  const [serves, otherServes] = [takesRequests(one), takesRequests(other)];
  if (serves !== otherServes) return serves;
  return one.standby === other.standby ? one.generation > other.generation : other.standby;
}

function takesRequests({ withdrawn, record }: ServedVersion): boolean {
  return !withdrawn && record.state === 'READY';
}
