/**
 * A request of more rows than a batch may have: its rows go into the queue in parts, each like a request of its own, and their results are joined.
 *
 *     rows 0 … n ─▶ parts of at most maxBatchRows ─▶ slabs, batches, instances ─▶ all there: joined, in the order of the rows
 *                                                                                └ one failed: the request has failed, the others are given up
 *
 * Owner: the request's Inference. Bound: all parts together are admitted as the request's rows; results are copied out of the queue as they come, so that no
 * slab is held for the last one.
 */
import { BatchportError } from '../config/errors.ts';
import type { OutputTensor } from '../protocol/response-encoder.ts';
import type { SlabLayout } from '../queue/layout.ts';
import type { Claim, Producer } from '../queue/producer.ts';
import { type ResultReader, STATUS_OK } from '../queue/result.ts';
import { copyFault, type TensorBytes } from '../queue/tensor-source.ts';
import { skipBytesElements } from '../tensor/bytes-tensor.ts';

/** Who put rows into the queue. */
export interface RowsOwner {
  /** The result is there. Views of the reader are valid only during this call. */
  complete(reader: ResultReader): void;
  /** Rows that waited for space have got it. */
  placed(claim: Claim<RowsOwner>): void;
}

/** Microseconds on the shared clock: the first part closed, its run begun; the last run ended. */
export interface SplitTimes {
  readonly sealedAtUs: number;
  readonly runAtUs: number;
  readonly doneAtUs: number;
}

/** Told of the end; at most one of them, once. */
export interface SplitReceiver {
  joined(outputs: readonly OutputTensor[], times: SplitTimes): void;
  /** The reader stands at the part that failed. */
  partFailed(reader: ResultReader): void;
  /** What came is not what can be joined. */
  joinFailed(error: unknown): void;
}

export interface SplitRows {
  readonly layout: SlabLayout;
  readonly rows: number;
  /** Of the whole request, by the layout's inputs. */
  readonly inputs: readonly TensorBytes[];
  /** Most rows of a part. */
  readonly partRows: number;
  /** Outputs of the layout that are wanted, in their order. */
  readonly positions: readonly number[];
}

class Part implements RowsOwner {
  readonly rows: number;
  readonly inputs: readonly TensorBytes[];
  claim: Claim<RowsOwner> | undefined;
  outputs: readonly OutputTensor[] | undefined;
  readonly #split: SplitRequest;

  constructor(split: SplitRequest, rows: number, inputs: readonly TensorBytes[]) {
    this.#split = split;
    this.rows = rows;
    this.inputs = inputs;
  }

  complete(reader: ResultReader): void {
    this.#split.complete(this, reader);
  }

  placed(claim: Claim<RowsOwner>): void {
    this.claim = claim;
    const fault = copyFault(this.inputs);
    if (fault !== undefined) this.#split.lost(fault);
  }
}

export class SplitRequest {
  readonly #producer: Producer<RowsOwner>;
  readonly #receiver: SplitReceiver;
  readonly #layout: SlabLayout;
  readonly #positions: readonly number[];
  readonly #parts: Part[];
  /** Parts in the queue, or waiting for space in it. */
  #begun = 0;
  #missing: number;
  #ended = false;
  #sealedAtUs = Number.POSITIVE_INFINITY;
  #runAtUs = Number.POSITIVE_INFINITY;
  #doneAtUs = 0;

