/** Entry of a JSON thread that dies of texts that say so, and of answers for them. */
import * as json from '../../src/ingress/json-task.ts';

/** In a text: the thread ends while it reads it. */
export const DEADLY_ID = 'the end of a thread';

export function readJson(task: json.ReadTask): unknown {
  if (Buffer.concat(task.pieces).includes(DEADLY_ID)) process.exit(7);
  return json.readJson(task);
}

export function writeJson(task: json.WriteTask): unknown {
  if (task.id === DEADLY_ID) process.exit(7);
  return json.writeJson(task);
}
