/**
 * Runs a sealed batch: tensors straight over the slab, ONNX Runtime, results into the slab or into a result region.
 *
 * A batch that fails is run again in halves, down to single requests, so that a request whose own data makes the model fail (or is too large for
 * the memory there is) never harms the others in its batch. Halves are ranges of rows of the same slab: nothing is copied for it.
 *
 * Where memory has run out, batches are run in parts that fit from then on (batch-cap.ts).
 *
 * Owner: the instance thread. Values made for a run are released before it returns, on every path. Bound: at most 2 × claims − 1 runs a batch.
 */
import type { InstanceCounters } from '../metrics/counters.ts';
import type { Batch, Consumer } from '../queue/consumer.ts';
import type { SlabLayout } from '../queue/layout.ts';
import {
  STATUS_DEADLINE,
  STATUS_MODEL_FAILED,
  STATUS_OK,
  STATUS_OUT_OF_MEMORY,
  STATUS_RESULT_TOO_LARGE,
} from '../queue/result.ts';
import type { Segment } from '../queue/segment.ts';
import { OrtError } from '../runtime/ort-error.ts';
import type { Runner, TensorValue } from '../runtime/runner.ts';
import { type BatchCap, NO_CAP, noteOutOfMemory, noteRun } from '../scheduler/batch-cap.ts';
import { nowUs } from '../system/clock.ts';
import { BYTES_LENGTH_BYTES, bytesElementLength, skipBytesElements } from '../tensor/bytes-tensor.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { isOutOfMemory } from './out-of-memory.ts';

/** Space between parts of a result region. */
const ALIGN = 64;

/** Shapes of a layout's tensors with the batch dimension in front, kept so that a run allocates none. */
interface Shapes {
  readonly inputs: number[][];
  readonly outputs: (number[] | undefined)[];
  readonly outputIndices: number[];
}

/** A fault of one range of a batch that its requests are answered with. */
class RangeFault extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export class BatchRunner {
  readonly #runner: Runner;
  readonly #segment: Segment;
  readonly #consumer: Consumer;
  readonly #signature: ModelSignature;
  readonly #counters: InstanceCounters;
  readonly #shapes = new WeakMap<SlabLayout, Shapes>();
  readonly #inputs: TensorValue[] = [];
  readonly #outputs: (TensorValue | undefined)[] = [];
  /** False once the model has given an output another shape than its signature promised: from then on nothing is bound. */
  #bindable = true;
  #cap: BatchCap = NO_CAP;

  constructor(
    runner: Runner,
    segment: Segment,
    consumer: Consumer,
    signature: ModelSignature,
    counters: InstanceCounters,
  ) {
    this.#runner = runner;
    this.#segment = segment;
    this.#consumer = consumer;
    this.#signature = signature;
    this.#counters = counters;
  }

  /** Runs the batch and settles each of its claims. The caller finishes it. */
  run(batch: Batch): void {
    if (batch.wantedClaims === 0 || this.#allExpired(batch)) {
      for (let claim = 0; claim < batch.claims; claim++) this.#consumer.settle(batch, claim, STATUS_DEADLINE, 0);
      this.#counters.skipped();
      return;
    }
    this.#consumer.running(batch);
    for (let from = 0; from < batch.claims; ) {
      const to = this.#fitting(batch, from);
      this.#runClaims(batch, from, to);
      from = to;
    }
  }

  /** End of the claims from `from` on that may run as one: all of them, unless memory has set a cap. */
  #fitting(batch: Batch, from: number): number {
    const first = batch.firstRow[from]!;
    let to = from + 1;
    while (to < batch.claims && batch.firstRow[to]! + batch.claimRows[to]! - first <= this.#cap.rows) to++;
    return to;
  }

