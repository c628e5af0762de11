import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  INSTANCE_SLEEP,
  SLAB_BLOCKS,
  SLAB_CAPACITY_ROWS,
  SLAB_FIRST_BLOCK,
  SLAB_HEAP_BYTES,
} from '../../../src/queue/geometry.ts';
import { executingSinceUs, stopInstance } from '../../../src/queue/reclaim.ts';
import { STATUS_INTERNAL, STATUS_OK } from '../../../src/queue/result.ts';
import { CLAIM_CLAIMED, CLAIM_STOLEN, claimState, SLAB_DONE, slabState } from '../../../src/queue/states.ts';
import { NUMBERS, NUMBERS_Y, numbersTicket, type Ticket, WORDS, wordsTicket } from '../../support/queue-models.ts';
import { type QueueRig, withRig } from '../../support/queue-rig.ts';
import { stopWhen, withSteps } from '../../support/queue-steps.ts';

let lastId = 0;
function numbers(rig: QueueRig, rows: number, width = 4, outputs?: number[]): Ticket {
  return numbersTicket(rig.layouts, ++lastId, rows, width, outputs);
}

function stateOf(rig: QueueRig, slab: number): number {
  return slabState(Atomics.load(rig.segment.i32, rig.segment.slabWords + slab));
}
function claimStateOf(rig: QueueRig, slab: number, claim: number): number {
  return claimState(Atomics.load(rig.segment.i32, rig.segment.claimIndex(slab) + claim));
}

test('slabs are taken in the order in which they were opened, whatever their place', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const widths = [3, 5, 7];
    for (const width of widths) rig.ingress().ask(numbers(rig, 1, width));
    const taken: number[] = [];
    const run = () => {
      rig.instance().take();
      taken.push(rig.instance().batch!.layout.inputs[0]!.dims[0]!);
      rig.instance().complete();
      rig.ingress().loop();
    };
    run();
    rig.ingress().ask(numbers(rig, 1, 9)); // in the slab that has just come free
    run();
    run();
    run();
    assert.deepEqual(taken, [3, 5, 7, 9]);
  });
});

test('a batch tells where each claim lies', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    for (const [slot, rows] of [
      [0, 2],
      [1, 1],
      [0, 4],
    ] as const) {
      rig.ingress(slot).ask(numbers(rig, rows));
    }
    rig.instance().take();
    const batch = rig.instance().batch!;
    assert.deepEqual([batch.rows, batch.claims, batch.wantedClaims], [7, 3, 3]);
    assert.deepEqual([...batch.firstRow.subarray(0, 3)], [0, 2, 3]);
    assert.deepEqual([...batch.claimRows.subarray(0, 3)], [2, 1, 4]);
    assert.ok(batch.sealedAtUs >= batch.openedAtUs && batch.openedAtUs > 0);
  });
});

test('the time at which an instance began with a batch is seen from outside until the batch is finished', () => {
  withRig({ model: NUMBERS }, (rig) => {
    rig.ingress().ask(numbers(rig, 1));
    assert.equal(executingSinceUs(rig.segment, 0), 0);
    rig.instance().take();
    const { batch } = rig.instance();
    assert.ok(executingSinceUs(rig.segment, 0) >= batch!.openedAtUs, 'from the moment it holds the slab');
    rig.instance().complete();
    assert.equal(executingSinceUs(rig.segment, 0), 0);
  });
});

test('a claim still being copied when its slab is sealed is stolen; its request goes elsewhere and nothing is freed under the copy', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    const [quick, slow] = [numbers(rig, 2), numbers(rig, 3)];
    rig.ingress(1).ask(quick);
    const copying = () => claimStateOf(rig, 0, 1) === CLAIM_CLAIMED;
    const stopped = stopWhen(
      copying,
      () => rig.ingress(0).ask(slow),
      () => {
        rig.instance().take();
        const batch = rig.instance().batch!;
        assert.deepEqual([batch.claims, batch.wantedClaims], [2, 1]);
        rig.instance().complete();
        rig.ingress(1).loop();
        assert.equal(quick.answers, 1, 'the others do not wait for it');
        assert.equal(claimStateOf(rig, 0, 1), CLAIM_STOLEN);
        assert.equal(stateOf(rig, 0), SLAB_DONE);
      },
    );
    assert.ok(stopped);
    assert.equal(slow.claim!.firstRow, 0);
    rig.settle();
    assert.equal(slow.answers, 1);
  });
});

test('a stolen claim whose owner dies is given back by the supervisor', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    rig.ingress(1).ask(numbers(rig, 2));
    let reaped = false;
    const died = () => {
      if (claimStateOf(rig, 0, 1) !== CLAIM_CLAIMED) return false;
      rig.instance().take();
      rig.instance().complete();
      return true;
    };
    assert.throws(
      () =>
        withSteps(
          () => {
            if (!reaped && died()) reaped = true;
            if (reaped) throw new Error('dead');
          },
          () => rig.ingress(0).ask(numbers(rig, 1)),
        ),
      /dead/,
    );
    rig.ingress(1).loop();
    assert.equal(stateOf(rig, 0), SLAB_DONE);
    assert.deepEqual(rig.killIngress(0), { claims: 1, slabs: 0 });
  });
});

