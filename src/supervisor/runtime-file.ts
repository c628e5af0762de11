/**
 * A small file in the runtime directory by which other commands on the host find this server: `server-<pid>.json` with its addresses.
 *
 * Owner: this process; removed when it stops. A file whose process is dead is removed by the next server that starts, also where its number belongs to another process
 * by then. Of no importance to serving: what goes wrong here is logged and that is all.
 */
import { lstatSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../config/log.ts';
import { makeDirectory } from '../config/make-directory.ts';
import { processStart } from '../system/process-start.ts';

export class RuntimeFile {
  readonly #directory: string;
  readonly #path: string;
  readonly #log: Logger;

  constructor(directory: string, log: Logger) {
    this.#directory = directory;
    this.#path = join(directory, `server-${process.pid}.json`);
    this.#log = log;
  }

  write(addresses: Readonly<Record<string, string>>): void {
    try {
      makeDirectory(this.#directory, 0o700);
      requirePrivate(this.#directory);
      for (const name of readdirSync(this.#directory)) {
        const pid = /^server-(\d{1,10})\.json$/.exec(name)?.[1];
        const path = join(this.#directory, name);
        if (pid !== undefined && !isOfLiving(Number(pid), path)) rmSync(path, { force: true });
      }
      writeFileSync(
        this.#path,
        `${JSON.stringify({ pid: process.pid, started: processStart(process.pid), ...addresses })}\n`,
        { mode: 0o600 },
      );
    } catch (error) {
      this.#log.warn({ err: error, directory: this.#directory }, 'the runtime directory cannot be used');
    }
  }

  remove(): void {
    rmSync(this.#path, { force: true });
  }
}

/** The default may lie in a directory where everybody can write: somebody else may have been there first, with links of theirs. */
function requirePrivate(directory: string): void {
  const { uid, mode } = lstatSync(directory);
  if (uid !== process.getuid?.() || (mode & 0o022) !== 0) {
    throw new Error('it belongs to another user or others may write to it');
  }
}

/** Whether a file is that of a process that lives. One that is being written has nothing in it yet. */
function isOfLiving(pid: number, path: string): boolean {
  const start = processStart(pid);
  if (start === undefined) return false;
  try {
    return (JSON.parse(readFileSync(path, 'utf8')) as { started?: unknown }).started === start;
  } catch {
    return true;
  }
}
