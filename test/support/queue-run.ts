/**
 * Runs the models of queue-models.ts as an instance does, in JavaScript: reads the rows of a sealed batch where they lie, writes the outputs of known
 * shape into the slab and the others into a result region with its table (result.ts).
 */
import assert from 'node:assert/strict';
import type { Batch, Consumer } from '../../src/queue/consumer.ts';
import { STATUS_OK, STATUS_RESULT_TOO_LARGE } from '../../src/queue/result.ts';
import type { Segment } from '../../src/queue/segment.ts';
import { decodeBytesTensor, encodeBytesTensor } from '../../src/tensor/bytes-tensor.ts';
import type { ModelSignature } from '../../src/tensor/signature.ts';
import { MATRIX, NUMBERS, NUMBERS_R, NUMBERS_Y, R_COLUMNS, WORDS } from './queue-models.ts';

/** An output that is not bound in the slab; `rowOffsets` for BYTES only. */
interface Part {
  readonly shape: readonly number[];
  readonly bytes: Uint8Array;
  readonly rowOffsets: readonly number[] | undefined;
}

/** Runs the batch and settles its claims. The caller finishes it. */
export function runBatch(segment: Segment, consumer: Consumer, batch: Batch, model: ModelSignature): void {
  consumer.running(batch);
  if (!batch.oneByOne) {
    runClaims(segment, consumer, batch, model, 0, batch.claims);
    return;
  }
  for (let claim = 0; claim < batch.claims; claim++) {
    if (batch.wanted[claim] === 0 || consumer.settled(batch, claim)) continue;
    consumer.alone(batch, claim);
    runClaims(segment, consumer, batch, model, claim, claim + 1);
  }
}

/** Runs all rows, which does no harm, and settles the claims [from, to). */
function runClaims(
  segment: Segment,
  consumer: Consumer,
  batch: Batch,
  model: ModelSignature,
  from: number,
  to: number,
): void {
  const parts = batch.wantedClaims === 0 ? [] : outputsOf(segment, consumer, batch, model);
  const table = parts.some((part) => part !== undefined) ? storeParts(segment, consumer, batch, parts) : 0;
  const status = table < 0 ? STATUS_RESULT_TOO_LARGE : STATUS_OK;
  for (let claim = from; claim < to; claim++) {
    // An atomic step that settling itself does not need, so that withSteps() can stop or kill between two claims.
    Atomics.load(segment.i32, 0);
    consumer.settle(batch, claim, status, Math.max(0, table));
  }
}

/** Per output of the layout: undefined when it was written into the slab. */
function outputsOf(
  segment: Segment,
  consumer: Consumer,
  batch: Batch,
  model: ModelSignature,
): readonly (Part | undefined)[] {
  if (model === NUMBERS) return runNumbers(segment, batch);
  if (model === WORDS) return runWords(segment, consumer, batch);
  assert.equal(model, MATRIX);
  return runMatrix(segment, batch);
}

function floats(segment: Segment, at: number, count: number): Float32Array {
  return new Float32Array(segment.u8.buffer as ArrayBuffer, at, count);
}
function ints(segment: Segment, at: number, count: number): Int32Array {
  return new Int32Array(segment.u8.buffer as ArrayBuffer, at, count);
}

function runNumbers(segment: Segment, batch: Batch): (Part | undefined)[] {
  const { layout, placement, base, rows } = batch;
  const width = layout.inputs[0]!.dims[0]!;
  const x = floats(segment, base + placement.inputs[0]!, rows * width);
  const id = ints(segment, base + placement.inputs[1]!, rows);
  return layout.outputs.map(({ index }, n) => {
    if (index === NUMBERS_Y) {
      const y = floats(segment, base + placement.outputs[n]!, rows * width);
      for (let i = 0; i < y.length; i++) y[i] = 2 * x[i]! + id[Math.floor(i / width)]!;
      return undefined;
    }
    assert.equal(index, NUMBERS_R);
    const r = Int32Array.from({ length: rows * R_COLUMNS }, (_, i) => id[Math.floor(i / R_COLUMNS)]! + (i % R_COLUMNS));
    return { shape: [rows, R_COLUMNS], bytes: new Uint8Array(r.buffer), rowOffsets: undefined };
  });
}

function runWords(segment: Segment, consumer: Consumer, batch: Batch): (Part | undefined)[] {
  const { placement, base, rows } = batch;
  const perRow = batch.layout.inputs[0]!.dims[0]!;
  const elements: Uint8Array[] = Array.from({ length: rows * perRow }, () => new Uint8Array(0));
  for (let claim = 0; claim < batch.claims; claim++) {
    if (batch.wanted[claim] === 0) continue;
    const data = consumer.bytesOf(batch, claim, 0);
    const count = batch.claimRows[claim]! * perRow;
    const own = data === undefined ? undefined : decodeBytesTensor(data, count);
    if (own === undefined) throw new Error('a claim has damaged BYTES');
    own.forEach((element, n) => {
      elements[batch.firstRow[claim]! * perRow + n] = element.slice().reverse();
    });
  }
  const rowOffsets = [0];
  for (let row = 0; row < rows; row++) {
    let end = rowOffsets[row]!;
    for (let n = 0; n < perRow; n++) end += 4 + elements[row * perRow + n]!.length;
    rowOffsets.push(end);
  }
  ints(segment, base + placement.outputs[1]!, rows).set(ints(segment, base + placement.inputs[1]!, rows));
  return [{ shape: [rows, perRow], bytes: encodeBytesTensor(elements), rowOffsets }, undefined];
}

function runMatrix(segment: Segment, batch: Batch): undefined[] {
  const { layout, placement, base } = batch;
  const [a = 0, b = 0] = layout.inputs[0]!.dims;
  const m = floats(segment, base + placement.inputs[0]!, a * b);
  const t = floats(segment, base + placement.outputs[0]!, a * b);
  for (let n = 0; n < a * b; n++) t[n] = m[(n % a) * b + Math.floor(n / a)]!;
  return [undefined];
}

function align(bytes: number): number {
  return Math.ceil(bytes / 64) * 64;
}

/** Writes a result region: table, then each part and its row offsets. Returns its offset, or -1 when there was no space. */
export function storeParts(
  segment: Segment,
  consumer: Consumer,
  batch: Batch,
  parts: readonly (Part | undefined)[],
): number {
  let bytes = 3 * 8;
  for (const part of parts) bytes += (4 + (part?.shape.length ?? 0)) * 8;
  bytes = align(bytes);
  const places = parts.map((part) => {
    const data = bytes;
    const offsets = data + align(part?.bytes.length ?? 0);
    bytes = offsets + align((part?.rowOffsets?.length ?? 0) * 8);
    return { data, offsets };
  });
  const region = consumer.allocateResult(batch, bytes);
  if (region < 0) return -1;
  const words = [parts.length, 0, batch.rows];
  parts.forEach((part, n) => {
    if (part === undefined) {
      words.push(0, 0, 0, 0);
      return;
    }
    const { data, offsets } = places[n]!;
    segment.u8.set(part.bytes, region + data);
    if (part.rowOffsets !== undefined) segment.f64.set(part.rowOffsets, (region + offsets) / 8);
    const rowOffsets = part.rowOffsets === undefined ? 0 : region + offsets;
    words.push(region + data, part.bytes.length, rowOffsets, part.shape.length, ...part.shape);
  });
  segment.f64.set(words, region / 8);
  return region;
}
