/** Piscina's entry for the threads of a model's transform, whose module is loaded with the first call: see src/transform/call.ts. */
import { workerData } from 'node:worker_threads';
import { callTransform, type TransformModule, type TransformTask } from '../src/transform/call.ts';

const { module: url } = workerData as { module: string };
let module: Promise<TransformModule> | undefined;
/** What the module has thrown outside of its calls and is yet to be told: it is nobody's answer, and must not end the thread under the next call. */
let late: string | undefined;
const LATE_MAX = 1000;

for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
  process.on(event, (reason: unknown) => {
    late ??= String(reason instanceof Error ? reason.message : reason).slice(0, LATE_MAX);
  });
}

export async function call(task: TransformTask) {
  module ??= import(url);
  const outcome = await callTransform(module, task);
  if (late === undefined) return outcome;
  const told = { ...outcome, late };
  late = undefined;
  return told;
}
