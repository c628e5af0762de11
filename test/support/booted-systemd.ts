/**
 * A real systemd, booted as PID 1 of a container, for tests of the service: an overlay of this machine's root file system under systemd-nspawn, with a network of
 * its own. The project is at `/opt/batchport` in it, Node.js at `/opt/node/bin/node`.
 *
 * Everything it makes goes with one process: the mounts lie in that process's mount namespace, the container in its PID namespace, and the process dies with the
 * test's, however that ends. Empty control groups and an empty directory are left to remove then, which is done unless the test is killed. Bound: the container's
 * files take at most UPPER_MIB of memory.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { descendants } from './process-table.ts';
import type { CleanUp } from './repository.ts';
import { PROJECT_DIR } from './server.ts';

const UPPER_MIB = 256;
const BOOT_LIMIT_MS = 20_000;
const COMMAND_LIMIT_MS = 20_000;
const POLL_MS = 20;
const OUTPUT_PIECES_MAX = 1000;

/** Programs that are needed, and the Debian packages that have them. */
const PROGRAMS = {
  'systemd-nspawn': 'systemd-container',
  systemctl: 'systemd',
  unshare: 'util-linux',
  nsenter: 'util-linux',
  setpriv: 'util-linux',
  mount: 'mount',
} as const;

const BOOT_SCRIPT = `
set -e
base=$1 upper_mib=$2 machine=$3 project=$4 node=$5
shift 5
mount -t tmpfs -o mode=755,size="$upper_mib"m tmpfs "$base"
mkdir "$base/upper" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/root"
# Of the machine's own: nothing to mount, and no identity to share.
: >"$base/root/etc/fstab"
rm -f "$base/root/etc/machine-id"
: >"$base/root/etc/machine-id"
# Where nspawn keeps its records.
mount -t tmpfs tmpfs /run
for group; do echo $$ >"$group/cgroup.procs"; done
exec systemd-nspawn --quiet --boot --private-network --register=no --keep-unit --link-journal=no --settings=no \\
  --resolv-conf=off --timezone=off --console=pipe --directory="$base/root" --machine="$machine" \\
  --bind-ro="$project:/opt/batchport" --bind-ro="$node:/opt/node/bin/node" systemd.unit=sysinit.target
`;

export interface CommandResult {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

export interface FetchResult {
  /** 0 where there was no answer. */
  readonly status: number;
  readonly body: string;
}

export class BootedSystem {
  readonly #leader: number;

  /** @param leader the container's PID 1, as this machine numbers it */
  constructor(leader: number) {
    this.#leader = leader;
  }

  /** A path of the container, as it is reached from here. */
  path(inside: string): string {
    return path.join(`/proc/${this.#leader}/root`, inside);
  }

