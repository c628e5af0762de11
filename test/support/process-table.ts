/**
 * Reads /proc to find the processes that a test started: descendants of a process, and every process that carries a mark in its environment, which
 * also finds those whose parent has died.
 */
import fs from 'node:fs';

export interface ProcessEntry {
  readonly pid: number;
  readonly parent: number;
  /** Clock ticks from boot to the start: tells a process from a later one that got the same id. */
  readonly startTicks: number;
}

/** The living processes; zombies, which only wait for their parent, do not count. */
function livingProcesses(): ProcessEntry[] {
  const pids = fs.readdirSync('/proc').filter((entry) => /^\d+$/.test(entry));
  return pids.map((pid) => processEntry(Number(pid))).filter((entry) => entry !== undefined);
}

/** A living process by its id. */
export function processEntry(pid: number): ProcessEntry | undefined {
  const stat = readProc(`/proc/${pid}/stat`);
  // The name, in brackets, may hold anything; the third field, the state, follows its last bracket.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  const [state] = fields;
  if (fields.length < 20 || state === 'Z' || state === 'X') return undefined;
  return { pid, parent: Number(fields[1]), startTicks: Number(fields[19]) };
}

/** Ids of dead children of a process that it has not reaped. */
export function zombiesOf(parent: number): number[] {
  return fs
    .readdirSync('/proc')
    .filter((entry) => /^\d+$/.test(entry))
    .filter((pid) => {
      const stat = readProc(`/proc/${pid}/stat`);
      const [state, ppid] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      return state === 'Z' && Number(ppid) === parent;
    })
    .map(Number);
}

/** Whether this very process still lives. */
export function isAlive(entry: ProcessEntry): boolean {
  return processEntry(entry.pid)?.startTicks === entry.startTicks;
}

/** Living descendants of a process, itself not included. */
export function descendants(pid: number): ProcessEntry[] {
  const table = livingProcesses();
  const family = new Set([pid]);
  const found: ProcessEntry[] = [];
  for (let before = -1; before !== found.length; ) {
    before = found.length;
    for (const entry of table) {
      if (!family.has(entry.parent) || family.has(entry.pid)) continue;
      family.add(entry.pid);
      found.push(entry);
    }
  }
  return found;
}

/** Living processes whose environment, as it was when they started, has `variable=value`. */
export function processesWithEnvironment(variable: string, value: string): ProcessEntry[] {
  const mark = `${variable}=${value}`;
  return livingProcesses().filter(({ pid }) => readProc(`/proc/${pid}/environ`).split('\0').includes(mark));
}

/** What each open file descriptor of a process points at. */
export function openFiles(pid: number): string[] {
  return fs.readdirSync(`/proc/${pid}/fd`).map((fd) => {
    try {
      return fs.readlinkSync(`/proc/${pid}/fd/${fd}`);
    } catch {
      return 'closed meanwhile';
    }
  });
}

/** Memory files (memfd_create) that a process has mapped, by their names and inodes, such as `batchport-rows/1 4711`. */
export function memoryFiles(pid: number): Set<string> {
  // Range, rights, offset, device, inode, path.
  const mapped = readProc(`/proc/${pid}/maps`).matchAll(/^\S+ \S+ \S+ \S+ (\d+) +\/memfd:(.*) \(deleted\)$/gm);
  return new Set([...mapped].map(([, inode, name]) => `${name} ${inode}`));
}

/** Memory files that any process on the machine has mapped. */
export function allMemoryFiles(): Set<string> {
  return new Set(livingProcesses().flatMap(({ pid }) => [...memoryFiles(pid)]));
}

/** Files in /dev/shm by whose names others look for what a server has left there: it makes none. */
export function namedMemoryFiles(): string[] {
  return fs.readdirSync('/dev/shm').filter((name) => /batchport|^bp/i.test(name));
}

export interface TcpConnection {
  readonly localPort: number;
  readonly peerPort: number;
  /** As the kernel numbers it: 1 established, 8 closed by the peer, … */
  readonly state: number;
}

/** A process's TCP connections over IPv4, listening sockets not included. */
export function tcpConnections(pid: number): TcpConnection[] {
  const inodes = new Set(openFiles(pid).map((file) => /^socket:\[(\d+)\]$/.exec(file)?.[1]));
  const [, ...lines] = readProc(`/proc/${pid}/net/tcp`).trim().split('\n');
  return lines.flatMap((line) => {
    // Number, local and remote address as hexadecimal ADDRESS:PORT, state, …; the tenth field is the inode. A listening socket has no peer.
    const fields = line.trim().split(/\s+/);
    const [localPort, peerPort] = [fields[1]!, fields[2]!].map((address) =>
      Number.parseInt(address.split(':')[1]!, 16),
    );
    if (peerPort === 0 || !inodes.has(fields[9])) return [];
    return [{ localPort: localPort!, peerPort: peerPort!, state: Number.parseInt(fields[3]!, 16) }];
  });
}

/** Resident memory of a process in bytes, or 0 when it has ended. */
export function residentBytes(pid: number): number {
  const match = /^VmRSS:\s+(\d+) kB$/m.exec(readProc(`/proc/${pid}/status`));
  return match === null ? 0 : Number(match[1]) * 1024;
}

/** Text of a file of /proc, or '' when the process has ended meanwhile or belongs to another user. */
function readProc(file: string): string {
  try {
    return fs.readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}
