/**
 * A queue with all its parties in one process and one thread: ingresses, instances and the supervisor, each stepped by the test.
 *
 * Waiting is kept honest: an ingress polls only when its doorbell pipe has a byte, an instance that found no work announces its sleep and does nothing
 * until its word is cleared. What settle() leaves undone was therefore a lost wake-up. The rig owns the segment and the pipes; close() ends both.
 */
import assert from 'node:assert/strict';
import { closeSync, readSync } from 'node:fs';
import { cancelSleep, Doorbells, hear, prepareSleep } from '../../src/queue/bells.ts';
import { type Batch, Consumer, type ConsumerOptions } from '../../src/queue/consumer.ts';
import { INSTANCE_SLEEP, type QueueShape } from '../../src/queue/geometry.ts';
import { type Claim, Producer } from '../../src/queue/producer.ts';
import { reclaimIngress, reclaimInstance } from '../../src/queue/reclaim.ts';
import { ResultReader, STATUS_OK } from '../../src/queue/result.ts';
import { Segment } from '../../src/queue/segment.ts';
import { SLAB_OPEN, slabState } from '../../src/queue/states.ts';
import { createPipe, type Pipe } from '../../src/system/pipe.ts';
import type { ModelSignature } from '../../src/tensor/signature.ts';
import { auditIdle } from './queue-audit.ts';
import { Layouts, type Ticket } from './queue-models.ts';
import { runBatch } from './queue-run.ts';

export const SMALL_SHAPE: QueueShape = {
  maxBatchRows: 8,
  slabs: 6,
  claimsPerSlab: 8,
  blocks: 16,
  ingressSlots: 3,
  instanceSlots: 3,
  counters: 0,
};

/** An ingress process: a producer, the requests it has under way and those it has answered. */
export class TestIngress {
  readonly slot: number;
  readonly producer: Producer<Ticket>;
  readonly reader: ResultReader;
  /** Asked and neither answered nor dropped. */
  readonly open = new Set<Ticket>();
  readonly answered: Ticket[] = [];
  /** Wrong answers, in words. */
  readonly faults: string[] = [];
  readonly #segment: Segment;
  readonly #readFd: number;
  readonly #byte = new Uint8Array(64);

  constructor(segment: Segment, slot: number, bells: Doorbells, readFd: number, maxRows: number) {
    this.#segment = segment;
    this.slot = slot;
    this.#readFd = readFd;
    this.reader = new ResultReader(segment);
    this.producer = new Producer<Ticket>(segment, slot, bells, { maxRows }, (ticket, claim) => {
      ticket.claim = claim;
    });
  }

  /** Returns whether the request was admitted. */
  ask(ticket: Ticket): boolean {
    if (!this.producer.admit(ticket.rows)) return false;
    this.open.add(ticket);
    const claim = this.producer.place(ticket, ticket.layout, ticket.rows, ticket.inputs, 0);
    assert.notEqual(claim, 'full');
    if (claim !== undefined && claim !== 'full') ticket.claim = claim;
    return true;
  }

  /** Gives a request up, as for a client that has gone. */
  giveUp(ticket: Ticket): void {
    this.open.delete(ticket);
    if (ticket.claim !== undefined) this.producer.abandon(ticket.claim);
    else assert.ok(this.producer.dropWaiting(ticket));
  }

