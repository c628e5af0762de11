/**
 * The canary: one row of made-up inputs with which an instance proves, before it takes batches, that device, weights and thread really run.
 *
 * Which inputs a model takes is found out once, when it is loaded; the instances then make that one run. A model that takes none of them (one that looks its
 * input up in a table, say) cannot be proven so: its instances serve without a canary, and the report says why.
 *
 * Bounds: ATTEMPTS_MAX runs to find inputs, BYTES_MAX of them.
 */
import type { CanaryReport } from '../protocol/control.ts';
import { OrtError } from '../runtime/ort-error.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { elementsOf, type GivenRunner, runGiven } from './given-run.ts';
import { isOutOfMemory } from './out-of-memory.ts';
import { fillProbeRow } from './probe-data.ts';
import { RunFault } from './slab-run.ts';

/** Inputs as the probe of batchability makes them, of one row. Plain data. */
export interface Canary {
  /** Of the variable dimensions but the first. */
  readonly size: number;
  readonly mode: 'from zero' | 'from one';
}

export interface CanaryFound {
  readonly canary: Canary | undefined;
  readonly report: CanaryReport;
}

const SIZES = [32, 64, 512, 8, 1] as const;
const MODES = ['from zero', 'from one'] as const;
const ATTEMPTS_MAX = SIZES.length * MODES.length;
const BYTES_MAX = 256 * 2 ** 20;
/** What a string costs about. */
const STRING_BYTES = 64;

/** Finds inputs that the model takes. Blocks for the runs it makes. @throws OrtError when it has not enough memory for any of them: it takes them, and cannot run */
export function findCanary(runner: GivenRunner, signature: ModelSignature): CanaryFound {
  const sized = signature.inputs.some(({ shape }) => shape.indexOf(-1, 1) > 0);
  let failure = 'they would be too large';
  let lack: OrtError | undefined;
  let refused = false;
  for (const size of sized ? SIZES : SIZES.slice(0, 1)) {
    for (const mode of MODES) {
      const canary = { size, mode };
      if (bytesOf(signature, size) > BYTES_MAX) continue;
      try {
        runCanary(runner, signature, canary);
        return { canary, report: { found: true, detail: 'A run of one row of made-up inputs succeeded.' } };
      } catch (error) {
        if (!isRunFailure(error)) throw error;
        failure = error.message;
        if (isOutOfMemory(error)) lack = error;
        else refused = true;
        // It ran for too long: others would as well.
        if (error instanceof RunFault) return notFound(failure);
      }
    }
  }
  if (lack !== undefined && !refused) throw lack;
  return notFound(failure);
}

function notFound(failure: string): CanaryFound {
  const detail = `The model took none of ${ATTEMPTS_MAX} made-up inputs, so its instances are not tried before they serve (${failure}).`;
  return { canary: undefined, report: { found: false, detail } };
}

/**
 * One run with these inputs.
 *
 * @param rows how often the row stands in a batch; 1 for a model that takes none.
 * @param giveBack whether the arena is to give back afterwards what it does not use.
 * @throws OrtError, RunFault
 */
export function runCanary(
  runner: GivenRunner,
  signature: ModelSignature,
  { size, mode }: Canary,
  rows = 1,
  giveBack = false,
): void {
  const dims = signature.inputs.map(({ shape }) => canaryDims(shape, size, rows));
  const fill = (index: number, bytes: Uint8Array): Uint8Array[] => {
    const { datatype } = signature.inputs[index]!;
    return fillProbeRow(datatype, mode, index, 0, elementsOf(dims[index]!), bytes);
  };
  runGiven(runner, signature, dims, fill, giveBack);
}

/** Whether a run failed, which is the model's matter, and not this program. */
export function isRunFailure(error: unknown): error is OrtError | RunFault {
  return error instanceof OrtError || error instanceof RunFault;
}

function bytesOf({ inputs }: ModelSignature, size: number): number {
  let bytes = 0;
  for (const { datatype, shape } of inputs) {
    bytes += elementsOf(canaryDims(shape, size, 1)) * (datatypeInfo(datatype).elementBytes || STRING_BYTES);
  }
  return bytes;
}

/** Shape of an input in a canary run. */
export function canaryDims(shape: readonly number[], size: number, rows: number): number[] {
  return shape.map((dim, axis) => (dim !== -1 ? dim : axis === 0 ? rows : size));
}
