/**
 * The `parameters` objects of a request, of its inputs and of its outputs.
 *
 * A value is a string, a number or a boolean. What the server acts on is read exactly; what asks for something the server does not
 * have is refused; anything else is checked for its form and ignored, `sequence_*` included, since models here keep no state.
 */
import { BatchportError } from '../config/errors.ts';
import { CLASSES_MAX } from '../postprocess/classes.ts';
import type { JsonCursor } from './json-cursor.ts';
import { JsonKeys } from './json-keys.ts';
import {
  BYTE_SIZE_PARAMETER,
  OFFSET_PARAMETER,
  REGION_PARAMETER,
  type SharedReference,
  type SharedReferenceDraft,
  sharedReference,
} from './shared-memory.ts';

export interface RequestParameters {
  timeoutUs: number | undefined;
  priority: number | undefined;
  binaryOutput: boolean | undefined;
}

const REQUEST_KEYS = new JsonKeys(['timeout', 'priority', 'binary_data_output']);
const TIMEOUT = 0;
const PRIORITY = 1;

const SHARED_KEYS = [REGION_PARAMETER, BYTE_SIZE_PARAMETER, OFFSET_PARAMETER] as const;
const INPUT_KEYS = new JsonKeys([...SHARED_KEYS, 'binary_data_size']);
const OUTPUT_KEYS = new JsonKeys([...SHARED_KEYS, 'binary_data', 'classification']);
const REGION = 0;
const BYTE_SIZE = 1;
const OFFSET = 2;
/** Of outputs. */
const BINARY_DATA = 3;

/** The one parameter of outputs alone. */
export const CLASSIFICATION = 'classification';
/** Of a tensor; a request as a whole has none of them. */
const TENSOR_ONLY: ReadonlySet<string> = new Set(SHARED_KEYS);

/** What the parameters of an input say. */
export interface InputParameters {
  /** -1 for none. */
  readonly binaryBytes: number;
  readonly shared: SharedReference | undefined;
}

/** What those of an output say. */
export interface OutputParameters {
  readonly binary: boolean | undefined;
  /** Of highest value that are asked for; 0 for the tensor itself. */
  readonly classes: number;
  readonly shared: SharedReference | undefined;
}

export const NO_INPUT_PARAMETERS: InputParameters = { binaryBytes: -1, shared: undefined };
export const NO_OUTPUT_PARAMETERS: OutputParameters = { binary: undefined, classes: 0, shared: undefined };

/** Reads the request's own parameters at the cursor; `null` counts as none. @throws BAD_REQUEST */
export function readRequestParameters(cursor: JsonCursor): RequestParameters {
  const parameters: RequestParameters = { timeoutUs: undefined, priority: undefined, binaryOutput: undefined };
  walkParameters(cursor, 'the request', REQUEST_KEYS, (key, name) => {
    if (key === TIMEOUT) parameters.timeoutUs = readCount(cursor, name) || undefined;
    else if (key === PRIORITY) parameters.priority = readCount(cursor, name) || undefined;
    else parameters.binaryOutput = readFlag(cursor, name);
  });
  return parameters;
}

/** Reads an input's parameters. @throws BAD_REQUEST */
export function readInputParameters(cursor: JsonCursor, owner: string): InputParameters {
  let binaryBytes = -1;
  const shared = readTensorParameters(cursor, owner, INPUT_KEYS, (name) => {
    binaryBytes = readCount(cursor, name);
  });
  return { binaryBytes, shared };
}

/** Reads an output's parameters. @throws BAD_REQUEST */
export function readOutputParameters(cursor: JsonCursor, owner: string): OutputParameters {
  let binary: boolean | undefined;
  let classes = 0;
  const shared = readTensorParameters(cursor, owner, OUTPUT_KEYS, (name, key) => {
    if (key === BINARY_DATA) binary = readFlag(cursor, name);
    else classes = checkClasses(readCount(cursor, name), owner);
  });
  return { binary, classes, shared };
}

