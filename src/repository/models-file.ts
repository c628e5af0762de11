/**
 * `models.json` of a repository: configurations of models in one file, for those that have no directory, or one without a configuration.
 *
 *     { "models": { "bert": { "source": { "url": "https://…", "sha256": "…" }, "max_batch_size": 8 } } }
 *
 * Each entry is what a config.json would be, with a fault of its own. Whatever stands in the file, nothing is thrown. Bounds: MODELS_FILE_BYTES_MAX of text, MODELS_MAX entries.
 */
import { join } from 'node:path';
import { type JsonDocument, JsonTextError, parseJsonBytes } from '../config/json-text.ts';
import { type ModelConfigResult, modelConfigIn } from '../config/model-config.ts';
import { suggestion } from '../config/nearest.ts';
import { entryExists, readHead } from './files.ts';
import { modelNameProblem } from './model-name.ts';

export const MODELS_FILE = 'models.json';
const MODELS_FILE_BYTES_MAX = 4 * 2 ** 20;
const MODELS_MAX = 1000;

export interface ModelsFile {
  /** By name. */
  readonly models: ReadonlyMap<string, ModelConfigResult>;
  /** What is wrong with the file itself, to follow its name. */
  readonly problems: readonly string[];
}

const EMPTY: ModelsFile = { models: new Map(), problems: [] };

/** Reads the file of a repository; empty where there is none. */
export function readModelsFile(root: string): ModelsFile {
  const path = join(root, MODELS_FILE);
  if (!entryExists(path)) return EMPTY;
  const head = readHead(path, MODELS_FILE_BYTES_MAX + 1);
  if ('problem' in head) return { ...EMPTY, problems: [head.problem] };
  try {
    return modelsIn(parseJsonBytes(head.bytes, MODELS_FILE_BYTES_MAX));
  } catch (error) {
    if (!(error instanceof JsonTextError)) throw error;
    return {
      ...EMPTY,
      problems: [`${error.position.line}:${error.position.column}: ${error.message}`],
    };
  }
}

function modelsIn(document: JsonDocument): ModelsFile {
  const problems: string[] = [];
  const tell = (position: { line: number; column: number }, message: string): void => {
    problems.push(`${position.line}:${position.column}: ${message}`);
  };
  const models = new Map<string, ModelConfigResult>();
  const top = document.value;
  if (!isObject(top) || !isObject(top.models)) {
    tell(
      document.valuePosition(['models']),
      'it must be an object with the key "models", an object of model names and configurations',
    );
    return { models, problems };
  }
  for (const key of Object.keys(top)) {
    if (key === 'models' || key === '$schema') continue;
    tell(document.keyPosition([key]), `unknown key ${JSON.stringify(key.slice(0, 64))}${suggestion(key, ['models'])}`);
  }
  for (const name of Object.keys(top.models)) {
    const problem = modelNameProblem(name);
    if (problem !== undefined)
      tell(document.keyPosition(['models', name]), `a model cannot have this name: it ${problem}`);
    else if (models.size === MODELS_MAX) {
      tell(document.keyPosition(['models', name]), `only the first ${MODELS_MAX} models are read`);
      break;
    } else models.set(name, modelConfigIn(document.part(['models', name])));
  }
  return { models, problems };
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
