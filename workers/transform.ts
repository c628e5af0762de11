/** Piscina's entry for the threads of a model's transform, whose module is loaded with the first call: see src/transform/call.ts. */
import { workerData } from 'node:worker_threads';
import { callTransform, type TransformModule, type TransformTask } from '../src/transform/call.ts';

const { module: url } = workerData as { module: string };
let module: Promise<TransformModule> | undefined;

export function call(task: TransformTask) {
  module ??= import(url);
  return callTransform(module, task);
}
