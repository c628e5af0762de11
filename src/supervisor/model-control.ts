/**
 * Loading and unloading models while the server runs: on command (`--model-control-mode explicit`), or because the repository has changed (`poll`).
 *
 *     load ─▶ directory read ─▶ new or changed versions: loaded beside the old ones, under the weight lock, inside the accounts of memory, canary run
 *                                  ├ ready: takes over; the old one gets no more requests, answers what it has, is released
 *                                  └ failed: the old one goes on, and the reason is told wherever the model is looked up
 *     unload ─▶ no more requests ─▶ what it has is answered ─▶ released ─▶ UNAVAILABLE, "unloaded"
 *
 * Bounds: one operation at a time for a model, OPERATIONS_MAX waiting; equal loads that wait are one. An old version is waited for as long as a drain may take.
 */
import { join } from 'node:path';
import { BatchportError } from '../config/errors.ts';
import { ExitError } from '../config/exit-codes.ts';
import type { Logger } from '../config/log.ts';
import { formatModelConfigProblem, type ModelConfig, parseModelConfig } from '../config/model-config.ts';
import { readIngress } from '../metrics/counters.ts';
import { counterIndex } from '../queue/geometry.ts';
import { failQueued } from '../queue/reclaim.ts';
import { STATUS_WORKER_LOST } from '../queue/result.ts';
import { fileStamp } from '../repository/file-stamp.ts';
import { type RepositoryModel, type RepositoryVersion, readModelDirectory } from '../repository/model-directory.ts';
import { modelNameProblem } from '../repository/model-name.ts';
import type { DeviceChild } from './device-child.ts';
import type { IngressChild } from './ingress-child.ts';
import type { Loads } from './loads.ts';
import { deviceProblem, requireQueueMemory } from './preparation.ts';
import type { ServedVersion } from './served-version.ts';

const OPERATIONS_MAX = 16;
const LOOK_MS = 5;
/** How long instances may take to end once nothing is left to answer. */
const RELEASE_LIMIT_MS = 60_000;

export interface ModelControlOptions {
  /** Absolute. */
  readonly repository: string;
  /** All that are kept; changed in place. */
  readonly versions: ServedVersion[];
  readonly devices: readonly DeviceChild[];
  readonly ingresses: readonly IngressChild[];
  readonly loads: Loads;
  readonly drainTimeoutS: number;
  readonly log: Logger;
  readonly make: (model: RepositoryModel, version: RepositoryVersion, generation: number) => ServedVersion;
  /** Tells everybody the state of the models. */
  readonly onChange: () => void;
}

interface Operation {
  /** Equal operations have the same. */
  readonly what: string;
  /** It may have looked at the files already. */
  begun: boolean;
  readonly done: Promise<void>;
}

export class ModelControl {
  readonly #options: ModelControlOptions;
  readonly #operations = new Map<string, Operation[]>();
  #generation = 1;
  #stopped = false;

  constructor(options: ModelControlOptions) {
    this.#options = options;
  }

  stop(): void {
    this.#stopped = true;
  }

  /**
   * Loads what is new or has changed of a model; settled when it serves.
   *
   * @param config text of a `config.json` to be taken instead of the model's own; undefined for that.
   * @throws BAD_REQUEST with the reason when it cannot be loaded; what served before goes on. QUEUE_FULL
   */
  load(name: string, config?: string): Promise<void> {
    return this.#queue(name, `load ${config ?? ''}`, () => this.#load(name, config));
  }

  /** Unloads all versions of a model; settled when their memory is free. @throws BAD_REQUEST, QUEUE_FULL */
  unload(name: string): Promise<void> {
    return this.#queue(name, 'unload', () => this.#unload(name));
  }

