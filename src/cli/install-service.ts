/**
 * `install-service`: writes the systemd unit of a server with the given settings, checks it, and says how to start it.
 *
 * It takes the options of `run`; they become the service's command line. Variables of this shell do not: a service does not inherit them. Nothing is started, and a different
 * unit that is already there stays unless --force is given. The file appears whole or not at all.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { BatchportError } from '../config/errors.ts';
import { EXIT, ExitError } from '../config/exit-codes.ts';
import type { ServerSettings } from '../config/settings.ts';
import { resolveSettings } from '../config/settings-resolve.ts';
import { scanRepository } from '../repository/repository.ts';
import { type Command, lastText, valueOption } from './command.ts';
import { checkModelSource } from './model-source.ts';
import { type Access, deviceGroups, obstacle, type ServiceIdentity } from './service-access.ts';
import { renderUnit, writableDirectories } from './service-unit.ts';
import { settingFlags, settingOptions } from './setting-options.ts';
import { printable, type Terminal } from './terminal.ts';

const UNIT = 'batchport.service';
const UNIT_DIRECTORY = '/etc/systemd/system';
// The compiled file lies in dist/src/cli.
const ROOT = fileURLToPath(new URL('../../..', import.meta.url)).replace(/\/$/, '');
const TEMPLATE = join(ROOT, 'config/systemd', UNIT);

export const installServiceCommand: Command = {
  name: 'install-service',
  usage: 'install-service [model]',
  describe: 'Install a systemd service that serves with the given settings',
  positionals: { model: { describe: 'The .onnx file to serve; or give --model-repository' } },
  options: {
    'dry-run': { description: 'Print the unit instead of writing it', type: 'boolean' },
    force: { description: 'Replace a different unit that is there', type: 'boolean' },
    user: valueOption('User to run as', { defaultDescription: 'one that exists only while the service runs' }),
    'unit-dir': valueOption('Directory to write the unit to', { defaultDescription: UNIT_DIRECTORY }),
    ...settingOptions(),
  },
  examples: [
    ['install-service --model-repository /srv/models --dry-run', 'See the unit'],
    ['install-service --model-repository /srv/models --device cuda:0', 'Install it, as root'],
    [
      'install-service --config /etc/batchport.json --user models',
      'Settings from a file, and a user who can read the models',
    ],
  ],
  run: async (args, terminal) => {
    const flags = settingFlags(args);
    const { settings, warnings } = resolveSettings({ flags, env: {}, cwd: terminal.cwd });
    checkModelSource(settings, terminal.cwd, []);
    const groups = deviceGroups(await deviceKinds(settings));
    const user = lastText(args.user);
    const systemdVersion = findSystemdVersion();
    const unit = renderUnit({
      template: readFileSync(TEMPLATE, 'utf8'),
      node: process.execPath,
      root: ROOT,
      settings,
      flags,
      cwd: terminal.cwd,
      user,
      groups,
      systemdVersion,
    });
    const findings = [
      ...warnings,
      ...ignoredVariables(terminal.env),
      ...accessProblems(settings, terminal.cwd, identityOf(user, groups)),
      ...verify(unit),
    ];
    for (const warning of findings) terminal.err(`warning: ${printable(warning)}\n`);
    if (args['dry-run'] === true) {
      terminal.out(unit);
      return EXIT.OK.code;
    }
    const path = join(resolve(terminal.cwd, lastText(args['unit-dir']) ?? UNIT_DIRECTORY), UNIT);
    const written = writeUnit(path, unit, args.force === true);
    terminal.out(`${path} ${written ? 'written' : 'is up to date'}\n${nextSteps()}`);
    return EXIT.OK.code;
  },
};

async function deviceKinds({ devices }: ServerSettings): Promise<string[]> {
  // Imported here: what knows devices brings ONNX Runtime with it.
  const { parseDeviceName } = await import('../runtime/device-name.ts');
  return devices.map((name) => {
    try {
      return parseDeviceName(name).kind;
    } catch (error) {
      if (error instanceof BatchportError) throw new ExitError('DEVICE', error.message);
      throw error;
    }
  });
}

function ignoredVariables(env: Terminal['env']): string[] {
  const set = Object.keys(env).filter((name) => name.startsWith('BATCHPORT_') && env[name] !== '');
  return set.map((name) => `${name} of this shell is not passed on to the service; give the option instead`);
}

/** @throws ExitError USAGE for a user that does not exist. */
function identityOf(user: string | undefined, groups: readonly number[]): ServiceIdentity {
  if (user === undefined) return { uid: undefined, gids: groups };
  const ask = (what: '-u' | '-G'): string => {
    try {
      return execFileSync('id', [what, '--', user], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    } catch {
      const hint = `to make one: useradd --system --shell /usr/sbin/nologin ${user}; or leave --user out`;
      throw new ExitError('USAGE', `--user: there is no user ${JSON.stringify(user)}`, { hint });
    }
  };
  return { uid: Number(ask('-u')), gids: [...groups, ...ask('-G').trim().split(/\s+/).map(Number)] };
}

/** What the service needs and its user cannot get at, one line for each thing in the way. */
function accessProblems(settings: ServerSettings, cwd: string, identity: ServiceIdentity): string[] {
  const { model, modelRepository, config } = settings;
  const read = [process.execPath, join(ROOT, 'bin/serve'), join(ROOT, 'dist/src/cli/main.js')];
  for (const path of [model, modelRepository, config]) if (path !== undefined) read.push(path);
  if (modelRepository !== undefined) {
    for (const { versions } of scanRepository(modelRepository).models) read.push(...versions.map(({ path }) => path));
  }
  const problems = new Map<string, string>();
  const check = (path: string, access: Access): void => {
    const closed = obstacle(path, access, identity);
    if (closed === undefined || problems.has(closed)) return;
    const who = identity.uid === undefined ? 'a user of its own' : 'its user';
    const where = closed === path ? '' : `: ${closed} is closed to it`;
    const hint = identity.uid === undefined ? '; change the permissions or give --user' : '';
    problems.set(closed, `the service runs as ${who}, who cannot ${access} ${path}${where}${hint}`);
  };
  for (const path of read) {
    if (/^\/(var\/)?tmp\//.test(path))
      problems.set(path, `${path} is not there for the service, which has a /tmp of its own`);
    else check(path, 'read');
  }
  for (const path of writableDirectories(settings, cwd)) check(path, 'write');
  return [...problems.values()];
}

function findSystemdVersion(): number | undefined {
  const { stdout } = spawnSync('systemctl', ['--version'], { encoding: 'utf8' });
  const digits = /^systemd (\d+)/.exec(stdout ?? '')?.[1];
  return digits === undefined ? undefined : Number(digits);
}

/**
 * What systemd-analyze remarks about the unit.
 *
 * @throws ExitError FAILURE when it does not accept it.
 */
function verify(unit: string): string[] {
  const directory = mkdtempSync(join(tmpdir(), 'batchport-unit-'));
  try {
    const path = join(directory, UNIT);
    writeFileSync(path, unit);
    const { status, stdout, stderr, error } = spawnSync('systemd-analyze', ['verify', '--man=no', path], {
      encoding: 'utf8',
    });
    if (error !== undefined) return ['systemd-analyze is not here to check the unit; it has not been checked'];
    // It reads the units that this one refers to as well; their faults are not ours.
    const remarks = `${stdout}${stderr}`.split('\n').filter((line) => line.includes(UNIT));
    const shown = remarks.map((line) => line.replaceAll(path, UNIT));
    if (status !== 0 && shown.length > 0) {
      throw new ExitError('FAILURE', `systemd does not accept the unit:\n${shown.join('\n')}`);
    }
    return shown;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** @returns whether there was anything to write. @throws ExitError FAILURE */
function writeUnit(path: string, unit: string, force: boolean): boolean {
  const there = readExisting(path);
  if (there === unit) return false;
  if (there !== undefined && !force) {
    const hint = '--dry-run prints the new one, --force replaces what is there';
    throw new ExitError('FAILURE', `${path} is already there and differs`, { hint });
  }
  const temporary = `${path}.${process.pid}`;
  try {
    writeFileSync(temporary, unit, { mode: 0o644, flag: 'wx' });
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    const { code, message } = error as NodeJS.ErrnoException;
    const hint = code === 'EACCES' ? 'try again as root: sudo …' : undefined;
    throw new ExitError('FAILURE', `cannot write ${path}: ${message}`, { hint, cause: error });
  }
  return true;
}

function readExisting(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw new ExitError('FAILURE', `cannot read ${path}: ${(error as Error).message}`, { cause: error });
  }
}

function nextSteps(): string {
  return [
    'Next:',
    '  systemctl daemon-reload',
    '  systemctl enable --now batchport    # start it, now and at every boot',
    '  systemctl status batchport          # state, models, reasons',
    '  journalctl -u batchport -f          # its log',
    'After a change of this unit: systemctl daemon-reload && systemctl restart batchport',
    '',
  ].join('\n');
}
