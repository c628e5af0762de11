/**
 * The models this ingress knows: name → version → entry. Replaced piece by piece as the supervisor announces changes; a version that stays keeps its
 * queue end. Maps, never plain objects: a model may be called `__proto__`.
 */
import { BatchportError } from '../config/errors.ts';
import { isVersionName } from '../config/version-name.ts';
import type { ServedModel } from '../protocol/control.ts';
import { quoteName } from '../protocol/model-interface.ts';
import type { JsonThreads } from './json-threads.ts';
import { type QueueEnd, Serving } from './served-model.ts';

export interface ModelEntry {
  readonly name: string;
  readonly version: string;
  /** As last announced. */
  announced: ServedModel;
  serving: Serving | undefined;
}

export class ModelTable {
  readonly #end: QueueEnd;
  readonly #jsonThreads: JsonThreads;
  #models = new Map<string, Map<string, ModelEntry>>();
  /** Entries withdrawn while requests were still under way. */
  readonly #leaving = new Set<ModelEntry>();

  constructor(end: QueueEnd, jsonThreads: JsonThreads) {
    this.#end = end;
    this.#jsonThreads = jsonThreads;
  }

  /** Takes over the supervisor's list. */
  update(announced: readonly ServedModel[]): void {
    const next = new Map<string, Map<string, ModelEntry>>();
    for (const model of announced) {
      const known = this.#models.get(model.name)?.get(model.version);
      // Another one of the same number has a queue of its own.
      const old = known?.announced.incarnation === model.incarnation ? known : undefined;
      const entry: ModelEntry = old ?? {
        name: model.name,
        version: model.version,
        announced: model,
        serving: undefined,
      };
      entry.announced = model;
      if (entry.serving === undefined && model.serving !== undefined) {
        entry.serving = new Serving(model, this.#end, this.#jsonThreads);
      }
      if (entry.serving !== undefined) entry.serving.outage = model.accepting ? undefined : whyNot(model);
      const versions = next.get(model.name) ?? new Map<string, ModelEntry>();
      next.set(model.name, versions.set(model.version, entry));
    }
    for (const versions of this.#models.values()) {
      for (const entry of versions.values()) {
        if (next.get(entry.name)?.get(entry.version) === entry || entry.serving === undefined) continue;
        entry.serving.cache?.close();
        this.#leaving.add(entry);
      }
    }
    this.#models = next;
    this.#closeLeft();
  }

  #closeLeft(): void {
    for (const entry of this.#leaving) {
      if (entry.serving === undefined || entry.serving.inFlight > 0) continue;
      entry.serving.close();
      entry.serving = undefined;
      this.#leaving.delete(entry);
    }
  }

  /**
   * The entry for a name and version; without a version the latest one.
   *
   * @throws BatchportError MODEL_NOT_FOUND, also for one that is not loaded since nobody wants it; BAD_URL for a version that cannot be one.
   */
  find(name: string, version: string | undefined): ModelEntry {
    const entry = this.look(name, version);
    const { wanted, reason } = entry.announced;
    if (wanted) return entry;
    const which = version === undefined ? 'no available versions' : `no available version ${version}`;
    throw new BatchportError(
      'MODEL_NOT_FOUND',
      `Request for unknown model: ${quoteName(name)} has ${which}: ${reason}.`,
    );
  }

  /** As find(), and finds also what is not loaded. */
  look(name: string, version: string | undefined): ModelEntry {
    const versions = this.#models.get(name);
    if (versions === undefined)
      throw new BatchportError('MODEL_NOT_FOUND', `Request for unknown model: ${quoteName(name)} is not found.`);
    if (version !== undefined) {
      const entry = versions.get(version);
      if (entry !== undefined) return entry;
      if (!isVersionName(version)) {
        throw new BatchportError(
          'BAD_URL',
          `${quoteName(version)} is not a model version; versions are positive whole numbers without leading zeros, such as 1.`,
        );
      }
      throw new BatchportError('MODEL_NOT_FOUND', `Model ${quoteName(name)} has no version ${quoteName(version)}.`);
    }
    let latest: ModelEntry | undefined;
    for (const entry of versions.values()) if (latest === undefined || isPreferred(entry, latest)) latest = entry;
    if (latest === undefined) throw new BatchportError('MODEL_NOT_FOUND', `Model ${quoteName(name)} has no version.`);
    return latest;
  }

  /** The serving half of an entry whose queue takes requests. @throws BatchportError NOT_READY with the reason. */
  static serving(entry: ModelEntry): Serving {
    if (entry.serving !== undefined && entry.announced.accepting) return entry.serving;
    throw new BatchportError('NOT_READY', whyNot(entry.announced));
  }

  versions(name: string): ModelEntry[] {
    return [...(this.#models.get(name)?.values() ?? [])].sort((a, b) => Number(a.version) - Number(b.version));
  }

  /** Every entry, also those on their way out. */
  *all(): Generator<ModelEntry> {
    for (const versions of this.#models.values()) yield* versions.values();
  }

  /** Looks at every queue with something in it. */
  poll(): void {
    for (const versions of this.#models.values()) for (const { serving } of versions.values()) serving?.poll();
    if (this.#leaving.size === 0) return;
    for (const { serving } of this.#leaving) serving?.poll();
    this.#closeLeft();
  }

  get inFlight(): number {
    let sum = 0;
    for (const versions of this.#models.values())
      for (const { serving } of versions.values()) sum += serving?.inFlight ?? 0;
    for (const { serving } of this.#leaving) sum += serving?.inFlight ?? 0;
    return sum;
  }
}

/** A ready version is preferred to a newer one that is not (yet), and one that is coming to one that nobody wants. */
function isPreferred(one: ModelEntry, other: ModelEntry): boolean {
  const rank = (entry: ModelEntry): number => (isReady(entry) ? 2 : entry.announced.wanted ? 1 : 0);
  return rank(one) === rank(other) ? Number(one.version) > Number(other.version) : rank(one) > rank(other);
}

export function isReady(entry: ModelEntry): boolean {
  return entry.announced.state === 'READY';
}

function whyNot({ name, version, state, reason }: ServedModel): string {
  return `Model ${quoteName(name)} version ${version} is ${state}${reason === '' ? '' : `: ${reason.replace(/\.$/, '')}`}.`;
}
