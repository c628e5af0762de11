/**
 * A real server for tests: `bin/serve run` as a child process on free ports.
 *
 * Owns the process and all that it starts. It ends with the test (`cleanUp.after`), and also when the test's process exits or is told to end.
 * After a stop no process of the server may be left: one that is fails the test. Kept output is bounded by `LOG_LINES_MAX`; every wait has a limit.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { Condition } from './condition.ts';
import { descendants, isAlive, type ProcessEntry, processEntry, processesWithEnvironment } from './process-table.ts';
import type { CleanUp } from './repository.ts';

const START_LIMIT_MS = 60_000;
const STOP_LIMIT_MS = 30_000;
/** How long processes of a killed server may take to notice. */
const ORPHAN_LIMIT_MS = 5_000;
const POLL_MS = 10;
const LOG_LINES_MAX = 10_000;
const MARK = 'BATCHPORT_TEST_SERVER';

/** Root of the project; this file runs as dist/test/support/server.js. */
export const PROJECT_DIR = fileURLToPath(new URL('../../..', import.meta.url));

export interface ServerOptions {
  /** Whether to serve gRPC too; off by default. */
  readonly grpc?: boolean;
  /** Model repository to serve. */
  readonly repository?: string;
  /** Further arguments, after the ones made here. */
  readonly args?: readonly string[];
  /** Further environment variables; undefined removes one. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly startLimitMs?: number;
  /** Program to run in the place of bin/serve. */
  readonly program?: string;
  /** Told every line of the log, also of those that are not kept. */
  readonly onLog?: (line: LogLine) => void;
}

/** One line of the log: parsed when it is JSON, otherwise `{ text }`. */
export type LogLine = Readonly<Record<string, unknown>>;

export interface ExitStatus {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** What `GET /status` answers, as far as the helpers here need it. */
export interface ServerStatus {
  readonly processes: readonly ProcessStatus[];
  readonly [key: string]: unknown;
}

export interface ProcessStatus {
  readonly role: string;
  readonly pid: number;
  readonly [key: string]: unknown;
}

const running = new Set<TestServer>();
let exitHooked = false;

/** Kills what is left when the test's process ends early: the children would outlive it otherwise. */
function hookExit(): void {
  if (exitHooked) return;
  exitHooked = true;
  process.on('exit', () => {
    for (const server of running) server.killEverything();
  });
  for (const [signal, number] of [
    ['SIGINT', 2],
    ['SIGTERM', 15],
    ['SIGHUP', 1],
  ] as const) {
    process.once(signal, () => process.exit(128 + number));
  }
}

export class TestServer {
  /** Addresses of the ready line by name, such as `http` and `metrics`. */
  readonly addresses = new Map<string, string>();
  /** Lines of stderr, oldest first; the oldest are dropped beyond the bound. */
  readonly logs: LogLine[] = [];
  /** Lines of stdout. */
  readonly output: string[] = [];
  private readonly child: ChildProcess;
  private readonly mark: string;
  private readonly onLog: ((line: LogLine) => void) | undefined;
  private readonly condition = new Condition();
  /** Every process seen as a descendant, in case one drops the mark from its environment. */
  private readonly seen = new Map<number, ProcessEntry>();
  private exitStatus: ExitStatus | undefined;
  /** Whether the server's pipes are closed, so that every line it wrote is here. */
  private drained = false;

