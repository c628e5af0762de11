/**
 * Whether rows of different requests may run together in one batch of a model.
 *
 * Two questions. `staticObstacle` reads the signature: the first dimension of every input and output must be variable. The
 * probe then runs three rows alone, two of them together and all three together, and compares: a model may have a variable
 * first dimension and still mix its rows (a softmax over the batch axis) or give fewer (a sum over it).
 *
 * Owner: the probe owns its memory and values and leaves none behind. Bounds: RUNS_MAX runs, none of them begun after
 * PROBE_TIME_MAX_MS, inputs and each output at most PROBE_BYTES_MAX a batch. The data is the same on every load.
 */
import { performance } from 'node:perf_hooks';
import { Cells } from '../runtime/cells.ts';
import { OrtError } from '../runtime/ort-error.ts';
import type { Runner, TensorValue } from '../runtime/runner.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import { formatShape } from '../tensor/shape.ts';
import type { ModelSignature, TensorSpec } from '../tensor/signature.ts';
import { isOutOfMemory } from './out-of-memory.ts';
import { rowDifference } from './probe-compare.ts';
import { fillProbeRow, type ProbeMode } from './probe-data.ts';

export interface Batchability {
  /** False when batching is known to give wrong answers or cannot be; true when nothing speaks against it. */
  readonly batchable: boolean;
  /** One sentence for logs, metadata and `inspect`. */
  readonly reason: string;
  /** Whether the probe settled it. If not, batching is for the user to decide. */
  readonly proven: boolean;
  /** Whether another probe, with more memory, may settle it. */
  readonly provisional?: boolean;
}

/** The part of a Runner that the probe uses. */
export type ProbeRunner = Pick<
  Runner,
  'tensorOver' | 'stringTensor' | 'setString' | 'run' | 'describe' | 'readElements' | 'readStrings' | 'release'
>;

/** Rows of the largest trial batch. */
export const PROBE_ROWS = 3;
const PROBE_BYTES_MAX = 256 * 2 ** 20;
const PROBE_TIME_MAX_MS = 20_000;

/** Sizes tried for variable dimensions other than the first: most models take 32 or 64, networks on raw audio want more. */
const SIZES = [32, 64, 512, 8, 1] as const;

/** Modes that are tried until the model runs; `wide` comes after one of them, where that told nothing. */
const FIRST_MODES = ['from zero', 'from one'] as const satisfies ProbeMode[];

/** Two rounds are 2 × 5 runs; the others are for finding inputs that the model takes. */
const RUNS_MAX = 20;

/** Names that say a dimension is the batch, where nothing else does. */
const BATCH_SYMBOL = /^N$|[Bb]atch|BATCH/;

/** One run's outputs: shape and elements of each, in the protocol's form for BYTES. */
interface Output {
  readonly shape: readonly number[];
  readonly bytes: Uint8Array;
}

/** A fact found by the probe that ends it. */
class Verdict extends Error {
  readonly result: Batchability;
  constructor(result: Batchability) {
    super(result.reason);
    this.result = result;
  }
}

/** Decides for a loaded model. Blocks for the runs it makes. @throws only for a bug */
export function probeBatchability(runner: ProbeRunner, signature: ModelSignature): Batchability {
  const obstacle = staticObstacle(signature);
  if (obstacle !== undefined) {
    return { batchable: false, reason: obstacle, proven: true };
  }
  try {
    return new Probe(runner, signature).decide();
  } catch (error) {
    if (error instanceof Verdict) {
      return error.result;
    }
    throw error;
  }
}

/** Why the signature alone forbids batching, in one sentence, or undefined. Pure. */
export function staticObstacle({ inputs, outputs }: ModelSignature): string | undefined {
  if (inputs.length === 0) {
    return 'The model has no inputs.';
  }
  if (outputs.length === 0) {
    return 'The model has no outputs that the protocol can carry.';
  }
  const all = [
    ...inputs.map((tensor) => ['Input', tensor] as const),
    ...outputs.map((tensor) => ['Output', tensor] as const),
  ];
  for (const [role, { name, shape }] of all) {
    const tensor = `${role} ${JSON.stringify(name)}`;
    if (shape.length === 0) {
      return `${tensor} is a scalar and has no dimension to batch along.`;
    }
    if (shape[0] !== -1) {
      return `${tensor} has shape ${formatShape(shape)}, whose first dimension is fixed.`;
    }
  }
  const rowSymbols = new Set(inputs.map(({ symbols }) => symbols[0]).filter((symbol) => symbol !== ''));
  for (const [role, { name, symbols }] of all) {
    const axis = symbols.findIndex((symbol, index) => index > 0 && rowSymbols.has(symbol));
    if (axis > 0) {
      return `${role} ${JSON.stringify(name)} has the batch dimension ${JSON.stringify(symbols[axis])} as dimension ${axis} too.`;
    }
  }
  return undefined;
}

class Probe {
  readonly #runner: ProbeRunner;
  readonly #signature: ModelSignature;
  readonly #outputIndices: readonly number[];
  readonly #deadlineMs = performance.now() + PROBE_TIME_MAX_MS;
  #runs = 0;

