/**
 * The `--input` arguments of `infer` as tensors: NAME=FILE.npy, NAME=FILE.json or NAME=JSON, by the model's metadata.
 *
 * JSON has no datatype and often no shape of its own: the datatype is the model's, the shape that of the nesting; flat data
 * takes the model's shape where only one dimension is open. A missing batch axis is added where the rest then fits. Data
 * whose shape still does not fit is sent as it is, for the server to judge.
 * Bound: files are read whole, up to FILE_BYTES_MAX.
 */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { ARRAYS, type InputDataOf } from '../client/data.ts';
import { BatchportError } from '../config/errors.ts';
import { ExitError } from '../config/exit-codes.ts';
import { nearestName } from '../config/nearest.ts';
import { JsonCursor } from '../protocol/json-cursor.ts';
import { nestingOf, readJsonTensor } from '../protocol/json-tensor.ts';
import { decodeBytesTensor } from '../tensor/bytes-tensor.ts';
import { type Datatype, datatypeInfo } from '../tensor/datatype.ts';
import { bfloat16Bits, float16Bits } from '../tensor/float16.ts';
import { readNpy } from '../tensor/npy.ts';
import { elementCount, formatShape, shapeFits } from '../tensor/shape.ts';

const FILE_BYTES_MAX = 2 ** 31 - 1;

/** An input as the model's metadata has it; -1 for a dimension that is open. */
export interface InputSpec {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
}

export type InputTensor = {
  [D in Datatype]: {
    readonly name: string;
    readonly datatype: D;
    readonly shape: readonly number[];
    readonly data: InputDataOf[D];
  };
}[Datatype];

/**
 * @param args one per `--input`; NAME= may be missing where the model has one input
 * @param cwd where relative paths start
 * @returns one tensor for each of `specs`, in their order
 * @throws ExitError USAGE naming the argument and what is wrong with it
 */
export function readInputs(args: readonly string[], specs: readonly InputSpec[], cwd: string): InputTensor[] {
  const values = valuesOf(args, specs, cwd);
  const missing = specs.filter((spec) => !values.has(spec));
  if (missing.length > 0) {
    const names = missing.map(({ name, datatype, shape }) => `${name} (${datatype} ${formatShape(shape)})`).join(', ');
    throw usage(`the model also needs ${names}`, '--input NAME=FILE.npy, NAME=FILE.json or NAME=JSON for each of them');
  }
  return specs.map((spec) => readInput(values.get(spec)!, spec, cwd));
}

/** The same for a caller that makes up the inputs that are not given; by spec. */
export function readGivenInputs(
  args: readonly string[],
  specs: readonly InputSpec[],
  cwd: string,
): Map<InputSpec, InputTensor> {
  return new Map([...valuesOf(args, specs, cwd)].map(([spec, value]) => [spec, readInput(value, spec, cwd)]));
}

function valuesOf(args: readonly string[], specs: readonly InputSpec[], cwd: string): Map<InputSpec, string> {
  const values = new Map<InputSpec, string>();
  for (const arg of args) {
    const { spec, value } = splitInput(arg, specs, cwd);
    if (values.has(spec)) throw usage(`input "${spec.name}" is given twice`);
    values.set(spec, value);
  }
  return values;
}

