/**
 * Child processes of these tests: each runs one program of `fixtures/` and speaks in lines on its standard output.
 *
 * A child is killed when its test ends, however it ends; a test steers by lines and exits, never by time.
 */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';

export interface Child {
  readonly process: ChildProcess;
  readonly pid: number;
  /** Next line of standard output; rejects when there will be none. */
  line(): Promise<string>;
  /** Exit code, or name of the signal. */
  readonly exit: Promise<number | string>;
}

/** Path of a compiled program of `fixtures/`. */
export function fixturePath(name: string): string {
  return fileURLToPath(new URL(`./fixtures/${name}.js`, import.meta.url));
}

/** Runs a program of `fixtures/`; descriptors given become 3, 4 … of the child. */
export function startFixture(t: TestContext, name: string, args: (string | number)[], fds: number[] = []): Child {
  return startCommand(t, [process.execPath, fixturePath(name), ...args.map(String)], {
    stdio: ['pipe', 'pipe', 'inherit', ...fds],
  });
}

export function startCommand(t: TestContext, command: string[], options: SpawnOptions = {}): Child {
  const [file = '', ...args] = command;
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'], ...options });
  const { stdout, pid } = child;
  if (stdout === null || pid === undefined) throw new Error(`cannot start ${command.join(' ')}`);
  const exit = once(child, 'exit').then(([code, signal]: (number | string)[]) => code ?? signal ?? 'unknown');
  const lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
  t.after(async () => {
    child.kill('SIGKILL');
    await exit;
  });
  return {
    process: child,
    pid,
    exit,
    async line() {
      const { done, value } = await lines.next();
      if (done === true) throw new Error(`${command.join(' ')} ended without a further line`);
      return value;
    },
  };
}

/** Lets the event loop turn until `condition` holds. */
export async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
}
