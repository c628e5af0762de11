/**
 * The systemd unit for a server with given settings, made from `config/systemd/batchport.service`: that file has every line and says why, here only values change.
 *
 * Source of the syntax: systemd.syntax(7), systemd.service(5) "Command lines". Invariant: whatever is in a path or an argument reaches the server as it is: quotes, blanks, `%`
 * and `$` are escaped.
 */
import { dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { SETTING_NAMES, type ServerSettings, type SettingName, settingRow } from '../config/settings.ts';
import { stopLimitS } from '../config/stop-limit.ts';

/** Since this version of systemd there is a growing delay between restarts. */
const RESTART_STEPS_VERSION = 254;
const PORT_UNPRIVILEGED_MIN = 1024;
/** As StateDirectory, CacheDirectory and RuntimeDirectory of the unit name them. */
const OWN_DIRECTORIES = ['/var/lib/batchport', '/var/cache/batchport', '/run/batchport'];
const HEADER = [
  '# Written by "bin/serve install-service", which replaces it again with --force.',
  '# Changes of your own belong into "systemctl edit batchport".',
];

export interface UnitOptions {
  /** Text of config/systemd/batchport.service. */
  readonly template: string;
  /** Absolute path of the Node.js that is to run it. */
  readonly node: string;
  /** Absolute path of the installation: the directory of bin/serve's. */
  readonly root: string;
  readonly settings: ServerSettings;
  /** Settings given as options, as `settingFlags` has them: these become the service's command line. */
  readonly flags: Readonly<Partial<Record<SettingName, unknown>>>;
  /** Relative paths in options start here. */
  readonly cwd: string;
  /** User of the service; undefined for one of its own. */
  readonly user: string | undefined;
  /** Groups whose members may use the GPUs, by number. */
  readonly groups: readonly number[];
  /** Undefined where it is not known. */
  readonly systemdVersion: number | undefined;
}

/** @throws Error when the template lacks a line that is to be changed: a bug. */
export function renderUnit(options: UnitOptions): string {
  const { node, root, settings, user, groups, systemdVersion } = options;
  const unit = new Unit(options.template);
  unit.header(HEADER);
  const models = settings.model ?? settings.modelRepository;
  if (models === undefined) throw new Error('a service without models: this is a bug');
  unit.set('Documentation', [pathToFileURL(join(root, 'README.md')).href.replaceAll('%', '%%')]);
  unit.set('RequiresMountsFor', [[root, models].map(quoted).join(' ')]);
  const program = [quoted(node), quoted(join(root, 'bin/serve'))];
  unit.set('ExecStart', [[...program, ...commandLine(options).map(quotedArgument)].join(' ')]);
  unit.set('TimeoutStopSec', [String(stopLimitS(settings.drainTimeoutS))]);
  if (systemdVersion !== undefined && systemdVersion < RESTART_STEPS_VERSION) {
    unit.remove('RestartSteps');
    unit.remove('RestartMaxDelaySec');
  }
  if (user !== undefined) unit.replace('DynamicUser', [`User=${user}`]);
  if (groups.length > 0) {
    unit.after('UMask', ['# Those that may use the GPUs.', `SupplementaryGroups=${groups.join(' ')}`]);
  }
  setDirectories(unit, options);
  const { host, httpPort, grpcPort, metricsPort } = settings;
  const ports = host.startsWith('unix:') ? [grpcPort, metricsPort] : [httpPort, grpcPort, metricsPort];
  if (ports.some((port) => port !== 'none' && port > 0 && port < PORT_UNPRIVILEGED_MIN)) {
    unit.replace('CapabilityBoundingSet', [
      `# For a port below ${PORT_UNPRIVILEGED_MIN}.`,
      'CapabilityBoundingSet=CAP_NET_BIND_SERVICE',
      'AmbientCapabilities=CAP_NET_BIND_SERVICE',
    ]);
  }
  return unit.text;
}

/** Directories of the settings that the service writes to, besides those that systemd makes for it. */
export function writableDirectories(settings: ServerSettings, cwd: string): string[] {
  const { origins, cacheDir, runtimeDir } = settings;
  const directories = [
    ...(origins.cacheDir.source === 'default' ? [] : [cacheDir]),
    ...(origins.runtimeDir.source === 'default' ? [] : [runtimeDir]),
    ...(settings.host.startsWith('unix:') ? [dirname(hostOf(settings.host, cwd).slice('unix:'.length))] : []),
  ];
  return [...new Set(directories)].filter((path) => !OWN_DIRECTORIES.some((own) => `${path}/`.startsWith(`${own}/`)));
}

/** Directories that the settings name take the place of the service's own. */
function setDirectories(unit: Unit, { settings, cwd }: UnitOptions): void {
  const replaced = (['cacheDir', 'runtimeDir'] as const).filter((name) => settings.origins[name].source !== 'default');
  const variables = replaced.map((name) => `${settingRow(name).env}=`);
  const kept = unit.get('Environment').filter((value) => !variables.some((variable) => value.startsWith(variable)));
  unit.set('Environment', kept);
  const writable = writableDirectories(settings, cwd);
  if (writable.length > 0) unit.after('ProtectSystem', [`ReadWritePaths=${writable.map(quoted).join(' ')}`]);
}

/** `run` and the options as they were given, with absolute paths. */
function commandLine({ settings, flags, cwd }: UnitOptions): string[] {
  const args = ['run'];
  for (const name of SETTING_NAMES) {
    const given = flags[name];
    if (given === undefined) continue;
    const { flag, kind } = settingRow(name);
    const value = kind.path ? settings[name] : name === 'host' ? hostOf(settings.host, cwd) : given;
    if (flag === undefined) args.push(String(value));
    else if (typeof value === 'boolean') args.push(value ? `--${flag}` : `--${flag}=false`);
    else for (const one of Array.isArray(value) ? value : [value]) args.push(`--${flag}`, String(one));
  }
  return args;
}

function hostOf(host: string, cwd: string): string {
  return host.startsWith('unix:') ? `unix:${resolve(cwd, host.slice('unix:'.length))}` : host;
}

/** A word of a unit file. */
function quoted(text: string): string {
  const escaped = text.replaceAll('%', '%%');
  if (/^[\w@%+=:,./-]+$/.test(escaped)) return escaped;
  const inner = escaped.replaceAll(/["\\]/g, '\\$&').replaceAll(/\p{Cc}/gu, (character) => {
    return `\\x${character.codePointAt(0)!.toString(16).padStart(2, '0')}`;
  });
  return `"${inner}"`;
}

/** A word of a command line, where variables would be replaced too. */
function quotedArgument(text: string): string {
  return quoted(text).replaceAll('$', '$$$$');
}

/** Lines of a unit file, changed by directive. A comment belongs to the directive below it. */
class Unit {
  #lines: string[];

  constructor(text: string) {
    this.#lines = text.split('\n');
  }

  get text(): string {
    return this.#lines.join('\n');
  }

  /** Other lines before the first empty one. */
  header(lines: readonly string[]): void {
    this.#lines.splice(0, this.#lines.indexOf(''), ...lines);
  }

  get(key: string): string[] {
    return this.#lines.filter((line) => line.startsWith(`${key}=`)).map((line) => line.slice(key.length + 1));
  }

  /** New values, in the place of the first; the comment stays. */
  set(key: string, values: readonly string[]): void {
    const at = this.#find(key);
    this.#lines = this.#lines.filter((line, n) => n === at || !line.startsWith(`${key}=`));
    this.#lines.splice(at, 1, ...values.map((value) => `${key}=${value}`));
  }

  /** Other lines instead of a directive and its comment. */
  replace(key: string, lines: readonly string[]): void {
    const at = this.#find(key);
    const start = this.#commentStart(at);
    this.#lines.splice(start, at - start + 1, ...lines);
  }

  remove(key: string): void {
    this.replace(key, []);
  }

  after(key: string, lines: readonly string[]): void {
    this.#lines.splice(this.#find(key) + 1, 0, ...lines);
  }

  #find(key: string): number {
    const at = this.#lines.findIndex((line) => line.startsWith(`${key}=`));
    if (at < 0) throw new Error(`the unit's template has no ${key}: this is a bug`);
    return at;
  }

  #commentStart(at: number): number {
    let start = at;
    while (start > 0 && this.#lines[start - 1]!.startsWith('#')) start--;
    return start;
  }
}
