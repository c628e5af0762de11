/**
 * Looks at the repository at intervals (`--model-control-mode poll`): models that are new or have changed are loaded, those that are gone are unloaded.
 *
 * A model is taken as it is only when two looks in a row saw the same files: one that is still being copied changes between them. A copy that pauses for longer than
 * that is found out by its load, which fails and leaves the old version serving; a rename, which has no middle, is the sure way. Files with weights beside a model file
 * count too: which there are is read off a model file whenever it has changed. Blocks for a few system calls per file.
 */
import type { Logger } from '../config/log.ts';
import { fileStamp } from '../repository/file-stamp.ts';
import type { RepositoryModel } from '../repository/model-directory.ts';
import { findWeights } from '../repository/model-weights.ts';
import { scanRepository } from '../repository/repository.ts';
import type { ModelControl } from './model-control.ts';

interface Seen {
  /** What was last loaded. */
  applied: string;
  /** What the last look saw. */
  looked: string;
}

/** A model file as it was looked at, and the files beside it that it names. */
interface Named {
  readonly stamp: string;
  readonly beside: readonly string[];
}

const GONE = 'gone';

export class RepositoryPoll {
  readonly #repository: string;
  readonly #control: ModelControl;
  readonly #log: Logger;
  readonly #seen = new Map<string, Seen>();
  /** By the path of the model file; of those that the last look saw. */
  #named = new Map<string, Named>();
  readonly #start: Promise<void>;
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;

  /** @param models as they were read at the start. */
  constructor(repository: string, models: readonly RepositoryModel[], control: ModelControl, log: Logger) {
    this.#repository = repository;
    this.#control = control;
    this.#log = log;
    this.#start = this.#images(models).then((images) => {
      for (const [name, image] of images) this.#seen.set(name, { applied: image, looked: image });
    });
  }

  start(intervalS: number): void {
    this.#timer = setTimeout(async () => {
      await this.#look();
      // One look at a time.
      if (!this.#stopped) this.start(intervalS);
    }, intervalS * 1000);
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  async #look(): Promise<void> {
    await this.#start;
    const { models, problems } = scanRepository(this.#repository);
    // An unreadable repository says nothing about its models.
    if (models.length === 0 && problems.some(({ path }) => path === this.#repository)) {
      this.#log.warn({ reason: problems[0]!.message }, 'the repository cannot be looked at');
      return;
    }
    const images = await this.#images(models);
    if (this.#stopped) return;
    for (const name of new Set([...this.#seen.keys(), ...images.keys()])) this.#compare(name, images.get(name) ?? GONE);
  }

  /** What tells whether a model has changed, by name. */
  async #images(models: readonly RepositoryModel[]): Promise<Map<string, string>> {
    const named = new Map<string, Named>();
    const images = new Map<string, string>();
    for (const { name, config, texts, problem, versions } of models) {
      const stamps: unknown[] = [];
      for (const { version, path } of versions) {
        const known = this.#named.get(path);
        const stamp = fileStamp(path);
        const { beside } = known?.stamp === stamp ? known : await besideOf(path);
        named.set(path, { stamp, beside });
        stamps.push([version, stamp, ...beside.map(fileStamp)]);
      }
      images.set(name, JSON.stringify([config, texts?.digest, problem ?? '', stamps]));
    }
    this.#named = named;
    return images;
  }

  #compare(name: string, image: string): void {
    const seen = this.#seen.get(name) ?? { applied: GONE, looked: '' };
    this.#seen.set(name, seen);
    const settled = seen.looked === image;
    seen.looked = image;
    if (!settled || seen.applied === image) return;
    seen.applied = image;
    const change = image === GONE ? this.#control.forget(name) : this.#control.load(name);
    if (image === GONE) this.#seen.delete(name);
    change.catch((error: Error) =>
      this.#log.error({ model: name, reason: error.message }, 'a change of the repository'),
    );
  }
}

async function besideOf(modelPath: string): Promise<Pick<Named, 'beside'>> {
  try {
    const { files } = await findWeights(modelPath);
    return { beside: files.slice(1) };
  } catch {
    return { beside: [] }; // not readable, which its load will say
  }
}
