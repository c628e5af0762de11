/**
 * Whether the module of a transform can be loaded and has its functions: found out in a process of its own, since it is code of somebody else, which may do anything.
 *
 * Bounds: CHECK_MS of time, OUTPUT_MAX_BYTES of output.
 */
import { execFile } from 'node:child_process';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import type { TransformConfig } from '../config/model-config.ts';

const CHECK_MS = 20_000;
const OUTPUT_MAX_BYTES = 64 * 1024;
const SHOWN_MAX = 500;
const ENTRY = fileURLToPath(new URL('../../workers/transform-check.js', import.meta.url));

const run = promisify(execFile);

/** @returns what is wrong with it, in words; undefined for nothing. */
export async function transformProblem(
  file: string,
  { module, inputs, outputs }: TransformConfig,
): Promise<string | undefined> {
  const steps = [...(inputs === undefined ? [] : ['before']), ...(outputs === undefined ? [] : ['after'])];
  const args = [ENTRY, pathToFileURL(file).href, ...steps];
  try {
    const options = { timeout: CHECK_MS, killSignal: 'SIGKILL' as const, maxBuffer: OUTPUT_MAX_BYTES };
    const { stdout } = await run(process.execPath, args, options);
    const { problem } = JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '') as { problem?: string };
    return problem === undefined ? undefined : `its transform ${module} ${problem.slice(0, SHOWN_MAX)}`;
  } catch (error) {
    const { killed, code } = error as { killed?: boolean; code?: unknown };
    const how =
      killed === true
        ? `did not load within ${CHECK_MS / 1000} s`
        : `ended the process that loaded it (${String(code ?? (error as Error).message)})`;
    return `its transform ${module} ${how}`.slice(0, SHOWN_MAX);
  }
}
