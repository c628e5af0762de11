import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BLOCK_BYTES, INGRESS_QUEUED_ROWS, INGRESS_WAITING } from '../../../src/queue/geometry.ts';
import { census } from '../../../src/queue/reclaim.ts';
import {
  MATRIX,
  matrixTicket,
  NUMBERS,
  NUMBERS_Y,
  numbersTicket,
  type Ticket,
  WORDS,
  wordsTicket,
} from '../../support/queue-models.ts';
import { type QueueRig, withRig } from '../../support/queue-rig.ts';
import { seedFromEnv } from '../../support/random.ts';

let lastId = 0;
function numbers(rig: QueueRig, rows: number, width = 4, outputs?: number[]): Ticket {
  return numbersTicket(rig.layouts, ++lastId, rows, width, outputs);
}

/** [slab, first row, rows] of each claim. */
function places(tickets: readonly Ticket[]): (readonly [number, number, number] | undefined)[] {
  return tickets.map(({ claim }) => claim && [claim.slab, claim.firstRow, claim.rows]);
}

function ask(rig: QueueRig, slot: number, tickets: readonly Ticket[]): void {
  for (const ticket of tickets) assert.ok(rig.ingress(slot).ask(ticket));
}

test('requests of one shape share a slab, their rows one behind the other, across ingresses', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    const [a, b, c] = [numbers(rig, 2), numbers(rig, 3), numbers(rig, 1)];
    ask(rig, 0, [a]);
    ask(rig, 1, [b]);
    ask(rig, 0, [c]);
    assert.deepEqual(places([a, b, c]), [
      [0, 0, 2],
      [0, 2, 3],
      [0, 5, 1],
    ]);
  });
});

test('requests of other dimensions, other outputs or another kind never share a slab', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const tickets = [
      numbers(rig, 1, 4),
      numbers(rig, 1, 5),
      numbers(rig, 1, 4, [NUMBERS_Y]),
      numbers(rig, 1, 4),
      numbers(rig, 1, 5),
    ];
    ask(rig, 0, tickets);
    assert.deepEqual(
      tickets.map(({ claim }) => claim?.slab),
      [0, 1, 2, 0, 1],
    );
  });
  withRig({ model: MATRIX }, (rig) => {
    const tickets = [1, 2, 3].map((id) => matrixTicket(rig.layouts, id, 3, 5));
    ask(rig, 0, tickets);
    assert.deepEqual(
      tickets.map(({ claim }) => claim?.slab),
      [0, 1, 2],
      'without a batch dimension each request runs alone',
    );
  });
});

test('a request that does not fit the rest of a slab opens another one, and smaller ones still join the first', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const tickets = [numbers(rig, 6), numbers(rig, 3), numbers(rig, 5), numbers(rig, 2)];
    ask(rig, 0, tickets);
    assert.deepEqual(places(tickets), [
      [0, 0, 6],
      [1, 0, 3],
      [1, 3, 5],
      [0, 6, 2],
    ]);
  });
});

test('a slab takes no more requests than it has claims', () => {
  withRig({ model: NUMBERS, shape: { claimsPerSlab: 3 } }, (rig) => {
    const tickets = [1, 1, 1, 1].map((rows) => numbers(rig, rows));
    ask(rig, 0, tickets);
    assert.deepEqual(
      tickets.map(({ claim }) => [claim?.slab, claim?.index]),
      [
        [0, 0],
        [0, 1],
        [0, 2],
        [1, 0],
      ],
    );
  });
});

test('after its own slab was taken, a producer joins the one another producer has opened, wherever that lies', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    const [own, low, high] = [numbers(rig, 1), numbers(rig, 1, 5), numbers(rig, 1)];
    ask(rig, 0, [low, own]);
    rig.instance().take(); // slab 0
    rig.instance().complete();
    rig.ingress(0).loop();
    rig.instance().take(); // slab 1, the hint of ingress 0
    ask(rig, 1, [high]);
    assert.deepEqual(places([low, own, high]), [
      [0, 0, 1],
      [1, 0, 1],
      [0, 0, 1],
    ]);
    const joined = numbers(rig, 1);
    ask(rig, 0, [joined]);
    assert.deepEqual(places([joined]), [[0, 1, 1]]);
  });
});

