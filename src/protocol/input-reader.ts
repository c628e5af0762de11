/**
 * Reads one element of a request's `inputs`: its keys in any order, checked against the signature.
 *
 * JSON data is parsed where it stands when name, datatype and shape came before it, and after the rest of the object otherwise; either
 * way nothing is allocated before the shape has been found to fit the model and the limits.
 */
import { BatchportError } from '../config/errors.ts';
import { DATATYPES } from '../tensor/datatype.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import type { JsonCursor } from './json-cursor.ts';
import { JsonKeys } from './json-keys.ts';
import { INPUT_DEPTH, readJsonTensor } from './json-tensor.ts';
import { type InterfaceChecks, quoteName, RANK_MAX } from './model-interface.ts';
import { type InputParameters, NO_INPUT_PARAMETERS, readInputParameters } from './request-parameters.ts';
import type { SharedReference } from './shared-memory.ts';

/** An input whose name, datatype, shape and declared size are right. */
export interface InputDraft {
  readonly spec: TensorSpec;
  /** In the signature. */
  readonly index: number;
  /** Full shape. */
  readonly shape: readonly number[];
  readonly count: number;
  /** Bytes the shape calls for; -1 for BYTES. */
  readonly bytes: number;
  /** The tensor when it was sent as JSON. */
  readonly data: Uint8Array | undefined;
  /** Bytes that the tensor has behind the JSON; -1 when it is elsewhere. */
  readonly binaryBytes: number;
  /** Where in shared memory it is; undefined when it was sent. */
  readonly shared: SharedReference | undefined;
}

/** What an input object has been found to say so far. */
interface InputFields {
  readonly position: number;
  name: string | undefined;
  datatype: string | undefined;
  shape: readonly number[] | undefined;
  parameters: InputParameters;
}

/** An input that the fields so far have settled. */
interface Target {
  readonly spec: TensorSpec;
  readonly index: number;
  readonly shape: readonly number[];
  readonly count: number;
  readonly bytes: number;
}

const KEYS = new JsonKeys(['name', 'shape', 'datatype', 'parameters', 'data']);
const DATATYPE_NAMES = new JsonKeys(Object.keys(DATATYPES));

const NAME = 0;
const SHAPE = 1;
const DATATYPE = 2;
const PARAMETERS = 3;
const DATA = 4;

/**
 * Reads the input at the cursor, the one at `position` of the request.
 *
 * @param taken by index in the signature, the inputs read before; a second one of a name is refused.
 * @throws BAD_REQUEST, BAD_TENSOR
 */
export function readInput(
  cursor: JsonCursor,
  checks: InterfaceChecks,
  position: number,
  taken: readonly (InputDraft | undefined)[],
): InputDraft {
  if (cursor.kind() !== 'object') fail(`inputs[${position}] must be an object, got ${cursor.excerpt(cursor.pos)}`);
  const fields: InputFields = {
    position,
    name: undefined,
    datatype: undefined,
    shape: undefined,
    parameters: NO_INPUT_PARAMETERS,
  };
  let seen = 0;
  let dataAt = -1;
  let target: Target | undefined;
  let data: Uint8Array | undefined;
  cursor.openObject();
  for (let first = true; cursor.nextMember(first); first = false) {
    const key = cursor.readKey(KEYS);
    if (key === JsonKeys.UNKNOWN) {
      cursor.skipValue(INPUT_DEPTH);
      continue;
    }
    if ((seen & (1 << key)) !== 0) fail(`${owner(fields)} has '${KEYS.names[key]}' twice`);
    seen |= 1 << key;
    if (key === NAME) fields.name = readText(cursor, fields, 'name', checks.inputNames);
    else if (key === DATATYPE) fields.datatype = readText(cursor, fields, 'datatype', DATATYPE_NAMES);
    else if (key === SHAPE) fields.shape = readShape(cursor, fields);
    else if (key === PARAMETERS) fields.parameters = readInputParameters(cursor, owner(fields));
    else if ((seen & SETTLED) === SETTLED) {
      target = settle(fields, checks, taken);
      data = readData(cursor, checks, target);
    } else {
      dataAt = cursor.pos;
      cursor.skipValue(INPUT_DEPTH);
    }
  }
  const hasData = (seen & (1 << DATA)) !== 0;
  target ??= settle(fields, checks, taken);
  const { binaryBytes, shared } = fields.parameters;
  if (shared !== undefined && (hasData || binaryBytes >= 0)) {
    fail(`${owner(fields)} is in shared memory, and must have neither 'data' nor the parameter 'binary_data_size'`);
  }
  if (shared === undefined && hasData === binaryBytes >= 0) {
    fail(
      `${owner(fields)} must have either 'data' or the parameter 'binary_data_size', but has ${hasData ? 'both' : 'neither'}`,
    );
  }
  if (dataAt >= 0) {
    const end = cursor.pos;
    cursor.pos = dataAt;
    data = readData(cursor, checks, target);
    cursor.pos = end;
  }
  const { spec, index, shape, count, bytes } = target;
  return { spec, index, shape, count, bytes, data, binaryBytes, shared };
}

