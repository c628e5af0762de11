/**
 * How patiently child processes are started again, by role. One place for all of these numbers.
 */
import type { LifePolicy } from '../scheduler/worker-life.ts';

/** A start costs a device the time to load its weights, and everybody on the host the turn. */
export const DEVICE_POLICY: LifePolicy = {
  restart: { floorMs: 20, baseMs: 250, capMs: 30_000, healthyMs: 10_000 },
  slow: { floorMs: 30_000, baseMs: 60_000, capMs: 600_000, healthyMs: 10_000 },
  shortLifeMs: 2000,
  ownDeathsMax: 5,
  deathsMax: 16,
  delayAtWorkMaxMs: 1000,
};

/** An ingress costs next to nothing to start, and while there is none nobody is answered. */
export const INGRESS_POLICY: LifePolicy = {
  ...DEVICE_POLICY,
  restart: { ...DEVICE_POLICY.restart, capMs: 5000 },
  slow: { floorMs: 5000, baseMs: 10_000, capMs: 60_000, healthyMs: 10_000 },
};

/** Longest time without a sign that the event loop turns. */
export const SILENT_MAX_MS = 10_000;

/** How fast an ingress checks and copies a body at the least, in one piece: for so long its loop may stand still beyond that. Large JSON is read elsewhere. */
const DECODED_BYTES_PER_MS = 64 * 1024;

export function ingressSilentMaxMs(maxBodyBytes: number): number {
  return SILENT_MAX_MS + maxBodyBytes / DECODED_BYTES_PER_MS;
}
