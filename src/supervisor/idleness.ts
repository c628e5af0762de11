/**
 * Models that nobody asks for give their memory back (`idle_unload_s`), and come back when somebody does.
 *
 *     serving ── no request for idle_unload_s ──▶ unloading ─▶ idle ── rows in its queue ──▶ waiting ─▶ loading ─▶ serving
 *
 * The queue stays, so the first request waits in it like behind any other load: under the weight lock, inside its deadline. The version stays READY meanwhile,
 * since it answers. Looked at in every tick of the supervisor.
 */
import type { Logger } from '../config/log.ts';
import { readInstance } from '../metrics/counters.ts';
import { counterIndex } from '../queue/geometry.ts';
import { census } from '../queue/reclaim.ts';
import type { DeviceChild } from './device-child.ts';
import type { Loads } from './loads.ts';
import type { ServedVersion } from './served-version.ts';

interface Seen {
  /** Rows that had been run. */
  readonly rows: number;
  /** When that was seen for the first time. */
  readonly sinceMs: number;
}

export class Idleness {
  readonly #devices: readonly DeviceChild[];
  readonly #loads: Loads;
  readonly #log: Logger;
  readonly #seen = new WeakMap<ServedVersion, Seen>();

  constructor(devices: readonly DeviceChild[], loads: Loads, log: Logger) {
    this.#devices = devices;
    this.#loads = loads;
    this.#log = log;
  }

  look(version: ServedVersion, nowMs: number): void {
    const { segment, ended } = version;
    const { idleUnloadS } = version.config;
    // One that is withdrawn may have rows in its queue still.
    if (idleUnloadS === undefined || segment === undefined || ended) return;
    const { queuedRows, runningRows } = census(segment);
    const seen = this.#seen.get(version);
    const rows = executedRows(version);
    if (seen === undefined || seen.rows !== rows || queuedRows + runningRows > 0) {
      this.#seen.set(version, { rows, sinceMs: nowMs });
      if (queuedRows > 0) this.#wake(version);
    } else if (nowMs - seen.sinceMs >= idleUnloadS * 1000 && !version.withdrawn) this.#unload(version);
  }

  #wake(version: ServedVersion): void {
    for (const placement of version.placements) {
      const device = this.#deviceOf(placement.device);
      if (placement.state !== 'idle' || !device.available) continue;
      placement.state = 'waiting';
      this.#log.info(
        { model: version.key, device: device.name },
        'a model that was idle is asked for, and loaded again',
      );
      this.#loads.enqueueAll(device);
    }
  }

  #unload(version: ServedVersion): void {
    for (const placement of version.placements) {
      if (placement.state !== 'serving' || placement.starting.size > 0) continue;
      const { config, key } = version;
      this.#log.info(
        { model: key, device: placement.device, idleUnloadS: config.idleUnloadS },
        'an idle model is unloaded',
      );
      this.#deviceOf(placement.device).unload(version);
    }
  }

  #deviceOf(name: string): DeviceChild {
    return this.#devices.find((device) => device.name === name)!;
  }
}

function executedRows({ placements, segment }: ServedVersion): number {
  let rows = 0;
  for (const { slots } of placements) {
    for (const slot of slots) {
      rows += readInstance(segment!.f64, counterIndex(segment!.geometry, { instance: slot })).rows;
    }
  }
  return rows;
}