test('rows larger than the usual slab get one as large as they need', () => {
  withRig({ model: NUMBERS }, (rig) => {
    // One row in and out: 128 KiB; the usual slab of this segment has 96 KiB.
    const [one, three] = [numbers(rig, 1, 16_384, [NUMBERS_Y]), numbers(rig, 3, 16_384, [NUMBERS_Y])];
    ask(rig, 0, [one]);
    assert.equal(one.claim!.placement.capacityRows, 1);
    assert.equal(one.claim!.placement.blocks, 3);
    ask(rig, 0, [three]);
    assert.equal(three.claim!.placement.capacityRows, 3);
    assert.equal(three.claim!.placement.blocks, 7);
  });
});

test('BYTES of many requests share the heap of a slab until it is used up; large ones get a larger heap', () => {
  withRig({ model: WORDS }, (rig) => {
    const tickets = Array.from({ length: 4 }, (_, n) => wordsTicket(rig.layouts, 14_000 + n, 1, 15_000));
    ask(rig, 0, tickets);
    assert.deepEqual(
      tickets.map(({ claim }) => claim?.slab),
      [0, 0, 1, 1],
      'two of 28 KB each fit 64 KiB',
    );
    const large = wordsTicket(rig.layouts, 99_999, 1, 120_000);
    ask(rig, 0, [large]);
    assert.ok(large.claim!.placement.heapBytes >= large.inputs[0]!.length);
    const empty = wordsTicket(rig.layouts, 0, 2, 0);
    ask(rig, 0, [empty]);
  });
});

test('rows without elements travel as well', () => {
  withRig({ model: NUMBERS }, (rig) => ask(rig, 0, [numbers(rig, 2, 0), numbers(rig, 3, 0)]));
});

test('what does not fit its layout is refused before it is copied over its neighbours', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const { producer } = rig.ingress();
    const ticket = numbers(rig, 2);
    const long = [new Uint8Array(36), ticket.inputs[1]!];
    assert.throws(() => producer.place(ticket, ticket.layout, 2, long, 0), /this is a bug/);
    assert.throws(() => producer.place(ticket, ticket.layout, 3, ticket.inputs, 0), /this is a bug/);
    assert.throws(() => producer.place(ticket, ticket.layout, 0, ticket.inputs, 0), /this is a bug/);
    assert.throws(() => producer.place(ticket, ticket.layout, 2, [ticket.inputs[0]!], 0), /this is a bug/);
    const many = numbers(rig, 9);
    assert.throws(() => producer.place(many, many.layout, 9, many.inputs, 0), /this is a bug/);
  });
});

test('requests wait when no space is left, in order, and are placed when it comes free', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const tickets = Array.from({ length: 10 }, () => numbers(rig, 3, 4096, [NUMBERS_Y]));
    ask(rig, 0, tickets);
    assert.equal(tickets.filter(({ claim }) => claim !== undefined).length, 6, '12 blocks, 2 for each');
    assert.equal(rig.ingress().producer.waitingRequests, 4);
    const later = numbers(rig, 1);
    ask(rig, 0, [later]);
    assert.equal(later.claim, undefined, 'nobody overtakes those that wait');
    const placedAt: number[] = [];
    while (rig.ingress().open.size > 0) {
      rig.instance().take();
      rig.instance().complete();
      rig.ingress().loop();
      placedAt.push(tickets.filter(({ claim }) => claim !== undefined).length);
    }
    assert.deepEqual(placedAt.slice(0, 5), [7, 8, 9, 10, 10]);
    assert.deepEqual(
      rig.ingress().answered.map(({ id }) => id),
      [...tickets, later].map(({ id }) => id),
    );
  });
});

test('requests wait when no slab is left', () => {
  withRig({ model: MATRIX, shape: { maxBatchRows: 1, claimsPerSlab: 1, slabs: 2 } }, (rig) => {
    const tickets = [1, 2, 3].map((id) => matrixTicket(rig.layouts, id, 2, 2));
    ask(rig, 0, tickets);
    assert.equal(rig.ingress().producer.waitingRequests, 1);
  });
});

