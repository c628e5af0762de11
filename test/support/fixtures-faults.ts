/**
 * Models made for tests of faults and versions, beside the table of fixtures: they are written where a test wants them and are no fixtures of their own.
 */
import { defineFixture } from './fixture.ts';
import { node, spec } from './onnx.ts';
import { tensor } from './tensor.ts';

const rowsOf = { inputs: [spec('x', 'INT32', ['N', 1])], outputs: [spec('y', 'INT32', ['N', 1])], batchable: true };
const scalar = (value: number) => tensor('INT32', [], Int32Array.of(value));

/** The bytes of `x[N,1] INT32 → y = x + addend`: tells which of several files is served. */
export function plusModel(addend: number): Uint8Array {
  return defineFixture({
    name: `plus_${addend}`,
    about: 'adds a constant',
    ...rowsOf,
    constants: { addend: scalar(addend) },
    nodes: [node('Add', ['x', 'addend'], ['y'])],
  }).build().model;
}

/**
 * The bytes of a model with the signature of `plusModel` whose load ends the process with SIGFPE on x64: ONNX Runtime computes the quotient of its constants,
 * −2^31 / −1, when it folds them.
 */
export function fatalModel(): Uint8Array {
  return defineFixture({
    name: 'fatal',
    about: 'ends the process that loads it',
    ...rowsOf,
    constants: { least: scalar(-(2 ** 31)), minusOne: scalar(-1) },
    nodes: [node('Div', ['least', 'minusOne'], ['quotient']), node('Add', ['x', 'quotient'], ['y'])],
  }).build().model;
}