  constructor(options: ServerOptions) {
    this.mark = randomUUID();
    this.onLog = options.onLog;
    const args = [
      'run',
      '--host',
      '127.0.0.1',
      '--http-port',
      '0',
      '--grpc-port',
      options.grpc === true ? '0' : 'none',
    ];
    args.push('--metrics-port', '0');
    if (options.repository !== undefined) args.push('--model-repository', options.repository);
    // Of its own: what another test's server has learnt of the same model, such as what its runs cost, would decide what this one does.
    const cacheDir = path.join(PROJECT_DIR, 'dist/test-cache', this.mark);
    // A test's own process tells its children so; the server is not one of them.
    const env = {
      ...process.env,
      NODE_TEST_CONTEXT: undefined,
      BATCHPORT_CACHE_DIR: cacheDir,
      ...options.env,
      [MARK]: this.mark,
    };
    const program = options.program ?? path.join(PROJECT_DIR, 'bin/serve');
    this.child = spawn(process.execPath, [program, ...args, ...(options.args ?? [])], {
      cwd: PROJECT_DIR,
      env,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.child.once('exit', () => fs.rmSync(cacheDir, { recursive: true, force: true }));
    running.add(this);
    hookExit();
    createInterface({ input: this.child.stderr! }).on('line', (line) => this.keepLog(line));
    createInterface({ input: this.child.stdout! }).on('line', (line) => {
      if (this.output.length < LOG_LINES_MAX) this.output.push(line);
      this.readReadyLine(line);
      this.condition.notify();
    });
    this.child.once('exit', (code, signal) => {
      this.exitStatus = { code, signal };
      this.condition.notify();
    });
    this.child.once('close', () => {
      this.drained = true;
      this.condition.notify();
    });
    this.child.once('error', (error) => {
      this.keepLog(`cannot start: ${error.message}`);
      this.exitStatus = { code: null, signal: null };
      this.drained = true;
      this.condition.notify();
    });
  }

  /** Process id of the supervisor. */
  get pid(): number {
    assert(this.child.pid !== undefined, 'the server never started');
    return this.child.pid;
  }

  /** Base URL of the protocol's listener. */
  get url(): string {
    return this.address('http');
  }

  /** Base URL of the metrics listener. */
  get metricsUrl(): string {
    return this.address('metrics');
  }

  address(name: string): string {
    const address = this.addresses.get(name);
    assert(address !== undefined, `the ready line has no address for ${name}: ${this.output.join(' | ')}`);
    return address;
  }

  /** Exit status, or undefined while the server runs. */
  get exit(): ExitStatus | undefined {
    return this.exitStatus;
  }

  /** Waits for the ready line. @throws Error with the end of the log when the server exits or the time passes first. */
  async ready(limitMs = START_LIMIT_MS): Promise<void> {
    await this.waitFor(limitMs, 'the ready line', () => this.addresses.size > 0 || undefined);
    this.rememberProcesses();
  }

  /** `GET /status` of the metrics listener. */
  async status(): Promise<ServerStatus> {
    const status = (await this.get('/status').then((response) => response.json())) as ServerStatus;
    for (const { pid } of status.processes) this.remember(processEntry(pid));
    return status;
  }

  /** `GET /metrics`. */
  async metrics(): Promise<string> {
    return this.get('/metrics').then((response) => response.text());
  }

  /** Fails unless `GET /healthz` says that the supervisor lives. */
  async assertLive(): Promise<void> {
    await this.get('/healthz');
  }

  /** Sum of a metric's samples whose labels include the given ones; 0 when there is none. */
  async metric(name: string, labels: Readonly<Record<string, string>> = {}): Promise<number> {
    let sum = 0;
    for (const line of (await this.metrics()).split('\n')) {
      const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
      if (match?.[1] !== name) continue;
      const wanted = Object.entries(labels).every(([key, value]) =>
        `,${match[2] ?? ''}`.includes(`,${key}="${value}"`),
      );
      if (wanted) sum += Number(match[3]);
    }
    return sum;
  }

  /** Process ids of one role, from the status; the supervisor is not a child and has its own field. */
  async pids(role: string): Promise<number[]> {
    const { processes } = await this.status();
    return processes.filter((entry) => entry.role === role).map((entry) => entry.pid);
  }

  /** Waits until a log line fits, among those kept and those to come. */
  async log(fits: (line: LogLine) => boolean, limitMs = START_LIMIT_MS): Promise<LogLine> {
    return this.waitFor(limitMs, 'the log line', () => this.logs.find(fits));
  }

  /** Sends a signal to the supervisor. */
  signal(signal: NodeJS.Signals): void {
    this.rememberProcesses();
    this.child.kill(signal);
  }

  /** Waits for the end, and fails when a process of the server is left after it. */
  async ended(limitMs = STOP_LIMIT_MS, orphanLimitMs = ORPHAN_LIMIT_MS): Promise<ExitStatus> {
    try {
      const status = await this.waitFor(limitMs, 'the end of the server', () => this.exitStatus);
      await this.assertNoProcessLeft(orphanLimitMs);
      await this.waitFor(limitMs, 'the end of its output', () => this.drained || undefined);
      return status;
    } finally {
      this.killEverything();
      running.delete(this);
    }
  }

  /** SIGTERM, and the exit status. */
  async stop(limitMs = STOP_LIMIT_MS, orphanLimitMs = ORPHAN_LIMIT_MS): Promise<ExitStatus> {
    this.signal('SIGTERM');
    return this.ended(limitMs, orphanLimitMs);
  }

  /** SIGKILL: what the supervisor started must notice and end too. */
  async kill(): Promise<ExitStatus> {
    this.signal('SIGKILL');
    return this.ended();
  }

  /** Ends every process of the server at once, without asking and without a check. */
  killEverything(): void {
    this.rememberProcesses();
    if (this.exitStatus === undefined) this.child.kill('SIGKILL');
    for (const { pid } of this.leftProcesses()) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It has ended meanwhile.
      }
    }
  }