test('a request given up while it waits lets those behind it try', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const tickets = Array.from({ length: 5 }, () => numbers(rig, 3, 4096, [NUMBERS_Y]));
    ask(rig, 0, tickets); // 10 of the 12 blocks
    const large = numbers(rig, 3, 8192, [NUMBERS_Y]);
    const little = numbers(rig, 1);
    ask(rig, 0, [large, little]);
    assert.deepEqual([large.claim, little.claim], [undefined, undefined]);
    rig.ingress().giveUp(large);
    assert.ok(little.claim);
    assert.equal(Atomics.load(rig.segment.i32, rig.segment.ingressLine(0) + INGRESS_WAITING), 0);
    assert.equal(rig.ingress().producer.dropWaiting(large), false);
  });
});

test('no more bytes are kept for requests that wait than the queue itself holds', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const { producer } = rig.ingress();
    let refused = 0;
    for (let n = 0; n < 40; n++) {
      const ticket = numbers(rig, 3, 4096, [NUMBERS_Y]);
      assert.ok(producer.admit(3));
      const claim = producer.place(ticket, ticket.layout, 3, ticket.inputs, 0);
      if (claim === 'full') refused++;
      else {
        rig.ingress().open.add(ticket);
        if (claim !== undefined) ticket.claim = claim;
      }
    }
    const inputBytes = 3 * (4096 * 4 + 4);
    assert.equal(refused, 40 - 6 - Math.floor(producer.capacityBytes / inputBytes));
    assert.equal(Atomics.load(rig.segment.i32, rig.segment.ingressLine(0) + INGRESS_QUEUED_ROWS), 3 * (40 - refused));
  });
});

test('the bytes a request is said to need are those of the whole blocks it takes', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const { producer } = rig.ingress();
    assert.equal(producer.capacityBytes, 12 * BLOCK_BYTES);
    // The widths around the one whose parts add up to exactly the capacity.
    const needs = [98_272, 98_288].map((width) => {
      const ticket = numbers(rig, 1, width, [NUMBERS_Y]);
      const needed = producer.requestBytes(ticket.layout, 1, ticket.inputs);
      if (needed <= producer.capacityBytes) {
        ask(rig, 0, [ticket]);
        assert.ok(ticket.claim, 'what is said to fit can be placed when nothing else is there');
      } else assert.equal(ticket.layout.place(1, 0).totalBytes, producer.capacityBytes);
      return needed;
    });
    assert.deepEqual(needs, [12 * BLOCK_BYTES, 13 * BLOCK_BYTES]);
  });
});

test('rows of all ingresses together are admitted up to the bound and not one more', () => {
  withRig({ model: NUMBERS, ingresses: 3, maxRows: 20 }, (rig) => {
    const random = seedFromEnv();
    let queued = 0;
    for (let n = 0; n < 60; n++) {
      const rows = random.int(1, 5);
      const ticket = numbers(rig, rows);
      const admitted = rig.ingress(random.int(0, 2)).ask(ticket);
      assert.equal(admitted, queued + rows <= 20, `${rows} more than ${queued}`);
      if (admitted) queued += rows;
      assert.equal(census(rig.segment).queuedRows, queued);
    }
    assert.equal(queued, 20);
    rig.instance().take();
    assert.ok(
      rig.ingress(0).ask(numbers(rig, 1)) || rig.ingress(1).ask(numbers(rig, 1)) || rig.ingress(2).ask(numbers(rig, 1)),
    );
  });
});

test('rows that wait for space count as queued, and rows given up while they waited do not', () => {
  withRig({ model: NUMBERS, maxRows: 24 }, (rig) => {
    const tickets = Array.from({ length: 8 }, () => numbers(rig, 3, 4096, [NUMBERS_Y]));
    ask(rig, 0, tickets);
    const another = numbers(rig, 1);
    assert.equal(rig.ingress().ask(another), false);
    rig.ingress().giveUp(tickets[7]!);
    assert.ok(rig.ingress().ask(another));
  });
});

