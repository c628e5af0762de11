/**
 * The memory accounts of all devices: what scheduler/memory-ledger.ts decides on, gathered from the files of the models, earlier measurements, the GPUs' driver and
 * the host; and what running devices measure, kept for the next start.
 *
 * Owner: the supervisor. One entry a version and device. A share is given with a load and is free again when the load fails or the device's process has ended.
 */
import type { Logger } from '../config/log.ts';
import { roundSizeBytes } from '../config/size.ts';
import type { DeviceMemorySnapshot } from '../metrics/snapshot.ts';
import type { FromDevice, LoadOrder, MemoryReport } from '../protocol/control.ts';
import { findWeights, fingerprint } from '../repository/model-weights.ts';
import type { Device } from '../runtime/device-name.ts';
import { gpuSelector } from '../runtime/gpu-selector.ts';
import { bytesOf, fitOf, type KeyPoints, largestPeak, withMeasured } from '../scheduler/memory-fit.ts';
import { type Account, admit, type Claim, freeBytes, spendableBytes } from '../scheduler/memory-ledger.ts';
import { type AvailableMemory, availableMemory } from '../system/host-memory.ts';
import type { GpuWatch } from './gpu-watch.ts';
import { type MemoryCache, memoryIdentity } from './memory-cache.ts';
import type { Placement, ServedVersion } from './served-version.ts';

/** What the ledger needs to know of a device's process. */
export interface LedgerDevice {
  readonly name: string;
  readonly device: Device;
  readonly process: { readonly pid: number | undefined };
  loadOrder(version: ServedVersion): LoadOrder;
}

/** Under which a version may be loaded. */
export type LoadTerms =
  | {
      readonly fits: true;
      /** Limit of the arena; undefined for none. */
      readonly arenaMaxBytes: number | undefined;
      /** The limit is what its runs were thought to take, and would be higher if they took more. */
      readonly canGrow: boolean;
      /** What its runs are known to take; undefined where that has to be measured. */
      readonly measured: readonly KeyPoints[] | undefined;
      /** Sizes of its files, and what of its weights is known to lie outside of the arena, for which the limit has been lowered. */
      readonly filesBytes: number;
      readonly outsideBytes: number;
      /** All of the model is in one file. */
      readonly alone: boolean;
      /** Of its files; undefined where they cannot be looked at. */
      readonly fingerprint: string | undefined;
    }
  | { readonly fits: false; readonly reason: string };

export interface MemoryLedgerOptions {
  readonly versions: readonly ServedVersion[];
  /** Names of the devices with their parsed forms, in the order of the settings. */
  readonly devices: ReadonlyMap<string, Device>;
  /** Of each device; undefined: what it has. */
  readonly budgetBytes: number | undefined;
  readonly cache: MemoryCache;
  readonly gpus: GpuWatch;
  readonly log: Logger;
  readonly host?: () => AvailableMemory;
}

interface Entry {
  readonly version: ServedVersion;
  readonly placement: Placement;
  /** The files that have been looked at. */
  stamp: string;
  fingerprint: string | undefined;
  identity: string | undefined;
  estimateBytes: number;
  /** It is one file, with all of its weights. */
  alone: boolean;
  report: MemoryReport | undefined;
  shareBytes: number | undefined;
  /** What the host had left when it was last to be loaded, and when that load was ended for want of memory. */
  leftBytes: number;
  tooLittleBytes: number | undefined;
  /** Its measurements have changed since they were kept. */
  dirty: boolean;
}

