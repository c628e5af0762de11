/**
 * A server started through another program, such as `taskset` or `unshare`, as the `program` of a TestServer: a file that passes signals on and exits as the
 * server does.
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { type CleanUp, temporaryDirectory } from './repository.ts';
import { PROJECT_DIR } from './server.ts';

/** @param command program and arguments, to which node, bin/serve and its arguments are added; it has to replace itself by them. */
export function wrapped(cleanUp: CleanUp, command: readonly string[]): string {
  const file = path.join(temporaryDirectory(cleanUp, 'wrapped'), 'serve.mjs');
  const [program, ...args] = [...command, process.execPath, path.join(PROJECT_DIR, 'bin/serve')];
  fs.writeFileSync(
    file,
    `import { spawn } from 'node:child_process';
     const args = [...${JSON.stringify(args)}, ...process.argv.slice(2)];
     const server = spawn(${JSON.stringify(program)}, args, { stdio: 'inherit' });
     for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => server.kill(signal));
     server.once('exit', (code, signal) => (signal === null ? process.exit(code) : process.kill(process.pid, 'SIGKILL')));`,
  );
  return file;
}

/** Why a program cannot be used here, or undefined where it can. */
export function whyUnusable(command: readonly string[]): string | undefined {
  const [program = '', ...args] = command;
  const { error, status, stderr } = spawnSync(program, args, { encoding: 'utf8' });
  if (error !== undefined) return `${program}: ${error.message}`;
  return status === 0 ? undefined : `${command.join(' ')}: ${stderr.trim() || `exit code ${status}`}`;
}
