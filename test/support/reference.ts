/**
 * Oracle values: runs a model in this very process, on one thread of the CPU, through src/runtime.
 *
 * An oracle owns its session and frees it with the test. The answers of a server must equal its answers to the same batch bit for bit.
 */
import assert from 'node:assert/strict';
import { Cells } from '../../src/runtime/cells.ts';
import { Runner, type TensorValue } from '../../src/runtime/runner.ts';
import { Session } from '../../src/runtime/session.ts';
import { decodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import { elementCount } from '../../src/tensor/shape.ts';
import type { ModelSignature } from '../../src/tensor/signature.ts';
import { writeModel } from './models.ts';
import { type CleanUp, temporaryDirectory } from './repository.ts';
import { fromWire, type TensorMap, type TestTensor, tensor, wireBytes } from './tensor.ts';

/** An input and the memory under it, which lives as long as this object does. */
interface HeldInput {
  readonly value: TensorValue;
  readonly memory: Cells;
}

export class Oracle {
  readonly signature: ModelSignature;
  private readonly session: Session;
  private readonly runner: Runner;

  /** Loads a model file; the caller releases the oracle. */
  constructor(modelPath: string) {
    this.session = Session.load(modelPath, { provider: 'cpu', deviceId: 0, intraOpThreads: 1 });
    this.signature = this.session.signature;
    this.runner = new Runner(this.session.handle);
  }

  /** An oracle for a fixture, released when the test ends. */
  static of(cleanUp: CleanUp, fixtureName: string): Oracle {
    const oracle = new Oracle(writeModel(temporaryDirectory(cleanUp, 'oracle'), fixtureName));
    cleanUp.after(() => oracle.release());
    return oracle;
  }

  /**
   * Runs the model once.
   *
   * @param outputs Names of the outputs wanted, by default all.
   * @throws OrtError when the model's run fails.
   */
  run(inputs: TensorMap, outputs = this.signature.outputs.map(({ name }) => name)): Map<string, TestTensor> {
    const indices = outputs.map((name) => this.signature.outputs.findIndex((output) => output.name === name));
    assert(!indices.includes(-1), `the model has no output ${outputs[indices.indexOf(-1)]}`);
    const held: HeldInput[] = [];
    const results: (TensorValue | undefined)[] = outputs.map(() => undefined);
    try {
      for (const { name } of this.signature.inputs) held.push(this.input(name, inputs.get(name)));
      this.runner.run(
        held.map(({ value }) => value),
        indices,
        results,
      );
      return new Map(outputs.map((name, index) => [name, this.read(results[index]!)]));
    } finally {
      for (const { value } of held) this.runner.release(value);
      for (const value of results) if (value !== undefined) this.runner.release(value);
    }
  }

  release(): void {
    this.runner.dispose();
    this.session.release();
  }

  private input(name: string, source: TestTensor | undefined): HeldInput {
    assert(source !== undefined, `input ${name} is missing`);
    if (source.datatype === 'BYTES') {
      const value = this.runner.stringTensor(source.shape);
      for (const [index, element] of source.data.entries()) this.runner.setString(value, index, element);
      return { value, memory: new Cells(0) };
    }
    const bytes = wireBytes(source);
    const memory = new Cells(Math.ceil(bytes.byteLength / 8));
    memory.bytes.set(bytes);
    return { value: this.runner.tensorOver(source.datatype, memory.address, bytes.byteLength, source.shape), memory };
  }

  private read(value: TensorValue): TestTensor {
    const { datatype, shape, byteLength } = this.runner.describe(value);
    assert(datatype !== undefined, 'the output is no tensor of the protocol');
    const bytes = new Uint8Array(byteLength);
    if (datatype !== 'BYTES') {
      this.runner.readElements(value, bytes);
      return fromWire(datatype, shape, bytes);
    }
    this.runner.readStrings(value, bytes);
    return tensor('BYTES', shape, decodeBytesTensor(bytes, elementCount(shape)!)!);
  }
}
