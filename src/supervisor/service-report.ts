/**
 * What the service manager is told about the server, as a function of the supervisor's records: whether it is ready, whether a load explains that it is not,
 * whether anything still moves, and one line for people (`systemctl status`).
 */
import { executingSinceUs } from '../queue/reclaim.ts';
import { nowUs } from '../system/clock.ts';
import type { Loads } from './loads.ts';
import type { Readiness } from './readiness.ts';
import type { ServedVersion } from './served-version.ts';
import type { ServerState } from './supervisor.ts';

/**
 * Age from which a run counts as stuck. Far beyond what a run may take: hung runs are looked after one by one elsewhere, and this is for the day on which that fails.
 */
export const STUCK_RUN_MS = 10 * 60_000;

const REASON_LENGTH_MAX = 200;

export interface ServiceReport {
  /** Started, and ready for requests. */
  readonly ready: boolean;
  /** Weights are being loaded, or wait for their turn. */
  readonly loading: boolean;
  /** No instance gets on with its run, and none is on its way. */
  readonly stuck: boolean;
  readonly status: string;
}

export interface Reported {
  readonly state: ServerState;
  readonly readiness: Readiness;
  readonly versions: readonly ServedVersion[];
  readonly loads: Loads['now'];
  readonly httpUrl: string;
}

export function serviceReport(server: Reported): ServiceReport {
  const { state, readiness, versions, loads } = server;
  return {
    ready: state === 'running' && readiness.now(state).ready,
    loading: loads.loading !== null || loads.waiting > 0,
    stuck:
      versions.every(({ placements }) => placements.every(({ state }) => state === 'serving' || state === 'failed')) &&
      everyRunStuck(runAgesMs(versions, nowUs())),
    status: statusLine(server),
  };
}

/** @param agesMs of the current run of each instance; 0 for an idle one */
export function everyRunStuck(agesMs: readonly number[]): boolean {
  return agesMs.length > 0 && agesMs.every((ageMs) => ageMs > STUCK_RUN_MS);
}

function runAgesMs(versions: readonly ServedVersion[], now: number): number[] {
  return versions.flatMap(({ segment, placements }) =>
    segment === undefined
      ? []
      : placements.flatMap(({ running }) =>
          [...running].map((slot) => {
            const since = executingSinceUs(segment, slot);
            return since > 0 ? (now - since) / 1000 : 0;
          }),
        ),
  );
}

/** "2 of 3 models ready, loading ocr/1 on cuda:0". */
function statusLine({ state, versions, loads, httpUrl }: Reported): string {
  if (state === 'draining') return 'stopping: requests in flight are being answered';
  if (state === 'stopped') return 'stopping';
  const ready = versions.filter(({ record }) => record.state === 'READY').length;
  const models = `${ready} of ${versions.length} models ready`;
  const parts = [state === 'running' && ready > 0 ? `${models} at ${httpUrl}` : models];
  if (loads.loading !== null) parts.push(loadText(loads));
  const [first, ...others] = versions.filter(({ record, abandoned }) => record.state === 'UNAVAILABLE' && abandoned);
  if (first !== undefined) {
    const more = others.length === 0 ? '' : ` and ${others.length} more`;
    parts.push(`cannot serve ${first.key}${more}: ${cut(first.record.reason)}`);
  }
  const lost = versions.find(({ record, abandoned, segment }) => {
    return record.state === 'UNAVAILABLE' && !abandoned && segment !== undefined;
  });
  if (lost !== undefined) parts.push(`${lost.key}: ${cut(lost.record.reason)}`);
  return parts.join(', ');
}

function loadText({ loading, waiting, weight_lock: lock }: Reported['loads']): string {
  const { model, device } = loading!;
  const more = waiting === 0 ? '' : `, ${waiting} more to load`;
  if (lock.state !== 'waiting') return `loading ${model} on ${device}${more}`;
  const holder = lock.holder_pid === null ? 'another process' : `process ${lock.holder_pid}`;
  return `waiting to load ${model} on ${device} until ${holder} has loaded its own${more}`;
}

function cut(reason: string): string {
  return reason.length <= REASON_LENGTH_MAX ? reason : `${reason.slice(0, REASON_LENGTH_MAX - 1)}…`;
}