  /** Runs a command in the container, as root. */
  run(...command: string[]): CommandResult {
    const { status, stdout, stderr } = spawnSync('nsenter', ['-t', String(this.#leader), '-a', '--', ...command], {
      encoding: 'utf8',
      timeout: COMMAND_LIMIT_MS,
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', SYSTEMD_PAGER: '' },
    });
    return { status: status ?? -1, stdout, stderr };
  }

  /** As `run`. @throws Error when the command fails. */
  must(...command: string[]): string {
    const { status, stdout, stderr } = this.run(...command);
    if (status !== 0) throw new Error(`${command.join(' ')} exited ${status}: ${stderr || stdout}`);
    return stdout;
  }

  /** Properties of a unit, as systemctl shows them. */
  show(unit: string, ...properties: string[]): Record<string, string> {
    const lines = this.must('systemctl', 'show', unit, `--property=${properties.join(',')}`).split('\n');
    return Object.fromEntries(
      lines
        .filter((line) => line.includes('='))
        .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
    );
  }

  /** HTTP requests from inside the container's network, all at once: a GET, or a POST for each body. */
  fetch(url: string, ...bodies: readonly string[]): Promise<FetchResult[]> {
    const program = `
      const [url, ...bodies] = process.argv.slice(1);
      const requests = bodies.length === 0 ? [{}] : bodies.map((body) => ({ method: 'POST', body }));
      const answers = requests.map((request) =>
        fetch(url, request)
          .then(async (answer) => ({ status: answer.status, body: await answer.text() }))
          .catch((error) => ({ status: 0, body: String(error.cause ?? error) })));
      Promise.all(answers).then((results) => process.stdout.write(JSON.stringify(results)));`;
    const args = ['-t', String(this.#leader), '-n', '--', process.execPath, '-e', program, url, ...bodies];
    const child = spawn('nsenter', args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const timer = setTimeout(() => child.kill('SIGKILL'), COMMAND_LIMIT_MS);
    return new Promise((resolve, reject) => {
      let text = '';
      child.stdout.on('data', (piece) => {
        text += piece;
      });
      child.on('close', () => {
        clearTimeout(timer);
        if (text === '') reject(new Error(`no answer of the client that asks ${url}`));
        else resolve(JSON.parse(text) as FetchResult[]);
      });
    });
  }

  /** The processes of a unit, by their numbers in the container. */
  processesOf(unit: string): number[] {
    const { ControlGroup: group } = this.show(unit, 'ControlGroup');
    if (group === undefined || group === '') return [];
    for (const hierarchy of ['systemd', 'unified', '']) {
      const { status, stdout } = this.run('cat', `/sys/fs/cgroup/${hierarchy}${group}/cgroup.procs`);
      if (status === 0) return stdout.split('\n').filter(Boolean).map(Number);
    }
    return [];
  }
}

/** Boots the container. @returns it, or why there can be none on this machine. */
export async function bootSystem(cleanUp: CleanUp): Promise<BootedSystem | string> {
  const missing = whatIsMissing();
  if (missing !== undefined) return missing;
  const base = fs.mkdtempSync(path.join(os.tmpdir(), 'batchport-systemd-'));
  const machine = path.basename(base).toLowerCase();
  const groups: string[] = [];
  let child: ChildProcess | undefined;
  const output: string[] = [];
  const stop = (): void => {
    process.off('exit', stop);
    child?.kill('SIGKILL');
    for (const group of groups) removeControlGroup(group);
    // Its mounts were in the namespace of the process that is gone: here it is an empty directory.
    fs.rmdirSync(base);
  };
  process.on('exit', stop);
  for (const [signal, number] of [['SIGINT', 2] as const, ['SIGTERM', 15] as const]) {
    process.once(signal, () => process.exit(128 + number));
  }
  try {
    groups.push(...makeControlGroups(machine));
    child = spawn(
      'setpriv',
      [
        ...['--pdeathsig', 'KILL', 'unshare', '--mount', '--propagation', 'private'],
        ...['--pid', '--fork', '--kill-child=KILL', '--mount-proc', 'sh', '-c', BOOT_SCRIPT, 'boot'],
        ...[base, String(UPPER_MIB), machine, PROJECT_DIR, process.execPath, ...groups],
      ],
      { cwd: '/', stdio: ['ignore', 'pipe', 'pipe'] },
    );
    for (const stream of [child.stdout!, child.stderr!]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        if (output.length < OUTPUT_PIECES_MAX) output.push(text);
      });
    }
    const system = await booted(child);
    if (system !== undefined) {
      cleanUp.after(stop);
      return system;
    }
  } catch (error) {
    output.push(String(error));
  }
  stop();
  const lines = output.join('').trim().split('\n').slice(-3).join(' | ');
  return `systemd-nspawn does not boot here: ${lines || 'it says nothing'}`;
}

function whatIsMissing(): string | undefined {
  if (process.getuid?.() !== 0) return 'needs root, to boot a container';
  for (const [program, debian] of Object.entries(PROGRAMS)) {
    const found = ['/usr/bin', '/bin', '/usr/sbin', '/sbin'].some((folder) =>
      fs.existsSync(path.join(folder, program)),
    );
    if (!found) return `needs ${program} (Debian: ${debian})`;
  }
  if (!/\boverlay$/m.test(fs.readFileSync('/proc/filesystems', 'utf8'))) return 'needs the overlay file system';
  return undefined;
}

/** The container once its systemd has nothing left to do; undefined when the process ends or the time passes. */
async function booted(child: ChildProcess): Promise<BootedSystem | undefined> {
  const deadline = Date.now() + BOOT_LIMIT_MS;
  while (child.exitCode === null && child.signalCode === null && Date.now() < deadline) {
    const family = descendants(child.pid!);
    const nspawn = family.find(({ parent }) => parent === child.pid);
    for (const { pid } of family.filter(({ parent }) => parent === nspawn?.pid)) {
      const system = new BootedSystem(pid);
      if (/^(running|degraded)$/m.test(system.run('systemctl', 'is-system-running').stdout)) return system;
    }
    await pause();
  }
  return undefined;
}

/** A group in each hierarchy of this process that systemd may use: nspawn makes its own below it. */
function makeControlGroups(name: string): string[] {
  const groups: string[] = [];
  for (const line of fs.readFileSync('/proc/self/cgroup', 'utf8').trim().split('\n')) {
    const [, controllers, own = '/'] = line.split(':');
    if (controllers !== '' && controllers !== 'name=systemd') continue;
    const roots = controllers === '' ? ['/sys/fs/cgroup/unified', '/sys/fs/cgroup'] : ['/sys/fs/cgroup/systemd'];
    const root = roots.find((folder) => fs.existsSync(path.join(folder, own, 'cgroup.procs')));
    if (root === undefined) continue;
    const group = path.join(root, own, name);
    fs.mkdirSync(group);
    groups.push(group);
  }
  return groups;
}

/** Removes a group and those below it. The kernel takes a moment to let go of the killed processes that were in them. */
function removeControlGroup(group: string): void {
  const deadline = Date.now() + COMMAND_LIMIT_MS;
  for (;;) {
    try {
      for (const child of fs.readdirSync(group, { recursive: true, withFileTypes: true }).reverse()) {
        if (child.isDirectory()) fs.rmdirSync(path.join(child.parentPath, child.name));
      }
      fs.rmdirSync(group);
      return;
    } catch (error) {
      if (Date.now() > deadline) throw error;
      // In the exit of the process nothing can be awaited.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, POLL_MS);
    }
  }
}

function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, POLL_MS));
}
