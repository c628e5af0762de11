/**
 * The runs that a model's configuration asks for before an instance takes batches (`warmup`): zeros, random values, files with the bytes of a tensor, or a request as
 * it was recorded.
 *
 * One that fails keeps the instance from serving, and so the version from taking over. Bounds: FILE_BYTES_MAX of a file, TENSOR_BYTES_MAX of an input; memory as for
 * any other run.
 */
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { BatchportError } from '../config/errors.ts';
import type { WarmUpConfig } from '../config/model-config.ts';
import type { WarmUpOrder } from '../protocol/control.ts';
import { RequestDecoder } from '../protocol/request-decoder.ts';
import type { Segment } from '../queue/segment.ts';
import type { Runner } from '../runtime/runner.ts';
import { bytesTensorFault, decodeBytesTensor } from '../tensor/bytes-tensor.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import { formatShape, shapeFits } from '../tensor/shape.ts';
import type { ModelSignature, TensorSpec } from '../tensor/signature.ts';
import { type Canary, canaryDims, isRunFailure } from './canary.ts';
import { elementsOf, runGiven } from './given-run.ts';
import { fillProbeRow } from './probe-data.ts';
import type { RunMemory } from './run-memory.ts';
import { isBatched, layoutFor } from './warm-up.ts';

const FILE_BYTES_MAX = 256 * 2 ** 20;
const TENSOR_BYTES_MAX = 2 ** 31;
/** Of variable dimensions that neither the configuration nor the canary says. */
const SIZE_DEFAULT = 1;

/** A run could not be made as it was asked for; the message says which and why. */
export class WarmUpFailed extends Error {}

export interface WarmUpModel {
  readonly runner: Runner;
  readonly memory: RunMemory;
  readonly segment: Segment;
  readonly signature: ModelSignature;
  readonly canary: Canary | undefined;
}

/** What a run gets. */
interface Inputs {
  readonly rows: number;
  /** Shapes are full ones, and the rows are not apart. */
  readonly whole: boolean;
  /** Of each input: of one row, or the full one if `whole`. */
  readonly shapes: readonly (readonly number[])[];
  /** Writes an input; returns the elements of BYTES. */
  readonly fill: (input: number, bytes: Uint8Array) => readonly Uint8Array[];
}

/** Makes the runs, one after the other. Blocks for them. @throws WarmUpFailed, ArenaPoisoned */
export function runWarmUps({ runs, directory }: WarmUpOrder, model: WarmUpModel): void {
  for (const [n, run] of runs.entries()) {
    try {
      makeRuns(run, directory, model);
    } catch (error) {
      if (!(error instanceof WarmUpFailed || error instanceof BatchportError || isRunFailure(error))) throw error;
      throw new WarmUpFailed(`its warm-up ${n + 1} of ${runs.length} failed: ${error.message}`);
    }
  }
}

function makeRuns(run: WarmUpConfig, directory: string, model: WarmUpModel): void {
  const { runner, memory, segment, signature } = model;
  const { rows, whole, shapes, fill } =
    run.kind === 'request' ? recorded(join(directory, run.file), model) : made(run, directory, model);
  const { maxBatchRows } = segment.geometry;
  if (rows > maxBatchRows) throw new WarmUpFailed(`it has ${rows} rows, and a batch has at most ${maxBatchRows}`);
  const layout = layoutFor(segment, signature, whole, shapes);
  const dims = shapes.map((shape) => (whole ? shape : [rows, ...shape]));
  for (let n = 0; n < run.runs; n++) {
    memory.run(layout, rows, (giveBack) => runGiven(runner, signature, dims, fill, giveBack));
  }
}

/** The inputs of a request as clients send it. @throws BAD_REQUEST, BAD_TENSOR, WarmUpFailed */
function recorded(file: string, { segment, signature }: WarmUpModel): Inputs {
  const { maxBatchRows } = segment.geometry;
  const about = { name: 'warmup', version: '1', signature, batching: isBatched(segment, signature) };
  const decoder = new RequestDecoder(
    { ...about, maxBatchSize: maxBatchRows, maxRows: maxBatchRows },
    { maxElements: TENSOR_BYTES_MAX, maxTensorBytes: TENSOR_BYTES_MAX },
  );
  const { template, inputs } = decoder.decode(readWhole(file), undefined);
  const { rows, whole, shapes } = template;
  const fill: Inputs['fill'] = (input, bytes) =>
    put(signature.inputs[input]!, inputs[input]!, bytes, rows * elementsOf(shapes[input]!));
  return { rows, whole, shapes, fill };
}