  constructor(runner: ProbeRunner, signature: ModelSignature) {
    this.#runner = runner;
    this.#signature = signature;
    this.#outputIndices = signature.outputs.map((_, index) => index);
  }

  decide(): Batchability {
    const { size, inputs, alone } = this.#findInputs();
    if (!this.#round(inputs, alone) && !this.#wideRound(size)) {
      throw unsettled('Different rows gave equal outputs, so that the probe could not tell whether rows stay apart.');
    }
    if (this.#signature.inputs.every(isVector)) {
      throw unsettled('Every input has one dimension only, which may be a length as well as a batch.');
    }
    return { batchable: true, reason: 'Rows run together gave what each gave alone.', proven: true };
  }

  /** Data that the model accepts, and the outputs of each row alone. */
  #findInputs(): { size: number; inputs: ProbeInputs; alone: Output[][] } {
    const { inputs: specs } = this.#signature;
    const sized = specs.some(({ shape }) => shape.indexOf(-1, 1) > 0);
    let failure = 'the rows are too large';
    for (const size of sized ? SIZES : SIZES.slice(0, 1)) {
      for (const mode of FIRST_MODES) {
        const inputs = ProbeInputs.make(specs, size, mode);
        if (inputs === undefined) {
          continue;
        }
        const alone = this.#runAlone(inputs);
        if (!(alone instanceof OrtError)) {
          return { size, inputs, alone };
        }
        failure = alone.message;
      }
    }
    throw unsettled(`The model took none of the probe's inputs (${failure}).`);
  }

  /** A round with values further apart, which not every model takes. @returns whether it told something */
  #wideRound(size: number): boolean {
    const inputs = ProbeInputs.make(this.#signature.inputs, size, 'wide');
    const alone = inputs === undefined ? undefined : this.#runAlone(inputs);
    return inputs !== undefined && Array.isArray(alone) && this.#round(inputs, alone);
  }

  /**
   * Compares rows together with rows alone.
   *
   * @returns whether the rows' outputs differ, without which the comparison tells nothing
   * @throws Verdict when rows do not stay apart
   */
  #round(inputs: ProbeInputs, alone: readonly Output[][]): boolean {
    let telling = false;
    this.#signature.outputs.forEach((spec, index) => {
      const rows = alone.map((outputs) => outputs[index]!);
      for (const row of rows) {
        checkRows(spec, row, 1);
      }
      telling ||= rows.slice(1).some(({ bytes }) => rowDifference(spec.datatype, rows[0]!.bytes, bytes) !== undefined);
    });
    for (let rows = 2; rows <= PROBE_ROWS; rows++) {
      const together = this.#runTogether(inputs, rows);
      this.#signature.outputs.forEach((spec, index) => {
        const wanted = alone.slice(0, rows).map((outputs) => outputs[index]!);
        this.#compare(spec, together[index]!, wanted);
      });
    }
    return telling;
  }

  /** The outputs of each row, or why one of them did not run. */
  #runAlone(inputs: ProbeInputs): Output[][] | OrtError {
    try {
      return Array.from({ length: PROBE_ROWS }, (_, row) => this.#run(inputs, row, 1));
    } catch (error) {
      if (error instanceof OrtError) {
        return error;
      }
      throw error;
    }
  }

  /** Runs rows that have all run alone. */
  #runTogether(inputs: ProbeInputs, rows: number): Output[] {
    try {
      return this.#run(inputs, 0, rows);
    } catch (error) {
      if (error instanceof OrtError && isOutOfMemory(error)) {
        throw unsettled(`There is no memory for ${rows} rows of the probe (${error.message.trim()}).`, true);
      }
      if (error instanceof OrtError) {
        throw refuted(`The model runs with one row and fails with ${rows}: ${error.message}`);
      }
      throw error;
    }
  }

  #run(inputs: ProbeInputs, firstRow: number, rows: number): Output[] {
    if (performance.now() > this.#deadlineMs) {
      throw unsettled('The model is too slow to be probed while it loads.');
    }
    if (++this.#runs > RUNS_MAX) {
      throw unsettled(`The probe found no fitting input within ${RUNS_MAX} runs.`);
    }
    const runner = this.#runner;
    const values: TensorValue[] = [];
    const results: (TensorValue | undefined)[] = this.#outputIndices.map(() => undefined);
    try {
      inputs.addValues(runner, firstRow, rows, values);
      runner.run(values, this.#outputIndices, results);
      return results.map((value, index) => this.#read(this.#signature.outputs[index]!, value!));
    } finally {
      for (const value of [...values, ...results]) {
        if (value !== undefined) {
          runner.release(value);
        }
      }
    }
  }

  #read(spec: TensorSpec, value: TensorValue): Output {
    const { datatype, shape, byteLength } = this.#runner.describe(value);
    if (datatype !== spec.datatype) {
      throw refuted(`Output ${JSON.stringify(spec.name)} is ${datatype ?? 'no tensor'} instead of ${spec.datatype}.`);
    }
    if (byteLength > PROBE_BYTES_MAX) {
      throw unsettled(`Output ${JSON.stringify(spec.name)} is too large to be probed (${byteLength} bytes).`);
    }
    const bytes = new Uint8Array(byteLength);
    if (datatype === 'BYTES') {
      this.#runner.readStrings(value, bytes);
    } else {
      this.#runner.readElements(value, bytes);
    }
    return { shape, bytes };
  }

  #compare(spec: TensorSpec, together: Output, alone: readonly Output[]): void {
    const rows = alone.length;
    checkRows(spec, together, rows);
    const output = `Output ${JSON.stringify(spec.name)}`;
    const rowShape = alone[0]!.shape.slice(1);
    if (
      alone.some(({ shape }) => String(shape.slice(1)) !== String(rowShape)) ||
      String(together.shape.slice(1)) !== String(rowShape)
    ) {
      throw refuted(`${output} has rows whose shape depends on their values.`);
    }
    const joined = Buffer.concat(alone.map(({ bytes }) => bytes));
    const difference = rowDifference(spec.datatype, joined, together.bytes);
    if (difference !== undefined) {
      throw refuted(`${output} gives a row another value beside other rows than alone: ${difference}.`);
    }
  }
}

