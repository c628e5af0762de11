/**
 * Temporary folders and model repositories for tests: `<dir>/<model>/<version>/model.onnx`, and `<dir>/<model>/config.json` where a test gives
 * one. They are removed when the test that made them ends.
 */
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { writeModel } from './models.ts';

/** What clean-up needs: a test's context, or `{ after }` of node:test inside a suite. */
export interface CleanUp {
  after(action: () => void | Promise<void>): void;
}

export interface ModelEntry {
  /** The fixture served; by default the one named like the model. Several versions: fixtures by version. */
  readonly fixture?: string | Readonly<Record<string, string>>;
  /** Content of config.json; a string is written as it is. */
  readonly config?: object | string;
}

/** An empty folder that is removed with everything in it when the test ends. */
export function temporaryDirectory(cleanUp: CleanUp, label = 'test'): string {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), `batchport-${label}-`));
  cleanUp.after(() => fs.rmSync(dir, { recursive: true, force: true, maxRetries: 3 }));
  return dir;
}

export class TestRepository {
  readonly dir: string;

  constructor(dir: string) {
    this.dir = dir;
  }

  /** A path inside the repository. */
  path(...parts: readonly string[]): string {
    return path.join(this.dir, ...parts);
  }

  /** Adds or changes a model: its version folders and, where given, its config.json. */
  add(model: string, entry: ModelEntry = {}): void {
    const source = entry.fixture ?? model;
    const versions = typeof source === 'string' ? { 1: source } : source;
    for (const [version, name] of Object.entries(versions)) writeModel(this.path(model, version), name, 'model.onnx');
    if (entry.config !== undefined) this.writeConfig(model, entry.config);
  }

  writeConfig(model: string, config: object | string): void {
    this.writeFile(
      [model, 'config.json'],
      typeof config === 'string' ? config : `${JSON.stringify(config, null, 2)}\n`,
    );
  }

  /** Writes any file, for instance a broken model. */
  writeFile(parts: readonly string[], content: string | Uint8Array): string {
    const file = this.path(...parts);
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, content);
    return file;
  }

  /** Removes a model, or one version of it. */
  remove(model: string, version?: string): void {
    fs.rmSync(version === undefined ? this.path(model) : this.path(model, version), { recursive: true, force: true });
  }
}

/**
 * A model repository in a temporary folder.
 *
 * @param models Model names, or entries by name (a Map where a name is a trap like `__proto__`).
 */
export function makeRepository(
  cleanUp: CleanUp,
  models: readonly string[] | Readonly<Record<string, ModelEntry>> | ReadonlyMap<string, ModelEntry>,
): TestRepository {
  const repository = new TestRepository(temporaryDirectory(cleanUp, 'repository'));
  if (Array.isArray(models)) for (const model of models as readonly string[]) repository.add(model);
  else if (models instanceof Map) for (const [model, entry] of models) repository.add(model, entry);
  else for (const [model, entry] of Object.entries(models as Record<string, ModelEntry>)) repository.add(model, entry);
  return repository;
}
