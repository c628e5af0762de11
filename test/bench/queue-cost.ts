/**
 * What a request costs in the queue itself (claim → seal → complete → release), beside a worker_threads MessagePort and a child_process IPC channel that carry
 * the same bytes: 256 in, 40 out. Every way starts and ends in the event loop of the main thread; none does any work at the other side.
 *
 * `queue-alone` is the queue without waiting: one thread plays both sides. `c1` is one request at a time, `c64` are 64 under way.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { closeSync } from 'node:fs';
import { Socket } from 'node:net';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { Doorbells, hear } from '../../src/queue/bells.ts';
import { Consumer } from '../../src/queue/consumer.ts';
import { encodeKey, SlabLayout } from '../../src/queue/layout.ts';
import { type Claim, Producer } from '../../src/queue/producer.ts';
import { stopInstance } from '../../src/queue/reclaim.ts';
import { ResultReader, STATUS_OK } from '../../src/queue/result.ts';
import { Segment } from '../../src/queue/segment.ts';
import { nowUs } from '../../src/system/clock.ts';
import { openProcessFd } from '../../src/system/memory.ts';
import { createPipe } from '../../src/system/pipe.ts';
import type { CleanUp } from '../support/repository.ts';
import type { Bench, Benchmark, Measurement } from './benchmark.ts';
import { INPUT_BYTES, MODEL, OUTPUT_BYTES, type QueuePeer } from './queue-cost-peer.ts';

const PEER = new URL('./queue-cost-peer.js', import.meta.url);
const WINDOW = 64;
const BATCH = 16;
const SHAPE = {
  maxBatchRows: 64,
  slabs: 256,
  claimsPerSlab: 64,
  blocks: 512,
  ingressSlots: 1,
  instanceSlots: 1,
  counters: 0,
};

/** A way to the other side and back: `answered` is called once for each send(). */
interface Way {
  send(): void;
  answered: () => void;
}

/** µs per request while `window` requests are under way, over `ms` milliseconds. */
async function measure(way: Way, window: number, ms: number): Promise<number> {
  const started = nowUs();
  const until = started + ms * 1000;
  let sent = 0;
  let answers = 0;
  await new Promise<void>((resolve) => {
    way.answered = () => {
      answers++;
      if (nowUs() < until) {
        sent++;
        way.send();
      } else if (answers === sent) resolve();
    };
    sent = window;
    for (let n = 0; n < window; n++) way.send();
  });
  return (nowUs() - started) / answers;
}