/** @throws BAD_REQUEST for more classes than may be asked for */
export function checkClasses(classes: number, owner: string): number {
  if (classes <= CLASSES_MAX) return classes;
  return fail(
    `parameter '${CLASSIFICATION}' of ${owner} is ${classes}; at most ${CLASSES_MAX} classes may be asked for`,
  );
}

/** Reads the parameters of a tensor: where in shared memory it is, and others. */
function readTensorParameters(
  cursor: JsonCursor,
  owner: string,
  keys: JsonKeys,
  readOther: (name: string, key: number) => void,
): SharedReference | undefined {
  const draft: SharedReferenceDraft = { region: undefined, byteSize: undefined, offset: undefined };
  walkParameters(cursor, owner, keys, (key, name) => {
    if (key === REGION) draft.region = readText(cursor, name);
    else if (key === BYTE_SIZE) draft.byteSize = readCount(cursor, name);
    else if (key === OFFSET) draft.offset = readCount(cursor, name);
    else readOther(name, key);
  });
  return sharedReference(draft, owner);
}

/** Calls `read` at the value of each key that is in `keys`, and checks the others. */
function walkParameters(
  cursor: JsonCursor,
  owner: string,
  keys: JsonKeys,
  read: (key: number, name: string) => void,
): void {
  if (cursor.skipNull()) return;
  if (cursor.kind() !== 'object') fail(`'parameters' of ${owner} must be an object`);
  cursor.openObject();
  let seen = 0;
  for (let first = true; cursor.nextMember(first); first = false) {
    const start = cursor.pos;
    const key = cursor.readKey(keys);
    if (key === JsonKeys.UNKNOWN) checkIgnored(cursor, owner, cursor.stringAt(start));
    else {
      const name = keys.names[key]!;
      if ((seen & (1 << key)) !== 0) fail(`parameter '${name}' of ${owner} is given twice`);
      seen |= 1 << key;
      read(key, `parameter '${name}' of ${owner}`);
    }
  }
}

/** Of clients of streams: asks for the mark of a last answer also where there is no other, and here every request has one. */
const FINAL_RESPONSE = 'triton_enable_empty_final_response';

/** Refuses names that ask for what the server does not have, whatever their value. @throws BAD_REQUEST */
export function refuseReserved(name: string, owner: string): void {
  if (TENSOR_ONLY.has(name)) fail(`parameter '${name}' belongs to an input or an output, and not to ${owner}`);
  if (name === CLASSIFICATION) fail(`parameter '${name}' is one of outputs; ${owner} has it`);
  if (name.startsWith('triton_') && name !== FINAL_RESPONSE) {
    fail(`parameter keys starting with 'triton_' are reserved; ${owner} has one`);
  }
}

function checkIgnored(cursor: JsonCursor, owner: string, name: string): void {
  refuseReserved(name, owner);
  const kind = cursor.kind();
  if (kind === 'object' || kind === 'array' || kind === 'null') {
    fail(
      `a parameter of ${owner} is ${kind === 'null' ? 'null' : `an ${kind}`}; parameters are strings, numbers or booleans`,
    );
  }
  cursor.skipValue(4);
}

/** An integer of 0 or more. Past 2^53 − 1 it stays at that, which is further than any timeout, priority or size goes. */
function readCount(cursor: JsonCursor, name: string): number {
  const start = cursor.kind() === 'number' ? cursor.pos : -1;
  const value = start < 0 ? Number.NaN : cursor.readPlainInteger();
  if (!(value >= 0))
    fail(`${name} must be an integer of 0 or more, got ${cursor.excerpt(start < 0 ? cursor.pos : start)}`);
  return Math.min(value, Number.MAX_SAFE_INTEGER);
}

function readText(cursor: JsonCursor, name: string): string {
  if (cursor.kind() !== 'string') fail(`${name} must be a string, got ${cursor.excerpt(cursor.pos)}`);
  return cursor.readString();
}

function readFlag(cursor: JsonCursor, name: string): boolean {
  if (cursor.kind() !== 'boolean') fail(`${name} must be true or false, got ${cursor.excerpt(cursor.pos)}`);
  return cursor.readBoolean();
}

function fail(message: string): never {
  throw new BatchportError('BAD_REQUEST', message);
}