test('a producer sees at admission which of its own slabs have been taken, without a poll', () => {
  withRig({ model: NUMBERS, maxRows: 4 }, (rig) => {
    ask(rig, 0, [numbers(rig, 4)]);
    assert.equal(rig.ingress().ask(numbers(rig, 1)), false);
    rig.instance().take();
    assert.ok(rig.ingress().ask(numbers(rig, 4)));
  });
});

test('a request given up before its slab is taken is not run', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const [stays, goes] = [numbers(rig, 2), numbers(rig, 3)];
    ask(rig, 0, [stays, goes]);
    rig.ingress().giveUp(goes);
    rig.instance().take();
    const { batch } = rig.instance();
    assert.deepEqual([batch!.rows, batch!.claims, batch!.wantedClaims], [5, 2, 1]);
    assert.deepEqual([...batch!.wanted.subarray(0, 2)], [1, 0]);
  });
});

test('a request given up while it runs is dropped with its result, and the others in the batch get theirs', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const [stays, goes] = [numbers(rig, 2), numbers(rig, 3)];
    ask(rig, 0, [stays, goes]);
    rig.instance().take();
    rig.ingress().giveUp(goes);
    assert.ok(rig.instance().consumer.abandoned(rig.instance().batch!, 1));
    assert.ok(!rig.instance().consumer.abandoned(rig.instance().batch!, 0));
    rig.settle();
    assert.deepEqual(
      rig.ingress().answered.map(({ id }) => id),
      [stays.id],
    );
  });
});

test('when all requests of a slab are given up, whoever comes last frees it', () => {
  for (const when of ['open', 'running', 'done'] as const) {
    withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
      const tickets = [numbers(rig, 2), numbers(rig, 3)];
      ask(rig, 0, [tickets[0]!]);
      ask(rig, 1, [tickets[1]!]);
      if (when !== 'open') rig.instance().take();
      if (when === 'done') rig.instance().complete();
      rig.ingress(0).giveUp(tickets[0]!);
      rig.ingress(1).giveUp(tickets[1]!);
      rig.settle();
      assert.deepEqual([rig.ingress(0).answered, rig.ingress(1).answered], [[], []]);
    });
  }
});

test('giving a request up twice, or after its answer, does nothing', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    const [first, second] = [numbers(rig, 1), numbers(rig, 1)];
    ask(rig, 0, [first]);
    ask(rig, 1, [second]);
    rig.instance().take();
    rig.instance().complete();
    rig.ingress(0).loop();
    rig.ingress(0).producer.abandon(first.claim!);
    rig.ingress(0).producer.abandon(first.claim!);
    assert.equal(census(rig.segment).slabs.done, 1, 'the other request still has its result there');
  });
});

test('requests may be placed and given up from within a delivery', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const ingress = rig.ingress();
    const [first, second, third] = [numbers(rig, 1), numbers(rig, 1), numbers(rig, 1, 5)];
    ask(rig, 0, [first, second, third]);
    rig.instance().take();
    rig.instance().complete();
    const added = numbers(rig, 2);
    ingress.producer.poll(ingress.reader, (ticket, _claim, reader) => {
      assert.equal(ticket.fault(reader), undefined);
      assert.equal(ticket, first);
      ingress.open.delete(ticket);
      ingress.giveUp(second);
      assert.ok(ingress.ask(added));
      ingress.giveUp(third);
    });
  });
});

test('a claim is released even when the delivery of its result throws', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const ingress = rig.ingress();
    const [first, second] = [numbers(rig, 1), numbers(rig, 1)];
    ask(rig, 0, [first, second]);
    rig.instance().take();
    rig.instance().complete();
    const fail = () =>
      ingress.producer.poll(ingress.reader, (ticket) => {
        ingress.open.delete(ticket);
        throw new Error('in the delivery');
      });
    assert.throws(fail, /in the delivery/);
    assert.deepEqual([...ingress.open], [second]);
  });
});
