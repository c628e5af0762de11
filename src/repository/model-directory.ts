/**
 * One model of a repository, read from its directory: `<version>/model.onnx` for each version, and perhaps `config.json`.
 *
 * Invariant: a model without `problem` has at least one version without `problem`. Whatever stands in the directory, the answer
 * is a value with reasons in it, and nothing is thrown.
 * Bounds: ENTRIES_MAX names in a directory, IGNORED_MAX remarks, MODEL_CONFIG_BYTES_MAX of configuration.
 */
import { join } from 'node:path';
import {
  DEFAULT_MODEL_CONFIG,
  formatModelConfigProblem,
  type ModelConfig,
  type ModelConfigProblem,
  type ModelConfigResult,
  parseModelConfig,
  warmUpFiles,
} from '../config/model-config.ts';
import { MODEL_CONFIG_BYTES_MAX, SERVED_VERSIONS_MAX } from '../config/model-config-schema.ts';
import { parseTritonConfig } from '../config/triton-config.ts';
import { isVersionName } from '../config/version-name.ts';
import { entryExists, fileKind, listNames, readHead } from './files.ts';
import { checkModelFile } from './model-file.ts';
import { readTextFiles, type TextFiles } from './text-files.ts';
import { chooseVersions } from './version-choice.ts';

export const ENTRIES_MAX = 10_000;
const IGNORED_MAX = 100;
const CONFIG_PROBLEMS_SHOWN_MAX = 5;
const NAMES_SHOWN_MAX = 3;
const CONFIG_FILE = 'config.json';
const TRITON_CONFIG_FILE = 'config.pbtxt';
const NOT_A_VERSION = 'is not a version: those are positive integers without leading zeros, such as 1';

export interface RepositoryVersion {
  readonly version: string;
  /** Absolute path of the model file; links in it are kept, since files with its weights may lie beside the link. */
  readonly path: string;
  /** 0 where the file cannot be read. */
  readonly sizeBytes: number;
  /** Why it cannot be loaded. */
  readonly problem?: string;
}

/** Something in the directory of a model that is not used, and why: worth a warning. */
export interface IgnoredEntry {
  readonly name: string;
  readonly reason: string;
}

export interface RepositoryModel {
  readonly name: string;
  /** Absolute. */
  readonly directory: string;
  /** The defaults where there is no `config.json`, or it is faulty. */
  readonly config: ModelConfig;
  /** Files that the configuration names, where there are any. */
  readonly texts?: TextFiles;
  /** Versions to serve, highest first; where `config.json` is faulty, the one served by default, with that problem. */
  readonly versions: readonly RepositoryVersion[];
  readonly ignored: readonly IgnoredEntry[];
  /** Why no version can be served, in one line. */
  readonly problem?: string;
}

/** @param given a configuration to be taken instead of the model's own. */
export function readModelDirectory(directory: string, name: string, given?: ModelConfig): RepositoryModel {
  const nothing = { name, directory, config: DEFAULT_MODEL_CONFIG, versions: [], ignored: [] };
  const list = listNames(directory, ENTRIES_MAX);
  if ('problem' in list) {
    return { ...nothing, problem: list.problem };
  }
  const { versions, ignored } = sortEntries(directory, list.names);
  const read: DirectoryConfig = given === undefined ? readConfig(directory, name) : { config: given };
  const { config, warnings = [] } = read;
  const texts = readTextFiles(directory, config);
  const textProblem = 'problem' in texts ? texts.problem : undefined;
  const problem = read.problem ?? warmUpProblem(directory, config) ?? textProblem;
  ignored.push(...warnings);
  const choice = chooseVersions(versions, config.versionPolicy, (version) =>
    entryExists(join(directory, version, config.modelFilename)),
  );
  if (problem !== undefined) {
    // The version that would be served by default stands for the model, so that it is known and says why it is not served.
    const named = choice.served.map((version) => ({ ...readVersion(directory, version, config), problem }));
    return { ...nothing, versions: named, ignored: bounded(ignored), problem };
  }
  for (const version of choice.incomplete) {
    ignored.push({ name: version, reason: whyIncomplete(join(directory, version), config) });
  }
  for (const version of choice.missing) {
    ignored.push({ name: version, reason: 'is asked for by version_policy, but there is no such directory' });
  }
  if (choice.beyondBound > 0) {
    const reason = `${choice.beyondBound} lower versions are left out; at most ${SERVED_VERSIONS_MAX} are served`;
    ignored.push({ name: 'version_policy', reason });
  }
  const served = choice.served.map((version) => readVersion(directory, version, config));
  const model = {
    name,
    directory,
    config,
    ...('files' in texts && (texts.files.length > 0 || config.transform !== undefined) ? { texts } : {}),
    versions: served,
    ignored: bounded(ignored),
  };
  if (served.some((version) => version.problem === undefined)) {
    return model;
  }
  return { ...model, problem: served[0]?.problem ?? whyNoVersion(name, list.names, ignored) };
}