test('rows that nobody wants are run with the values of a wanted row', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const tickets = [numbers(rig, 2), numbers(rig, 1), numbers(rig, 2), numbers(rig, 1)];
    for (const ticket of tickets) rig.ingress().ask(ticket);
    const { placement, slab } = tickets[0]!.claim!;
    const base = rig.segment.blockOffset(rig.segment.i32[rig.segment.descriptor(slab) + SLAB_FIRST_BLOCK]!);
    rig.ingress().giveUp(tickets[0]!);
    rig.ingress().giveUp(tickets[2]!);
    // What a dead process would leave of a half-done copy.
    rig.segment.u8.fill(0xff, base + placement.inputs[0]!, base + placement.inputs[0]! + 2 * 16);
    rig.instance().take();
    const ids = new Int32Array(rig.segment.u8.buffer as ArrayBuffer, base + placement.inputs[1]!, 6);
    const wanted = tickets[1]!.id * 8;
    assert.deepEqual([...ids], [wanted, wanted, wanted, wanted, wanted, tickets[3]!.id * 8]);
    const x = new Float32Array(rig.segment.u8.buffer as ArrayBuffer, base + placement.inputs[0]!, 24);
    for (const row of [0, 1, 3, 4]) assert.deepEqual(x.subarray(row * 4, row * 4 + 4), x.subarray(8, 12));
  });
});

test('a slab that is full, by rows or by requests, is taken at once however long it might collect', () => {
  const hour = 3600e6;
  withRig({ model: NUMBERS, maxQueueDelayUs: hour }, (rig) => {
    for (const rows of [5, 3]) rig.ingress().ask(numbers(rig, rows));
    rig.instance().take();
    assert.equal(rig.instance().batch!.rows, 8);
  });
  withRig({ model: NUMBERS, maxQueueDelayUs: hour, shape: { claimsPerSlab: 2 } }, (rig) => {
    for (const rows of [1, 1]) rig.ingress().ask(numbers(rig, rows));
    rig.instance().take();
    assert.equal(rig.instance().batch!.rows, 2);
  });
});

test('a slab taken over from a dead instance is not made to collect again', () => {
  withRig({ model: NUMBERS, maxQueueDelayUs: 3600e6 }, (rig) => {
    for (const rows of [5, 3]) rig.ingress().ask(numbers(rig, rows));
    rig.instance().take();
    rig.ingress().giveUp([...rig.ingress().open][0]!);
    rig.killInstance(0);
    rig.startInstance(0).take();
    assert.equal(rig.instance().batch!.wantedClaims, 1);
  });
});

test('a slab that does not fill up is taken when its time is over', () => {
  withRig({ model: NUMBERS, maxQueueDelayUs: 2000 }, (rig) => {
    rig.ingress().ask(numbers(rig, 1));
    rig.instance().take();
    const batch = rig.instance().batch!;
    assert.ok(batch.sealedAtUs >= batch.openedAtUs + 2000);
  });
});

test('an instance that is told to stop takes nothing more and passes on the wake-up that may have been meant for the queue', () => {
  withRig({ model: NUMBERS, instances: 2 }, (rig) => {
    rig.settle();
    stopInstance(rig.segment, 0, true);
    const sleepWord = rig.segment.instanceLine(1) + INSTANCE_SLEEP;
    rig.instance(1).turn();
    assert.equal(Atomics.load(rig.segment.i32, sleepWord), 1);
    // The producer's wake-up goes to instance 0 alone: it was about to sleep when it was told to stop.
    Atomics.store(rig.segment.i32, rig.segment.instanceLine(0) + INSTANCE_SLEEP, 1);
    rig.ingress().ask(numbers(rig, 1));
    assert.equal(Atomics.load(rig.segment.i32, sleepWord), 1);
    assert.ok(rig.instance(0).consumer.stopping);
    assert.equal(rig.instance(0).consumer.next(), undefined);
    assert.equal(Atomics.load(rig.segment.i32, sleepWord), 0);
    rig.settle();
    assert.equal(rig.ingress().answered.length, 1);
    stopInstance(rig.segment, 0, false);
  });
});

