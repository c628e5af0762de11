/**
 * A producer process of the stress test: keeps a window of requests under way, checks each answer against the request's own rows, and counts. It looks for
 * results only when its doorbell rings, so a lost ring is a hang.
 */
import { Socket } from 'node:net';
import { Doorbells } from '../../src/queue/bells.ts';
import { STATUS_OK, STATUS_WORKER_LOST } from '../../src/queue/result.ts';
import { Segment } from '../../src/queue/segment.ts';
import { openProcessFd } from '../../src/system/memory.ts';
import { dieWithParent } from '../../src/system/process.ts';
import { Layouts, NUMBERS_R, NUMBERS_Y, numbersTicket, type Ticket, WORDS, wordsTicket } from './queue-models.ts';
import { TestIngress } from './queue-rig.ts';
import {
  type FromChild,
  MODELS,
  type Outcome,
  outcomeIndex,
  type ProducerOrder,
  type ToProducer,
} from './queue-stress-child.ts';
import { Random } from './random.ts';

/** Ids of a slot; far more than can be under way. Small enough that 2 × x + id is exact in FP32. */
const IDS_PER_SLOT = 100_000;
const RETRY_MS = 2;
const FAULTS_MAX = 20;

class ProducerProcess {
  readonly #order: ProducerOrder;
  readonly #segment: Segment;
  readonly #ingress: TestIngress;
  readonly #layouts: Layouts;
  readonly #random: Random;
  readonly #faults: string[] = [];
  #made = 0;
  #finishing = false;
  #retry: NodeJS.Timeout | undefined;

  constructor(order: ProducerOrder) {
    const { slot, parentPid } = order;
    this.#order = order;
    this.#segment = Segment.attach(order.reference);
    const bells = new Doorbells(
      this.#segment,
      order.bellFds.map((fd) => openProcessFd(parentPid, fd)),
    );
    this.#ingress = new TestIngress(this.#segment, slot, bells, -1, order.maxRows);
    this.#layouts = new Layouts(MODELS[order.model], this.#segment.geometry.claimsPerSlab);
    this.#random = new Random(order.seed);
    const bell = new Socket({ fd: openProcessFd(parentPid, order.bellFd), readable: true, writable: false });
    bell.on('data', () => this.#rung());
    process.send!({ type: 'up' } satisfies FromChild);
    this.#fill();
  }

  finish(): void {
    this.#finishing = true;
    this.#endIfDone();
  }

  #count(outcome: Outcome): void {
    this.#segment.f64[outcomeIndex(this.#segment, this.#order.slot, outcome)]!++;
  }

  #rung(): void {
    const ingress = this.#ingress;
    ingress.poll();
    for (const fault of ingress.faults.splice(0)) {
      this.#count(fault.includes('was not open') ? 'twice' : 'wrong');
      if (this.#faults.length < FAULTS_MAX) this.#faults.push(fault);
    }
    for (const { status, answers } of ingress.answered.splice(0)) {
      if (answers !== 1) this.#count('twice');
      else if (status === STATUS_OK) this.#count('right');
      else this.#count(status === STATUS_WORKER_LOST ? 'workerLost' : 'otherStatus');
    }
    this.#fill();
    this.#endIfDone();
  }

  #fill(): void {
    const { window, requests } = this.#order;
    while (!this.#finishing && this.#ingress.open.size < window && this.#made !== requests) {
      const ticket = this.#ticket();
      this.#count('asked');
      if (!this.#ingress.ask(ticket)) {
        // Not made after all. Nobody tells when rows of others leave the queue.
        this.#segment.f64[outcomeIndex(this.#segment, this.#order.slot, 'asked')]!--;
        this.#count('refused');
        this.#retry ??= setTimeout(() => {
          this.#retry = undefined;
          this.#fill();
        }, RETRY_MS);
        return;
      }
      this.#made++;
      if (this.#random.chance(0.01)) {
        this.#ingress.giveUp(this.#random.pick([...this.#ingress.open]));
        this.#count('givenUp');
      }
    }
    // The last one may just have been given up.
    if (this.#made === requests) this.finish();
  }

  #ticket(): Ticket {
    const random = this.#random;
    const id = this.#order.slot * IDS_PER_SLOT + (this.#made % IDS_PER_SLOT);
    const rows = random.int(1, 5);
    if (MODELS[this.#order.model] === WORDS) {
      return wordsTicket(this.#layouts, id, rows, random.pick([0, 3, 60, 3000]));
    }
    if (random.chance(0.01)) return numbersTicket(this.#layouts, id, rows, 4096, [NUMBERS_Y]);
    const outputs = random.pick([[NUMBERS_Y], [NUMBERS_Y, NUMBERS_R]]);
    return numbersTicket(this.#layouts, id, rows, random.int(1, 3), outputs, random.int(0, 1));
  }

  #endIfDone(): void {
    if (!this.#finishing || this.#ingress.open.size > 0) return;
    clearTimeout(this.#retry);
    const message: FromChild = { type: 'done', faults: this.#faults };
    process.send!(message, () => process.exit(0));
  }
}

let producer: ProducerProcess | undefined;
process.on('message', (message: ToProducer) => {
  if (message.type === 'finish') {
    producer?.finish();
    return;
  }
  dieWithParent(message.order.parentPid);
  producer = new ProducerProcess(message.order);
});