/** Tells versions from what is ignored with a remark; labels, notes and other files need none. */
function sortEntries(directory: string, names: readonly string[]): { versions: string[]; ignored: IgnoredEntry[] } {
  const versions: string[] = [];
  const ignored: IgnoredEntry[] = [];
  for (const name of names) {
    const found = fileKind(join(directory, name));
    const isDirectory = 'kind' in found && found.kind === 'directory';
    if (isDirectory && isVersionName(name)) {
      versions.push(name);
      continue;
    }
    const reason = 'problem' in found ? found.problem : isDirectory ? NOT_A_VERSION : fileRemark(name);
    // Whatever is wrong with the configuration is a problem of the model, and told where it is read.
    if (reason !== undefined && name !== CONFIG_FILE && name !== TRITON_CONFIG_FILE) {
      ignored.push({ name, reason });
    }
  }
  return { versions, ignored };
}

function fileRemark(name: string): string | undefined {
  if (isVersionName(name)) {
    return 'is a file; a version is a directory with model.onnx in it';
  }
  if (/\.onnx$/i.test(name)) {
    return 'lies outside of any version; move it to 1/model.onnx';
  }
  return name !== CONFIG_FILE && name.toLowerCase() === CONFIG_FILE
    ? `is not read; the name must be ${CONFIG_FILE}`
    : undefined;
}

/** What a model's directory says about its settings. */
interface DirectoryConfig {
  /** The defaults where there is no file, or it is faulty. */
  readonly config: ModelConfig;
  readonly problem?: string;
  readonly warnings?: readonly IgnoredEntry[];
}

function readConfig(directory: string, name: string): DirectoryConfig {
  const config = DEFAULT_MODEL_CONFIG;
  const file = readConfigFile(directory, name);
  if (file === undefined) {
    return { config };
  }
  const warnings = file.warnings.map(({ file: entry, line, column, message }) => {
    return { name: entry, reason: `${line}:${column}: ${message}` };
  });
  if ('problem' in file) {
    return { config, problem: `${file.file} ${file.problem}`, warnings };
  }
  const { result } = file;
  if (result.ok) {
    return { config: result.config, warnings };
  }
  const shown = result.problems
    .slice(0, CONFIG_PROBLEMS_SHOWN_MAX)
    .map((one) => formatModelConfigProblem(file.file, one));
  const more = result.problems.length - shown.length;
  return { config, problem: [...shown, ...(more > 0 ? [`and ${more} more`] : [])].join('; '), warnings };
}

/** Where the files of warm-ups are. */
export function warmUpDirectory(modelDirectory: string): string {
  return join(modelDirectory, 'warmup');
}

function warmUpProblem(directory: string, config: ModelConfig): string | undefined {
  for (const file of warmUpFiles(config)) {
    const found = fileKind(join(warmUpDirectory(directory), file));
    const problem = 'problem' in found ? found.problem : found.kind === 'file' ? undefined : 'is no file';
    if (problem !== undefined) return `warmup/${file}, asked for by its configuration, ${problem}`;
  }
  return undefined;
}

