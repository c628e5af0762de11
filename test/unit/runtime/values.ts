/**
 * Runs test tensors through a Runner: values over memory of the test, results read back by description.
 */
import { Cells } from '../../../src/runtime/cells.ts';
import type { Runner, TensorValue } from '../../../src/runtime/runner.ts';
import { decodeBytesTensor } from '../../../src/tensor/bytes-tensor.ts';
import { elementCount } from '../../../src/tensor/shape.ts';
import type { ModelSignature } from '../../../src/tensor/signature.ts';
import { fromWire, type TensorMap, type TestTensor, tensor, wireBytes } from '../../support/tensor.ts';

/** A value and the memory under it, which must be kept while the value is used. */
export interface HeldValue {
  readonly value: TensorValue;
  readonly memory: Cells;
}

export function makeValue(runner: Runner, source: TestTensor): HeldValue {
  if (source.datatype === 'BYTES') {
    const value = runner.stringTensor(source.shape);
    source.data.forEach((element, index) => {
      runner.setString(value, index, element);
    });
    return { value, memory: new Cells(0) };
  }
  const bytes = wireBytes(source);
  const memory = new Cells(Math.ceil(bytes.byteLength / 8));
  memory.bytes.set(bytes);
  return { value: runner.tensorOver(source.datatype, memory.address, bytes.byteLength, source.shape), memory };
}

export function readValue(runner: Runner, value: TensorValue): TestTensor {
  const { datatype, shape, byteLength } = runner.describe(value);
  if (datatype === undefined) throw new Error('the value is no tensor of the protocol');
  const bytes = new Uint8Array(byteLength);
  if (datatype === 'BYTES') {
    runner.readStrings(value, bytes);
    return tensor('BYTES', shape, decodeBytesTensor(bytes, elementCount(shape)!)!);
  }
  runner.readElements(value, bytes);
  return fromWire(datatype, shape, bytes);
}

/** Runs a session once with inputs by name; outputs are allocated by ONNX Runtime. */
export function runOnce(runner: Runner, signature: ModelSignature, inputs: TensorMap): Map<string, TestTensor> {
  const held = signature.inputs.map(({ name }) => makeValue(runner, inputs.get(name)!));
  const outputs: (TensorValue | undefined)[] = signature.outputs.map(() => undefined);
  try {
    runner.run(
      held.map(({ value }) => value),
      [...signature.outputs.keys()],
      outputs,
    );
    return new Map(signature.outputs.map(({ name }, index) => [name, readValue(runner, outputs[index]!)]));
  } finally {
    for (const { value } of held) runner.release(value);
    for (const value of outputs) if (value !== undefined) runner.release(value);
  }
}
