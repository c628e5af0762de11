import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { encodeKey, SlabLayout } from '../../../src/queue/layout.ts';
import { OVERTAKING_MAX, PRIORITY_LEVELS_MAX } from '../../../src/queue/states.ts';
import { NUMBERS, NUMBERS_Y, numbersTicket, type Ticket } from '../../support/queue-models.ts';
import { type QueueRig, SMALL_SHAPE, withRig } from '../../support/queue-rig.ts';
import { seedFromEnv } from '../../support/random.ts';

let lastId = 0;
/** A request that fills a slab. */
function full(rig: QueueRig, level: number): Ticket {
  return numbersTicket(rig.layouts, ++lastId, SMALL_SHAPE.maxBatchRows, 4, [NUMBERS_Y], level);
}

/** Runs one batch. @returns its level */
function runOne(rig: QueueRig): number {
  rig.instance().take();
  const { level } = rig.instance().batch!.layout;
  rig.instance().complete();
  rig.ingress().loop();
  return level;
}

describe('a batch of urgent rows', () => {
  test('runs before those that were there first', () => {
    withRig({ model: NUMBERS }, (rig) => {
      for (const level of [2, 2, 1, 0]) assert(rig.ingress().ask(full(rig, level)));
      assert.deepEqual(
        [1, 2, 3, 4].map(() => runOne(rig)),
        [0, 1, 2, 2],
      );
    });
  });

  test('overtakes a waiting one only so many times for each level', () => {
    for (const level of [1, 3]) {
      withRig({ model: NUMBERS }, (rig) => {
        const patient = full(rig, level);
        assert(rig.ingress().ask(patient));
        let overtaken = 0;
        for (; patient.answers === 0 && overtaken <= 10 * OVERTAKING_MAX; overtaken++) {
          assert(rig.ingress().ask(full(rig, 0)));
          runOne(rig);
        }
        // The last round was its own.
        assert.equal(overtaken - 1, level * OVERTAKING_MAX - 1);
        runOne(rig);
      });
    }
  });

  test('does not take rows of another level along', () => {
    withRig({ model: NUMBERS }, (rig) => {
      for (const level of [1, 0, 1, 0])
        assert(rig.ingress().ask(numbersTicket(rig.layouts, ++lastId, 1, 4, [NUMBERS_Y], level)));
      for (const level of [0, 1]) {
        rig.instance().take();
        const { rows, layout } = rig.instance().batch!;
        assert.deepEqual({ rows, level: layout.level }, { rows: 2, level });
        rig.instance().complete();
        rig.ingress().loop();
      }
    });
  });

  test('gets the first space that comes free when there is none', () => {
    withRig({ model: NUMBERS, shape: { ...SMALL_SHAPE, slabs: 2 } }, (rig) => {
      const tickets = [1, 1, 1, 1, 0].map((level) => full(rig, level));
      for (const ticket of tickets) assert(rig.ingress().ask(ticket));
      const order: number[] = [];
      while (order.length < tickets.length) order.push(runOne(rig));
      assert.deepEqual(order, [1, 0, 1, 1, 1]);
    });
  });
});

test('whatever is asked for, no batch waits for more than those before it and those that may overtake it', () => {
  const random = seedFromEnv();
  withRig({ model: NUMBERS, shape: { ...SMALL_SHAPE, slabs: 64, blocks: 128 } }, (rig) => {
    const waiting: { ticket: Ticket; bound: number }[] = [];
    for (let round = 0; round < 2000; round++) {
      if (waiting.length < 40 && random.chance(0.55)) {
        const ticket = full(rig, random.int(0, 3));
        waiting.push({ ticket, bound: waiting.length + ticket.layout.level * OVERTAKING_MAX });
        assert(rig.ingress().ask(ticket));
      } else if (waiting.length > 0) {
        runOne(rig);
        const at = waiting.findIndex(({ ticket }) => ticket.answers > 0);
        assert(at >= 0);
        waiting.splice(at, 1);
        for (const one of waiting) assert(--one.bound >= 0, `round ${round}, ${random}`);
      }
    }
    while (waiting.length > 0) {
      runOne(rig);
      waiting.splice(
        waiting.findIndex(({ ticket }) => ticket.answers > 0),
        1,
      );
    }
  });
});

test('the level is part of a key and not of the costs', () => {
  const of = (level: number) => new SlabLayout(NUMBERS, encodeKey(false, [0], [[5], []], level), 8);
  assert.equal(of(0).hash, of(3).hash);
  assert.notDeepEqual(of(0).key, of(3).key);
  assert.equal(of(PRIORITY_LEVELS_MAX - 1).level, PRIORITY_LEVELS_MAX - 1);
  for (const level of [-1, 0.5, PRIORITY_LEVELS_MAX, Number.NaN]) assert.throws(() => of(level), /no such priority/);
});