/** Names may hold "=" themselves, so the model's own names are tried first, the longest first. */
function splitInput(arg: string, specs: readonly InputSpec[], cwd: string): { spec: InputSpec; value: string } {
  const byLength = specs.toSorted((a, b) => b.name.length - a.name.length);
  const spec = byLength.find(({ name }) => arg.startsWith(`${name}=`));
  if (spec !== undefined) return { spec, value: arg.slice(spec.name.length + 1) };

  const names = specs.map(({ name }) => name);
  const isName = /^([^=[{"]+)=/.exec(arg)?.[1];
  if (isName !== undefined && !existsSync(resolve(cwd, arg))) {
    const meant = nearestName(isName, names);
    const hint = meant === undefined ? `its inputs: ${names.join(', ')}` : `did you mean "${meant}"?`;
    throw usage(`the model has no input "${isName}"`, hint);
  }
  if (specs.length === 1) return { spec: specs[0]!, value: arg };
  throw usage(`--input ${shortened(arg)}: the model has ${specs.length} inputs; write NAME=…`, names.join(', '));
}

function readInput(value: string, spec: InputSpec, cwd: string): InputTensor {
  const where = `--input ${spec.name}=${shortened(value)}`;
  try {
    if (/\.npy$/i.test(value)) return fromNpy(readFile(value, cwd), spec);
    if (/\.json$/i.test(value)) return fromJson(readFile(value, cwd), spec);
    if (/^\s*(?:[["\-0-9]|(?:true|false)\s*$)/.test(value)) return fromJson(Buffer.from(value), spec);
  } catch (error) {
    if (error instanceof BatchportError) throw usage(`${where}: ${error.message}`);
    throw error;
  }
  throw usage(`${where}: neither a .npy or .json file nor JSON`, `for instance ${spec.name}='[[1, 2]]'`);
}

function readFile(path: string, cwd: string): Buffer {
  const absolute = resolve(cwd, path);
  try {
    const { size } = statSync(absolute);
    if (size > FILE_BYTES_MAX) throw new Error(`${size} bytes; at most ${FILE_BYTES_MAX} are read`);
    return readFileSync(absolute);
  } catch (error) {
    throw usage(`cannot read ${path}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function fromNpy(file: Uint8Array, spec: InputSpec): InputTensor {
  const { datatype, shape, data } = readNpy(file);
  if (datatype !== spec.datatype) {
    const fix = NUMPY_NAMES[spec.datatype];
    const how = fix === undefined ? '' : `; save it with .astype(np.${fix})`;
    throw new BatchportError('BAD_TENSOR', `holds ${datatype}, but the model takes ${spec.datatype}${how}`);
  }
  return tensorOf(spec, withBatchAxis(shape, spec.shape), data);
}

const NUMPY_NAMES: Partial<Record<Datatype, string>> = {
  BOOL: 'bool_',
  UINT8: 'uint8',
  UINT16: 'uint16',
  UINT32: 'uint32',
  UINT64: 'uint64',
  INT8: 'int8',
  INT16: 'int16',
  INT32: 'int32',
  INT64: 'int64',
  FP16: 'float16',
  FP32: 'float32',
  FP64: 'float64',
};

function fromJson(text: Buffer, spec: InputSpec): InputTensor {
  const nesting = nestedShape(text);
  // A lone value is a scalar; the reader of tensors wants an array around it.
  const array = nesting.length === 0 ? Buffer.concat([Buffer.from('['), text, Buffer.from(']')]) : text;
  const count = elementCount(nesting)!;
  // The two 16-bit floats have no JSON form in the protocol; here they are rounded from doubles.
  const half = spec.datatype === 'FP16' ? float16Bits : spec.datatype === 'BF16' ? bfloat16Bits : undefined;
  const cursor = new JsonCursor(array);
  const data = readJsonTensor(cursor, spec.name, half === undefined ? spec.datatype : 'FP64', nesting, count);
  cursor.expectEnd();
  const shape = nesting.length === 1 ? flatShape(nesting, spec.shape) : withBatchAxis(nesting, spec.shape);
  if (half === undefined) return tensorOf(spec, shape, data);
  const doubles = new Float64Array(data.buffer, data.byteOffset, count);
  return tensorOf(spec, shape, new Uint8Array(Uint16Array.from(doubles, half).buffer));
}

/**
 * Shape of nested arrays, by the first element of each level; whether all elements agree is found out when they are read.
 *
 * @throws BatchportError BAD_REQUEST when it is not JSON or nested too deep
 */
export function nestedShape(text: Buffer): number[] {
  const cursor = new JsonCursor(text);
  const shape = nestingOf(cursor, 0);
  cursor.expectEnd();
  return shape;
}

/** Flat data for a shape of which one dimension at most is open. */
export function flatShape(flat: readonly number[], spec: readonly number[]): readonly number[] {
  const count = flat[0]!;
  if (shapeFits(flat, spec)) return flat;
  const open = spec.filter((dim) => dim === -1).length;
  const fixed = spec.reduce((product, dim) => (dim === -1 ? product : product * dim), 1);
  if (open === 0) return fixed === count ? spec : flat;
  if (open === 1 && fixed > 0 && count % fixed === 0) return spec.map((dim) => (dim === -1 ? count / fixed : dim));
  return withBatchAxis(flat, spec);
}

function withBatchAxis(shape: readonly number[], spec: readonly number[]): readonly number[] {
  return !shapeFits(shape, spec) && shapeFits([1, ...shape], spec) ? [1, ...shape] : shape;
}

/** @param data elements row-major, little-endian, BYTES serialised; copied where its alignment does not do */
function tensorOf(spec: InputSpec, shape: readonly number[], data: Uint8Array): InputTensor {
  const { name, datatype } = spec;
  if (datatype === 'BYTES') {
    return { name, datatype, shape, data: decodeBytesTensor(data, elementCount(shape)!)! };
  }
  const { elementBytes } = datatypeInfo(datatype);
  const aligned = data.byteOffset % elementBytes === 0 ? data : Uint8Array.from(data);
  const View = ARRAYS[datatype] as new (buffer: ArrayBufferLike, offset: number, length: number) => unknown;
  const elements = new View(aligned.buffer, aligned.byteOffset, aligned.byteLength / elementBytes);
  return { name, datatype, shape, data: elements } as InputTensor;
}

function usage(message: string, hint?: string): ExitError {
  return new ExitError('USAGE', message, { hint });
}

function shortened(text: string): string {
  return text.length <= 60 ? text : `${text.slice(0, 57)}…`;
}
