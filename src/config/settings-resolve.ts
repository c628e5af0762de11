/**
 * From flags, environment and configuration file to `ServerSettings`.
 *
 * Every problem is collected, not only the first, so that check-config can list them; `resolveSettings` throws them as one
 * error. `model` and `modelRepository` are alternatives: the stronger source decides between them, and only both from
 * the same source are a contradiction.
 */
import { dirname, resolve } from 'node:path';
import { ExitError } from './exit-codes.ts';
import { nearestName } from './nearest.ts';
import { readServerConfig, type ServerConfigFile, type SettingProblem } from './server-config.ts';
import {
  type Machine,
  type Origin,
  SETTING_NAMES,
  type ServerSettings,
  type SettingName,
  settingRow,
  thisMachine,
} from './settings.ts';

export interface SettingSources {
  /** By setting: text as typed, a list of texts for `devices`, a boolean; or any native value. */
  readonly flags?: { readonly [K in SettingName]?: unknown };
  /** Default: `process.env`. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Directory that relative paths of flags and variables start from. Default: the process's. */
  readonly cwd?: string;
  readonly machine?: Machine;
  /** Whether it is an error that neither `model` nor `modelRepository` is set. Default: true. */
  readonly modelRequired?: boolean;
}

export interface Resolution {
  /** Undefined when there are problems. */
  readonly settings: ServerSettings | undefined;
  readonly problems: readonly SettingProblem[];
  /** One line each; the server runs all the same. */
  readonly warnings: readonly string[];
}

interface Candidate {
  readonly value: unknown;
  readonly origin: Origin;
  /** As problems name the place: with line and column in a file. */
  readonly where: string;
  /** Directory that a relative path starts from. */
  readonly base: string;
}

const ENV_PREFIX = 'BATCHPORT_';
const knownVariables = SETTING_NAMES.map((name) => settingRow(name).env);
const knownSuffixes = knownVariables.map((variable) => variable.slice(ENV_PREFIX.length));

/** All settings of a server. @throws ExitError USAGE or CONFIG, naming the first problem and how many more there are. */
export function resolveSettings(sources: SettingSources): {
  settings: ServerSettings;
  warnings: readonly string[];
} {
  const { settings, problems, warnings } = examineSettings(sources);
  if (settings !== undefined) return { settings, warnings };
  const first = problems[0]!;
  const more = problems.length - 1;
  const hint = more === 0 ? undefined : `${more} more; "check-config" with the same options lists all of them`;
  throw new ExitError(first.exit, formatProblem(first), { hint });
}

/** `server.json:3:16: http_port: 99999 is not a port from 0 to 65535`. */
export function formatProblem({ where, key, message }: SettingProblem): string {
  return [where, key ?? '', message].filter((part) => part !== '').join(': ');
}

/** As `resolveSettings`, with the problems as data. Reads the configuration file, nothing else. */
export function examineSettings(sources: SettingSources): Resolution {
  const env = sources.env ?? process.env;
  const cwd = sources.cwd ?? process.cwd();
  const machine = sources.machine ?? thisMachine(env);
  const problems: SettingProblem[] = [];
  const values: Partial<Record<SettingName, unknown>> = {};
  const origins: Partial<Record<SettingName, Origin>> = {};

  const take = (name: SettingName, file: ServerConfigFile | undefined, configPath: string | undefined): void => {
    const { key, kind, default: defaultOf } = settingRow(name);
    const candidate = candidateOf(name, sources.flags ?? {}, env, cwd, file, configPath);
    if (candidate === undefined) {
      values[name] = defaultOf(machine);
      origins[name] = { source: 'default', name: 'default' };
      return;
    }
    const { value, origin, where, base } = candidate;
    const parsed = kind.schema.safeParse(value);
    if (!parsed.success) {
      problems.push({
        where,
        ...(origin.source === 'file' && key !== undefined ? { key } : {}),
        message: `${show(value)} is not ${kind.expects}${serviceLinkHint(value, origin)}`,
        exit: origin.source === 'flag' ? 'USAGE' : 'CONFIG',
      });
      return;
    }
    values[name] = kind.path ? resolve(base, parsed.data as string) : parsed.data;
    origins[name] = origin;
  };

  take('config', undefined, undefined);
  const configPath = values.config as string | undefined;
  const file = configPath === undefined ? undefined : readServerConfig(configPath);
  problems.push(...(file?.problems ?? []));
  for (const name of SETTING_NAMES) if (name !== 'config') take(name, file, configPath);

  chooseModel(values, origins, problems, sources.modelRequired ?? true);
  requireDifferentPorts(values, origins, problems);

  if (problems.length > 0) return { settings: undefined, problems, warnings: warningsFor(env) };
  for (const value of Object.values(values)) Object.freeze(value);
  const settings = Object.freeze({
    ...values,
    origins: Object.freeze(origins),
  }) as unknown as ServerSettings;
  return { settings, problems, warnings: warningsFor(env) };
}

