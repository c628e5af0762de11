/**
 * The other side of queue-cost.ts: an instance of the queue in a thread, or something that answers messages, as a thread or as a process. Each does no work
 * of its own: what is measured is the way there and back.
 */
import { isMainThread, type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { Doorbells } from '../../src/queue/bells.ts';
import { Consumer } from '../../src/queue/consumer.ts';
import { STATUS_OK } from '../../src/queue/result.ts';
import { Segment, type SegmentReference } from '../../src/queue/segment.ts';
import { signature, tensor } from '../support/queue-models.ts';

/** 256 bytes a row in, 40 bytes a row out. */
export const INPUT_BYTES = 256;
export const OUTPUT_BYTES = 40;
export const MODEL = signature(
  [tensor('x', 'FP32', ['batch', INPUT_BYTES / 4])],
  [tensor('y', 'FP32', ['batch', OUTPUT_BYTES / 4])],
);

/** Without one, a thread answers messages. */
export interface QueuePeer {
  readonly reference: SegmentReference;
  readonly bellFds: readonly number[];
}

function runInstance({ reference, bellFds }: QueuePeer): void {
  const segment = Segment.attach(reference);
  const consumer = new Consumer(segment, 0, new Doorbells(segment, bellFds), MODEL, { maxQueueDelayUs: 0 });
  parentPort!.postMessage('ready');
  while (!consumer.stopping) {
    const batch = consumer.next();
    if (batch === undefined) continue;
    consumer.running(batch);
    for (let claim = 0; claim < batch.claims; claim++) consumer.settle(batch, claim, STATUS_OK, 0);
    consumer.finish(batch);
  }
  segment.close();
}

function answerMessages(port: MessagePort): void {
  const answer = new Uint8Array(OUTPUT_BYTES);
  port.on('message', () => port.postMessage(answer));
  port.postMessage('ready');
}

if (!isMainThread) {
  if (workerData === null) answerMessages(parentPort!);
  else runInstance(workerData as QueuePeer);
} else if (process.send !== undefined && process.argv[1]?.endsWith('queue-cost-peer.js') === true) {
  const answer = new Uint8Array(OUTPUT_BYTES);
  process.on('message', () => process.send!(answer));
  process.send('ready');
}
