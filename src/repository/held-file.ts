/**
 * A model file that can be read again though its name has been given to another file since: the open descriptor keeps it, as long as it is not written over.
 *
 * Owner: the served version. Bound: one descriptor. Files beside it with its weights are not kept, so one that has any is not to be held; but their changes are
 * changes of it.
 */
import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import { fileStamp, stampOf } from './file-stamp.ts';

export class HeldFile {
  readonly path: string;
  /** Of the file when it was last looked at. */
  #stamp: string;
  /** Of the files beside it, by their paths, when they became known. */
  readonly #beside = new Map<string, string>();
  #fd: number | undefined;

  constructor(path: string) {
    this.path = path;
    this.#stamp = fileStamp(path);
  }

  /** Whether its name stands for another model than when it was last looked at. */
  get hasChanged(): boolean {
    return fileStamp(this.path) !== this.#stamp || [...this.#beside].some(([path, stamp]) => fileStamp(path) !== stamp);
  }

  /** Another text whenever what is read from `source` is another model. */
  get stamp(): string {
    return [this.source, ...this.#beside.keys()].map(fileStamp).join();
  }

  /** Takes the file as it is now, and lets go of what was held. Of files beside it nothing is known then. */
  look(): void {
    this.release();
    this.#stamp = fileStamp(this.path);
    this.#beside.clear();
  }

  /** It has been found out which files with weights it names. */
  names(paths: readonly string[]): void {
    for (const path of paths) if (!this.#beside.has(path)) this.#beside.set(path, fileStamp(path));
  }

  /** Keeps the file, if it still is the one of the stamp. */
  hold(): void {
    if (this.#isHeld) return;
    this.release();
    try {
      this.#fd = openSync(this.path, constants.O_RDONLY | constants.O_NONBLOCK);
    } catch {
      return; // not there, or too many files open: then it is read by its name
    }
    if (!this.#isHeld) this.release();
  }

  /** Where it is to be read now, by every process of this user: by its name, or, if that is another file's now, through this process. */
  get source(): string {
    return this.#isHeld && fileStamp(this.path) !== this.#stamp ? `/proc/${process.pid}/fd/${this.#fd}` : this.path;
  }

  get #isHeld(): boolean {
    return this.#fd !== undefined && stampOf(fstatSync(this.#fd)) === this.#stamp;
  }

  release(): void {
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
  }
}