/** The strongest source that has the setting. An empty variable counts as not set, as compose files leave them. */
function candidateOf(
  name: SettingName,
  flags: NonNullable<SettingSources['flags']>,
  env: Readonly<Record<string, string | undefined>>,
  cwd: string,
  file: ServerConfigFile | undefined,
  configPath: string | undefined,
): Candidate | undefined {
  const { flag, env: variable, kind } = settingRow(name);
  const given = flags[name];
  if (given !== undefined) {
    const label = flag === undefined ? 'MODEL' : `--${flag}`;
    const value = typeof given === 'string' ? kind.fromText(given) : given;
    return {
      value,
      origin: { source: 'flag', name: label },
      where: label,
      base: cwd,
    };
  }
  const text = env[variable];
  if (text !== undefined && text !== '') {
    const origin = { source: 'environment', name: variable } as const;
    return { value: kind.fromText(text), origin, where: variable, base: cwd };
  }
  if (file?.values.has(name) && configPath !== undefined) {
    const origin = { source: 'file', name: configPath } as const;
    return {
      value: file.values.get(name),
      origin,
      where: file.place(name),
      base: dirname(configPath),
    };
  }
  return undefined;
}

const strength = {
  flag: 3,
  environment: 2,
  file: 1,
  default: 0,
} as const satisfies Record<Origin['source'], number>;

function chooseModel(
  values: Partial<Record<SettingName, unknown>>,
  origins: Partial<Record<SettingName, Origin>>,
  problems: SettingProblem[],
  required: boolean,
): void {
  const model = origins.model;
  const repository = origins.modelRepository;
  // One of them was given and is not valid: that problem is already known, and says more.
  if (model === undefined || repository === undefined) return;
  if (model.source === 'default' && repository.source === 'default') {
    if (!required) return;
    const message = 'no model given: name an .onnx file, or a directory of models with --model-repository DIR';
    problems.push({ where: '', message, exit: 'USAGE' });
    return;
  }
  if (model.source === repository.source) {
    const label = (name: SettingName, origin: Origin) =>
      origin.source === 'file' ? settingRow(name).key : origin.name;
    const both = `${label('model', model)} and ${label('modelRepository', repository)}`;
    const message = `${both} are alternatives; give only one of them`;
    problems.push({
      where: repository.name,
      message,
      exit: model.source === 'flag' ? 'USAGE' : 'CONFIG',
    });
    return;
  }
  const weaker = strength[model.source] < strength[repository.source] ? 'model' : 'modelRepository';
  values[weaker] = undefined;
  origins[weaker] = { source: 'default', name: 'default' };
}

const PORTS = ['httpPort', 'grpcPort', 'metricsPort'] as const;

function requireDifferentPorts(
  values: Partial<Record<SettingName, unknown>>,
  origins: Partial<Record<SettingName, Origin>>,
  problems: SettingProblem[],
): void {
  for (const [n, name] of PORTS.entries()) {
    const port = values[name];
    if (typeof port !== 'number' || port === 0) continue;
    const other = PORTS.slice(0, n).find((earlier) => values[earlier] === port);
    if (other === undefined) continue;
    const given = [origins[name]!, origins[other]!].find((origin) => origin.source !== 'default')!;
    const message = `${settingRow(other).key} and ${settingRow(name).key} are both ${port}; give them different ports`;
    problems.push({ where: given.name, message, exit: given.source === 'flag' ? 'USAGE' : 'CONFIG' });
  }
}

function warningsFor(env: Readonly<Record<string, string | undefined>>): string[] {
  const warnings: string[] = [];
  for (const [variable, value] of Object.entries(env)) {
    if (!variable.startsWith(ENV_PREFIX) || value === undefined || value === '') continue;
    if (knownVariables.includes(variable) || isServiceLink(value)) continue;
    const meant = nearestName(variable.slice(ENV_PREFIX.length), knownSuffixes);
    if (meant !== undefined) warnings.push(`${variable} is not a setting; did you mean ${ENV_PREFIX}${meant}?`);
  }
  return warnings;
}

/**
 * Kubernetes gives each pod variables for each service, such as BATCHPORT_HTTP_PORT=tcp://10.0.0.7:8000 for a service named
 * batchport-http.
 */
function isServiceLink(value: unknown): boolean {
  return typeof value === 'string' && /^(tcp|udp|sctp):\/\//.test(value);
}

function serviceLinkHint(value: unknown, origin: Origin): string {
  if (origin.source !== 'environment' || !isServiceLink(value)) return '';
  return '; Kubernetes sets such variables for services, enableServiceLinks: false in the pod turns that off';
}

/** A value as a message quotes it, cut where it is long. */
function show(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length <= 80 ? text : `${text.slice(0, 77)}…`;
}