const SETTLED = (1 << NAME) | (1 << SHAPE) | (1 << DATATYPE);

function settle(fields: InputFields, checks: InterfaceChecks, taken: readonly (InputDraft | undefined)[]): Target {
  const { name, datatype, shape } = fields;
  if (name === undefined) return fail(`inputs[${fields.position}] has no 'name'`);
  const index = checks.inputIndex(name);
  if (taken[index] !== undefined) {
    throw new BatchportError('BAD_TENSOR', `input '${name}' already exists in request; send each input once`);
  }
  if (datatype === undefined) return fail(`input '${name}' has no 'datatype'`);
  if (shape === undefined) return fail(`input '${name}' has no 'shape'`);
  const spec = checks.model.signature.inputs[index]!;
  checks.checkDatatype(spec, datatype);
  const fitted = checks.fitShape(spec, shape);
  const { count, bytes } = checks.sizeOf(spec, fitted);
  return { spec, index, shape: fitted, count, bytes };
}

function readData(cursor: JsonCursor, checks: InterfaceChecks, target: Target): Uint8Array {
  const { spec, shape, count } = target;
  const data = readJsonTensor(cursor, spec.name, spec.datatype, shape, count);
  // Known beforehand but for BYTES.
  checks.checkBytes(spec, data.length);
  return data;
}

function readText(cursor: JsonCursor, fields: InputFields, key: string, likely: JsonKeys): string {
  if (cursor.kind() !== 'string') {
    fail(`'${key}' of ${owner(fields)} must be a string, got ${cursor.excerpt(cursor.pos)}`);
  }
  return cursor.readStringOf(likely);
}

function readShape(cursor: JsonCursor, fields: InputFields): readonly number[] {
  if (cursor.kind() !== 'array') {
    fail(`invalid shape for ${owner(fields)}: expected an array of integers, got ${cursor.excerpt(cursor.pos)}`);
  }
  const shape: number[] = [];
  cursor.openArray();
  for (let first = true; cursor.nextElement(first); first = false) {
    const start = cursor.pos;
    if (shape.length === RANK_MAX) fail(`invalid shape for ${owner(fields)}: more than ${RANK_MAX} dimensions`);
    const dim = cursor.kind() === 'number' ? cursor.readPlainInteger() : Number.NaN;
    if (!(dim >= 0 && dim <= Number.MAX_SAFE_INTEGER)) {
      fail(
        `invalid shape for ${owner(fields)}: dimension ${shape.length} is ${cursor.excerpt(start)}; dimensions are integers of 0 or more`,
      );
    }
    shape.push(dim);
  }
  return shape;
}

/** The input in the words of a message. */
function owner(fields: InputFields): string {
  return fields.name === undefined ? `inputs[${fields.position}]` : `input ${quoteName(fields.name)}`;
}

function fail(message: string): never {
  throw new BatchportError('BAD_REQUEST', message);
}
