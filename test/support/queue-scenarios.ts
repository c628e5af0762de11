/**
 * Situations in which one process does one thing while others are about, for the tests that kill or stop it at every atomic step of that thing.
 *
 * The victim is ingress 0 or instance 0. Ingress 1 and instance 1 are the others; their requests have to be answered whatever happens to the victim.
 */
import { NUMBERS, NUMBERS_R, NUMBERS_Y, numbersTicket, type Ticket, WORDS, wordsTicket } from './queue-models.ts';
import type { QueueRig, RigOptions } from './queue-rig.ts';

export interface Scenario {
  readonly name: string;
  readonly options: RigOptions;
  readonly victim: 'ingress' | 'instance';
  /** Steps below this number would mean that the act did not do what its name says. */
  readonly stepsMin: number;
  /** What was before. */
  prepare(rig: QueueRig): void;
  /** The thing done, by the victim alone. */
  act(rig: QueueRig): void;
}

/** Two rows of the width that wide() takes fill a slab of 2 blocks; the producers' 12 blocks hold six of them. */
const WIDE = 4096;

let lastId = 0;

/** A request to NUMBERS that shares batches with others of its kind. */
export function narrow(rig: QueueRig, rows = 2, outputs: readonly number[] = [NUMBERS_Y, NUMBERS_R]): Ticket {
  return numbersTicket(rig.layouts, ++lastId, rows, 4, outputs);
}
export function wide(rig: QueueRig): Ticket {
  return numbersTicket(rig.layouts, ++lastId, 3, WIDE, [NUMBERS_Y]);
}
export function words(rig: QueueRig, rows = 2): Ticket {
  return wordsTicket(rig.layouts, ++lastId, rows, 40);
}

/** A small request to the rig's model. */
export function small(rig: QueueRig): Ticket {
  return rig.model === WORDS ? words(rig) : narrow(rig);
}

const PAIR = { model: NUMBERS, ingresses: 2, instances: 2 };

/** Everybody idle, instances asleep. */
function rest(rig: QueueRig): void {
  rig.settle();
}

/** Two slabs: two full requests, and the next one waits. */
const TIGHT = { ...PAIR, shape: { slabs: 2 } };

/** A request that takes a slab for itself. */
function full(rig: QueueRig): Ticket {
  return narrow(rig, 8);
}

/** Asks until a request has to wait for space. */
function fill(rig: QueueRig, slot: number, ticket: (rig: QueueRig) => Ticket): void {
  while (rig.ingress(slot).producer.waitingRequests === 0) rig.ingress(slot).ask(ticket(rig));
}

export const SCENARIOS: readonly Scenario[] = [
  {
    name: 'an ingress opens a slab',
    options: PAIR,
    victim: 'ingress',
    stepsMin: 12,
    prepare: rest,
    act: (rig) => rig.ingress(0).ask(narrow(rig)),
  },
  {
    name: 'an ingress joins a slab that another one opened',
    options: PAIR,
    victim: 'ingress',
    stepsMin: 10,
    prepare(rig) {
      rest(rig);
      rig.ingress(1).ask(narrow(rig));
    },
    act: (rig) => rig.ingress(0).ask(narrow(rig)),
  },
  {
    name: 'an ingress joins a slab with BYTES, between two others',
    options: { ...PAIR, model: WORDS },
    victim: 'ingress',
    stepsMin: 10,
    prepare(rig) {
      // Few rows, so that others can still join while it does.
      rig.ingress(1).ask(words(rig, 1));
      rig.ingress(0).ask(words(rig, 1));
    },
    act(rig) {
      rig.ingress(0).ask(words(rig));
    },
  },
  {
    name: 'an ingress finds no space and waits',
    options: PAIR,
    victim: 'ingress',
    stepsMin: 20,
    prepare: (rig) => fill(rig, 1, wide),
    act: (rig) => rig.ingress(0).ask(wide(rig)),
  },
  {
    name: 'an ingress takes results and frees slabs for which another one waits',
    options: TIGHT,
    victim: 'ingress',
    stepsMin: 20,
    prepare(rig) {
      fill(rig, 0, full);
      rig.ingress(1).ask(full(rig));
      while (rig.instance(1).turn() && !rig.instance(1).asleep);
    },
    act: (rig) => rig.ingress(0).loop(),
  },
  {
    name: 'an ingress takes results of a slab that it shares',
    options: PAIR,
    victim: 'ingress',
    stepsMin: 6,
    prepare(rig) {
      rig.ingress(0).ask(narrow(rig));
      rig.ingress(1).ask(narrow(rig));
      rig.instance(1).take();
      rig.instance(1).complete();
    },
    act: (rig) => rig.ingress(0).loop(),
  },
  {
    name: 'an ingress gives up the last claim of a finished slab',
    options: TIGHT,
    victim: 'ingress',
    stepsMin: 10,
    prepare(rig) {
      rig.ingress(0).ask(narrow(rig));
      rig.instance(1).take();
      rig.instance(1).complete();
      fill(rig, 1, full);
    },
    act(rig) {
      for (const ticket of [...rig.ingress(0).open]) rig.ingress(0).giveUp(ticket);
    },
  },
  {
    name: 'an ingress gives up claims that are running',
    options: PAIR,
    victim: 'ingress',
    stepsMin: 2,
    prepare(rig) {
      rig.ingress(0).ask(narrow(rig));
      rig.ingress(1).ask(narrow(rig));
      rig.instance(1).take();
    },
    act(rig) {
      for (const ticket of [...rig.ingress(0).open]) rig.ingress(0).giveUp(ticket);
    },
  },
  {
    name: 'an instance takes a batch, leaves results in a region and hands it over',
    options: PAIR,
    victim: 'instance',
    stepsMin: 25,
    prepare(rig) {
      rest(rig);
      rig.ingress(0).ask(narrow(rig));
      rig.ingress(1).ask(narrow(rig));
      rig.ingress(1).ask(numbersTicket(rig.layouts, ++lastId, 1, 6));
    },
    act(rig) {
      if (rig.instance(0).take()) rig.instance(0).complete();
    },
  },
  {
    name: 'an instance runs BYTES',
    options: { ...PAIR, model: WORDS },
    victim: 'instance',
    stepsMin: 25,
    prepare(rig) {
      rig.ingress(0).ask(words(rig));
      rig.ingress(1).ask(words(rig));
    },
    act(rig) {
      if (rig.instance(0).take()) rig.instance(0).complete();
    },
  },
  {
    name: 'an instance hands over a batch that nobody wants any more, and frees space for which an ingress waits',
    options: TIGHT,
    victim: 'instance',
    stepsMin: 15,
    prepare(rig) {
      rig.ingress(0).ask(full(rig));
      rig.instance(0).take();
      for (const ticket of [...rig.ingress(0).open]) rig.ingress(0).giveUp(ticket);
      fill(rig, 1, full);
    },
    act: (rig) => rig.instance(0).complete(),
  },
  {
    name: 'an instance goes to sleep and is woken',
    options: PAIR,
    victim: 'instance',
    stepsMin: 5,
    prepare: () => {},
    act(rig) {
      rig.instance(0).turn();
      rig.instance(0).turn();
    },
  },
];
