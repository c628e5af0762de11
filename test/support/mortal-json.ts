/** Entry of a JSON thread that dies of texts that say so, of answers for them, and of outputs for as many classes as DEADLY_CLASSES. */
import * as json from '../../src/ingress/json-task.ts';
import type { OutputJob } from '../../src/postprocess/process.ts';

/** In a text: the thread ends while it reads it. */
export const DEADLY_ID = 'the end of a thread';

/** In a job: the thread ends instead of doing it. */
export const DEADLY_CLASSES = 9999;

export function processOutputs(jobs: readonly OutputJob[]): unknown {
  if (jobs.some(({ classes }) => classes === DEADLY_CLASSES)) process.exit(7);
  return json.processOutputs(jobs);
}

export function readJson(task: json.ReadTask): unknown {
  if (Buffer.concat(task.pieces).includes(DEADLY_ID)) process.exit(7);
  return json.readJson(task);
}

export function writeJson(task: json.WriteTask): unknown {
  if (task.id === DEADLY_ID) process.exit(7);
  return json.writeJson(task);
}
