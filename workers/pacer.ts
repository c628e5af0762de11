/** Entry of the load generator's pacing thread, see src/load/pacer.ts. Its one message is the start of the plan. */
import { parentPort, workerData } from 'node:worker_threads';
import { ringWhenDue } from '../src/load/pacer.ts';

const port = parentPort!;
port.once('message', (startMs: number) => ringWhenDue(workerData, startMs, () => port.postMessage(0)));
