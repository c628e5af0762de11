/**
 * One run of ONNX Runtime over consecutive rows of a slab: input tensors lie where the producers wrote them, outputs of known shape where the producers will read
 * them; nothing is gathered or scattered.
 *
 * Owner: the instance thread. Values made for a run are released before run() returns, on every path.
 */
import type { Batch, Consumer } from '../queue/consumer.ts';
import type { SlabLayout } from '../queue/layout.ts';
import { STATUS_MODEL_FAILED } from '../queue/result.ts';
import type { Segment } from '../queue/segment.ts';
import { OrtError } from '../runtime/ort-error.ts';
import type { Runner, TensorValue } from '../runtime/runner.ts';
import { BYTES_LENGTH_BYTES, bytesElementLength, skipBytesElements } from '../tensor/bytes-tensor.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { isOutOfMemory } from './out-of-memory.ts';

/** A fault of one run that its requests are answered with; `status` is one of result.ts. */
export class RunFault extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** An output that was not bound in the slab: to be copied out while the run's values live. */
export interface LooseOutput {
  readonly shape: readonly number[];
  /** For BYTES, in the protocol's serialised form. */
  readonly byteLength: number;
  readonly strings: boolean;
  /** Writes exactly `byteLength` bytes. */
  readonly read: (target: Uint8Array) => void;
}

/** Shapes of a layout's tensors with the batch dimension in front, kept so that a run allocates none. */
interface Shapes {
  readonly inputs: number[][];
  readonly outputs: (number[] | undefined)[];
  readonly outputIndices: number[];
}

export class SlabRun {
  readonly #runner: Runner;
  readonly #segment: Segment;
  readonly #consumer: Consumer;
  readonly #signature: ModelSignature;
  readonly #shapes = new WeakMap<SlabLayout, Shapes>();
  readonly #inputs: TensorValue[] = [];
  readonly #outputs: (TensorValue | undefined)[] = [];
  /** False once the model has given an output another shape than its signature promised: from then on nothing is bound. */
  #bindable = true;

  constructor(runner: Runner, segment: Segment, consumer: Consumer, signature: ModelSignature) {
    this.#runner = runner;
    this.#segment = segment;
    this.#consumer = consumer;
    this.#signature = signature;
  }

  /**
   * Runs rows [firstRow, firstRow + rows) of a sealed batch; the whole request where the layout is not batched.
   *
   * @param use gets, per output of the layout, what has to be copied; undefined where it is in the slab already. Its result is returned.
   * @param giveBack whether the arena is to give back afterwards what it does not use.
   * @throws OrtError, RunFault
   */
  run<T>(
    batch: Batch,
    firstRow: number,
    rows: number,
    use: (outputs: readonly (LooseOutput | undefined)[]) => T,
    giveBack = false,
  ): T {
    const shapes = this.#shapesOf(batch.layout);
    try {
      this.#makeInputs(batch, shapes, firstRow, rows);
      this.#makeOutputs(batch, shapes, firstRow, rows);
      try {
        this.#runner.run(this.#inputs, shapes.outputIndices, this.#outputs, giveBack);
      } catch (error) {
        if (!this.#bindable || !(error instanceof OrtError) || isOutOfMemory(error)) throw error;
        // The model may give an output another shape than its signature says. If it runs unbound, that was it.
        this.#release(this.#outputs);
        this.#outputs.length = shapes.outputIndices.length;
        this.#outputs.fill(undefined);
        this.#runner.run(this.#inputs, shapes.outputIndices, this.#outputs, giveBack);
        this.#bindable = false;
      }
      return use(this.#looseOutputs(batch.layout, shapes, rows));
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

  #makeInputs(batch: Batch, shapes: Shapes, firstRow: number, rows: number): void {
    const { layout, placement } = batch;
    const address = this.#segment.address + batch.base;
    for (let n = 0; n < layout.inputs.length; n++) {
      const { datatype, rowBytes } = layout.inputs[n]!;
      const shape = shapes.inputs[n]!;
      if (!layout.whole) shape[0] = rows;
      if (datatype === 'BYTES') {
        this.#inputs.push(this.#runner.stringTensor(shape));
        this.#fillStrings(batch, n, firstRow, rows);
      } else {
        const start = address + placement.inputs[n]! + firstRow * rowBytes;
        this.#inputs.push(this.#runner.tensorOver(datatype, start, rows * rowBytes, shape));
      }
    }
  }

  #fillStrings(batch: Batch, input: number, firstRow: number, rows: number): void {
    const value = this.#inputs[this.#inputs.length - 1]!;
    const position = batch.layout.bytesInputs.indexOf(input);
    const { rowElements } = batch.layout.inputs[input]!;
    for (let claim = 0; claim < batch.claims; claim++) {
      const claimFirst = batch.firstRow[claim]!;
      const from = Math.max(claimFirst, firstRow);
      const to = Math.min(claimFirst + batch.claimRows[claim]!, firstRow + rows);
      // Rows nobody wants stay empty strings: what a dead or stopped producer left there is not looked at.
      if (from >= to || batch.wanted[claim] === 0) continue;
      const serialised = this.#consumer.bytesOf(batch, claim, position);
      const elements = batch.claimRows[claim]! * rowElements;
      if (serialised === undefined || skipBytesElements(serialised, 0, elements) !== serialised.length) {
        throw new RunFault(STATUS_MODEL_FAILED, 'A BYTES tensor is damaged in the queue.');
      }
      let at = skipBytesElements(serialised, 0, (from - claimFirst) * rowElements);
      const start = (from - firstRow) * rowElements;
      for (let element = 0; element < (to - from) * rowElements; element++) {
        const begin = at + BYTES_LENGTH_BYTES;
        at = begin + bytesElementLength(serialised, at);
        this.#runner.setString(value, start + element, serialised.subarray(begin, at));
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

  #looseOutputs(layout: SlabLayout, shapes: Shapes, rows: number): (LooseOutput | undefined)[] {
    return shapes.outputIndices.map((index, n) => {
      const bound = this.#bindable && layout.outputs[n]!.tensor !== undefined;
      return bound ? undefined : this.#describe(index, this.#outputs[n]!, layout.whole, rows);
    });
  }

  #describe(index: number, value: TensorValue, whole: boolean, rows: number): LooseOutput {
    const { shape, byteLength, isTensor, datatype } = this.#runner.describe(value);
    const spec = this.#signature.outputs[index]!;
    if (!isTensor || datatype !== spec.datatype) {
      throw new RunFault(STATUS_MODEL_FAILED, `The model gave no ${spec.datatype} tensor for output '${spec.name}'.`);
    }
    if (!whole && shape[0] !== rows) {
      throw new RunFault(
        STATUS_MODEL_FAILED,
        `Output '${spec.name}' has shape [${shape.join(',')}] for a batch of ${rows} rows: this model cannot be batched. Set max_batch_size to 0 in its config.json.`,
      );
    }
    const strings = datatype === 'BYTES';
    const read = (target: Uint8Array): void => {
      if (strings) this.#runner.readStrings(value, target);
      else this.#runner.readElements(value, target);
    };
    return { shape, byteLength, strings, read };
  }
}
