import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type ResultReader,
  STATUS_DEADLINE,
  STATUS_MODEL_FAILED,
  STATUS_OK,
  STATUS_OUT_OF_MEMORY,
} from '../../../src/queue/result.ts';
import {
  MATRIX,
  matrixTicket,
  NUMBERS,
  NUMBERS_R,
  numbersTicket,
  type Ticket,
  WORDS,
  wordsTicket,
} from '../../support/queue-models.ts';
import { type QueueRig, withRig } from '../../support/queue-rig.ts';

let lastId = 0;
function numbers(rig: QueueRig, rows: number, outputs?: number[]): Ticket {
  return numbersTicket(rig.layouts, ++lastId, rows, 4, outputs);
}

/** Reads the results that are there with `read` instead of the ingress's own check. */
function deliver(rig: QueueRig, read: (ticket: Ticket, reader: ResultReader) => void): void {
  const { producer, reader, open } = rig.ingress();
  producer.poll(reader, (ticket) => {
    open.delete(ticket);
    read(ticket, reader);
  });
}

/** Offset, in doubles, of the result table of a claim. */
function tableOf(rig: QueueRig, ticket: Ticket): number {
  const { slab, index } = ticket.claim!;
  return rig.segment.f64[rig.segment.claimDetail(slab, index) / 8 + 2]! / 8;
}

test('outputs of unknown shape, outputs bound in the slab and requests of several rows come back to their owners', () => {
  withRig({ model: NUMBERS, ingresses: 2 }, (rig) => {
    for (const rows of [2, 3, 1]) rig.ingress(rows % 2).ask(numbers(rig, rows));
    rig.ingress(1).ask(numbers(rig, 2, [NUMBERS_R]));
    rig.settle();
    assert.equal(rig.ingress(0).answered.length + rig.ingress(1).answered.length, 4);
  });
});

test('BYTES come back by rows, also those without a byte', () => {
  withRig({ model: WORDS }, (rig) => {
    for (const [id, rows, length] of [
      [7, 2, 0],
      [8, 3, 50],
      [9, 1, 1],
    ] as const) {
      rig.ingress().ask(wordsTicket(rig.layouts, id, rows, length));
    }
    rig.instance().take();
    assert.equal(rig.instance().batch!.claims, 3);
    rig.settle();
    assert.equal(rig.ingress().answered.length, 3);
  });
});

test('whole tensors come back with the shape that their input gave them', () => {
  withRig({ model: MATRIX }, (rig) => {
    rig.ingress().ask(matrixTicket(rig.layouts, 1, 3, 5));
    rig.ingress().ask(matrixTicket(rig.layouts, 2, 1, 1));
    rig.ingress().ask(matrixTicket(rig.layouts, 3, 0, 4));
    rig.settle();
    assert.deepEqual(
      rig.ingress().answered.map(({ status }) => status),
      [STATUS_OK, STATUS_OK, STATUS_OK],
    );
  });
});

test('each request of a batch has its own status and message', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const tickets = [1, 2, 1, 1].map((rows) => numbers(rig, rows, [0]));
    for (const ticket of tickets) rig.ingress().ask(ticket);
    rig.instance().take();
    const { consumer } = rig.instance();
    const batch = rig.instance().batch!;
    consumer.running(batch);
    const long = 'ß'.repeat(5000);
    consumer.settle(
      batch,
      0,
      STATUS_MODEL_FAILED,
      consumer.message(batch, 'Gather: index 7 is out of bounds, größer als 6'),
    );
    consumer.settle(batch, 1, STATUS_OUT_OF_MEMORY, consumer.message(batch, long));
    consumer.settle(batch, 2, STATUS_DEADLINE, 0);
    consumer.settle(batch, 3, STATUS_OK, 0);
    rig.instance().batch = undefined;
    consumer.finish(batch);
    const seen: [number, string][] = [];
    deliver(rig, (_ticket, reader) => seen.push([reader.status, reader.status === STATUS_OK ? '' : reader.message()]));
    assert.deepEqual(seen[0], [STATUS_MODEL_FAILED, 'Gather: index 7 is out of bounds, größer als 6']);
    assert.equal(seen[1]![0], STATUS_OUT_OF_MEMORY);
    assert.ok(long.startsWith(seen[1]![1]) && seen[1]![1].length >= 1000, 'a long message is cut between characters');
    assert.deepEqual(seen.slice(2), [
      [STATUS_DEADLINE, ''],
      [STATUS_OK, ''],
    ]);
  });
});

