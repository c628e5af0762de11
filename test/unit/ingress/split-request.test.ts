import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { BatchportError } from '../../../src/config/errors.ts';
import {
  type RowsOwner,
  type SplitReceiver,
  SplitRequest,
  type SplitTimes,
} from '../../../src/ingress/split-request.ts';
import type { OutputTensor } from '../../../src/protocol/response-encoder.ts';
import { Producer } from '../../../src/queue/producer.ts';

import { ResultReader } from '../../../src/queue/result.ts';
import { auditIdle } from '../../support/queue-audit.ts';
import { NUMBERS, NUMBERS_Y, numbersTicket } from '../../support/queue-models.ts';
import { type QueueRig, SMALL_SHAPE, withRig } from '../../support/queue-rig.ts';

const PART_ROWS = SMALL_SHAPE.maxBatchRows;
/** So wide that three parts fill the segment. */
const WIDE = 4096;

class Receiver implements SplitReceiver {
  readonly told: string[] = [];
  outputs: readonly OutputTensor[] = [];
  joined(outputs: readonly OutputTensor[], { sealedAtUs, runAtUs, doneAtUs }: SplitTimes): void {
    assert(sealedAtUs <= runAtUs && runAtUs <= doneAtUs);
    this.outputs = outputs;
    this.told.push('joined');
  }
  partFailed(): void {
    this.told.push('part failed');
  }
  joinFailed(error: unknown): void {
    this.told.push((error as BatchportError).code);
  }
}

/** A split request in a place of its own at the rig's queue. */
class Splitter {
  readonly producer: Producer<RowsOwner>;
  readonly receiver = new Receiver();
  readonly request: SplitRequest;
  readonly rows: number;
  readonly #rig: QueueRig;
  readonly #reader: ResultReader;

  constructor(rig: QueueRig, rows: number, width: number) {
    const placed = (owner: RowsOwner, claim: Parameters<RowsOwner['placed']>[0]) => owner.placed(claim);
    this.producer = new Producer<RowsOwner>(rig.segment, 1, rig.bells, { maxRows: 10_000 }, placed);
    this.rows = rows;
    this.#rig = rig;
    this.#reader = new ResultReader(rig.segment);
    const { layout, inputs } = numbersTicket(rig.layouts, 1, rows, width, [NUMBERS_Y]);
    const whole = { layout, rows, inputs, partRows: PART_ROWS, positions: [0] };
    this.request = new SplitRequest(this.producer, whole, this.receiver);
  }

  place(): boolean {
    assert(this.producer.admit(this.rows));
    return this.request.place(0);
  }

  poll(): void {
    this.producer.poll(this.#reader, (owner, _claim, reader) => owner.complete(reader));
  }

  /** Runs one batch, if there is one. */
  runOne(): boolean {
    if (!this.#rig.instance().take()) return false;
    this.#rig.instance().complete();
    return true;
  }

  assertNothingLeft(): void {
    this.poll();
    assert.equal(this.producer.pendingSlabs, 0);
    assert.equal(this.producer.waitingRequests, 0);
    auditIdle(this.#rig.segment);
  }
}

describe('a request in parts', () => {
  test('is joined once all are there, in the order of the rows, though they were run in another', () => {
    withRig({ model: NUMBERS, instances: 2 }, (rig) => {
      const split = new Splitter(rig, 2 * PART_ROWS + 3, 5);
      assert(split.place());
      rig.instance(0).take();
      rig.instance(1).take();
      rig.instance(1).complete();
      split.poll();
      assert.deepEqual(split.receiver.told, []);
      rig.instance(0).complete();
      split.poll();
      assert(split.runOne());
      split.poll();
      assert.deepEqual(split.receiver.told, ['joined']);
      const [y] = split.receiver.outputs;
      assert.deepEqual(y!.shape, [split.rows, 5]);
      const values = new Float32Array(new Uint8Array(y!.data).buffer);
      for (let n = 0; n < values.length; n++) assert.equal(values[n], 2 * (1 + n) + 8 + Math.floor(n / 5));
      split.assertNothingLeft();
    });
  });

  test('waits for space with the parts that find none', () => {
    withRig({ model: NUMBERS }, (rig) => {
      const split = new Splitter(rig, 5 * PART_ROWS, WIDE);
      assert(split.place());
      assert(split.producer.waitingRequests > 0);
      while (split.receiver.told.length === 0) {
        assert(split.runOne());
        split.poll();
      }
      assert.deepEqual(split.receiver.told, ['joined']);
      split.assertNothingLeft();
    });
  });

  test('that finds no place for one of them leaves none', () => {
    withRig({ model: NUMBERS }, (rig) => {
      const split = new Splitter(rig, 20 * PART_ROWS, WIDE);
      assert.equal(split.place(), false);
      while (split.runOne());
      split.assertNothingLeft();
      assert.deepEqual(split.receiver.told, []);
    });
  });

  test('that is given up frees those that wait, and is told nothing more', () => {
    withRig({ model: NUMBERS }, (rig) => {
      const split = new Splitter(rig, 5 * PART_ROWS, WIDE);
      assert(split.place());
      rig.instance().take();
      split.request.giveUp();
      rig.instance().complete();
      while (split.runOne());
      split.assertNothingLeft();
      assert.deepEqual(split.receiver.told, []);
    });
  });
});
