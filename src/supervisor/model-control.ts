/**
 * Loading and unloading models while the server runs: on command (`--model-control-mode explicit`), or because the repository has changed (`poll`).
 *
 *     load ─▶ directory read ─▶ new or changed versions: loaded beside the old ones, under the weight lock, inside the accounts of memory, canary run
 *                                  ├ ready: takes over; the old one leaves, see Retirement
 *                                  └ failed: the old one goes on, and the reason is told wherever the model is looked up
 *     unload ─▶ no more requests ─▶ what it has is answered ─▶ released ─▶ UNAVAILABLE, "unloaded"
 *
 * Bounds: one operation at a time for a model, OPERATIONS_MAX waiting; equal loads that wait are one.
 */
import { join } from 'node:path';
import { BatchportError } from '../config/errors.ts';
import { ExitError } from '../config/exit-codes.ts';
import { formatModelConfigProblem, type ModelConfig, parseModelConfig, textFileNames } from '../config/model-config.ts';
import { type RepositoryModel, type RepositoryVersion, readModelDirectory } from '../repository/model-directory.ts';
import { modelNameProblem } from '../repository/model-name.ts';
import { NO_MEMORY } from './loads.ts';
import { deviceProblem, requireOpenFiles, requireQueueMemory } from './preparation.ts';
import { Retirement, type RetirementOptions } from './retirement.ts';
import type { ServedVersion } from './served-version.ts';

const OPERATIONS_MAX = 16;
const UNLOAD_FIRST =
  'What serves goes on. Where an old and a new one do not fit beside each other, unload the model and load it then: in between it answers nothing';

export interface ModelControlOptions extends RetirementOptions {
  /** Absolute. */
  readonly repository: string;
  readonly make: (model: RepositoryModel, version: RepositoryVersion, generation: number) => ServedVersion;
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
  readonly #retirement: Retirement;
  readonly #operations = new Map<string, Operation[]>();
  #generation = 1;

  constructor(options: ModelControlOptions) {
    this.#options = options;
    this.#retirement = new Retirement(options);
  }

  stop(): void {
    this.#retirement.stop();
  }

  /**
   * Loads what is new or has changed of a model; settled when it serves.
   *
   * @param config text of a `config.json` to be taken instead of the model's own; undefined for that.
   * @throws BAD_REQUEST with the reason when it cannot be loaded; what served before goes on. QUEUE_FULL
   */
  async load(name: string, config?: string): Promise<void> {
    await this.#queue(name, `load ${config ?? ''}`, () => this.#load(name, config));
  }

  /** Unloads all versions of a model; settled when their memory is free. @throws BAD_REQUEST, QUEUE_FULL */
  async unload(name: string): Promise<void> {
    await this.#queue(name, 'unload', () => this.#unload(name));
  }

