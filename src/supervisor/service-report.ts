/**
 * What the service manager is told about the server, as a function of the supervisor's records: whether it is ready, whether a load explains that it is not,
 * whether anything still moves, and one line for people (`systemctl status`).
 */
import { executingSinceUs } from '../queue/reclaim.ts';
import { nowUs } from '../system/clock.ts';
import type { Loads } from './loads.ts';
import type { Readiness } from './readiness.ts';
import type { Placement, ServedVersion } from './served-version.ts';
import type { ServerState } from './supervisor.ts';

/**
 * How far beyond its limit a run counts as stuck. One that hangs is cancelled, and its process killed, soon after the limit; this is for the day on which that fails.
 */
export const STUCK_MARGIN_MS = 60_000;

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

/** What an instance does. */
export interface RunAge {
  /** 0 for an idle one. */
  readonly forMs: number;
  readonly limitMs: number;
}

export interface Reported {
  /** Default of models that set no limit of their own. */
  readonly settings: { readonly runTimeoutS: number };
  readonly state: ServerState;
  readonly readiness: Readiness;
  readonly versions: readonly ServedVersion[];
  readonly loads: Loads['now'];
  readonly httpUrl: string;
}

export function serviceReport(server: Reported): ServiceReport {
  const { state, readiness, versions, loads, settings } = server;
  const coming = versions.some(({ placements }) => placements.some(isComing));
  return {
    ready: state === 'running' && readiness.now(state).ready,
    loading: loads.loading !== null || loads.waiting > 0,
    stuck: !coming && everyRunStuck(runAges(versions, settings.runTimeoutS * 1000, nowUs())),
    status: statusLine(server),
  };
}

/** Whether every instance is stuck in its run, and there is one. */
export function everyRunStuck(runs: readonly RunAge[]): boolean {
  return runs.length > 0 && runs.every(({ forMs, limitMs }) => forMs > limitMs + STUCK_MARGIN_MS);
}

function isComing({ state, outage }: Placement): boolean {
  return outage === undefined && (state === 'waiting' || state === 'loading');
}

function runAges(versions: readonly ServedVersion[], defaultLimitMs: number, now: number): RunAge[] {
  return versions.flatMap(({ segment, placements, config }) =>
    segment === undefined
      ? []
      : placements.flatMap(({ running }) =>
          [...running].map((slot) => {
            const since = executingSinceUs(segment, slot);
            return {
              forMs: since > 0 ? (now - since) / 1000 : 0,
              limitMs: config.runTimeoutMs ?? defaultLimitMs,
            };
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