/** A place in a configuration file that deserves a word. */
export interface ConfigWarning extends ModelConfigProblem {
  readonly file: string;
}

export type ConfigFile = { readonly file: string; readonly warnings: readonly ConfigWarning[] } & (
  | { readonly result: ModelConfigResult }
  | { readonly problem: string }
);

/** The configuration file of a model, `config.json` or else Triton's `config.pbtxt`; undefined where there is none. */
export function readConfigFile(directory: string, name: string): ConfigFile | undefined {
  const both = [CONFIG_FILE, TRITON_CONFIG_FILE].filter((file) => entryExists(join(directory, file)));
  const [file, other] = both;
  if (file === undefined) {
    return undefined;
  }
  const unread = { file: TRITON_CONFIG_FILE, line: 1, column: 1, message: `is not read, as there is a ${CONFIG_FILE}` };
  const warnings = other === undefined ? [] : [unread];
  // One byte more than is allowed, so that the parser sees that it is too much.
  const head = readHead(join(directory, file), MODEL_CONFIG_BYTES_MAX + 1);
  if ('problem' in head) {
    return { file, warnings, problem: head.problem };
  }
  if (file === CONFIG_FILE) {
    return { file, warnings, result: parseModelConfig(head.bytes) };
  }
  const triton = parseTritonConfig(head.bytes, name);
  return { file, warnings: triton.warnings.map((warning) => ({ file, ...warning })), result: triton.result };
}

function readVersion(directory: string, version: string, { modelFilename }: ModelConfig): RepositoryVersion {
  const path = join(directory, version, modelFilename);
  const { sizeBytes, problem } = checkModelFile(path);
  return problem === undefined
    ? { version, path, sizeBytes }
    : { version, path, sizeBytes, problem: `${version}/${modelFilename} ${problem}` };
}

/** Why a version directory without its model file is passed over, with what to do where what it holds tells. */
function whyIncomplete(versionDirectory: string, { modelFilename }: ModelConfig): string {
  const list = listNames(versionDirectory, ENTRIES_MAX);
  if ('problem' in list) {
    return list.problem;
  }
  const { names } = list;
  if (names.length === 0) {
    return `is empty; it must hold ${modelFilename}`;
  }
  const onnx = names.filter((name) => /\.onnx$/i.test(name));
  if (onnx.length === 1) {
    return `holds no ${modelFilename}; rename ${JSON.stringify(onnx[0])}`;
  }
  return `holds no ${modelFilename} but ${quoted(names)}; only ONNX models of that name can be served`;
}

function whyNoVersion(name: string, names: readonly string[], ignored: readonly IgnoredEntry[]): string {
  if (isVersionName(name) && names.includes(DEFAULT_MODEL_CONFIG.modelFilename)) {
    return 'is a version and not a model; the model repository is the directory two levels above model.onnx';
  }
  if (names.length === 0) {
    return 'is empty; expected 1/model.onnx';
  }
  const reasons = ignored.slice(0, NAMES_SHOWN_MAX).map((entry) => `${JSON.stringify(entry.name)} ${entry.reason}`);
  return ['has no version to serve; expected 1/model.onnx', ...reasons].join('; ');
}

function quoted(names: readonly string[]): string {
  const shown = names.slice(0, NAMES_SHOWN_MAX).map((name) => JSON.stringify(name));
  return names.length > shown.length ? `${shown.join(', ')} and ${names.length - shown.length} more` : shown.join(', ');
}

function bounded(ignored: readonly IgnoredEntry[]): readonly IgnoredEntry[] {
  const more = ignored.length - IGNORED_MAX;
  return more <= 0
    ? ignored
    : [...ignored.slice(0, IGNORED_MAX), { name: '…', reason: `and ${more} more entries are ignored` }];
}