  #allExpired(batch: Batch): boolean {
    const now = nowUs();
    for (let claim = 0; claim < batch.claims; claim++) {
      if (batch.wanted[claim] === 0) continue;
      const deadline = this.#consumer.deadlineUs(batch, claim);
      if (deadline === 0 || deadline > now) return false;
    }
    return true;
  }

  /** Runs the claims [from, to) as one, or in halves if that fails. */
  #runClaims(batch: Batch, from: number, to: number): void {
    try {
      const table = this.#runRange(batch, from, to);
      for (let claim = from; claim < to; claim++) this.#consumer.settle(batch, claim, STATUS_OK, table);
    } catch (error) {
      if (!(error instanceof OrtError) && !(error instanceof RangeFault)) throw error;
      const memory = error instanceof OrtError && isOutOfMemory(error);
      if (memory) {
        this.#counters.outOfMemory();
        this.#cap = noteOutOfMemory(this.#cap, rowsOf(batch, from, to), nowUs() / 1000);
      }
      let wanted = 0;
      for (let claim = from; claim < to; claim++) wanted += batch.wanted[claim]!;
      if (wanted <= 1) {
        this.#counters.failure();
        const status = error instanceof RangeFault ? error.status : memory ? STATUS_OUT_OF_MEMORY : STATUS_MODEL_FAILED;
        const message = this.#consumer.message(batch, error.message);
        for (let claim = from; claim < to; claim++) this.#consumer.settle(batch, claim, status, message);
        return;
      }
      this.#counters.split();
      const middle = (from + to) >> 1;
      this.#runClaims(batch, from, middle);
      this.#runClaims(batch, middle, to);
    }
  }

  /** @returns offset of the result table, 0 when every output is bound in the slab. */
  #runRange(batch: Batch, from: number, to: number): number {
    const firstRow = batch.layout.whole ? 0 : batch.firstRow[from]!;
    const rows = rowsOf(batch, from, to);
    if (rows === 0) return 0;
    const started = nowUs();
    const table = this.#runRows(batch, from, to, firstRow, rows);
    const ended = nowUs();
    this.#counters.batch(rows, ended - started);
    this.#cap = noteRun(this.#cap, rows, ended / 1000);
    return table;
  }

  #runRows(batch: Batch, from: number, to: number, firstRow: number, rows: number): number {
    const shapes = this.#shapesOf(batch.layout);
    try {
      this.#makeInputs(batch, shapes, from, to, firstRow, rows);
      this.#makeOutputs(batch, shapes, firstRow, rows);
      try {
        this.#runner.run(this.#inputs, shapes.outputIndices, this.#outputs);
      } catch (error) {
        if (!this.#bindable || !(error instanceof OrtError) || isOutOfMemory(error)) throw error;
        // The model may give an output another shape than its signature says. If it runs unbound, that was it.
        this.#release(this.#outputs);
        this.#outputs.length = shapes.outputIndices.length;
        this.#outputs.fill(undefined);
        this.#runner.run(this.#inputs, shapes.outputIndices, this.#outputs);
        this.#bindable = false;
        return this.#store(batch, shapes, firstRow, rows, true);
      }
      return this.#store(batch, shapes, firstRow, rows, !this.#bindable);
    } finally {
      this.#release(this.#inputs);
      this.#release(this.#outputs);
    }
  }

  #release(values: (TensorValue | undefined)[]): void {
    for (const value of values) if (value !== undefined) this.#runner.release(value);
    values.length = 0;
  }

  #shapesOf(layout: SlabLayout): Shapes {
    let shapes = this.#shapes.get(layout);
    if (shapes === undefined) {
      const full = (dims: readonly number[]) => (layout.whole ? [...dims] : [0, ...dims]);
      shapes = {
        inputs: layout.inputs.map(({ dims }) => full(dims)),
        outputs: layout.outputs.map(({ tensor }) => (tensor === undefined ? undefined : full(tensor.dims))),
        outputIndices: layout.outputs.map(({ index }) => index),
      };
      this.#shapes.set(layout, shapes);
    }
    return shapes;
  }

  #makeInputs(batch: Batch, shapes: Shapes, from: number, to: number, firstRow: number, rows: number): void {
    const { layout, placement } = batch;
    const address = this.#segment.address + batch.base;
    for (let n = 0; n < layout.inputs.length; n++) {
      const { datatype, rowBytes } = layout.inputs[n]!;
      const shape = shapes.inputs[n]!;
      if (!layout.whole) shape[0] = rows;
      if (datatype === 'BYTES') {
        this.#inputs.push(this.#runner.stringTensor(shape));
        this.#fillStrings(batch, n, from, to, firstRow);
      } else {
        const start = address + placement.inputs[n]! + firstRow * rowBytes;
        this.#inputs.push(this.#runner.tensorOver(datatype, start, rows * rowBytes, shape));
      }
    }
  }

  #fillStrings(batch: Batch, input: number, from: number, to: number, firstRow: number): void {
    const value = this.#inputs[this.#inputs.length - 1]!;
    const position = batch.layout.bytesInputs.indexOf(input);
    const { rowElements } = batch.layout.inputs[input]!;
    for (let claim = from; claim < to; claim++) {
      // Rows nobody wants stay empty strings: what a dead or stopped producer left there is not looked at.
      if (batch.wanted[claim] === 0) continue;
      const serialised = this.#consumer.bytesOf(batch, claim, position);
      const elements = batch.claimRows[claim]! * rowElements;
      if (serialised === undefined || skipBytesElements(serialised, 0, elements) !== serialised.length) {
        throw new RangeFault(STATUS_MODEL_FAILED, 'A BYTES tensor is damaged in the queue.');
      }
      const start = (batch.firstRow[claim]! - firstRow) * rowElements;
      let at = 0;
      for (let element = 0; element < elements; element++) {
        const from = at + BYTES_LENGTH_BYTES;
        at = from + bytesElementLength(serialised, at);
        this.#runner.setString(value, start + element, serialised.subarray(from, at));
      }
    }
  }

  #makeOutputs(batch: Batch, shapes: Shapes, firstRow: number, rows: number): void {
    const { layout, placement } = batch;
    const address = this.#segment.address + batch.base;
    for (let n = 0; n < layout.outputs.length; n++) {
      const { tensor } = layout.outputs[n]!;
      if (tensor === undefined || !this.#bindable) {
        this.#outputs.push(undefined);
        continue;
      }
      const shape = shapes.outputs[n]!;
      if (!layout.whole) shape[0] = rows;
      const start = address + placement.outputs[n]! + firstRow * tensor.rowBytes;
      this.#outputs.push(this.#runner.tensorOver(tensor.datatype, start, rows * tensor.rowBytes, shape));
    }
  }

  /** Copies what was not bound into a result region and writes the table for it. */
  #store(batch: Batch, shapes: Shapes, firstRow: number, rows: number, all: boolean): number {
    const { layout } = batch;
    if (!all && layout.outputs.every(({ tensor }) => tensor !== undefined)) return 0;
    const parts = shapes.outputIndices.map((index, n) => {
      const bound = !all && layout.outputs[n]!.tensor !== undefined;
      return bound ? undefined : this.#describe(index, this.#outputs[n]!, layout.whole, rows);
    });
    let tableWords = 3;
    for (const part of parts) tableWords += 4 + (part?.shape.length ?? 0);
    let bytes = Math.ceil((tableWords * 8) / ALIGN) * ALIGN;
    const offsets = parts.map((part) => {
      const at = bytes;
      if (part !== undefined) {
        bytes = Math.ceil((bytes + part.byteLength) / ALIGN) * ALIGN;
        if (part.strings) bytes += Math.ceil(((rows + 1) * 8) / ALIGN) * ALIGN;
      }
      return at;
    });
    const region = this.#consumer.allocateResult(batch, bytes);
    if (region < 0) {
      throw new RangeFault(
        STATUS_RESULT_TOO_LARGE,
        `The results (${bytes} bytes) found no space in the queue's shared memory; raise queue.max_bytes of the model.`,
      );
    }
    const { f64, u8 } = this.#segment;
    let at = region / 8;
    f64[at++] = parts.length;
    f64[at++] = firstRow;
    f64[at++] = rows;
    parts.forEach((part, n) => {
      const start = region + offsets[n]!;
      const rowOffsets = part?.strings ? Math.ceil((start + part.byteLength) / ALIGN) * ALIGN : 0;
      f64[at++] = part === undefined ? 0 : start;
      f64[at++] = part?.byteLength ?? 0;
      f64[at++] = rowOffsets;
      f64[at++] = part?.shape.length ?? 0;
      for (const dim of part?.shape ?? []) f64[at++] = dim;
      if (part === undefined) return;
      const target = u8.subarray(start, start + part.byteLength);
      if (part.strings) {
        this.#runner.readStrings(part.value, target);
        this.#writeRowOffsets(target, rowOffsets / 8, rows, part.elements / Math.max(1, rows));
      } else {
        this.#runner.readElements(part.value, target);
      }
    });
    return region;
  }

  #describe(index: number, value: TensorValue, whole: boolean, rows: number) {
    const { shape, byteLength, isTensor, datatype } = this.#runner.describe(value);
    const spec = this.#signature.outputs[index]!;
    if (!isTensor || datatype !== spec.datatype) {
      throw new RangeFault(STATUS_MODEL_FAILED, `The model gave no ${spec.datatype} tensor for output '${spec.name}'.`);
    }
    if (!whole && shape[0] !== rows) {
      throw new RangeFault(
        STATUS_MODEL_FAILED,
        `Output '${spec.name}' has shape [${shape.join(',')}] for a batch of ${rows} rows: this model cannot be batched. Set max_batch_size to 0 in its config.json.`,
      );
    }
    const elements = shape.reduce((product, dim) => product * dim, 1);
    return { value, shape, byteLength, strings: datatype === 'BYTES', elements };
  }

  #writeRowOffsets(serialised: Uint8Array, at: number, rows: number, elementsPerRow: number): void {
    const { f64 } = this.#segment;
    let position = 0;
    for (let row = 0; row < rows; row++) {
      f64[at + row] = position;
      position = skipBytesElements(serialised, position, elementsPerRow);
    }
    f64[at + rows] = position;
  }
}

/** Rows of the claims [from, to); a whole request counts as one. */
function rowsOf(batch: Batch, from: number, to: number): number {
  return batch.layout.whole ? 1 : batch.firstRow[to - 1]! + batch.claimRows[to - 1]! - batch.firstRow[from]!;
}
