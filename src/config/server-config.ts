/**
 * The server's configuration file: a JSON object with the file keys of the settings table, and nothing else.
 *
 * This file reads it and publishes its JSON Schema; what the values mean and which of them count is decided in
 * `settings-resolve.ts`. Bound: `FILE_BYTES_MAX`.
 */
import { closeSync, openSync, readSync } from 'node:fs';
import { z } from 'zod';
import { JsonTextError, parseJsonBytes } from './json-text.ts';
import { suggestion } from './nearest.ts';
import { SETTING_NAMES, type SettingName, settingRow } from './settings.ts';

const FILE_BYTES_MAX = 1024 * 1024;

/** Editors look for a schema under this key; the server has no use for it. */
const SCHEMA_KEY = '$schema';

/** A setting that is not valid, or a file that cannot be read. */
export interface SettingProblem {
  /** The flag, the variable, or `file:line:column`; empty where something is missing everywhere. */
  readonly where: string;
  /** File key, where the problem has one. */
  readonly key?: string;
  readonly message: string;
  /** USAGE for the command line, CONFIG for variables and files. */
  readonly exit: 'USAGE' | 'CONFIG';
}

export interface ServerConfigFile {
  /** Native values as they stand in the file, not yet checked. */
  readonly values: ReadonlyMap<SettingName, unknown>;
  readonly problems: readonly SettingProblem[];
  /** `file:line:column` of a setting's value. */
  readonly place: (name: SettingName) => string;
}

const nameOfKey = new Map(SETTING_NAMES.map((name) => [settingRow(name).key, name] as const));
const knownKeys = SETTING_NAMES.map((name) => settingRow(name).key).filter((key) => key !== undefined);

/** Reads the file at `path`; whatever is wrong with it is in `problems`. Blocks on the file system. */
export function readServerConfig(path: string): ServerConfigFile {
  const values = new Map<SettingName, unknown>();
  const problems: SettingProblem[] = [];
  const none = { values, problems, place: () => path };

  let bytes: Uint8Array;
  try {
    bytes = readBounded(path);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    problems.push({
      where: path,
      message: `the configuration file cannot be read: ${reason}`,
      exit: 'CONFIG',
    });
    return none;
  }
  let document: ReturnType<typeof parseJsonBytes>;
  try {
    document = parseJsonBytes(bytes, FILE_BYTES_MAX);
  } catch (error) {
    if (!(error instanceof JsonTextError)) throw error;
    const { line, column } = error.position;
    problems.push({
      where: `${path}:${line}:${column}`,
      message: error.message,
      exit: 'CONFIG',
    });
    return none;
  }
  const at = (position: { line: number; column: number }): string => `${path}:${position.line}:${position.column}`;
  const root = document.value;
  if (root === null || typeof root !== 'object' || Array.isArray(root)) {
    const message = 'the configuration must be a JSON object, {"http_port": 8000} for instance';
    problems.push({
      where: at(document.valuePosition([])),
      message,
      exit: 'CONFIG',
    });
    return none;
  }
  for (const [key, value] of Object.entries(root)) {
    if (key === SCHEMA_KEY) continue;
    const name = nameOfKey.get(key);
    if (name !== undefined) {
      values.set(name, value);
      continue;
    }
    problems.push({
      where: at(document.keyPosition([key])),
      key,
      message: unknownKey(key),
      exit: 'CONFIG',
    });
  }
  const place = (name: SettingName): string => at(document.valuePosition([settingRow(name).key!]));
  return { values, problems, place };
}

/** JSON Schema (draft 2020-12) of the file, from the settings table. */
export function serverConfigJsonSchema(): Record<string, unknown> {
  const properties: Record<string, z.ZodType> = {
    [SCHEMA_KEY]: z.string().describe('This schema, for editors; ignored by the server.').optional(),
  };
  for (const name of SETTING_NAMES) {
    const { key, kind, description, defaultText, unit } = settingRow(name);
    if (key === undefined) continue;
    const inUnit = unit === undefined ? '' : ` In ${unit}.`;
    properties[key] = kind.schema.describe(`${description}${inUnit} Default: ${defaultText}.`).optional();
  }
  return {
    title: 'batchport: configuration of the server',
    ...z.toJSONSchema(z.strictObject(properties), {
      io: 'input',
      target: 'draft-2020-12',
    }),
  };
}

function unknownKey(key: string): string {
  if (key === 'config') return 'a configuration file cannot name another one';
  return `unknown key${suggestion(key, knownKeys)}`;
}

/** At most one byte more than is allowed, so that the reader can tell a file that is too long. */
function readBounded(path: string): Uint8Array {
  const descriptor = openSync(path, 'r');
  try {
    const buffer = new Uint8Array(FILE_BYTES_MAX + 1);
    let length = 0;
    while (length < buffer.length) {
      const count = readSync(descriptor, buffer, length, buffer.length - length, null);
      if (count === 0) break;
      length += count;
    }
    return buffer.subarray(0, length);
  } finally {
    closeSync(descriptor);
  }
}