  /** What the event loop does: nothing, unless the bell has rung. Returns whether it had. */
  loop(): boolean {
    let rung = false;
    try {
      while (readSync(this.#readFd, this.#byte) > 0) rung = true;
    } catch (error) {
      assert.equal((error as NodeJS.ErrnoException).code, 'EAGAIN');
    }
    if (rung) this.poll();
    return rung;
  }

  poll(): void {
    hear(this.#segment, this.slot);
    this.producer.poll(this.reader, (ticket, claim, reader) => this.#deliver(ticket, claim, reader));
  }

  #deliver(ticket: Ticket, claim: Claim<Ticket>, reader: ResultReader): void {
    if (ticket.claim !== claim) this.faults.push(`request ${ticket.id} was answered for a claim it does not have`);
    if (!this.open.delete(ticket)) this.faults.push(`request ${ticket.id} was answered, but was not open`);
    ticket.answers++;
    ticket.status = reader.status;
    this.answered.push(ticket);
    if (reader.status !== STATUS_OK) return;
    const fault = ticket.fault(reader);
    if (fault !== undefined) this.faults.push(`request ${ticket.id}: ${fault}`);
  }
}

/** An instance: a consumer with a model. */
export class TestInstance {
  readonly slot: number;
  readonly consumer: Consumer;
  readonly #segment: Segment;
  readonly #model: ModelSignature;
  /** Set between take() and complete(). */
  batch: Batch | undefined;

  constructor(segment: Segment, slot: number, bells: Doorbells, model: ModelSignature, options: ConsumerOptions) {
    this.#segment = segment;
    this.slot = slot;
    this.#model = model;
    this.consumer = new Consumer(segment, slot, bells, model, options);
  }

  get asleep(): boolean {
    return Atomics.load(this.#segment.i32, this.#segment.instanceLine(this.slot) + INSTANCE_SLEEP) === 1;
  }

  /** Seals a slab if one is open, without blocking. */
  take(): boolean {
    assert.equal(this.batch, undefined);
    if (!hasOpenSlab(this.#segment)) return false;
    this.batch = this.consumer.next();
    return this.batch !== undefined;
  }

  complete(): void {
    const { batch } = this;
    assert.ok(batch);
    runBatch(this.#segment, this.consumer, batch, this.#model);
    this.batch = undefined;
    this.consumer.finish(batch);
  }

  /** One turn of the instance's loop, but that it returns where the real one would block. Returns whether it did anything. */
  turn(): boolean {
    if (this.batch !== undefined) {
      this.complete();
      return true;
    }
    if (this.asleep) return false;
    if (this.take()) return true;
    prepareSleep(this.#segment, this.slot);
    if (hasOpenSlab(this.#segment)) cancelSleep(this.#segment, this.slot);
    return true;
  }
}

export function hasOpenSlab(segment: Segment): boolean {
  for (let slab = 0; slab < segment.geometry.slabs; slab++) {
    if (slabState(Atomics.load(segment.i32, segment.slabWords + slab)) === SLAB_OPEN) return true;
  }
  return false;
}

export interface RigOptions {
  readonly model: ModelSignature;
  readonly shape?: Partial<QueueShape>;
  readonly ingresses?: number;
  readonly instances?: number;
  readonly maxRows?: number;
  readonly maxQueueDelayUs?: number;
}

export class QueueRig {
  readonly model: ModelSignature;
  readonly segment: Segment;
  readonly bells: Doorbells;
  readonly layouts: Layouts;
  readonly ingresses: (TestIngress | undefined)[] = [];
  readonly instances: (TestInstance | undefined)[] = [];
  readonly #options: RigOptions;
  readonly #pipes: Pipe[];

  constructor(options: RigOptions) {
    this.#options = options;
    this.model = options.model;
    this.segment = Segment.create('test', { ...SMALL_SHAPE, ...options.shape });
    this.#pipes = Array.from({ length: this.segment.geometry.ingressSlots }, () => createPipe());
    this.bells = new Doorbells(
      this.segment,
      this.#pipes.map(({ writeFd }) => writeFd),
    );
    this.layouts = new Layouts(options.model, this.segment.geometry.claimsPerSlab);
    for (let slot = 0; slot < (options.ingresses ?? 1); slot++) this.startIngress(slot);
    for (let slot = 0; slot < (options.instances ?? 1); slot++) this.startInstance(slot);
  }

  startIngress(slot: number): TestIngress {
    const { readFd } = this.#pipes[slot]!;
    const ingress = new TestIngress(this.segment, slot, this.bells, readFd, this.#options.maxRows ?? 1000);
    this.ingresses[slot] = ingress;
    return ingress;
  }

  startInstance(slot: number): TestInstance {
    const options = { maxQueueDelayUs: this.#options.maxQueueDelayUs ?? 0 };
    const instance = new TestInstance(this.segment, slot, this.bells, this.#options.model, options);
    this.instances[slot] = instance;
    return instance;
  }

  ingress(slot = 0): TestIngress {
    return this.ingresses[slot]!;
  }
  instance(slot = 0): TestInstance {
    return this.instances[slot]!;
  }

  /** The process is gone, and the supervisor has reaped it. */
  killIngress(slot: number): { claims: number; slabs: number } {
    this.ingresses[slot] = undefined;
    return reclaimIngress(this.segment, this.bells, slot);
  }
  killInstance(slot: number): { requeuedRows: number; lostRows: number } {
    this.instances[slot] = undefined;
    return reclaimInstance(this.segment, this.bells, slot);
  }

  /** Lets everybody go on until nobody has anything to do. */
  settle(): void {
    // Far more turns than any test needs: a livelock fails here instead of hanging.
    for (let turns = 0; turns < 10_000; turns++) {
      let busy = false;
      for (const instance of this.instances) if (instance?.turn() === true) busy = true;
      for (const ingress of this.ingresses) if (ingress?.loop() === true) busy = true;
      if (!busy) return;
    }
    assert.fail('the queue does not come to rest');
  }

  /** Everybody goes on; then no request is unanswered, no answer wrong, and nothing is left in the segment. */
  finish(): void {
    this.settle();
    for (const ingress of this.ingresses) {
      if (ingress === undefined) continue;
      assert.deepEqual(ingress.faults, []);
      assert.deepEqual(
        [...ingress.open].map(({ id }) => id),
        [],
        `requests of ingress ${ingress.slot} are never answered`,
      );
      for (const { id, answers } of ingress.answered) assert.equal(answers, 1, `answers to request ${id}`);
      assert.equal(ingress.producer.pendingSlabs, 0);
      assert.equal(ingress.producer.waitingRequests, 0);
    }
    auditIdle(this.segment);
  }

  close(): void {
    this.segment.close();
    for (const { readFd, writeFd } of this.#pipes) {
      closeSync(readFd);
      closeSync(writeFd);
    }
  }
}

/** Runs a test with a rig; afterwards everything has to be in order. */
export function withRig(options: RigOptions, test: (rig: QueueRig) => void): void {
  const rig = new QueueRig(options);
  try {
    test(rig);
    rig.finish();
  } finally {
    rig.close();
  }
}
