/**
 * ModelInferRequest as it came, before it is known which model it is for: names, shapes, and where the tensors lie in it.
 *
 * Fields may come in any order and may be repeated; of a field that can be there once the last one counts, as the format has it. Bounds: PARTS_MAX inputs, outputs
 * and raw tensors, RANK_MAX dimensions; contents are not looked at here.
 */
import { BatchportError } from '../../config/errors.ts';
import { quoteName, RANK_MAX } from '../model-interface.ts';
import { type SharedReference, type SharedReferenceDraft, sharedReference } from '../shared-memory.ts';
import { type ReadParameters, readOutputParameter, readParameter, readTensorParameter } from './parameters.ts';
import { BYTES, ProtobufReader, VARINT } from './protobuf-reader.ts';

/** More than any model has; each costs memory as soon as it is read. */
const PARTS_MAX = 4096;

const MODEL_NAME = 1;
const MODEL_VERSION = 2;
const ID = 3;
const PARAMETERS = 4;
const INPUTS = 5;
const OUTPUTS = 6;
const RAW_INPUT_CONTENTS = 7;

const INPUT_NAME = 1;
const INPUT_DATATYPE = 2;
const INPUT_SHAPE = 3;
const INPUT_PARAMETERS = 4;
const INPUT_CONTENTS = 5;

const OUTPUT_NAME = 1;
const OUTPUT_PARAMETERS = 2;

export interface InferInput {
  name: string;
  datatype: string;
  readonly shape: number[];
  /** InferTensorContents in the message, as pairs of start and end; several count as one. */
  readonly contents: number[];
  /** Where in shared memory it is; undefined when it was sent. */
  shared: SharedReference | undefined;
}

export interface InferOutput {
  name: string;
  /** Where in shared memory it is to be written; undefined when it goes into the answer. */
  shared: SharedReference | undefined;
  /** Of highest value that are asked for; 0 for the tensor itself. */
  classes: number;
}

export interface InferMessage {
  readonly bytes: Buffer;
  modelName: string;
  /** '' for the latest. */
  modelVersion: string;
  /** '' when the client gave none. */
  id: string;
  readonly parameters: ReadParameters;
  readonly inputs: InferInput[];
  /** The outputs asked for; none for every output. */
  readonly outputs: InferOutput[];
  /** Tensors in raw_input_contents, as pairs of start and end. */
  readonly raw: number[];
}

/**
 * Reads a ModelInferRequest.
 *
 * @param bytes the message; it must not change while the result, or what is bound from it, is in use.
 * @throws BAD_REQUEST
 */
export function readInferMessage(bytes: Buffer): InferMessage {
  const message: InferMessage = {
    bytes,
    modelName: '',
    modelVersion: '',
    id: '',
    parameters: { timeoutUs: undefined, priority: undefined },
    inputs: [],
    outputs: [],
    raw: [],
  };
  const reader = new ProtobufReader(bytes);
  while (reader.next()) {
    switch (reader.field) {
      case MODEL_NAME:
        message.modelName = reader.string();
        break;
      case MODEL_VERSION:
        message.modelVersion = reader.string();
        break;
      case ID:
        message.id = reader.string();
        break;
      case PARAMETERS:
        readParameter(reader, message.parameters);
        break;
      case INPUTS:
        requireRoom(message.inputs.length, 'inputs');
        message.inputs.push(readInput(reader, message.inputs.length));
        break;
      case OUTPUTS:
        requireRoom(message.outputs.length, 'outputs');
        message.outputs.push(readOutput(reader, message.outputs.length));
        break;
      case RAW_INPUT_CONTENTS:
        requireRoom(message.raw.length / 2, 'raw_input_contents');
        reader.bytes();
        message.raw.push(reader.start, reader.at);
        break;
      default:
        reader.skip();
    }
  }
  return message;
}

function readInput(reader: ProtobufReader, position: number): InferInput {
  const input: InferInput = { name: '', datatype: '', shape: [], contents: [], shared: undefined };
  const shared = noReference();
  const outer = reader.enter();
  while (reader.next()) {
    switch (reader.field) {
      case INPUT_NAME:
        input.name = reader.string();
        break;
      case INPUT_DATATYPE:
        input.datatype = reader.string();
        break;
      case INPUT_SHAPE:
        readShape(reader, input, position);
        break;
      case INPUT_PARAMETERS:
        readTensorParameter(reader, owner(input, position), shared);
        break;
      case INPUT_CONTENTS:
        requireRoom(input.contents.length / 2, 'contents');
        reader.bytes();
        input.contents.push(reader.start, reader.at);
        break;
      default:
        reader.skip();
    }
  }
  reader.leave(outer);
  input.shared = sharedReference(shared, owner(input, position));
  return input;
}

/** Adds dimensions, which come packed or one by one. */
function readShape(reader: ProtobufReader, input: InferInput, position: number): void {
  if (reader.wireType !== BYTES) {
    reader.expect(VARINT);
    readDimension(reader, input, position);
    return;
  }
  const outer = reader.enter();
  while (reader.at < reader.end) readDimension(reader, input, position);
  reader.leave(outer);
}

function readDimension(reader: ProtobufReader, input: InferInput, position: number): void {
  const { shape } = input;
  if (shape.length === RANK_MAX) fail(`invalid shape for ${owner(input, position)}: more than ${RANK_MAX} dimensions`);
  reader.varint();
  const dimension = reader.signed;
  if (!(dimension >= 0 && dimension <= Number.MAX_SAFE_INTEGER)) {
    fail(
      `invalid shape for ${owner(input, position)}: dimension ${shape.length} is ${reader.exact(true)}; dimensions are integers of 0 or more`,
    );
  }
  shape.push(dimension);
}

function readOutput(reader: ProtobufReader, position: number): InferOutput {
  const output: InferOutput = { name: '', shared: undefined, classes: 0 };
  const draft = { ...noReference(), classes: 0 };
  const called = () => (output.name === '' ? `outputs[${position}]` : `output ${quoteName(output.name)}`);
  const outer = reader.enter();
  while (reader.next()) {
    if (reader.field === OUTPUT_NAME) output.name = reader.string();
    else if (reader.field === OUTPUT_PARAMETERS) readOutputParameter(reader, called(), draft);
    else reader.skip();
  }
  reader.leave(outer);
  output.shared = sharedReference(draft, called());
  output.classes = draft.classes;
  return output;
}

function noReference(): SharedReferenceDraft {
  return { region: undefined, byteSize: undefined, offset: undefined };
}

function owner({ name }: InferInput, position: number): string {
  return name === '' ? `inputs[${position}]` : `input ${quoteName(name)}`;
}

function requireRoom(count: number, what: string): void {
  if (count >= PARTS_MAX) fail(`the request has more than ${PARTS_MAX} ${what}`);
}

function fail(message: string): never {
  throw new BatchportError('BAD_REQUEST', message);
}