  /** Forgets a model whose directory is gone; does nothing while there is none of the name. */
  async forget(name: string): Promise<void> {
    if (this.#of(name).length === 0) return;
    await this.#queue(name, 'unload', () => this.#unload(name));
    for (const version of this.#of(name)) this.#retirement.drop(version);
  }

  /** @throws QUEUE_FULL */
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
    const kept = old.filter((one) => model.versions.some((version) => serves(one, version, model)));
    const fresh = model.versions
      .filter((version) => !kept.some((one) => one.version === version.version))
      .map((version) => this.#options.make(model, version, ++this.#generation));
    for (const one of fresh) {
      one.counts = false;
      one.standby = true;
    }
    versions.push(...fresh);
    for (const device of devices) if (device.available) loads.enqueueAll(device);
    onChange();
    // On all devices: the old one would leave those without an instance that have yet to load the new one.
    await this.#retirement.until(() => [...kept, ...fresh].every(({ settled }) => settled));
    const failures: string[] = [];
    for (const one of fresh) {
      const others = this.#of(name).filter((other) => other !== one && other.version === one.version);
      if (one.record.state === 'READY') {
        one.counts = true;
        one.standby = false;
        await this.#retirement.retire(others);
        continue;
      }
      const { reason } = one.record;
      const hint = reason.startsWith(NO_MEMORY) && old.some(holds) ? `. ${UNLOAD_FIRST}` : '';
      failures.push(`version ${one.version}: ${reason}${hint}`);
      await this.#putBack(one, others);
    }
    for (const one of kept) {
      one.note = '';
      if (one.record.state !== 'READY') failures.push(`version ${one.version}: ${one.record.reason}`);
    }
    onChange();
    if (failures.length > 0) {
      throw new BatchportError('BAD_REQUEST', `failed to load '${name}': ${failures.join('; ')}`);
    }
    const gone = this.#of(name).filter((one) => !model.versions.some(({ version }) => version === one.version));
    await this.#retirement.retire(gone);
    onChange();
    log.info({ model: name, versions: model.versions.map(({ version }) => version) }, 'model loaded on command');
  }

  /** One could not be loaded: another one of its number goes on; where there is none, the new one stands there with its reason. */
  async #putBack(failed: ServedVersion, others: readonly ServedVersion[]): Promise<void> {
    const holding = others.filter(holds);
    for (const other of holding) {
      other.note = `another one of this number could not be loaded, and this one goes on: ${failed.record.reason}`;
    }
    if (holding.length > 0) {
      this.#retirement.drop(failed);
      return;
    }
    failed.standby = false;
    await this.#retirement.retire(others);
    // What serves beside it now would still do so if it came later by itself.
    if (this.#of(failed.name).some(holds)) this.#options.loads.forget(failed);
  }

  /** What the directory holds now; what keeps all of it from being served is a problem of each version. @throws BAD_REQUEST when it holds none */
  #read(name: string, configText: string | undefined): RepositoryModel {
    const refuse = (reason: string): never => {
      for (const one of this.#of(name)) {
        if (holds(one)) one.note = `it could not be loaded again and goes on as it is: ${reason}`;
      }
      this.#options.onChange();
      throw new BatchportError('BAD_REQUEST', `failed to load '${name}': ${reason}`);
    };
    const nameProblem = modelNameProblem(name);
    if (nameProblem !== undefined) {
      throw new BatchportError('BAD_REQUEST', `a model cannot have this name: it ${nameProblem}`);
    }
    const config = configText === undefined ? undefined : configOf(configText, refuse);
    const model = readModelDirectory(join(this.#options.repository, name), name, config);
    const problem = model.problem ?? this.#problemHere(model);
    if (problem === undefined) return model;
    if (model.versions.length === 0) return refuse(problem);
    return {
      ...model,
      versions: model.versions.map((version) => ({ ...version, problem: version.problem ?? problem })),
    };
  }

  /** Why this server cannot serve a model, however good it is. */
  #problemHere(model: RepositoryModel): string | undefined {
    const { devices, versions } = this.#options;
    try {
      requireQueueMemory([model]);
      requireOpenFiles(versions.length + model.versions.length);
    } catch (error) {
      if (error instanceof ExitError) return error.message;
      throw error;
    }
    return deviceProblem(
      model,
      devices.map(({ device }) => device),
    );
  }

  async #unload(name: string): Promise<void> {
    const { log, onChange } = this.#options;
    const all = this.#of(name);
    if (all.length === 0) throw new BatchportError('BAD_REQUEST', `failed to unload '${name}': there is no such model`);
    for (const version of all) {
      version.counts = false;
      if (version.record.state === 'READY' || version.record.state === 'LOADING') version.move('unload');
    }
    await this.#retirement.release(all);
    for (const version of all) {
      this.#retirement.closeWhenAnswered(version);
      if (version.record.state === 'UNLOADING') version.move('unloaded');
      else if (version.record.state === 'UNAVAILABLE') version.explain('unloaded');
    }
    onChange();
    log.info({ model: name }, 'model unloaded on command');
  }
}

function configOf(text: string, refuse: (reason: string) => never): ModelConfig {
  const result = parseModelConfig(Buffer.from(text));
  if (result.ok) {
    const { config } = result;
    const { session, provider } = config.runtime;
    // Names of files may not be chosen from outside: some options are such, of labels the content is told, and transforms are run.
    if (Object.keys(session).length + Object.keys(provider).length > 0) {
      return refuse("runtime.session and runtime.provider are taken from the model's own config.json only");
    }
    if (textFileNames(config).length === 0 && config.transform === undefined) return config;
    return refuse("names of files, such as labels and transforms, are taken from the model's own config.json only");
  }
  return refuse(result.problems.map((one) => formatModelConfigProblem('config', one)).join('; '));
}

/** Whether it serves, or will again when its devices are back. */
function holds({ withdrawn, abandoned, signature }: ServedVersion): boolean {
  return !withdrawn && !abandoned && signature !== undefined;
}

/** Whether it is those very files under these very settings, and serves. */
function serves(one: ServedVersion, { version, path }: RepositoryVersion, { config, texts }: RepositoryModel): boolean {
  return (
    one.version === version &&
    holds(one) &&
    one.file.path === path &&
    !one.file.hasChanged &&
    JSON.stringify(one.config) === JSON.stringify(config) &&
    one.texts?.digest === texts?.digest
  );
}