/** Of a GPU: for what does not lie in arenas, such as contexts and the libraries' work space. */
const GPU_RESERVE = { part: 1 / 16, minBytes: 512 * 2 ** 20, maxBytes: 2 * 2 ** 30 };
/** Of the host: for everybody else. */
const HOST_RESERVE = { part: 1 / 32, minBytes: 32 * 2 ** 20, maxBytes: 2 ** 30 };
/** What an arena holds beyond what is in use, since it is cut up by runs of other sizes. */
const SLACK = 1.25;
/** And at least so much for each instance: a small model whose largest run was not yet seen would otherwise never find room for it, as what fails is not measured. */
const SLACK_MIN_BYTES = 2 ** 20;
/** So much more memory makes another try worth it. */
const CLEARLY_MORE = 1.25;
/** A batch that takes less is not worth splitting, however little the host has left. */
const ROOM_MIN_BYTES = 64 * 2 ** 20;

export class MemoryLedger {
  readonly #options: MemoryLedgerOptions;
  readonly #readHost: () => AvailableMemory;
  readonly #byPlacement = new WeakMap<Placement, Entry>();
  /** On GPUs, what processes that are not ours had when it was last looked. */
  readonly #othersBytes = new Map<string, number>();
  readonly #pids = new Map<string, number>();

  constructor(options: MemoryLedgerOptions) {
    this.#options = options;
    this.#readHost = options.host ?? (() => availableMemory());
  }

