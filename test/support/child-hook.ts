/**
 * Faults inside the child processes of a server, put there from outside: a module that Node loads before anything else (NODE_OPTIONS) and that acts on a flag
 * file or a signal. The server's own code knows nothing of it.
 *
 * Owner: the test; the module and its flags lie in a temporary folder that goes with it.
 */
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { type CleanUp, temporaryDirectory } from './repository.ts';

export type ChildRole = 'device' | 'ingress';

/** Signal that makes a hooked child's event loop stand still for good. */
export const STALL_SIGNAL = 'SIGUSR2';
/** Signal that makes it take memory until something ends it. */
export const GREED_SIGNAL = 'SIGWINCH';

export class ChildHook {
  readonly #dir: string;
  /** For the server's environment. */
  readonly env: Readonly<Record<string, string>>;

  constructor(cleanUp: CleanUp) {
    this.#dir = temporaryDirectory(cleanUp, 'hook');
    const file = path.join(this.#dir, 'hook.mjs');
    fs.writeFileSync(file, hookSource(this.#dir));
    this.env = { NODE_OPTIONS: `--import=${pathToFileURL(file).href}` };
  }

  /** From now on every child of this role that starts crashes at once (SIGSEGV). */
  crashAtStart(role: ChildRole): void {
    fs.writeFileSync(path.join(this.#dir, role), '');
  }

  /** From now on children of this role that start do nothing at all until `letGo`. */
  holdAtStart(role: ChildRole): void {
    fs.writeFileSync(path.join(this.#dir, `${role}.held`), '');
  }

  letGo(role: ChildRole): void {
    fs.rmSync(path.join(this.#dir, `${role}.held`), { force: true });
  }

  /** Children of this role start as they should again. */
  mend(role: ChildRole): void {
    fs.rmSync(path.join(this.#dir, role), { force: true });
  }
}

function hookSource(dir: string): string {
  return `
    import fs from 'node:fs';
    import path from 'node:path';
    import { isMainThread } from 'node:worker_threads';
    const role = path.basename(process.argv[1] ?? '', '.js');
    if (isMainThread && (role === 'device' || role === 'ingress')) {
      if (fs.existsSync(path.join(${JSON.stringify(dir)}, role))) process.kill(process.pid, 'SIGSEGV');
      process.on('${STALL_SIGNAL}', () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0));
      const hoard = [];
      process.on('${GREED_SIGNAL}', () => { for (;;) hoard.push(Buffer.alloc(2 ** 24, 1)); });
      const held = path.join(${JSON.stringify(dir)}, role + '.held');
      while (fs.existsSync(held)) await new Promise((resolve) => setTimeout(resolve, 5));
    }
  `;
}