class QueueWay implements Way {
  answered = () => {};
  readonly #segment: Segment;
  readonly #producer: Producer<QueueWay>;
  readonly #reader: ResultReader;
  readonly #layout: SlabLayout;
  readonly #input = [new Uint8Array(INPUT_BYTES)];
  readonly #output = new Uint8Array(OUTPUT_BYTES);
  readonly #deliver = (_way: QueueWay, _claim: Claim<QueueWay>, reader: ResultReader) => {
    this.#output.set(reader.output(0).data);
    this.answered();
  };

  constructor(segment: Segment, bells: Doorbells) {
    this.#segment = segment;
    this.#producer = new Producer(segment, 0, bells, { maxRows: 4096 });
    this.#reader = new ResultReader(segment);
    const key = encodeKey(false, [0], [[INPUT_BYTES / 4]]);
    this.#layout = new SlabLayout(MODEL, key, segment.geometry.claimsPerSlab);
  }

  send(): void {
    if (!this.#producer.admit(1)) throw new Error('not admitted');
    const claim = this.#producer.place(this, this.#layout, 1, this.#input, 0);
    if (claim === undefined || claim === 'full') throw new Error('no space');
  }

  poll(): void {
    hear(this.#segment, 0);
    this.#producer.poll(this.#reader, this.#deliver);
  }
}

/** One thread plays both sides: `batch` requests are placed, run as one and taken back. Returns µs per request. */
function queueAlone(cleanUp: CleanUp): (batch: number, ms: number) => number {
  const segment = Segment.create('bench', SHAPE);
  cleanUp.after(() => segment.close());
  // Nobody reads the doorbell here; a pipe without a reader would only fill up.
  const bells = new Doorbells(segment, []);
  const way = new QueueWay(segment, bells);
  const consumer = new Consumer(segment, 0, bells, MODEL, { maxQueueDelayUs: 0 });
  return (batch, ms) => {
    const started = nowUs();
    const until = started + ms * 1000;
    let requests = 0;
    for (; nowUs() < until; requests += batch) {
      for (let n = 0; n < batch; n++) way.send();
      const sealed = consumer.next()!;
      consumer.running(sealed);
      for (let claim = 0; claim < sealed.claims; claim++) consumer.settle(sealed, claim, STATUS_OK, 0);
      consumer.finish(sealed);
      way.poll();
    }
    return (nowUs() - started) / requests;
  };
}

async function queueThread(cleanUp: CleanUp): Promise<Way> {
  const segment = Segment.create('bench', SHAPE);
  cleanUp.after(() => segment.close());
  const { readFd, writeFd } = createPipe();
  cleanUp.after(() => closeSync(writeFd));
  const bell = new Socket({ fd: readFd, readable: true, writable: false });
  cleanUp.after(() => void bell.destroy());
  const way = new QueueWay(segment, new Doorbells(segment, [writeFd]));
  bell.on('data', () => way.poll());
  const peer: QueuePeer = { reference: segment.reference(), bellFds: [openProcessFd(process.pid, writeFd)] };
  cleanUp.after(() => closeSync(peer.bellFds[0]!));
  const thread = new Worker(PEER, { workerData: peer });
  await new Promise((resolve) => thread.once('message', resolve));
  cleanUp.after(async () => {
    const exit = new Promise((resolve) => thread.once('exit', resolve));
    stopInstance(segment, 0, true);
    await exit;
  });
  return way;
}

async function messagePort(cleanUp: CleanUp): Promise<Way> {
  const thread = new Worker(PEER, { workerData: null });
  cleanUp.after(() => thread.terminate().then(() => {}));
  await new Promise((resolve) => thread.once('message', resolve));
  const input = new Uint8Array(INPUT_BYTES);
  const way: Way = { send: () => thread.postMessage(input), answered: () => {} };
  thread.on('message', () => way.answered());
  return way;
}

async function childIpc(cleanUp: CleanUp): Promise<Way> {
  // The faster of the two serialisations for bytes.
  const child: ChildProcess = fork(fileURLToPath(PEER), { execArgv: [], serialization: 'advanced' });
  cleanUp.after(() => new Promise<void>((resolve) => child.once('exit', () => resolve()).kill('SIGKILL')));
  await new Promise((resolve) => child.once('message', resolve));
  const input = new Uint8Array(INPUT_BYTES);
  const way: Way = { send: () => void child.send(input), answered: () => {} };
  child.on('message', () => way.answered());
  return way;
}

async function run({ size, cleanUp }: Bench): Promise<Measurement[]> {
  const alone = queueAlone(cleanUp);
  const ways: [name: string, way: Way][] = [
    ['queue', await queueThread(cleanUp)],
    ['message_port', await messagePort(cleanUp)],
    ['child_ipc', await childIpc(cleanUp)],
  ];
  // A little of everything in each round, so that what disturbs the machine disturbs all of it.
  const ms = (size.roundS * 1000) / (2 + 2 * ways.length);
  const values = new Map<string, number[]>();
  const note = (name: string, value: number): void => {
    values.set(name, [...(values.get(name) ?? []), value]);
  };
  const round = async (keep: typeof note) => {
    keep('queue-alone.request_us', alone(1, ms));
    keep(`queue-alone-batch${BATCH}.request_us`, alone(BATCH, ms));
    for (const [name, way] of ways) keep(`${name}-c1.round_trip_us`, await measure(way, 1, ms));
    for (const [name, way] of ways) keep(`${name}-c${WINDOW}.request_us`, await measure(way, WINDOW, ms));
  };
  if (size.warmUpS > 0) await round(() => {});
  for (let n = 0; n < size.rounds; n++) await round(note);
  return [...values].map(([name, of]) => ({ name, values: of }));
}

export const QUEUE_COST: Benchmark = {
  name: 'queue-cost',
  about: `a request through the queue, a MessagePort and child_process IPC: ${INPUT_BYTES} bytes there, ${OUTPUT_BYTES} back`,
  run,
};