  /** Of all versions that are kept now. */
  get #entries(): Entry[] {
    return this.#options.versions.flatMap((version) =>
      version.placements.map((placement) => {
        let entry = this.#byPlacement.get(placement);
        if (entry === undefined) {
          entry = newEntry(version, placement);
          this.#byPlacement.set(placement, entry);
        }
        return entry;
      }),
    );
  }

  /** Whether a version may be loaded on a device now. Gives it its share if so. Reads a little of the models' files. */
  async admit(device: LedgerDevice, version: ServedVersion): Promise<LoadTerms> {
    const entry = this.#entryOf(version, device.name);
    await this.#lookAtGpu(device);
    await this.#examine(entry, device);
    // What the others need matters only where something is divided.
    if (spendableBytes(this.#accountOf(device.name)) !== undefined) {
      for (const other of this.#entriesOf(device.name)) {
        if (other.placement.state === 'waiting') await this.#examine(other, device);
      }
    }
    const host = this.#hostShortage(entry, device);
    if (host !== undefined) return { fits: false, reason: host };
    entry.shareBytes = undefined;
    const claims = this.#entriesOf(device.name)
      .filter((other) => other === entry || other.shareBytes !== undefined || other.placement.state !== 'failed')
      .map(claimOf);
    const admission = admit(this.#accountOf(device.name), claims, version.key);
    if (!admission.fits) return admission;
    entry.shareBytes = admission.shareBytes;
    const { kind } = device.device;
    const bounded = kind !== 'webgpu' || version.config.memoryBudgetBytes !== undefined;
    const { keys = [], outsideBytes = 0 } = entry.report ?? {};
    const limited = bounded && admission.shareBytes !== undefined;
    return {
      fits: true,
      arenaMaxBytes: limited ? Math.max(1, admission.shareBytes - outsideBytes) : undefined,
      canGrow: limited && admission.canGrow,
      measured: keys.length > 0 ? keys : undefined,
      filesBytes: entry.estimateBytes,
      outsideBytes,
      alone: entry.alone,
      fingerprint: entry.fingerprint,
    };
  }

  /** A load has succeeded, and this is what it found out. */
  loaded(device: string, version: ServedVersion, report: MemoryReport): void {
    const entry = this.#entryOf(version, device);
    entry.tooLittleBytes = undefined;
    entry.report = { ...report, loadPeakBytes: report.loadPeakBytes ?? entry.report?.loadPeakBytes };
    entry.dirty = true;
    this.keep();
  }

  /** A load came to nothing. @param weightsBytes what the weights take, where that was found out on the way */
  notLoaded(device: string, version: ServedVersion, weightsBytes: number | undefined): void {
    const entry = this.#entryOf(version, device);
    entry.shareBytes = undefined;
    if (weightsBytes === undefined) return;
    const nothing = { outsideBytes: 0, loadPeakBytes: undefined, fixedShape: false, keys: [] };
    entry.report = { ...nothing, ...entry.report, weightsBytes };
    entry.dirty = true;
    this.keep();
  }

  /** The kernel ended a process for want of memory while it loaded the version: what the host had left was too little. */
  killed(device: string, version: ServedVersion): void {
    const entry = this.#entryOf(version, device);
    entry.tooLittleBytes = entry.leftBytes;
  }

  /** A run on a device took more than any of its shape before. */
  measured(device: string, { model, key, elements, point }: Extract<FromDevice, { type: 'measured' }>): void {
    const entry = this.#entriesOf(device).find(({ version }) => version.key === model);
    if (entry?.report === undefined) return;
    const keys = withMeasured(entry.report.keys, { key, elements, point });
    if (keys === entry.report.keys) return;
    entry.report = { ...entry.report, keys };
    entry.dirty = true;
  }

  /** A version has been released on a device. */
  unloaded(device: string, version: ServedVersion): void {
    this.#entryOf(version, device).shareBytes = undefined;
  }

  /** The process of a device has ended, and all its memory with it. */
  released(device: string): void {
    for (const entry of this.#entriesOf(device)) entry.shareBytes = undefined;
  }

  /**
   * What runs of a version may take where its arena has no limit: its part of what the host has left. Undefined where the arena has one.
   *
   * Not a limit but a measure for the size of batches: a batch that would take more is run in parts.
   */
  roomBytes(device: string, version: ServedVersion): number | undefined {
    const entry = this.#entryOf(version, device);
    if (entry.shareBytes !== undefined || !this.#isCpu(device)) return undefined;
    const parts = this.#entries.filter(
      ({ placement, shareBytes }) =>
        placement.state !== 'failed' && shareBytes === undefined && this.#isCpu(placement.device),
    ).length;
    return Math.max(ROOM_MIN_BYTES, this.#hostLeft().leftBytes / Math.max(1, parts));
  }

  /** Waits until the memory of a dead process of a device is free again, where somebody tells. */
  async returned(device: string, pid: number): Promise<void> {
    const gpu = this.#gpuOf(device);
    if (gpu === undefined || pid === 0) return;
    const began = performance.now();
    const seen = await this.#options.gpus.returned(gpu, pid);
    const waitedMs = Math.round(performance.now() - began);
    if (!seen)
      this.#options.log.warn({ device, deadPid: pid, waitedMs }, 'the memory of a dead process is still taken');
  }

  /** To be called at intervals: looks at the GPUs, and keeps what has been measured. */
  sample(): void {
    for (const name of this.#options.devices.keys()) {
      const gpu = this.#gpuOf(name);
      if (gpu !== undefined) void this.#options.gpus.look(gpu);
    }
    this.keep();
  }

  /** Writes down what has been measured since the last time. */
  keep(): void {
    for (const entry of this.#entries) {
      if (!entry.dirty || entry.identity === undefined || entry.report === undefined) continue;
      this.#options.cache.put(entry.identity, entry.report);
      entry.dirty = false;
    }
  }

  /** For /status and metrics. */
  status(): readonly DeviceMemorySnapshot[] {
    return [...this.#options.devices.keys()].map((name) => {
      const account = this.#accountOf(name);
      const entries = this.#entriesOf(name);
      const gpu = this.#gpuOf(name);
      const seen = gpu === undefined ? undefined : this.#options.gpus.latest(gpu);
      const pid = this.#pids.get(name);
      return {
        device: name,
        totalBytes: account.totalBytes,
        source: account.source,
        reserveBytes: account.reserveBytes,
        othersBytes: account.othersBytes,
        freeBytes: freeBytes(account, entries.map(claimOf)),
        usedBytes: seen?.usedBytes,
        processBytes: pid === undefined ? undefined : seen?.processes?.get(pid),
        models: entries.map((entry) => {
          const { weightsBytes, weightsFrom } = claimOf(entry);
          return {
            model: entry.version.name,
            version: entry.version.version,
            weightsBytes,
            weightsFrom,
            shareBytes: entry.shareBytes,
            peakBytes: largestPeak(entry.report?.keys ?? [], batchRows(entry.version)),
            peakRows: batchRows(entry.version),
          };
        }),
      };
    });
  }

  /** The host's memory now, and what of it is kept back. */
  host(): AvailableMemory & { readonly reserveBytes: number } {
    return this.#hostLeft();
  }

  #entriesOf(device: string): Entry[] {
    return this.#entries.filter(({ placement }) => placement.device === device);
  }

  #entryOf(version: ServedVersion, device: string): Entry {
    const entry = this.#entries.find((one) => one.version === version && one.placement.device === device);
    if (entry === undefined) throw new Error(`This is a bug: ${version.key} is not in the account of ${device}`);
    return entry;
  }

  #isCpu(device: string): boolean {
    return this.#options.devices.get(device)?.kind === 'cpu';
  }

  #gpuOf(device: string) {
    const parsed = this.#options.devices.get(device);
    return parsed === undefined ? undefined : gpuSelector(parsed);
  }

  /** Finds out about a version's files, unless they are known. */
  async #examine(entry: Entry, device: LedgerDevice): Promise<void> {
    const { version } = entry;
    const { file } = version;
    if (file.stamp === entry.stamp) return;
    try {
      const { bytes, files } = await findWeights(file.source);
      const [, ...beside] = files;
      file.names(beside);
      entry.stamp = file.stamp;
      entry.alone = beside.length === 0;
      entry.estimateBytes = bytes;
      entry.fingerprint = await fingerprint(files);
      entry.identity = memoryIdentity(entry.fingerprint, this.#hardwareOf(device.name), device.loadOrder(version));
      entry.report = this.#options.cache.get(entry.identity);
    } catch (error) {
      // What is wrong with the file is for its load to say.
      this.#options.log.debug({ model: version.key, err: error }, 'the files of a model cannot be looked at');
      entry.stamp = file.stamp;
      entry.fingerprint = undefined;
      entry.identity = undefined;
      entry.alone = false;
    }
  }

  #hardwareOf(device: string): string {
    const gpu = this.#gpuOf(device);
    const total = gpu === undefined ? undefined : this.#options.gpus.latest(gpu)?.totalBytes;
    return `${process.arch} ${total ?? ''}`;
  }

  async #lookAtGpu({ name, process: { pid } }: LedgerDevice): Promise<void> {
    const gpu = this.#gpuOf(name);
    if (pid !== undefined) this.#pids.set(name, pid);
    if (gpu === undefined) return;
    const memory = await this.#options.gpus.look(gpu);
    if (memory === undefined) return;
    const ours = [...this.#pids.values()].reduce((sum, one) => sum + (memory.processes?.get(one) ?? 0), 0);
    const isListed = pid !== undefined && memory.processes?.has(pid) === true;
    const loaded = this.#entriesOf(name).some(({ shareBytes }) => shareBytes !== undefined);
    // Where our process is not told from others, what was there before it had loaded anything has to do.
    if (isListed || !loaded) this.#othersBytes.set(name, Math.max(0, memory.usedBytes - ours));
  }

  #accountOf(name: string): Account {
    const { budgetBytes, devices, gpus } = this.#options;
    const common = { device: name, reserveBytes: 0, othersBytes: 0 };
    if (budgetBytes !== undefined) return { ...common, totalBytes: budgetBytes, source: '--memory-budget-bytes' };
    const gpu = this.#gpuOf(name);
    const memory = gpu === undefined ? undefined : gpus.latest(gpu);
    if (memory === undefined) return { ...common, totalBytes: undefined, source: 'nobody tells' };
    const text = devices.get(name)!.text;
    const processes = [...devices.values()].filter((other) => other.text === text).length;
    return {
      device: name,
      totalBytes: Math.floor(memory.totalBytes / processes),
      source: processes === 1 ? 'the GPU' : `1/${processes} of the GPU`,
      reserveBytes: Math.floor(reserveOf(memory.totalBytes, GPU_RESERVE) / processes),
      othersBytes: Math.floor((this.#othersBytes.get(name) ?? 0) / processes),
    };
  }

  #hostLeft(): AvailableMemory & { readonly reserveBytes: number; readonly leftBytes: number } {
    const host = this.#readHost();
    const reserveBytes = reserveOf(host.totalBytes, HOST_RESERVE);
    return { ...host, reserveBytes, leftBytes: Math.max(0, host.availableBytes - reserveBytes) };
  }

  /** Why the host has too little memory for a load; undefined where it has enough. */
  #hostShortage(entry: Entry, { device }: LedgerDevice): string | undefined {
    const { weightsBytes, weightsFrom } = claimOf(entry);
    const measured = entry.report?.loadPeakBytes;
    const neededBytes = Math.max(measured ?? 0, device.kind === 'cpu' ? weightsBytes : 0);
    const { leftBytes, availableBytes, reserveBytes, source } = this.#hostLeft();
    entry.leftBytes = leftBytes;
    if (entry.tooLittleBytes !== undefined && leftBytes < entry.tooLittleBytes * CLEARLY_MORE) {
      return (
        `its load was ended by the kernel for want of memory when the host had ${roundSizeBytes(entry.tooLittleBytes)} left, ` +
        `and now there are ${roundSizeBytes(leftBytes)}: ${roundSizeBytes(availableBytes)} (${source}) - ${roundSizeBytes(reserveBytes)} in reserve`
      );
    }
    if (neededBytes <= leftBytes) return undefined;
    const how =
      measured !== undefined || weightsFrom === 'measured'
        ? 'measured when it was last loaded'
        : 'by the size of its files';
    return (
      `its load takes ${roundSizeBytes(neededBytes)} of the host's memory (${how}), and the host has ${roundSizeBytes(leftBytes)} left: ` +
      `${roundSizeBytes(availableBytes)} (${source}) - ${roundSizeBytes(reserveBytes)} in reserve`
    );
  }
}

