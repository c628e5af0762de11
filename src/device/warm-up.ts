/**
 * The runs by which an instance learns, before it serves, what a run costs: the canary's inputs with 1, 2, 4 and 8 rows. For instances that know nothing from an earlier
 * life.
 *
 * Bounds: WARM_UP_US, but for the run that passes it; memory as for any other run.
 */
import { encodeKey, SlabLayout } from '../queue/layout.ts';
import type { Segment } from '../queue/segment.ts';
import type { Runner } from '../runtime/runner.ts';
import { nowUs } from '../system/clock.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { type Canary, canaryDims, isRunFailure, runCanary } from './canary.ts';
import type { RunCosts } from './run-costs.ts';
import type { RunMemory } from './run-memory.ts';

const WARM_UP_US = 150_000;
const ROWS_MAX = 8;
const RUNS = 4;

export interface WarmUp {
  readonly runner: Runner;
  readonly memory: RunMemory;
  readonly segment: Segment;
  readonly signature: ModelSignature;
  readonly canary: Canary;
  readonly costs: RunCosts;
}

/** Blocks for the runs it makes. @throws OrtError, RunFault when not even one row runs */
export function warmUp({ runner, memory, segment, signature, canary, costs }: WarmUp): void {
  const layout = canaryLayout(segment, signature, canary);
  const endUs = nowUs() + WARM_UP_US;
  const rowsMax = layout.whole ? 1 : Math.min(ROWS_MAX, segment.geometry.maxBatchRows);
  for (let rows = 1, lastUs = 0; rows <= Math.min(rowsMax, memory.rowsMax(layout)); rows *= 2) {
    for (let run = 0; run < RUNS; run++) {
      const startedUs = nowUs();
      // The next one may take twice as long as the last.
      if (startedUs + 2 * lastUs > endUs) return;
      try {
        memory.run(layout, rows, (giveBack) => runCanary(runner, signature, canary, rows, giveBack));
      } catch (error) {
        // What runs with one row is fit to serve.
        if (!isRunFailure(error) || rows === 1) throw error;
        return;
      }
      const endedUs = nowUs();
      lastUs = endedUs - startedUs;
      costs.note(layout, rows, lastUs, endedUs);
    }
  }
}

/** The layout of requests like the canary. */
export function canaryLayout(segment: Segment, signature: ModelSignature, { size }: Canary): SlabLayout {
  const batched = isBatched(segment, signature);
  const shapes = signature.inputs.map(({ shape }) => canaryDims(shape, size, 1).slice(batched ? 1 : 0));
  return layoutFor(segment, signature, !batched, shapes);
}

/** Whether rows of several requests run together. */
export function isBatched({ geometry }: Segment, { inputs }: ModelSignature): boolean {
  return geometry.maxBatchRows > 1 && inputs.every(({ shape }) => shape[0] === -1);
}

/**
 * The layout of requests of these shapes for all outputs.
 *
 * @param shapes of the inputs; without the batch dimension unless `whole`.
 */
export function layoutFor(
  { geometry }: Segment,
  signature: ModelSignature,
  whole: boolean,
  shapes: readonly (readonly number[])[],
): SlabLayout {
  const outputs = signature.outputs.map((_, index) => index);
  return new SlabLayout(signature, encodeKey(whole, outputs, shapes), geometry.claimsPerSlab);
}
