/**
 * Reads the JSON of a request: its own keys, its inputs, the outputs it asks for.
 *
 * Keys that the protocol does not have are skipped. A key that the server reads must not come twice, since two readers of such a text
 * would not agree on what it says. `null` counts as absent for what is optional, as some clients write out every field.
 */
import { BatchportError } from '../config/errors.ts';
import { type InputDraft, readInput } from './input-reader.ts';
import type { JsonCursor } from './json-cursor.ts';
import { JsonKeys } from './json-keys.ts';
import type { InterfaceChecks } from './model-interface.ts';
import { quoteName } from './model-interface.ts';
import {
  NO_OUTPUT_PARAMETERS,
  type RequestParameters,
  readOutputParameters,
  readRequestParameters,
} from './request-parameters.ts';
import type { SharedReference } from './shared-memory.ts';

export interface OutputDraft {
  /** In the signature. */
  readonly index: number;
  /** Undefined when the request as a whole decides. */
  readonly binary: boolean | undefined;
  /** Where in shared memory it is to be written; undefined when it goes into the answer. */
  readonly shared: SharedReference | undefined;
  /** Of highest value that are asked for; 0 for the tensor itself. */
  readonly classes: number;
}

export interface RequestDraft {
  readonly id: string | undefined;
  readonly parameters: RequestParameters;
  /** In the order of the request, which is the order of the binary tensors behind the JSON. */
  readonly inputs: readonly InputDraft[];
  /** In the order of the request; empty when it asks for every output. */
  readonly outputs: readonly OutputDraft[];
}

const KEYS = new JsonKeys(['id', 'parameters', 'inputs', 'outputs']);
const ID = 0;
const PARAMETERS = 1;
const INPUTS = 2;

const OUTPUT_KEYS = new JsonKeys(['name', 'parameters']);
const OUTPUT_NAME = 0;
/** Arrays and objects open around the value of an output: the request, its outputs, the output. */
const OUTPUT_DEPTH = 3;

/**
 * Reads the request that the cursor's text is.
 *
 * @throws BAD_REQUEST, BAD_TENSOR
 */
export function readRequest(cursor: JsonCursor, checks: InterfaceChecks): RequestDraft {
  if (cursor.kind() !== 'object') fail(`the request must be a JSON object, got ${cursor.excerpt(cursor.pos)}`);
  let id: string | undefined;
  let parameters: RequestParameters = { timeoutUs: undefined, priority: undefined, binaryOutput: undefined };
  let inputs: InputDraft[] = [];
  let outputs: OutputDraft[] = [];
  let seen = 0;
  cursor.openObject();
  for (let first = true; cursor.nextMember(first); first = false) {
    const key = cursor.readKey(KEYS);
    if (key === JsonKeys.UNKNOWN) {
      cursor.skipValue(1);
      continue;
    }
    if ((seen & (1 << key)) !== 0) fail(`the request has '${KEYS.names[key]}' twice`);
    seen |= 1 << key;
    if (key === ID) id = readId(cursor);
    else if (key === PARAMETERS) parameters = readRequestParameters(cursor);
    else if (key === INPUTS) inputs = readInputs(cursor, checks);
    else outputs = readOutputs(cursor, checks);
  }
  cursor.expectEnd();
  return { id, parameters, inputs, outputs };
}

function readId(cursor: JsonCursor): string | undefined {
  if (cursor.skipNull()) return undefined;
  if (cursor.kind() !== 'string') fail(`'id' must be a string, got ${cursor.excerpt(cursor.pos)}`);
  return cursor.readString();
}

function readInputs(cursor: JsonCursor, checks: InterfaceChecks): InputDraft[] {
  if (cursor.kind() !== 'array') fail(`'inputs' must be an array, got ${cursor.excerpt(cursor.pos)}`);
  const inputs: InputDraft[] = [];
  const taken: (InputDraft | undefined)[] = new Array(checks.model.signature.inputs.length);
  cursor.openArray();
  for (let first = true; cursor.nextElement(first); first = false) {
    const input = readInput(cursor, checks, inputs.length, taken);
    taken[input.index] = input;
    inputs.push(input);
  }
  return inputs;
}

function readOutputs(cursor: JsonCursor, checks: InterfaceChecks): OutputDraft[] {
  if (cursor.skipNull()) return [];
  if (cursor.kind() !== 'array') fail(`'outputs' must be an array, got ${cursor.excerpt(cursor.pos)}`);
  const outputs: OutputDraft[] = [];
  cursor.openArray();
  for (let first = true; cursor.nextElement(first); first = false) {
    const output = readOutput(cursor, checks, outputs.length);
    if (outputs.some((other) => other.index === output.index)) {
      const { name } = checks.model.signature.outputs[output.index]!;
      throw new BatchportError('BAD_TENSOR', `output '${name}' is requested twice; ask for each output once`);
    }
    outputs.push(output);
  }
  return outputs;
}

function readOutput(cursor: JsonCursor, checks: InterfaceChecks, position: number): OutputDraft {
  let owner = `outputs[${position}]`;
  if (cursor.kind() !== 'object') fail(`${owner} must be an object, got ${cursor.excerpt(cursor.pos)}`);
  let index = -1;
  let parameters = NO_OUTPUT_PARAMETERS;
  let seen = 0;
  cursor.openObject();
  for (let first = true; cursor.nextMember(first); first = false) {
    const key = cursor.readKey(OUTPUT_KEYS);
    if (key === JsonKeys.UNKNOWN) {
      cursor.skipValue(OUTPUT_DEPTH);
      continue;
    }
    if ((seen & (1 << key)) !== 0) fail(`${owner} has '${OUTPUT_KEYS.names[key]}' twice`);
    seen |= 1 << key;
    if (key === OUTPUT_NAME) {
      if (cursor.kind() !== 'string') fail(`'name' of ${owner} must be a string, got ${cursor.excerpt(cursor.pos)}`);
      const name = cursor.readString();
      owner = `output ${quoteName(name)}`;
      index = checks.outputIndex(name);
    } else parameters = readOutputParameters(cursor, owner);
  }
  if (index < 0) fail(`${owner} has no 'name'`);
  const { binary, classes, shared } = parameters;
  // It is bytes there, whatever the others are.
  return { index, binary: shared === undefined ? binary : true, classes, shared };
}

function fail(message: string): never {
  throw new BatchportError('BAD_REQUEST', message);
}
