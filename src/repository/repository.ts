/**
 * A model repository: a directory with one directory per model, `<repository>/<model>/<version>/model.onnx`.
 *
 * Names that begin with a dot are passed over in silence, other files too. Links are followed, so a repository may be made of
 * links. One faulty model never hides another: what is wrong with a model is in that model, what belongs to none is a `Problem`.
 * Bounds: MODELS_MAX models, PROBLEMS_MAX problems; those of model-directory.ts for each model.
 */
import { basename, dirname, join, resolve } from 'node:path';
import { DEFAULT_MODEL_CONFIG } from '../config/model-config.ts';
import { fileKind, listNames } from './files.ts';
import { ENTRIES_MAX, type RepositoryModel, readModelDirectory } from './model-directory.ts';
import { checkModelFile } from './model-file.ts';
import { modelNameProblem } from './model-name.ts';

const MODELS_MAX = 1000;
const PROBLEMS_MAX = 100;

/** Something that keeps models from being found; `message` follows the path in a sentence. */
export interface RepositoryProblem {
  readonly path: string;
  readonly message: string;
}

export interface Repository {
  /** Sorted by name; those with a `problem` cannot be served. */
  readonly models: readonly RepositoryModel[];
  readonly problems: readonly RepositoryProblem[];
}

/** Reads a whole repository; blocks for a few system calls per model and version. Never throws for what it finds. */
export function scanRepository(directory: string): Repository {
  const root = resolve(directory);
  const list = listNames(root, ENTRIES_MAX);
  if ('problem' in list) {
    const kind = fileKind(root);
    const isFile = 'kind' in kind && kind.kind === 'file';
    const message = isFile
      ? 'is a file; a model repository is a directory (serve one model file as MODEL)'
      : list.problem;
    return { models: [], problems: [{ path: root, message }] };
  }
  const { modelNames, problems } = sortEntries(root, list.names);
  if (modelNames.length > MODELS_MAX) {
    const message = `holds ${modelNames.length} models; only the first ${MODELS_MAX} by name are read`;
    problems.push({ path: root, message });
  }
  if (modelNames.length === 0) {
    problems.push({ path: root, message: 'holds no models; expected <model>/<version>/model.onnx' });
  }
  const models = modelNames.slice(0, MODELS_MAX).map((name) => readModelDirectory(join(root, name), name));
  return { models, problems: bounded(root, problems) };
}

/** A bare model file as a model of its own: named by the file without `.onnx`, with version 1 and the default configuration. */
export function singleModel(path: string): RepositoryModel {
  const file = resolve(path);
  const name = basename(file).replace(/\.onnx$/i, '');
  const model = { name, directory: dirname(file), config: DEFAULT_MODEL_CONFIG, versions: [], ignored: [] };
  const found = fileKind(file);
  if ('problem' in found) {
    return { ...model, problem: found.problem };
  }
  if (found.kind === 'directory') {
    return { ...model, problem: 'is a directory; give a directory of models as --model-repository' };
  }
  if (name === basename(file)) {
    return { ...model, problem: 'is not an .onnx file' };
  }
  const nameProblem = modelNameProblem(name);
  if (nameProblem !== undefined) {
    return { ...model, problem: `gives no name to its model: ${JSON.stringify(name)} ${nameProblem}` };
  }
  const { sizeBytes, problem } = checkModelFile(file);
  return problem === undefined
    ? { ...model, versions: [{ version: '1', path: file, sizeBytes }] }
    : { ...model, versions: [{ version: '1', path: file, sizeBytes, problem }], problem };
}

function sortEntries(root: string, names: readonly string[]): { modelNames: string[]; problems: RepositoryProblem[] } {
  const modelNames: string[] = [];
  const problems: RepositoryProblem[] = [];
  for (const name of names) {
    const path = join(root, name);
    const found = fileKind(path);
    if ('problem' in found) {
      problems.push({ path, message: modelNameProblem(name) ?? found.problem });
    } else if (found.kind === 'directory') {
      const message = modelNameProblem(name);
      if (message === undefined) {
        modelNames.push(name);
      } else {
        problems.push({ path, message: `cannot be a model: its name ${message}` });
      }
    } else if (/\.onnx$/i.test(name)) {
      problems.push({ path, message: 'is not served from here; move it to <model>/1/model.onnx' });
    }
  }
  return { modelNames, problems };
}

function bounded(root: string, problems: readonly RepositoryProblem[]): readonly RepositoryProblem[] {
  const more = problems.length - PROBLEMS_MAX;
  return more <= 0
    ? problems
    : [...problems.slice(0, PROBLEMS_MAX), { path: root, message: `has ${more} more such problems` }];
}