test('a damaged slab is answered as such, not followed, and does not harm the others', () => {
  const damages: [name: string, damage: (rig: QueueRig, slab: number) => void][] = [];
  const descriptor = (field: number, value: number) => (rig: QueueRig, slab: number) => {
    rig.segment.i32[rig.segment.descriptor(slab) + field] = value;
  };
  for (const value of [-1, 1 << 30, 15, 0]) damages.push([`first block ${value}`, descriptor(SLAB_FIRST_BLOCK, value)]);
  for (const value of [-1, 0, 3, 1 << 30]) damages.push([`${value} blocks`, descriptor(SLAB_BLOCKS, value)]);
  for (const value of [-1, 0, 9, 1 << 30]) damages.push([`capacity ${value}`, descriptor(SLAB_CAPACITY_ROWS, value)]);
  for (const value of [-1, 1 << 30]) damages.push([`heap of ${value}`, descriptor(SLAB_HEAP_BYTES, value)]);
  damages.push([
    'hash',
    (rig, slab) => rig.segment.i32.fill(12345, rig.segment.slabHashes + slab, rig.segment.slabHashes + slab + 1),
  ]);
  for (const word of [0, 1, 2, 3, 4, 5]) {
    for (const value of [Number.NaN, -1, 1e300, 0.5, 7]) {
      damages.push([
        `key word ${word} = ${value}`,
        (rig, slab) => {
          const first = rig.segment.i32[rig.segment.descriptor(slab) + SLAB_FIRST_BLOCK]!;
          rig.segment.f64[rig.segment.blockOffset(first) / 8 + word] = value;
        },
      ]);
    }
  }
  for (const [name, damage] of damages) {
    withRig({ model: NUMBERS }, (rig) => {
      const [before, damaged, after] = [numbers(rig, 2, 5), numbers(rig, 1), numbers(rig, 1, 6)];
      for (const ticket of [before, damaged, after]) rig.ingress().ask(ticket);
      damage(rig, damaged.claim!.slab);
      rig.settle();
      assert.deepEqual(
        [before, damaged, after].map(({ status }) => status),
        [STATUS_OK, STATUS_INTERNAL, STATUS_OK],
        name,
      );
      assert.deepEqual(
        [before, damaged, after].map(({ answers }) => answers),
        [1, 1, 1],
      );
    });
  }
});

test('a producer does not join a damaged slab', () => {
  for (const [field, value] of [
    [SLAB_FIRST_BLOCK, 1 << 30],
    [SLAB_BLOCKS, 2],
    [SLAB_CAPACITY_ROWS, 5000],
    [SLAB_HEAP_BYTES, -64],
  ] as const) {
    withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
      const [damaged, other] = [numbers(rig, 1), numbers(rig, 1)];
      rig.ingress(0).ask(damaged);
      rig.segment.i32[rig.segment.descriptor(0) + field] = value;
      rig.ingress(1).ask(other);
      assert.equal(other.claim!.slab, 1);
      rig.settle();
      assert.deepEqual([damaged.status, other.status], [STATUS_INTERNAL, STATUS_OK]);
    });
  }
});

test('a reference to BYTES outside the heap is not followed', () => {
  withRig({ model: WORDS }, (rig) => {
    const ticket = wordsTicket(rig.layouts, 5, 2, 30);
    rig.ingress().ask(ticket);
    rig.instance().take();
    const { consumer } = rig.instance();
    const batch = rig.instance().batch!;
    const at = (batch.base + batch.placement.heapReferences) / 8;
    const [offset, bytes] = [rig.segment.f64[at]!, rig.segment.f64[at + 1]!];
    assert.deepEqual(Buffer.from(consumer.bytesOf(batch, 0, 0)!), Buffer.from(ticket.inputs[0]!));
    for (const wrong of [-1, 0.5, Number.NaN, batch.placement.heapBytes + 1, 1e18, Number.POSITIVE_INFINITY]) {
      rig.segment.f64[at] = wrong;
      assert.equal(consumer.bytesOf(batch, 0, 0), undefined);
      rig.segment.f64[at] = offset;
      rig.segment.f64[at + 1] = wrong;
      assert.equal(consumer.bytesOf(batch, 0, 0), undefined);
      rig.segment.f64[at + 1] = bytes;
    }
  });
});

test('a result waits until space comes free, even when the instance has been told to stop', () => {
  withRig({ model: NUMBERS }, (rig) => {
    rig.ingress().ask(numbers(rig, 2));
    rig.instance().take();
    const batch = rig.instance().batch!;
    const { blocks } = rig.segment.geometry;
    const others = 5;
    assert.equal(rig.segment.allocate(others, blocks - 1, blocks, true), 1);
    stopInstance(rig.segment, 0, true);
    let at = 0;
    withSteps(
      (step) => {
        if (step === 4 * blocks) rig.segment.releaseBlocks(1, blocks - 1);
      },
      () => {
        at = rig.instance().consumer.allocateResult(batch, 100);
      },
    );
    assert.equal(at, rig.segment.blockOffset(blocks - 1));
    stopInstance(rig.segment, 0, false);
  });
});

test('several result regions of a batch are all given back with its slab', () => {
  withRig({ model: NUMBERS }, (rig) => {
    rig.ingress().ask(numbers(rig, 2, 4, [NUMBERS_Y]));
    rig.instance().take();
    const { consumer } = rig.instance();
    const batch = rig.instance().batch!;
    for (const bytes of [100, 100_000, 1]) assert.ok(consumer.allocateResult(batch, bytes) > 0);
    assert.equal(consumer.allocateResult(batch, 1e9), -1, 'more than the segment has');
    assert.equal(rig.segment.usage().usedBytes, 5 * 65536);
  });
});
