/** Runs a command of the command line in this process and keeps what it prints. */
import { main } from '../../../src/cli/main.ts';

export interface Captured {
  readonly exitCode: number;
  readonly out: string;
  readonly err: string;
}

export async function capture(
  args: readonly string[],
  world: { readonly cwd?: string; readonly env?: Record<string, string> } = {},
): Promise<Captured> {
  let out = '';
  let err = '';
  const exitCode = await main(args, {
    out: (text) => {
      out += text;
    },
    err: (text) => {
      err += text;
    },
    env: world.env ?? {},
    cwd: world.cwd ?? process.cwd(),
    columns: undefined,
    errColumns: undefined,
    programPath: '/opt/batchport/bin/serve',
  });
  return { exitCode, out, err };
}