test('the times of a batch are those of this use of its slab', () => {
  withRig({ model: NUMBERS }, (rig) => {
    for (let use = 0; use < 2; use++) {
      rig.ingress().ask(numbers(rig, 1));
      assert.equal(
        rig.segment.f64.subarray(rig.segment.descriptorF64(0) + 9, rig.segment.descriptorF64(0) + 12).join(),
        '0,0,0',
      );
      rig.instance().take();
      rig.instance().complete();
      deliver(rig, (_ticket, { sealedAtUs, runAtUs, doneAtUs }) => {
        assert.ok(sealedAtUs > 0 && sealedAtUs <= runAtUs && runAtUs <= doneAtUs);
      });
    }
  });
});

test('a damaged result table is refused, whatever is wrong with it', () => {
  const names = ['outputs', 'first row', 'rows', 'y offset', 'y bytes', 'y row offsets', 'y rank'];
  // Output y is bound (offset 0, rank 0); then come r's offset, bytes, row offsets, rank and two dimensions.
  const R_OFFSET = 7;
  const damages: [at: number, value: number][] = [
    [0, 0],
    [0, 1],
    [1, 1],
    [1, -1],
    [2, 1],
    [2, 99],
    [6, 65],
    [6, 0.5],
    [6, -1],
    [6, 1e18],
    [R_OFFSET, -8],
    [R_OFFSET, 8],
    [R_OFFSET, 1e15],
    [R_OFFSET, 0.5],
    [R_OFFSET, Number.NaN],
    [R_OFFSET + 1, 1e12],
    [R_OFFSET + 1, -24],
    [R_OFFSET + 1, 7],
    [R_OFFSET + 2, 8],
    [R_OFFSET + 2, 1e15],
    [R_OFFSET + 3, 65],
    [R_OFFSET + 3, Number.NaN],
    [R_OFFSET + 4, 1],
    [R_OFFSET + 4, -1],
  ];
  withRig({ model: NUMBERS }, (rig) => {
    for (const [at, value] of damages) {
      for (const rows of [2, 1]) rig.ingress().ask(numbers(rig, rows));
      rig.instance().take();
      rig.instance().complete();
      const [first] = [...rig.ingress().open];
      rig.segment.f64[tableOf(rig, first!) + at] = value;
      let refused = 0;
      deliver(rig, (ticket, reader) => {
        // In which of the two requests a damage shows depends on what it is.
        try {
          ticket.fault(reader);
        } catch {
          refused++;
        }
      });
      assert.ok(refused > 0, `${names[at] ?? `word ${at}`} = ${value} was followed`);
    }
  });
});

test('a pointer to a result table or message outside the segment is refused', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const { totalBytes } = rig.segment.geometry;
    for (const value of [8, -8, totalBytes, totalBytes - 8, 1e18, 0.5, Number.NaN]) {
      const ticket = numbers(rig, 1);
      rig.ingress().ask(ticket);
      rig.instance().take();
      rig.instance().complete();
      const { slab, index } = ticket.claim!;
      rig.segment.f64[rig.segment.claimDetail(slab, index) / 8 + 2] = value;
      deliver(rig, (_ticket, reader) => {
        assert.throws(() => reader.output(1), `table at ${value}`);
        assert.equal(reader.message(), '');
      });
    }
  });
});

test('row offsets of BYTES that leave their tensor are refused', () => {
  withRig({ model: WORDS }, (rig) => {
    for (const value of [-4, 1e6, Number.NaN, 0.5]) {
      const ticket = wordsTicket(rig.layouts, 20, 3, 20);
      rig.ingress().ask(ticket);
      rig.instance().take();
      rig.instance().complete();
      const table = tableOf(rig, ticket);
      const rowOffsets = rig.segment.f64[table + 3 + 2]! / 8;
      rig.segment.f64[rowOffsets + 3] = value;
      deliver(rig, (_ticket, reader) => assert.throws(() => reader.output(0), `row offset ${value}`));
    }
  });
});

test('an output that the table lacks and the slab does not hold is refused', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const ticket = numbers(rig, 1);
    rig.ingress().ask(ticket);
    rig.instance().take();
    rig.instance().complete();
    const { slab, index } = ticket.claim!;
    rig.segment.f64[rig.segment.claimDetail(slab, index) / 8 + 2] = 0;
    deliver(rig, (_ticket, reader) => {
      assert.throws(() => reader.output(1), /missing/);
      assert.throws(() => reader.output(2), /missing/);
    });
  });
});

test('the results of a slab whose descriptor was damaged after the run are refused', () => {
  withRig({ model: NUMBERS }, (rig) => {
    const ticket = numbers(rig, 1, [0]);
    rig.ingress().ask(ticket);
    rig.instance().take();
    rig.instance().complete();
    const word = rig.segment.descriptor(0) + 1; // first block
    for (const value of [-5, rig.segment.geometry.blocks, 1 << 30]) {
      const before = rig.segment.i32[word]!;
      rig.segment.i32[word] = value;
      rig.ingress().reader.open(ticket.claim!);
      assert.throws(() => rig.ingress().reader.output(0), /outside/);
      rig.segment.i32[word] = before;
    }
  });
});
