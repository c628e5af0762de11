/**
 * A consumer process of the stress test: one thread for each of its instance slots, each of which blocks in the queue and runs batches until it is told to
 * stop. The process ends with its last thread.
 */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { Doorbells } from '../../src/queue/bells.ts';
import { Consumer } from '../../src/queue/consumer.ts';
import { Segment } from '../../src/queue/segment.ts';
import { nowUs } from '../../src/system/clock.ts';
import { openProcessFd } from '../../src/system/memory.ts';
import { dieWithParent } from '../../src/system/process.ts';
import { runBatch } from './queue-run.ts';
import { type ConsumerOrder, type FromChild, MODELS } from './queue-stress-child.ts';
import { Random } from './random.ts';

interface Thread {
  readonly order: ConsumerOrder;
  readonly slot: number;
}

const SLOW_MAX_US = 2000;

function runThread({ order, slot }: Thread): void {
  const segment = Segment.attach(order.reference);
  const bells = new Doorbells(
    segment,
    order.bellFds.map((fd) => openProcessFd(order.parentPid, fd)),
  );
  const model = MODELS[order.model];
  const consumer = new Consumer(segment, slot, bells, model, { maxQueueDelayUs: 0 });
  const random = new Random(order.seed + slot);
  parentPort!.postMessage('up');
  while (!consumer.stopping) {
    const batch = consumer.next();
    if (batch === undefined) continue;
    if (random.chance(order.slowShare)) {
      const until = nowUs() + random.int(1, SLOW_MAX_US);
      while (nowUs() < until);
    }
    runBatch(segment, consumer, batch, model);
    consumer.finish(batch);
  }
}

if (isMainThread) {
  process.once('message', (order: ConsumerOrder) => {
    dieWithParent(order.parentPid);
    let left = order.slots.length;
    for (const slot of order.slots) {
      const thread = new Worker(new URL(import.meta.url), { workerData: { order, slot } satisfies Thread });
      thread.once('message', () => process.send!({ type: 'up' } satisfies FromChild));
      thread.once('exit', () => {
        if (--left === 0) process.disconnect();
      });
    }
  });
} else runThread(workerData as Thread);
