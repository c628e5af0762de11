/**
 * A run whose inputs come from no queue: those of canary and warm-up. All outputs are computed and thrown away.
 *
 * Owner: memory and values of a run are released before it returns.
 */
import { Cells } from '../runtime/cells.ts';
import type { Runner, TensorValue } from '../runtime/runner.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import type { ModelSignature } from '../tensor/signature.ts';

/** What of a Runner is needed. */
export type GivenRunner = Pick<Runner, 'tensorOver' | 'stringTensor' | 'setString' | 'run' | 'release'>;

/**
 * One run with inputs of these shapes.
 *
 * @param dims by input, with the batch dimension.
 * @param fill writes an input, row-major, into its bytes; of BYTES it returns the elements, and the bytes are empty.
 * @param giveBack whether the arena is to give back afterwards what it does not use.
 * @throws OrtError, RunFault
 */
export function runGiven(
  runner: GivenRunner,
  { inputs, outputs }: ModelSignature,
  dims: readonly (readonly number[])[],
  fill: (input: number, bytes: Uint8Array) => readonly Uint8Array[],
  giveBack = false,
): void {
  const values: TensorValue[] = [];
  const results: (TensorValue | undefined)[] = outputs.map(() => undefined);
  const memory: Cells[] = [];
  try {
    inputs.forEach(({ datatype }, index) => {
      const shape = [...dims[index]!];
      const byteLength = elementsOf(shape) * datatypeInfo(datatype).elementBytes;
      const cells = new Cells(Math.ceil(byteLength / 8));
      memory.push(cells);
      const texts = fill(index, cells.bytes.subarray(0, byteLength));
      if (datatype === 'BYTES') {
        const value = runner.stringTensor(shape);
        values.push(value);
        texts.forEach((text, element) => {
          runner.setString(value, element, text);
        });
      } else values.push(runner.tensorOver(datatype, cells.address, byteLength, shape));
    });
    runner.run(
      values,
      outputs.map((_, index) => index),
      results,
      giveBack,
    );
  } finally {
    for (const value of [...values, ...results]) if (value !== undefined) runner.release(value);
    memory.length = 0; // until here the tensors lay in it
  }
}

/** Elements of a shape that a model takes. */
export function elementsOf(shape: readonly number[]): number {
  return shape.reduce((product, dim) => product * dim, 1);
}