function checkRows(spec: TensorSpec, { shape }: Output, rows: number): void {
  if (shape[0] !== rows) {
    throw refuted(
      `Output ${JSON.stringify(spec.name)} has shape ${formatShape(shape)} for ${rows} row${rows === 1 ? '' : 's'}.`,
    );
  }
}

/** An input whose one dimension does not say that it is a batch. */
function isVector({ shape, symbols }: TensorSpec): boolean {
  return shape.length === 1 && !BATCH_SYMBOL.test(symbols[0]!);
}

function refuted(reason: string): Verdict {
  return new Verdict({ batchable: false, reason, proven: true });
}

function unsettled(reason: string, provisional = false): Verdict {
  return new Verdict({
    batchable: true,
    reason: `${reason} Set max_batch_size to batch it all the same.`,
    proven: false,
    ...(provisional ? { provisional } : {}),
  });
}

/** PROBE_ROWS rows of every input, one behind the other in memory, so that any run of rows is a tensor over a part of it. */
class ProbeInputs {
  readonly #specs: readonly TensorSpec[];
  readonly #rowShapes: readonly (readonly number[])[];
  readonly #memory: readonly Cells[];
  readonly #strings: readonly (readonly Uint8Array[])[];

  private constructor(specs: readonly TensorSpec[], rowShapes: readonly number[][], mode: ProbeMode) {
    this.#specs = specs;
    this.#rowShapes = rowShapes;
    const memory: Cells[] = [];
    const strings: Uint8Array[][] = [];
    specs.forEach(({ datatype }, index) => {
      const elements = count(rowShapes[index]!);
      const { elementBytes } = datatypeInfo(datatype);
      const cells = new Cells(Math.ceil((PROBE_ROWS * elements * elementBytes) / 8));
      const texts: Uint8Array[] = [];
      for (let row = 0; row < PROBE_ROWS; row++) {
        const start = row * elements * elementBytes;
        const target = cells.bytes.subarray(start, start + elements * elementBytes);
        texts.push(...fillProbeRow(datatype, mode, index, row, elements, target));
      }
      memory.push(cells);
      strings.push(texts);
    });
    this.#memory = memory;
    this.#strings = strings;
  }

  /** @returns undefined when the rows are too large for a probe */
  static make(specs: readonly TensorSpec[], size: number, mode: ProbeMode): ProbeInputs | undefined {
    const rowShapes = specs.map(({ shape }) => shape.slice(1).map((dim) => (dim === -1 ? size : dim)));
    let bytes = 0;
    specs.forEach(({ datatype }, index) => {
      // A string costs about as much as its object.
      bytes += PROBE_ROWS * count(rowShapes[index]!) * (datatypeInfo(datatype).elementBytes || 64);
    });
    return bytes > PROBE_BYTES_MAX ? undefined : new ProbeInputs(specs, rowShapes, mode);
  }

  /** Appends a value per input, which the caller releases, also when this throws. */
  addValues(runner: ProbeRunner, firstRow: number, rows: number, values: TensorValue[]): void {
    this.#specs.forEach(({ datatype }, index) => {
      const rowShape = this.#rowShapes[index]!;
      const shape = [rows, ...rowShape];
      const rowElements = count(rowShape);
      if (datatype === 'BYTES') {
        const value = runner.stringTensor(shape);
        values.push(value);
        for (let i = 0; i < rows * rowElements; i++) {
          runner.setString(value, i, this.#strings[index]![firstRow * rowElements + i]!);
        }
        return;
      }
      const rowBytes = rowElements * datatypeInfo(datatype).elementBytes;
      const address = this.#memory[index]!.address + firstRow * rowBytes;
      values.push(runner.tensorOver(datatype, address, rows * rowBytes, shape));
    });
  }
}

function count(shape: readonly number[]): number {
  return shape.reduce((product, dim) => product * dim, 1);
}
