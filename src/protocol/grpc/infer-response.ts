/**
 * Writes ModelInferResponse: descriptions of the outputs, then their bytes in raw_output_contents, in one buffer of the right size.
 */
import type { Datatype } from '../../tensor/datatype.ts';
import type { BoundRequest, OutputRequest } from '../bound-request.ts';
import type { ModelInterface } from '../model-interface.ts';
import { checkOutputs, type EncodedResponse, type OutputTensor } from '../response-encoder.ts';
import { bytesField, bytesTag, stringField, varintBytes, writeVarint } from './protobuf-writer.ts';

const MODEL_NAME = 1;
const MODEL_VERSION = 2;
const ID = 3;
const OUTPUTS = bytesTag(5);
const RAW_OUTPUT_CONTENTS = bytesTag(6);

const OUTPUT_NAME = 1;
const OUTPUT_DATATYPE = 2;
const OUTPUT_SHAPE = bytesTag(3);

const ERROR_MESSAGE = 1;
const INFER_RESPONSE = bytesTag(2);

const NO_BYTES = Buffer.alloc(0);

export class InferResponseEncoder {
  private readonly model: ModelInterface;
  /** Name and version of the model, written. */
  private readonly opening: Buffer;
  /** By output of the signature: its name and datatype, written. */
  private readonly openings: readonly Buffer[];
  /** The same as texts of classes. */
  private readonly classOpenings: readonly Buffer[];

  constructor(model: ModelInterface) {
    this.model = model;
    this.opening = Buffer.concat([stringField(MODEL_NAME, model.name), stringField(MODEL_VERSION, model.version)]);
    const { outputs } = model.signature;
    this.openings = outputs.map(({ name, datatype }) => openingOf(name, datatype));
    this.classOpenings = outputs.map(({ name }) => openingOf(name, 'BYTES'));
  }

  private openingAt({ index, classes }: OutputRequest): Buffer {
    return (classes > 0 ? this.classOpenings : this.openings)[index]!;
  }

  /**
   * @param outputs one per entry of the template's outputs, in that order.
   * @param streamed as the infer_response of a ModelStreamInferResponse.
   */
  encode(request: BoundRequest, outputs: readonly OutputTensor[], streamed = false): EncodedResponse {
    const { template } = request;
    checkOutputs(this.model.signature.outputs, template, outputs);
    const id = request.id === undefined ? NO_BYTES : stringField(ID, request.id);
    let bytes = this.opening.length + id.length;
    for (let n = 0; n < outputs.length; n++) {
      const { shape, data } = outputs[n]!;
      bytes += fieldBytes(this.openingAt(template.outputs[n]!).length + shapeFieldBytes(shape));
      bytes += fieldBytes(data.length);
    }
    const body = Buffer.allocUnsafe(streamed ? fieldBytes(bytes) : bytes);
    let at = 0;
    if (streamed) {
      body[at++] = INFER_RESPONSE;
      at = writeVarint(body, at, bytes);
    }
    body.set(this.opening, at);
    at += this.opening.length;
    body.set(id, at);
    at += id.length;
    for (let n = 0; n < outputs.length; n++) {
      at = writeOutput(body, at, this.openingAt(template.outputs[n]!), outputs[n]!.shape);
    }
    for (let n = 0; n < outputs.length; n++) {
      const { data } = outputs[n]!;
      body[at++] = RAW_OUTPUT_CONTENTS;
      at = writeVarint(body, at, data.length);
      body.set(data, at);
      at += data.length;
    }
    return { headerLength: undefined, body };
  }
}

/** A ModelStreamInferResponse that says what is wrong with the request of that id. */
export function streamedError(message: string, id: string): Buffer {
  const response = bytesField(2, stringField(ID, id));
  return Buffer.concat([stringField(ERROR_MESSAGE, message), response]);
}

function openingOf(name: string, datatype: Datatype): Buffer {
  return Buffer.concat([stringField(OUTPUT_NAME, name), stringField(OUTPUT_DATATYPE, datatype)]);
}

function writeOutput(body: Buffer, start: number, opening: Buffer, shape: readonly number[]): number {
  let at = start;
  body[at++] = OUTPUTS;
  at = writeVarint(body, at, opening.length + shapeFieldBytes(shape));
  body.set(opening, at);
  at += opening.length;
  if (shape.length === 0) return at;
  body[at++] = OUTPUT_SHAPE;
  at = writeVarint(body, at, shapeBytes(shape));
  for (const dimension of shape) at = writeVarint(body, at, dimension);
  return at;
}

function shapeBytes(shape: readonly number[]): number {
  let bytes = 0;
  for (const dimension of shape) bytes += varintBytes(dimension);
  return bytes;
}

function shapeFieldBytes(shape: readonly number[]): number {
  return shape.length === 0 ? 0 : fieldBytes(shapeBytes(shape));
}

/** A length-delimited field with its tag and length. */
function fieldBytes(length: number): number {
  return 1 + varintBytes(length) + length;
}