  /** Forgets a model whose directory is gone; does nothing while there is none of the name. */
  async forget(name: string): Promise<void> {
    if (this.#of(name).length === 0) return;
    await this.#queue(name, 'unload', () => this.#unload(name));
    for (const version of this.#of(name)) this.#drop(version);
    this.#options.onChange();
  }

  #queue(name: string, what: string, act: () => Promise<void>): Promise<void> {
    const operations = this.#operations.get(name) ?? [];
    const last = operations.at(-1);
    if (last !== undefined && last.what === what && !last.begun) return last.done;
    if (operations.length >= OPERATIONS_MAX) {
      throw new BatchportError(
        'QUEUE_FULL',
        'Too many loads and unloads of this model wait for one another. Retry later.',
      );
    }
    const run = async (): Promise<void> => {
      await last?.done.catch(() => {});
      operation.begun = true;
      try {
        await act();
      } finally {
        operations.shift();
        if (operations.length === 0) this.#operations.delete(name);
      }
    };
    const operation: Operation = { what, begun: false, done: Promise.resolve().then(run) };
    operations.push(operation);
    this.#operations.set(name, operations);
    return operation.done;
  }

  #of(name: string): ServedVersion[] {
    return this.#options.versions.filter((version) => version.name === name);
  }

  async #load(name: string, configText: string | undefined): Promise<void> {
    const { versions, devices, loads, log, onChange } = this.#options;
    const model = this.#read(name, configText);
    const old = this.#of(name).filter(({ withdrawn }) => !withdrawn);
    const wanted = model.versions.filter(({ problem }) => problem === undefined);
    const kept = old.filter((one) => wanted.some((version) => serves(one, version, model.config)));
    const fresh = wanted
      .filter((version) => !kept.some((one) => one.version === version.version))
      .map((version) => this.#options.make(model, version, ++this.#generation));
    for (const one of fresh) one.counts = false;
    versions.push(...fresh);
    for (const device of devices) if (device.available) loads.enqueueAll(device);
    onChange();
    await this.#until(() => fresh.every((one) => one.record.state === 'READY' || one.abandoned));
    const failures: string[] = [];
    for (const one of fresh) {
      const others = this.#of(name).filter((other) => other !== one && other.version === one.version);
      if (one.record.state === 'READY') {
        one.counts = true;
        await this.#retire(others);
        continue;
      }
      const { reason } = one.record;
      failures.push(`version ${one.version}: ${reason}`);
      const serving = others.filter(({ withdrawn, record }) => !withdrawn && record.state === 'READY');
      for (const other of serving)
        other.note = `another one of this number could not be loaded, and this one goes on: ${reason}`;
      if (serving.length > 0) this.#drop(one);
      else await this.#retire(others);
    }
    for (const one of kept) one.note = '';
    onChange();
    if (failures.length > 0) {
      throw new BatchportError('BAD_REQUEST', `failed to load '${name}': ${failures.join('; ')}`);
    }
    const gone = this.#of(name).filter((one) => !wanted.some(({ version }) => version === one.version));
    await this.#retire(gone);
    log.info({ model: name, versions: wanted.map(({ version }) => version) }, 'model loaded on command');
  }

  /** What the directory holds now. @throws BAD_REQUEST when nothing of it can be served */
  #read(name: string, configText: string | undefined): RepositoryModel {
    const refuse = (reason: string): never => {
      for (const one of this.#of(name)) {
        if (one.record.state === 'READY') one.note = `it could not be loaded again and goes on as it is: ${reason}`;
      }
      this.#options.onChange();
      throw new BatchportError('BAD_REQUEST', `failed to load '${name}': ${reason}`);
    };
    const problem = modelNameProblem(name);
    if (problem !== undefined) throw new BatchportError('BAD_REQUEST', `a model cannot have this name: it ${problem}`);
    const config = configText === undefined ? undefined : configOf(configText, refuse);
    const model = readModelDirectory(join(this.#options.repository, name), name, config);
    const devices = this.#options.devices.map(({ device }) => device.text);
    const reason = model.problem ?? deviceProblem(model, devices);
    if (reason !== undefined) return refuse(reason);
    try {
      requireQueueMemory([model]);
    } catch (error) {
      if (error instanceof ExitError) return refuse(error.message);
      throw error;
    }
    return model;
  }

  async #unload(name: string): Promise<void> {
    const { log, onChange } = this.#options;
    const all = this.#of(name);
    if (all.length === 0) throw new BatchportError('BAD_REQUEST', `failed to unload '${name}': there is no such model`);
    for (const version of all) {
      version.counts = false;
      if (version.record.state === 'READY' || version.record.state === 'LOADING') version.move('unload');
    }
    await this.#release(all);
    for (const version of all) {
      version.shelve();
      if (version.record.state === 'UNLOADING') version.move('unloaded');
      else if (version.record.state === 'UNAVAILABLE') version.explain('unloaded');
    }
    onChange();
    log.info({ model: name }, 'model unloaded on command');
  }