function newEntry(version: ServedVersion, placement: Placement): Entry {
  return {
    version,
    placement,
    stamp: '',
    fingerprint: undefined,
    identity: undefined,
    estimateBytes: version.sizeBytes,
    alone: false,
    report: undefined,
    shareBytes: undefined,
    leftBytes: 0,
    tooLittleBytes: undefined,
    dirty: false,
  };
}

function claimOf({ version, estimateBytes, report, shareBytes }: Entry): Claim {
  const keys = report?.keys ?? [];
  const oneRow = keys.map(({ points }) => bytesOf(fitOf(points), 1));
  const peak = report?.fixedShape === true ? largestPeak(keys, batchRows(version)) : undefined;
  return {
    model: version.key,
    weightsBytes: report?.weightsBytes ?? estimateBytes,
    weightsFrom: report?.weightsBytes === undefined ? 'estimated' : 'measured',
    oneRowBytes: oneRow.length === 0 ? undefined : Math.min(...oneRow),
    runsBytes: peak === undefined ? undefined : withSlack(peak) * version.config.instances.max,
    budgetBytes: version.config.memoryBudgetBytes,
    shareBytes,
  };
}

function withSlack(peakBytes: number): number {
  return Math.max(peakBytes * SLACK, peakBytes + SLACK_MIN_BYTES);
}

/** Rows of the largest batch, as far as that is known. */
function batchRows({ batching, config }: ServedVersion): number {
  return Math.max(1, batching?.maxBatchSize ?? config.maxBatchSize ?? 1);
}

function reserveOf(totalBytes: number, { part, minBytes, maxBytes }: typeof HOST_RESERVE): number {
  return Math.max(minBytes, Math.min(maxBytes, totalBytes * part));
}
