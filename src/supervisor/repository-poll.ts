/**
 * Looks at the repository at intervals (`--model-control-mode poll`): models that are new or have changed are loaded, those that are gone are unloaded.
 *
 * A model is taken as it is only when two looks in a row saw the same files: one that is still being copied changes between them. A copy that pauses for longer than
 * that is found out by its load, which fails and leaves the old version serving; a rename, which has no middle, is the sure way. Blocks for a few system calls per model
 * and version. Changes of files with external weights alone are not seen: the model file has to be touched.
 */
import type { Logger } from '../config/log.ts';
import { fileStamp } from '../repository/file-stamp.ts';
import type { RepositoryModel } from '../repository/model-directory.ts';
import { scanRepository } from '../repository/repository.ts';
import type { ModelControl } from './model-control.ts';

interface Seen {
  /** What was last loaded. */
  applied: string;
  /** What the last look saw. */
  looked: string;
}

const GONE = 'gone';

export class RepositoryPoll {
  readonly #repository: string;
  readonly #control: ModelControl;
  readonly #log: Logger;
  readonly #seen = new Map<string, Seen>();
  #timer: NodeJS.Timeout | undefined;

  /** @param models as they were read at the start. */
  constructor(repository: string, models: readonly RepositoryModel[], control: ModelControl, log: Logger) {
    this.#repository = repository;
    this.#control = control;
    this.#log = log;
    for (const model of models) {
      const image = imageOf(model);
      this.#seen.set(model.name, { applied: image, looked: image });
    }
  }

  start(intervalS: number): void {
    this.#timer = setInterval(() => this.look(), intervalS * 1000);
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  look(): void {
    const { models, problems } = scanRepository(this.#repository);
    // An unreadable repository says nothing about its models.
    if (models.length === 0 && problems.some(({ path }) => path === this.#repository)) {
      this.#log.warn({ reason: problems[0]!.message }, 'the repository cannot be looked at');
      return;
    }
    const images = new Map(models.map((model) => [model.name, imageOf(model)]));
    for (const name of new Set([...this.#seen.keys(), ...images.keys()])) this.#compare(name, images.get(name) ?? GONE);
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

function imageOf({ config, versions, problem }: RepositoryModel): string {
  return JSON.stringify([config, problem ?? '', versions.map(({ version, path }) => [version, fileStamp(path)])]);
}
