/**
 * Load for HTTP servers: one request over and over on a fixed number of connections, each of which sends the next one when it has its answer.
 *
 * Two generators: wrk, where it is installed (Debian's package `wrk`), else our own over raw sockets, in a process of its own either way. An answer other
 * than 200, or none, is an error: a server that refuses quickly must not look fast.
 */
import { execFile, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { type CleanUp, temporaryDirectory } from '../support/repository.ts';
import { PROJECT_DIR } from '../support/server.ts';
import { BenchChild } from './child.ts';
import type { LoadReport } from './load-count.ts';
import type { LoadJob } from './load-worker.ts';
import { cpuUs, endedChildrenCpuUs } from './process-cost.ts';

export interface LoadResult extends LoadReport {
  /** Processor time of the generator. */
  readonly loadCpuUs: number;
}

export interface LoadGenerator {
  /** As reports name it. */
  readonly name: string;
  /** Shortest time that it can send for, seconds. */
  readonly leastS: number;
  /** @throws Error when a request was not answered with 200. */
  run(job: LoadJob): Promise<LoadResult>;
}

export const LOAD_KINDS = ['auto', 'wrk', 'builtin'] as const;
export type LoadKind = (typeof LOAD_KINDS)[number];

/** @throws Error when wrk is asked for and not there. */
export function loadGenerator(kind: LoadKind, cleanUp: CleanUp): LoadGenerator {
  const version = kind === 'builtin' ? undefined : wrkVersion();
  if (version !== undefined) return new Wrk(version, cleanUp);
  if (kind === 'wrk') throw new Error('wrk is not installed; Debian has it as the package wrk');
  return new BuiltIn(cleanUp);
}

/** What `wrk -v` says, such as `wrk debian/4.1.0`; undefined without wrk. */
export function wrkVersion(): string | undefined {
  // It prints its version and its help, and exits with 1.
  const { error, stdout } = spawnSync('wrk', ['-v'], { encoding: 'utf8' });
  return error === undefined ? /^wrk \S+/.exec(stdout)?.[0] : undefined;
}

/** Time for wrk beyond that of the load itself. */
const WRK_GRACE_MS = 20_000;

class Wrk implements LoadGenerator {
  readonly name: string;
  /** It takes whole seconds only. */
  readonly leastS = 1;
  readonly #dir: string;

  constructor(version: string, cleanUp: CleanUp) {
    this.name = version;
    this.#dir = temporaryDirectory(cleanUp, 'wrk');
  }

  async run({ url, headers, body, connections, seconds }: LoadJob): Promise<LoadResult> {
    const bodyFile = path.join(this.#dir, 'body');
    fs.writeFileSync(bodyFile, body);
    const before = endedChildrenCpuUs();
    const wholeSeconds = Math.max(this.leastS, Math.round(seconds));
    const script = path.join(PROJECT_DIR, 'test/bench/wrk-request.lua');
    const args = ['-t', '1', '-c', String(connections), '-d', `${wholeSeconds}s`, '-s', script, url];
    const { stdout } = await promisify(execFile)('wrk', args, {
      timeout: wholeSeconds * 1000 + WRK_GRACE_MS,
      env: {
        ...process.env,
        BENCH_BODY_FILE: bodyFile,
        BENCH_HEADERS: Object.entries(headers)
          .map(([name, value]) => `${name}: ${value}`)
          .join('\n'),
      },
    });
    const report = /^BENCH (.*)$/m.exec(stdout)?.[1];
    if (report === undefined) throw new Error(`wrk gave no report: ${stdout}`);
    const { errors, ...rest } = JSON.parse(report) as LoadReport & { readonly errors: Record<string, number> };
    if (Object.values(errors).some((count) => count > 0)) throw new Error(`${url}: ${JSON.stringify(errors)}`);
    return { ...rest, loadCpuUs: endedChildrenCpuUs() - before };
  }
}

/** Our own generator over HTTP, or another one of this folder. */
export class BuiltIn implements LoadGenerator {
  readonly name = 'built-in generator';
  readonly leastS = 0;
  readonly #child: BenchChild<LoadJob, LoadReport>;

  constructor(cleanUp: CleanUp, program = 'load-worker') {
    this.#child = BenchChild.start(cleanUp, program);
  }

  async run(job: LoadJob): Promise<LoadResult> {
    const before = cpuUs(this.#child.pid);
    const report = await this.#child.ask(job);
    return { ...report, loadCpuUs: cpuUs(this.#child.pid) - before };
  }
}