  constructor(producer: Producer<RowsOwner>, rows: SplitRows, receiver: SplitReceiver) {
    this.#producer = producer;
    this.#receiver = receiver;
    this.#layout = rows.layout;
    this.#positions = rows.positions;
    this.#parts = cut(rows).map((inputs, n) => {
      return new Part(this, Math.min(rows.partRows, rows.rows - n * rows.partRows), inputs);
    });
    this.#missing = this.#parts.length;
  }

  /** Bytes that the parts need in the queue together, at least. */
  get neededBytes(): number {
    return this.#parts.reduce(
      (sum, { rows, inputs }) => sum + this.#producer.requestBytes(this.#layout, rows, inputs),
      0,
    );
  }

  /**
   * Puts all parts into the queue; their rows have been admitted.
   *
   * @returns false when there is no place for them: none of them is left there, nor counted.
   * @throws BAD_TENSOR for an input that could not be copied; the same holds then.
   */
  place(deadlineUs: number): boolean {
    for (const part of this.#parts) {
      const claim = this.#producer.place(part, this.#layout, part.rows, part.inputs, deadlineUs);
      if (claim === 'full') {
        this.#takeBack(this.#begun + 1);
        return false;
      }
      this.#begun++;
      if (claim === undefined) continue;
      part.claim = claim;
      const fault = copyFault(part.inputs);
      if (fault === undefined) continue;
      this.#takeBack(this.#begun);
      throw new BatchportError('BAD_TENSOR', fault);
    }
    return true;
  }

  /** Gives up what has been begun, and does not count the parts from `unplaced` on any more. */
  #takeBack(unplaced: number): void {
    this.#producer.dismiss(this.#parts.slice(unplaced).reduce((sum, { rows }) => sum + rows, 0));
    this.giveUp();
  }

  /** A part that waited for space could not be copied into it. */
  lost(fault: string): void {
    if (this.#ended) return;
    this.giveUp();
    this.#receiver.joinFailed(new BatchportError('BAD_TENSOR', fault));
  }

  /** Nobody wants the result any more. */
  giveUp(): void {
    this.#ended = true;
    for (const part of this.#parts.slice(0, this.#begun)) {
      if (part.claim !== undefined) this.#producer.abandon(part.claim);
      else this.#producer.dropWaiting(part);
    }
  }

  complete(part: Part, reader: ResultReader): void {
    if (this.#ended) return;
    try {
      if (reader.status !== STATUS_OK) {
        this.giveUp();
        this.#receiver.partFailed(reader);
        return;
      }
      part.outputs = this.#positions.map((position) => {
        const { shape, data } = reader.output(position);
        return { shape, data: data.slice() };
      });
      this.#sealedAtUs = Math.min(this.#sealedAtUs, reader.sealedAtUs);
      this.#runAtUs = Math.min(this.#runAtUs, reader.runAtUs);
      this.#doneAtUs = Math.max(this.#doneAtUs, reader.doneAtUs);
      if (--this.#missing > 0) return;
      this.#ended = true;
      const outputs = this.#positions.map((_, n) => joined(this.#parts.map(({ outputs: of }) => of![n]!)));
      const times = { sealedAtUs: this.#sealedAtUs, runAtUs: this.#runAtUs, doneAtUs: this.#doneAtUs };
      this.#receiver.joined(outputs, times);
    } catch (error) {
      this.giveUp();
      this.#receiver.joinFailed(error);
    }
  }
}

/** The inputs of each part, as views. */
function cut({ layout, rows, inputs, partRows }: SplitRows): TensorBytes[][] {
  const parts: TensorBytes[][] = Array.from({ length: Math.ceil(rows / partRows) }, () => []);
  for (const [n, { datatype, rowBytes, rowElements }] of layout.inputs.entries()) {
    const data = inputs[n]!;
    let at = 0;
    for (const [part, cuts] of parts.entries()) {
      const count = Math.min(partRows, rows - part * partRows);
      const end =
        datatype === 'BYTES' ? skipBytesElements(data as Uint8Array, at, count * rowElements) : at + count * rowBytes;
      cuts.push(data.subarray(at, end));
      at = end;
    }
  }
  return parts;
}

/** One output over all parts. @throws MODEL_FAILED when their rows differ in shape */
function joined(parts: readonly OutputTensor[]): OutputTensor {
  const [, ...rowShape] = parts[0]!.shape;
  let rows = 0;
  for (const { shape } of parts) {
    if (shape.slice(1).join() !== rowShape.join()) {
      throw new BatchportError(
        'MODEL_FAILED',
        'The rows of the request were run in several batches, whose outputs differ in shape; send no more rows than max_batch_size.',
      );
    }
    rows += shape[0]!;
  }
  return { shape: [rows, ...rowShape], data: Buffer.concat(parts.map(({ data }) => data)) };
}
