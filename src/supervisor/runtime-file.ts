/**
 * A small file in the runtime directory by which other commands on the host find this server: `server-<pid>.json` with its addresses.
 *
 * Owner: this process; removed when it stops. A file whose process is dead is removed by the next server that starts. Of no importance to serving:
 * what goes wrong here is logged and that is all.
 */
import { lstatSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../config/log.ts';
import { makeDirectory } from '../config/make-directory.ts';

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
        if (pid !== undefined && !isAlive(Number(pid))) rmSync(join(this.#directory, name), { force: true });
      }
      writeFileSync(this.#path, `${JSON.stringify({ pid: process.pid, ...addresses })}\n`, { mode: 0o600 });
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

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
