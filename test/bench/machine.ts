/** Where and of what a result was measured: a number without this is worth nothing. */
import { execFileSync } from 'node:child_process';
import os from 'node:os';
import { PROJECT_DIR } from '../support/server.ts';

export interface Machine {
  /** Short hash; with `+changes` when the working tree differs from it. */
  readonly commit: string;
  readonly node: string;
  readonly cpu: string;
  readonly cores: number;
  readonly memoryBytes: number;
  readonly kernel: string;
  /** Of the last minute, at the start. */
  readonly loadAverage: number;
  readonly at: string;
}

export function thisMachine(): Machine {
  return {
    commit: commit(),
    node: process.version,
    cpu: os.cpus()[0]?.model ?? 'unknown',
    cores: os.availableParallelism(),
    memoryBytes: os.totalmem(),
    kernel: os.release(),
    loadAverage: Math.round(os.loadavg()[0]! * 100) / 100,
    at: new Date().toISOString(),
  };
}

function commit(): string {
  const git = (...args: string[]) =>
    execFileSync('git', args, { cwd: PROJECT_DIR, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  try {
    return git('rev-parse', '--short', 'HEAD') + (git('status', '--porcelain') === '' ? '' : '+changes');
  } catch {
    return 'unknown'; // not a clone, or no git
  }
}