/** Made-up inputs, some of them perhaps from files. @throws WarmUpFailed */
function made(run: Extract<WarmUpConfig, { kind: 'made' }>, directory: string, model: WarmUpModel): Inputs {
  const { segment, signature, canary } = model;
  const { data, rows } = run;
  const batched = isBatched(segment, signature);
  if (!batched && rows > 1) throw new WarmUpFailed(`it has ${rows} rows, and the model takes no batches`);
  for (const { name } of run.inputs) {
    if (!signature.inputs.some((input) => input.name === name)) {
      throw new WarmUpFailed(`the model has no input ${JSON.stringify(name)}`);
    }
  }
  const about = signature.inputs.map(({ name }) => run.inputs.find((one) => one.name === name));
  const shapes = signature.inputs.map((spec, n) => {
    const whole = canaryDims(spec.shape, canary?.size ?? SIZE_DEFAULT, 1);
    const dims = about[n]?.dims ?? whole.slice(batched ? 1 : 0);
    requireShape(spec, dims, batched, rows);
    return dims;
  });
  const contents = about.map((one) => (one?.file === undefined ? undefined : readWhole(join(directory, one.file))));
  const fill: Inputs['fill'] = (input, bytes) => {
    const spec = signature.inputs[input]!;
    const elements = rows * elementsOf(shapes[input]!);
    const content = contents[input];
    if (content !== undefined) return put(spec, content, bytes, elements);
    if ((about[input]?.data ?? data) === 'random') {
      return fillProbeRow(spec.datatype, 'from zero', input, 0, elements, bytes);
    }
    return spec.datatype === 'BYTES' ? Array.from({ length: elements }, () => new Uint8Array(0)) : [];
  };
  return { rows, whole: !batched, shapes, fill };
}

/** @throws WarmUpFailed when an input cannot have the shape */
function requireShape(
  { name, shape, datatype }: TensorSpec,
  dims: readonly number[],
  batched: boolean,
  rows: number,
): void {
  const spec = batched ? shape.slice(1) : shape;
  const quoted = JSON.stringify(name);
  if (!shapeFits(dims, spec)) {
    throw new WarmUpFailed(`dims of input ${quoted} are ${formatShape(dims)}, and the model has ${formatShape(spec)}`);
  }
  const bytes = rows * elementsOf(dims) * Math.max(1, datatypeInfo(datatype).elementBytes);
  if (bytes > TENSOR_BYTES_MAX) throw new WarmUpFailed(`input ${quoted} would take ${bytes} bytes`);
}

/** Writes a serialised tensor. @throws WarmUpFailed when it has another size */
function put(
  { name, datatype }: TensorSpec,
  data: Uint8Array,
  bytes: Uint8Array,
  elements: number,
): readonly Uint8Array[] {
  if (datatype === 'BYTES') {
    const fault = bytesTensorFault(data, elements);
    if (fault !== undefined) throw new WarmUpFailed(`input ${JSON.stringify(name)} is no serialised tensor: ${fault}`);
    return decodeBytesTensor(data, elements) ?? [];
  }
  if (data.length !== bytes.length) {
    throw new WarmUpFailed(
      `input ${JSON.stringify(name)} has ${data.length} bytes, and its shape asks for ${bytes.length}`,
    );
  }
  bytes.set(data);
  return [];
}

/** @throws WarmUpFailed for what is no file, or too large a one */
function readWhole(file: string): Buffer {
  let fd: number;
  try {
    fd = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    throw new WarmUpFailed((error as Error).message);
  }
  try {
    const stat = fstatSync(fd);
    if (!stat.isFile() || stat.size > FILE_BYTES_MAX) {
      throw new WarmUpFailed(`${file} is no file of at most ${FILE_BYTES_MAX} bytes`);
    }
    const content = Buffer.alloc(stat.size);
    for (let at = 0; at < content.length; ) {
      const count = readSync(fd, content, at, content.length - at, at);
      if (count === 0) throw new WarmUpFailed(`${file} became shorter while it was read`);
      at += count;
    }
    return content;
  } finally {
    closeSync(fd);
  }
}
