import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  INGRESS_BELL,
  INGRESS_QUEUED_ROWS,
  INGRESS_WAITING,
  INSTANCE_SLEEP,
  INSTANCE_STOP,
} from '../../../src/queue/geometry.ts';
import { census, failQueued, nudge, reclaimIngress, reclaimInstance } from '../../../src/queue/reclaim.ts';
import { STATUS_INTERNAL, STATUS_OK } from '../../../src/queue/result.ts';
import { CLAIM_CLAIMED, claimState, SLAB_SEALED, slabState } from '../../../src/queue/states.ts';
import { NUMBERS, NUMBERS_Y, numbersTicket, type Ticket } from '../../support/queue-models.ts';
import { type QueueRig, withRig } from '../../support/queue-rig.ts';
import { killWhen, stopAt, stopWhen } from '../../support/queue-steps.ts';

let lastId = 0;
function numbers(rig: QueueRig, rows: number, width = 4): Ticket {
  return numbersTicket(rig.layouts, ++lastId, rows, width, [NUMBERS_Y]);
}

test('the census counts slabs by state, queued and running rows, and blocks', () => {
  withRig({ model: NUMBERS, instances: 2 }, (rig) => {
    rig.ingress().ask(numbers(rig, 5));
    rig.ingress().ask(numbers(rig, 2, 5));
    rig.ingress().ask(numbers(rig, 3, 6));
    rig.ingress().ask(numbers(rig, 1, 6));
    rig.instance(0).take();
    rig.instance(0).complete();
    rig.instance(1).take();
    const { slabs, queuedRows, runningRows, usedBytes } = census(rig.segment);
    assert.deepEqual(slabs, { free: 3, filling: 0, open: 1, sealed: 0, running: 1, done: 1, freeing: 0 });
    assert.deepEqual([queuedRows, runningRows, usedBytes], [4, 2, 3 * 65536]);
  });
});

test('reclaiming a process that held nothing changes nothing, and doing it twice neither', () => {
  withRig({ model: NUMBERS, ingresses: 2, instances: 2 }, (rig) => {
    const kept = numbers(rig, 2);
    rig.ingress(1).ask(kept);
    rig.ingress(0).ask(numbers(rig, 3));
    rig.instance(0).take();
    assert.deepEqual(rig.killIngress(0), { claims: 1, slabs: 0 });
    assert.deepEqual(rig.killInstance(0), { requeuedRows: 2, lostRows: 0 });
    assert.deepEqual(reclaimIngress(rig.segment, rig.bells, 0), { claims: 0, slabs: 0 });
    assert.deepEqual(reclaimInstance(rig.segment, rig.bells, 0), { requeuedRows: 0, lostRows: 0 });
    rig.settle();
    assert.equal(kept.status, STATUS_OK);
  });
});

test('the words of a dead process are set back for its successor', () => {
  withRig({ model: NUMBERS, maxRows: 5 }, (rig) => {
    const { i32 } = rig.segment;
    const ingress = rig.segment.ingressLine(0);
    const instance = rig.segment.instanceLine(0);
    rig.ingress().ask(numbers(rig, 5));
    Atomics.store(i32, ingress + INGRESS_WAITING, 1);
    Atomics.store(i32, ingress + INGRESS_BELL, 1);
    rig.killIngress(0);
    for (const word of [INGRESS_QUEUED_ROWS, INGRESS_WAITING, INGRESS_BELL]) assert.equal(i32[ingress + word], 0);
    Atomics.store(i32, instance + INSTANCE_SLEEP, 1);
    Atomics.store(i32, instance + INSTANCE_STOP, 1);
    rig.killInstance(0);
    for (const word of [INSTANCE_SLEEP, INSTANCE_STOP]) assert.equal(i32[instance + word], 0);
    rig.startInstance(0);
    assert.ok(rig.startIngress(0).ask(numbers(rig, 5)), 'the rows of the dead no longer count');
  });
});

test('what a dead instance had settled is forgotten before the batch is run again', () => {
  withRig({ model: NUMBERS, instances: 2 }, (rig) => {
    const ticket = numbers(rig, 2);
    rig.ingress().ask(ticket);
    rig.instance(0).take();
    const batch = rig.instance(0).batch!;
    const { consumer } = rig.instance(0);
    consumer.settle(batch, 0, STATUS_INTERNAL, consumer.message(batch, 'from a former life'));
    rig.killInstance(0);
    const detail = rig.segment.claimDetail(0, 0);
    assert.deepEqual([rig.segment.i32[detail / 4], rig.segment.f64[detail / 8 + 2]], [STATUS_OK, 0]);
    assert.equal(rig.segment.usage().usedBytes, 65536, 'and its result region is given back');
  });
});