  private async get(route: string): Promise<Response> {
    const response = await fetch(`${this.metricsUrl}${route}`, { signal: AbortSignal.timeout(10_000) });
    assert.equal(response.status, 200, `GET ${route}`);
    return response;
  }

  private readReadyLine(line: string): void {
    if (!/^batchport (not )?ready /.test(line)) return;
    for (const [, name, address] of line.matchAll(/(\w+)=(\S+)/g)) this.addresses.set(name!, address!);
  }

  private keepLog(text: string): void {
    if (this.logs.length >= LOG_LINES_MAX) this.logs.shift();
    const line = parseLog(text);
    this.logs.push(line);
    this.onLog?.(line);
    this.condition.notify();
  }

  /** Tries again whenever the server writes a line or ends. */
  private waitFor<T>(limitMs: number, what: string, attempt: () => T | undefined): Promise<T> {
    const giveUp = () => (this.drained ? `the server exited ${JSON.stringify(this.exitStatus)}` : undefined);
    const explain = () => {
      const lines = [...this.output.slice(-5), ...this.logs.slice(-20).map((line) => JSON.stringify(line))];
      return `its last lines:\n${lines.join('\n')}`;
    };
    return this.condition.until(limitMs, what, attempt, giveUp, explain);
  }

  private remember(entry: ProcessEntry | undefined): void {
    if (entry !== undefined) this.seen.set(entry.pid, entry);
  }

  private rememberProcesses(): void {
    if (this.exitStatus !== undefined || this.child.pid === undefined) return;
    for (const entry of descendants(this.child.pid)) this.remember(entry);
  }

  /** Processes of the server besides the supervisor that still live. */
  private leftProcesses(): ProcessEntry[] {
    const left = [...processesWithEnvironment(MARK, this.mark), ...[...this.seen.values()].filter(isAlive)];
    const byPid = new Map(left.map((entry) => [entry.pid, entry]));
    if (this.child.pid !== undefined) byPid.delete(this.child.pid);
    return [...byPid.values()];
  }

  private async assertNoProcessLeft(limitMs: number): Promise<void> {
    const deadline = Date.now() + limitMs;
    let left = this.leftProcesses();
    while (left.length > 0 && Date.now() < deadline) {
      // The kernel tells nobody but the parent when a process ends.
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      left = this.leftProcesses();
    }
    assert.deepEqual(left, [], `processes left ${limitMs} ms after the server ended`);
  }
}

/** Starts a server, waits until it is ready, and stops it when the test ends unless the test has done so. */
export async function startServer(cleanUp: CleanUp, options: ServerOptions = {}): Promise<TestServer> {
  const server = launchServer(cleanUp, options);
  await server.ready(options.startLimitMs);
  return server;
}

/** Starts a server without waiting, for tests of the start itself. */
export function launchServer(cleanUp: CleanUp, options: ServerOptions = {}): TestServer {
  const server = new TestServer(options);
  cleanUp.after(async () => {
    if (server.exit !== undefined) await server.ended();
    else assert.deepEqual(await server.stop(), { code: 0, signal: null }, 'exit status after SIGTERM');
  });
  return server;
}

function parseLog(text: string): LogLine {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as LogLine;
  } catch {
    // Not JSON: kept as text.
  }
  return { text };
}
