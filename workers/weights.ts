/** Entry of the thread that fetches weights. Started by the supervisor, see src/supervisor/weight-supply.ts. */
import { parentPort, workerData } from 'node:worker_threads';
import { WeightThread } from '../src/weights/thread.ts';

new WeightThread(parentPort!, workerData);
