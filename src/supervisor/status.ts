/**
 * What the supervisor tells about itself: the /status document and the snapshot behind /metrics.
 */
import { readFileSync } from 'node:fs';
import { PACKAGE_VERSION } from '../config/version.ts';
import { readIngress, readInstance } from '../metrics/counters.ts';
import type { MetricsSnapshot, ModelSnapshot, ProcessSnapshot, RunCostReading } from '../metrics/snapshot.ts';
import { type CostEntry, readCosts } from '../queue/cost-table.ts';
import { counterIndex } from '../queue/geometry.ts';
import { census, executingSinceUs } from '../queue/reclaim.ts';
import type { Segment } from '../queue/segment.ts';
import { costLine } from '../scheduler/cost-curve.ts';
import { nowUs } from '../system/clock.ts';
import { announced } from './announced.ts';
import type { ServedVersion } from './served-version.ts';
import type { Supervisor } from './supervisor.ts';

const PAGE_BYTES = 4096;

function residentBytes(pid: number | undefined): number {
  if (pid === undefined) return 0;
  try {
    return Number(readFileSync(`/proc/${pid}/statm`, 'utf8').split(' ')[1]) * PAGE_BYTES;
  } catch {
    return 0; // ended meanwhile
  }
}

function processes(supervisor: Supervisor) {
  const now = performance.now();
  const children = [
    ...supervisor.ingresses.map((child) => ({ child, device: undefined, slot: child.slot })),
    ...supervisor.devices.map((child) => ({ child, device: child.name, slot: undefined })),
  ];
  return [
    {
      role: 'supervisor' as const,
      pid: process.pid as number | undefined,
      device: undefined as string | undefined,
      slot: undefined as number | undefined,
      epoch: 1,
      state: supervisor.state as string,
      restarts: 0,
      uptimeS: (now - supervisor.startedMs) / 1000,
      exits: new Map<string, number>() as ReadonlyMap<string, number>,
      lastExit: undefined as { code: number | null; signal: string | null; how: string; at: string } | undefined,
      reason: '',
      deaths: 0,
      nextStartInMs: undefined as number | undefined,
    },
    ...children.map(({ child, device, slot }) => {
      const { role, pid, epoch, state, restarts, startedMs, lastExit, life, nextStartInMs } = child.process;
      return {
        role,
        pid,
        device,
        slot,
        epoch,
        state: state as string,
        restarts,
        uptimeS: pid === undefined ? 0 : (now - startedMs) / 1000,
        exits: child.process.exits,
        lastExit:
          lastExit === undefined
            ? undefined
            : {
                code: lastExit.code,
                signal: lastExit.signal as string | null,
                how: lastExit.how,
                at: new Date(lastExit.atMs).toISOString(),
              },
        reason: life.reason,
        deaths: life.deaths,
        nextStartInMs,
      };
    }),
  ];
}

const IDLE_REASON = 'nobody has asked for it for idle_unload_s; it is loaded again when somebody does';

/** The document at /status. Keys as in the protocol: snake_case. */
export function statusDocument(supervisor: Supervisor): unknown {
  const { ready, reason } = supervisor.readiness.now(supervisor.state);
  return {
    server: {
      version: PACKAGE_VERSION,
      pid: process.pid,
      uptime_s: round((performance.now() - supervisor.startedMs) / 1000),
      state: supervisor.state,
      ready,
      reason,
    },
    addresses: supervisor.addresses,
    loads: supervisor.loads,
    processes: processes(supervisor).map((one) => ({
      role: one.role,
      pid: one.pid ?? null,
      device: one.device ?? null,
      slot: one.slot ?? null,
      epoch: one.epoch,
      state: one.state,
      reason: one.reason,
      restarts: one.restarts,
      /** Lives in a row that ended before anything was finished. */
      fruitless_lives: one.deaths,
      next_start_in_s: one.nextStartInMs === undefined ? null : round(one.nextStartInMs / 1000),
      last_exit: one.lastExit ?? null,
      uptime_s: round(one.uptimeS),
      rss_bytes: residentBytes(one.pid),
    })),
    memory: memoryStatus(supervisor),
    models: announced(supervisor.versions).map(modelStatus),
  };
}

/** The accounts of the host and of each device; null where nobody tells. */
function memoryStatus({ ledger }: Supervisor) {
  const { totalBytes, availableBytes, reserveBytes, source } = ledger.host();
  return {
    host: { total_bytes: totalBytes, available_bytes: availableBytes, reserve_bytes: reserveBytes, source },
    devices: ledger.status().map((device) => ({
      device: device.device,
      total_bytes: device.totalBytes ?? null,
      source: device.source,
      reserve_bytes: device.reserveBytes,
      others_bytes: device.othersBytes,
      free_bytes: device.freeBytes ?? null,
      used_bytes: device.usedBytes ?? null,
      process_bytes: device.processBytes ?? null,
      models: device.models.map((model) => ({
        model: model.model,
        version: model.version,
        weights_bytes: model.weightsBytes,
        weights_from: model.weightsFrom,
        share_bytes: model.shareBytes ?? null,
        peak_bytes: model.peakBytes ?? null,
        peak_rows: model.peakRows,
      })),
    })),
  };
}