  /** Releases versions that others have taken the place of, and forgets them. */
  async #retire(old: readonly ServedVersion[]): Promise<void> {
    if (old.length === 0) return;
    await this.#release(old);
    for (const version of old) this.#drop(version);
    this.#options.onChange();
  }

  /** No more requests, then the answers to those that it has, then its memory. */
  async #release(old: readonly ServedVersion[]): Promise<void> {
    const { ingresses, onChange, drainTimeoutS, log } = this.#options;
    for (const version of old) version.withdraw();
    onChange();
    const heard = ingresses.map((ingress) => ingress.announced);
    const limitMs = performance.now() + drainTimeoutS * 1000;
    const late = () => performance.now() > limitMs;
    await this.#until(
      () => ingresses.every((ingress, n) => ingress.hasHeard(heard[n]!)) && old.every(isAnswered),
      late,
    );
    for (const version of old) {
      if (!isAnswered(version))
        log.warn({ model: version.key }, 'a model is unloaded though requests to it have not been answered');
    }
    const releasedMs = performance.now() + RELEASE_LIMIT_MS;
    await this.#until(
      () => {
        for (const version of old) {
          this.#stop(version);
          // What could not be answered in time must not wait for ever.
          if (version.segment !== undefined && version.bells !== undefined && late()) {
            failQueued(version.segment, version.bells, STATUS_WORKER_LOST);
          }
        }
        return old.every(({ placements }) => placements.every(({ state }) => state === 'idle' || state === 'failed'));
      },
      () => performance.now() > releasedMs,
    );
    for (const version of old) version.close();
  }

  /** Its instances end; loads of it that wait are given up, and one that goes on is released when it is over. */
  #stop(version: ServedVersion): void {
    for (const placement of version.placements) {
      if (placement.state === 'waiting') placement.state = 'idle';
      if (placement.state !== 'serving' || placement.starting.size > 0) continue;
      this.#options.devices.find(({ name }) => name === placement.device)?.unload(version);
    }
  }

  #drop(version: ServedVersion): void {
    const { versions, loads } = this.#options;
    const at = versions.indexOf(version);
    if (at < 0) return;
    version.withdraw();
    for (const placement of version.placements) if (placement.state === 'waiting') placement.state = 'idle';
    version.close();
    versions.splice(at, 1);
    loads.forget(version);
  }

  async #until(condition: () => boolean, giveUp: () => boolean = () => false): Promise<void> {
    while (!condition() && !giveUp()) {
      if (this.#stopped) throw new BatchportError('DRAINING', 'The server is shutting down.');
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }
}

function configOf(text: string, refuse: (reason: string) => never): ModelConfig {
  const result = parseModelConfig(Buffer.from(text));
  if (result.ok) {
    const { session, provider } = result.config.runtime;
    // Some of them are names of files, which nobody may choose from outside.
    if (Object.keys(session).length + Object.keys(provider).length === 0) return result.config;
    return refuse("runtime.session and runtime.provider are taken from the model's own config.json only");
  }
  return refuse(result.problems.map((one) => formatModelConfigProblem('config', one)).join('; '));
}

/** Whether it is that very file under these very settings, and serves. */
function serves(one: ServedVersion, { version, path }: RepositoryVersion, config: ModelConfig): boolean {
  return (
    one.version === version &&
    one.record.state === 'READY' &&
    one.path === path &&
    one.stamp === fileStamp(path) &&
    JSON.stringify(one.config) === JSON.stringify(config)
  );
}

/** No ingress holds a request to it. */
function isAnswered({ segment }: ServedVersion): boolean {
  if (segment === undefined) return true;
  const { ingressSlots } = segment.geometry;
  for (let ingress = 0; ingress < ingressSlots; ingress++) {
    if (readIngress(segment.f64, counterIndex(segment.geometry, { ingress })).inFlight > 0) return false;
  }
  return true;
}
