/**
 * Leaves the results that are not in the slab in a result region, with the table that an ingress finds them by (format: src/queue/result.ts).
 */
import type { Batch, Consumer } from '../queue/consumer.ts';
import { STATUS_RESULT_TOO_LARGE } from '../queue/result.ts';
import type { Segment } from '../queue/segment.ts';
import { skipBytesElements } from '../tensor/bytes-tensor.ts';
import { type LooseOutput, RunFault } from './slab-run.ts';

/** Parts of a region start on cache lines. */
const ALIGN_BYTES = 64;

function align(bytes: number): number {
  return Math.ceil(bytes / ALIGN_BYTES) * ALIGN_BYTES;
}

/**
 * Writes table and data for rows [firstRow, firstRow + rows).
 *
 * @returns offset of the table in the segment; 0 when everything is in the slab already.
 * @throws RunFault when there is no space.
 */
export function writeResults(
  segment: Segment,
  consumer: Consumer,
  batch: Batch,
  firstRow: number,
  rows: number,
  outputs: readonly (LooseOutput | undefined)[],
): number {
  if (outputs.every((output) => output === undefined)) return 0;
  let tableWords = 3;
  for (const output of outputs) tableWords += 4 + (output?.shape.length ?? 0);
  let bytes = align(tableWords * 8);
  const starts = outputs.map((output) => {
    const start = bytes;
    if (output !== undefined) bytes = align(bytes + output.byteLength) + (output.strings ? align((rows + 1) * 8) : 0);
    return start;
  });
  const region = consumer.allocateResult(batch, bytes);
  if (region < 0) {
    throw new RunFault(
      STATUS_RESULT_TOO_LARGE,
      `The results (${bytes} bytes) found no space in the queue's shared memory; raise queue.max_bytes of the model.`,
    );
  }
  const { f64, u8 } = segment;
  let at = region / 8;
  f64[at++] = outputs.length;
  f64[at++] = firstRow;
  f64[at++] = rows;
  outputs.forEach((output, n) => {
    const start = region + starts[n]!;
    const rowOffsets = output?.strings ? align(start + output.byteLength) : 0;
    f64[at++] = output === undefined ? 0 : start;
    f64[at++] = output?.byteLength ?? 0;
    f64[at++] = rowOffsets;
    f64[at++] = output?.shape.length ?? 0;
    for (const dim of output?.shape ?? []) f64[at++] = dim;
    if (output === undefined) return;
    const target = u8.subarray(start, start + output.byteLength);
    output.read(target);
    if (output.strings) {
      const elements = output.shape.reduce((product, dim) => product * dim, 1);
      writeRowOffsets(f64, rowOffsets / 8, target, rows, elements / Math.max(1, rows));
    }
  });
  return region;
}

/** Where each row of a serialised BYTES tensor begins, and where the last one ends. */
function writeRowOffsets(f64: Float64Array, at: number, data: Uint8Array, rows: number, rowElements: number): void {
  let position = 0;
  for (let row = 0; row < rows; row++) {
    f64[at + row] = position;
    position = skipBytesElements(data, position, rowElements);
  }
  f64[at + rows] = position;
}