function modelStatus(version: ServedVersion) {
  const { record, config, segment, batching, placements } = version;
  const queue = segment === undefined ? undefined : census(segment);
  const readings = segment === undefined ? [] : instanceReadings(version, segment);
  return {
    name: version.name,
    version: version.version,
    state: record.state,
    reason: record.reason || version.note,
    since: new Date(record.sinceMs).toISOString(),
    file_bytes: version.sizeBytes,
    max_batch_size: batching?.maxBatchSize ?? null,
    batching: batching?.reason ?? null,
    devices: placements.map(({ device, state, reason, outage, running, slots, loadMs, canary }) => ({
      device,
      state,
      reason: state === 'serving' ? '' : (outage ?? (state === 'idle' && !version.withdrawn ? IDLE_REASON : reason)),
      canary: canary?.detail ?? null,
      instances: { running: running.size, min: config.instances.min, max: slots.length },
      load_ms: Math.round(loadMs),
      run_costs: segment === undefined ? [] : runCosts(segment, slots),
    })),
    queue:
      queue === undefined
        ? null
        : {
            rows_queued: queue.queuedRows,
            rows_running: queue.runningRows,
            max_rows: config.queue.maxRows,
            max_bytes: config.queue.maxBytes,
            committed_bytes: queue.committedBytes,
            used_bytes: queue.usedBytes,
            slabs: queue.slabs,
          },
    batches: readings.reduce((sum, { reading }) => sum + reading.batches, 0),
    rows: readings.reduce((sum, { reading }) => sum + reading.rows, 0),
    failures: readings.reduce((sum, { reading }) => sum + reading.failures, 0),
    rows_requeued: version.requeuedRows,
    rows_lost: version.lostRows,
  };
}

/** What runs cost on a device, for each shape: of its instances the one that has run most. */
function runCosts(segment: Segment, slots: readonly number[]) {
  const byHash = new Map<number, CostEntry>();
  for (const slot of slots) {
    for (const entry of readCosts(segment, slot)) {
      if (entry.runs > (byHash.get(entry.hash)?.runs ?? -1)) byHash.set(entry.hash, entry);
    }
  }
  return [...byHash.values()].map(({ rowBytes, us, seen, runs, errorRatio }) => ({
    row_bytes: rowBytes,
    runs,
    error_ratio: Math.round(errorRatio * 1000) / 1000,
    /** Time of a run by its rows, of the sizes that have been seen. */
    us_by_rows: Object.fromEntries(
      [...us].map((value, n) => [2 ** n, Math.round(value)] as const).filter((_, n) => (seen & (1 << n)) !== 0),
    ),
  }));
}

function costReading(segment: Segment, slot: number): RunCostReading | undefined {
  const entries = readCosts(segment, slot);
  if (entries.length === 0) return undefined;
  const most = entries.reduce((best, entry) => (entry.runs > best.runs ? entry : best));
  return { ...costLine(most), errorRatio: most.errorRatio };
}

function instanceReadings(version: ServedVersion, segment: Segment) {
  return version.placements.flatMap((placement) =>
    placement.slots.map((slot) => {
      const since = executingSinceUs(segment, slot);
      return {
        device: placement.device,
        slot,
        running: placement.running.has(slot),
        executingForS: since > 0 ? Math.max(0, (nowUs() - since) / 1e6) : 0,
        cost: costReading(segment, slot),
        reading: readInstance(segment.f64, counterIndex(segment.geometry, { instance: slot })),
      };
    }),
  );
}

export function metricsSnapshot(supervisor: Supervisor): MetricsSnapshot {
  return {
    version: PACKAGE_VERSION,
    ready: supervisor.readiness.now(supervisor.state).ready,
    models: announced(supervisor.versions).flatMap((version): ModelSnapshot[] => {
      const { segment } = version;
      const common = {
        name: version.name,
        version: version.version,
        state: version.record.state,
        maxBatchSize: version.batching?.maxBatchSize ?? 0,
        caches: version.config.responseCache !== undefined,
        requeuedRows: version.requeuedRows,
        lostRows: version.lostRows,
      };
      if (segment === undefined) return [{ ...common, ingress: [], instances: [], queue: undefined }];
      const ingress = Array.from({ length: segment.geometry.ingressSlots }, (_, slot) =>
        readIngress(segment.f64, counterIndex(segment.geometry, { ingress: slot })),
      );
      return [{ ...common, ingress, instances: instanceReadings(version, segment), queue: census(segment) }];
    }),
    memory: supervisor.ledger.status(),
    processes: processes(supervisor).map(
      ({ role, device, slot, state, restarts, uptimeS, pid, exits }): ProcessSnapshot => ({
        role,
        device,
        slot,
        state,
        restarts,
        uptimeS,
        rssBytes: residentBytes(pid),
        exits: Object.fromEntries(exits),
      }),
    ),
  };
}

function round(seconds: number): number {
  return Math.round(seconds * 10) / 10;
}