test('when nobody will run them any more, queued requests are answered and running ones go on', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    const running = numbers(rig, 8);
    rig.ingress(0).ask(running);
    rig.instance().take();
    const queued = [numbers(rig, 1), numbers(rig, 2, 5), numbers(rig, 8, 6)];
    for (const [n, ticket] of queued.entries()) rig.ingress(n % 2).ask(ticket);
    assert.equal(failQueued(rig.segment, rig.bells, STATUS_INTERNAL), 3);
    rig.settle();
    assert.deepEqual(
      [running, ...queued].map(({ status }) => status),
      [STATUS_OK, STATUS_INTERNAL, STATUS_INTERNAL, STATUS_INTERNAL],
    );
  });
});

test('a request that is being copied while the queue is failed gets an answer too, and its slab stays until then', () => {
  for (let at = 1, reached = true; reached; at++) {
    withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
      const [before, copying] = [numbers(rig, 1), numbers(rig, 2)];
      rig.ingress(1).ask(before);
      reached = stopAt(
        at,
        () => rig.ingress(0).ask(copying),
        () => {
          failQueued(rig.segment, rig.bells, STATUS_INTERNAL);
          const copyUnderWay = claimState(rig.segment.i32[rig.segment.claimIndex(0) + 1]!) === CLAIM_CLAIMED;
          rig.ingress(1).loop();
          assert.equal(before.status, STATUS_INTERNAL);
          const { slabs } = census(rig.segment);
          if (copyUnderWay) assert.equal(slabs.done, 1, `stopped at step ${at}`);
        },
      );
      rig.settle();
      assert.equal(copying.answers, 1, `stopped at step ${at}`);
    });
  }
});

test('failing the queue and the sealing of an instance do not get in each other’s way', () => {
  for (let at = 1, reached = true; reached; at++) {
    withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
      const tickets = [numbers(rig, 1), numbers(rig, 2), numbers(rig, 1, 5)];
      for (const [n, ticket] of tickets.entries()) rig.ingress(n % 2).ask(ticket);
      reached = stopAt(
        at,
        () => failQueued(rig.segment, rig.bells, STATUS_INTERNAL),
        () => rig.settle(),
      );
      rig.settle();
      for (const { answers } of tickets) assert.equal(answers, 1, `stopped at step ${at}`);
    });
  }
});

test('nobody joins a batch that has cost an instance, even if that died before it could close the slab', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    const [first, second] = [numbers(rig, 1), numbers(rig, 2)];
    rig.ingress(0).ask(first);
    const sealed = () => slabState(Atomics.load(rig.segment.i32, rig.segment.slabWords)) === SLAB_SEALED;
    assert.ok(killWhen(sealed, () => rig.instance().take()));
    rig.killInstance(0);
    rig.ingress(1).ask(second);
    assert.equal(second.claim!.slab, 1);
    rig.startInstance(0);
    rig.settle();
    assert.deepEqual([first.status, second.status], [STATUS_OK, STATUS_OK]);
  });
});

test('a claim that its owner was copying when it died is not waited for after the reclaim', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    const kept = numbers(rig, 2);
    rig.ingress(1).ask(kept);
    const claimed = () => claimState(Atomics.load(rig.segment.i32, rig.segment.claimIndex(0) + 1)) === CLAIM_CLAIMED;
    assert.ok(killWhen(claimed, () => rig.ingress(0).ask(numbers(rig, 3))));
    assert.deepEqual(rig.killIngress(0), { claims: 1, slabs: 0 });
    rig.instance().take();
    assert.deepEqual([rig.instance().batch!.rows, rig.instance().batch!.wantedClaims], [5, 1]);
    rig.startIngress(0);
  });
});

test('a ring that a stopped process owes is made good by the supervisor’s look', () => {
  withRig({ model: NUMBERS, instances: 2 }, (rig) => {
    const [first, second] = [numbers(rig, 8), numbers(rig, 8)];
    rig.ingress().ask(first);
    rig.ingress().ask(second);
    rig.instance(0).take();
    const bell = rig.segment.ingressLine(0) + INGRESS_BELL;
    const stopped = stopWhen(
      () => Atomics.load(rig.segment.i32, bell) === 1, // set, and the byte not yet written
      () => rig.instance(0).complete(),
      () => {
        rig.instance(1).take();
        rig.instance(1).complete();
        assert.equal(rig.ingress().loop(), false, 'nobody rings a second time');
        nudge(rig.segment, rig.bells);
        assert.equal(rig.ingress().loop(), true);
        assert.equal(rig.ingress().open.size, 0);
      },
    );
    assert.ok(stopped);
  });
});

test('a wake-up that a stopped process owes is made good by the supervisor’s look', () => {
  withRig({ model: NUMBERS }, (rig) => {
    rig.settle();
    const { i32 } = rig.segment;
    const word = rig.segment.instanceLine(0) + INSTANCE_SLEEP;
    const open = () => census(rig.segment).slabs.open === 1;
    const stopped = stopWhen(
      open,
      () => rig.ingress().ask(numbers(rig, 1)),
      () => {
        assert.equal(Atomics.load(i32, word), 1);
        nudge(rig.segment, rig.bells);
        assert.equal(Atomics.load(i32, word), 0);
      },
    );
    assert.ok(stopped);
  });
});
