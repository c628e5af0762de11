/**
 * Generations come round: 12 bits in a claim word, 20 in a slab word, 32 in the slab's own. A producer that slept through any number of them must not
 * claim, write or release anything in a slab that is no longer the one it looked at.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { STATUS_OK } from '../../../src/queue/result.ts';
import {
  CLAIM_CLAIMED,
  CLAIM_EMPTY,
  CLAIM_READY,
  claimState,
  SLAB_FREE,
  slabState,
  slabWord,
} from '../../../src/queue/states.ts';
import { NUMBERS, numbersTicket, type Ticket } from '../../support/queue-models.ts';
import { QueueRig, type RigOptions, withRig } from '../../support/queue-rig.ts';
import { killAt, killWhen, stopAt, withSteps } from '../../support/queue-steps.ts';

const CLAIM_GENERATIONS = 1 << 12;
const SLAB_GENERATIONS = 1 << 20;

/** The steps of a request between its admission and the copy of its rows: the look at the slab and at its claims, and the claim itself. */
const JOIN_FROM = 12;
const JOIN_TO = 24;

let lastId = 0;
function numbers(rig: QueueRig, rows: number): Ticket {
  return numbersTicket(rig.layouts, ++lastId, rows, 4);
}

/** Lets a free slab go through generations without doing so. */
function age(rig: QueueRig, slab: number, generations: number): void {
  const { i32, slabWords, slabGenerations } = rig.segment;
  assert.equal(slabState(i32[slabWords + slab]!), SLAB_FREE);
  const generation = (i32[slabGenerations + slab]! + generations) | 0;
  i32[slabGenerations + slab] = generation;
  i32[slabWords + slab] = slabWord(SLAB_FREE, 0, generation);
}

for (const from of [CLAIM_GENERATIONS - 3, SLAB_GENERATIONS - 3, 0x7fffffff - 2, -3]) {
  test(`a slab works through the generations after ${from}`, () => {
    withRig({ model: NUMBERS, ingresses: 2, shape: { slabs: 1 } }, (rig) => {
      age(rig, 0, from);
      for (let use = 0; use < 6; use++) {
        for (const slot of [0, 1]) rig.ingress(slot).ask(numbers(rig, 2));
        rig.settle();
      }
      assert.equal(rig.ingress(0).answered.length, 6);
    });
  });
}

const PAIR: RigOptions = { model: NUMBERS, ingresses: 2, shape: { slabs: 2 } };

/**
 * Ingress 0 joins slab 0, stops at step `at`, and goes on when `others` have had the slab for so many generations that its claim words look the same.
 *
 * @returns whether it has that many steps.
 */
function sleepThrough(at: number, generations: number, others: (rig: QueueRig) => void): boolean {
  const rig = new QueueRig(PAIR);
  try {
    rig.ingress(1).ask(numbers(rig, 1));
    const late = numbers(rig, 3);
    const reached = stopAt(
      at,
      () => rig.ingress(0).ask(late),
      () => {
        const { i32, slabWords } = rig.segment;
        rig.instances.forEach((instance) => {
          while (instance?.turn() === true && !instance.asleep);
        });
        rig.ingress(1).loop();
        // With a claim of its own in it the slab cannot be freed, so it does not age: rule 7.
        if (slabState(i32[slabWords]!) === SLAB_FREE) age(rig, 0, generations - 1);
        others(rig);
      },
    );
    if (rig.ingresses[1] === undefined) {
      rig.killIngress(1);
      rig.startIngress(1);
    }
    rig.finish();
    assert.deepEqual([late.answers, late.status], [1, STATUS_OK]);
    return reached;
  } finally {
    rig.close();
  }
}

for (const generations of [1, CLAIM_GENERATIONS, SLAB_GENERATIONS]) {
  test(`a producer that slept through ${generations} generations at any step claims nothing that is not there`, () => {
    let at = 1;
    try {
      while (sleepThrough(at, generations, (rig) => void rig.ingress(1).ask(numbers(rig, 2)))) at++;
    } catch (error) {
      throw new Error(`stop at step ${at}: ${(error as Error).stack}`, { cause: error });
    }
    assert.ok(at > 12, `only ${at - 1} steps`);
  });
}

test('nor does it when another producer has died while it prepared the slab for the generation that looks the same', () => {
  for (let at = JOIN_FROM; at <= JOIN_TO; at++) {
    let dying = true;
    for (let fatal = 1; dying; fatal++) {
      dying = false;
      try {
        sleepThrough(at, CLAIM_GENERATIONS, (rig) => {
          dying = killAt(fatal, () => rig.ingress(1).ask(numbers(rig, 2)));
          // Not reaped before the sleeper has gone on.
          if (dying) rig.ingresses[1] = undefined;
        });
      } catch (error) {
        throw new Error(`stop at step ${at}, death at step ${fatal}: ${(error as Error).stack}`, { cause: error });
      }
    }
  }
});

/**
 * Ingress 0 joins slab 0 and stops twice. The first time 4096 generations pass and the one that then prepares the slab dies with its claims laid out
 * and is reaped; the second time, others fill the slab.
 */
function stopTwice(first: number, second: number): boolean {
  const rig = new QueueRig({ ...PAIR, ingresses: 3, shape: { slabs: 2 } });
  try {
    const { i32 } = rig.segment;
    const claim = rig.segment.claimIndex(0) + 1;
    rig.ingress(1).ask(numbers(rig, 1));
    const late = numbers(rig, 3);
    const others = [1, 2].map((rows) => numbers(rig, rows));
    let aged = false;
    let claimed = false;
    withSteps(
      (step) => {
        if (step === first) {
          while (rig.instance().turn() && !rig.instance().asleep);
          rig.ingress(1).loop();
          if (slabState(i32[rig.segment.slabWords]!) !== SLAB_FREE) return;
          age(rig, 0, CLAIM_GENERATIONS - 1);
          const laidOut = () => claimState(Atomics.load(i32, claim)) === CLAIM_EMPTY;
          assert.ok(killWhen(laidOut, () => rig.ingress(2).ask(numbers(rig, 1))));
          rig.killIngress(2);
          aged = true;
        } else if (step === second && aged) {
          claimed = claimState(Atomics.load(i32, claim)) === CLAIM_CLAIMED;
          for (const ticket of others) rig.ingress(1).ask(ticket);
        }
      },
      () => rig.ingress(0).ask(late),
    );
    if (claimed) {
      assert.deepEqual(
        others.map(({ claim }) => claim && [claim.slab, claim.index]),
        [
          [0, 0],
          [0, 1],
        ],
      );
      for (const n of [0, 1]) assert.equal(claimState(Atomics.load(i32, rig.segment.claimIndex(0) + n)), CLAIM_READY);
    }
    rig.startIngress(2);
    rig.finish();
    assert.equal(late.answers, 1);
    return claimed;
  } finally {
    rig.close();
  }
}

test('a claim made in a wrong generation is given back without touching what has taken its place meanwhile', () => {
  let claims = 0;
  for (let first = JOIN_FROM; first <= JOIN_TO; first++) {
    for (let second = first + 1; second <= first + 8; second++) {
      try {
        if (stopTwice(first, second)) claims++;
      } catch (error) {
        throw new Error(`stops at steps ${first} and ${second}: ${(error as Error).stack}`, { cause: error });
      }
    }
  }
  assert.ok(claims > 0, 'the claim in the wrong generation was never made: the test does not do what it says');
});
