/**
 * Answers of a server, checked completely before anything of them is used: the length of the JSON header, names, datatypes, shapes, the size of
 * every tensor, and that they account for the body to the last byte.
 *
 * Everything wrong with an answer is a ConnectionError BAD_RESPONSE that says what. Data is copied out, so that the body can be freed.
 */
import { bytesTensorFault, decodeBytesTensor } from '../tensor/bytes-tensor.ts';
import { type Datatype, datatypeInfo, isDatatype } from '../tensor/datatype.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';
import { asObject, assertPlainBody, assertSuccess, optionalString, own, parseText, requiredString } from './answer.ts';
import { type AnyData, ARRAYS } from './data.ts';
import { fromValues, toBytesElements } from './elements.ts';
import { badResponse, type ConnectionError } from './errors.ts';
import { showValue } from './json.ts';
import type { EncodedRequest } from './request.ts';
import { type InferOutput, InferResult, OutputTensor } from './result.ts';
import type { HttpAnswer } from './transport.ts';

const HEADER_LENGTH = 'inference-header-content-length';

/** Where the tensors' bytes are read from, in order. */
interface BinaryPart {
  readonly bytes: Buffer;
  at: number;
}

/**
 * The result of an inference.
 *
 * @throws InferenceError when the server refused, ConnectionError BAD_RESPONSE when the answer is not a right one for the request.
 */
export function decodeResponse(answer: HttpAnswer, request: EncodedRequest): InferResult {
  assertSuccess(answer);
  assertPlainBody(answer);
  const headerLength = jsonLength(answer);
  const header = asObject(parseText(answer.body.subarray(0, headerLength)), 'the answer');
  const binary: BinaryPart = { bytes: answer.body, at: headerLength };
  const list = own(header, 'outputs');
  if (!Array.isArray(list)) throw badResponse('"outputs" of the answer is not an array');
  const outputs = list.map((entry) => decodeOutput(asObject(entry, 'an output'), binary));
  if (binary.at !== binary.bytes.length) {
    throw badResponse(`${binary.bytes.length - binary.at} bytes after the last tensor belong to none`);
  }
  assertOutputNames(outputs, request.outputNames);
  const id = optionalString(header, 'id');
  if (id !== undefined && id !== '' && request.id !== undefined && id !== request.id) {
    throw badResponse(`the answer has the id ${showValue(id)}, the request ${showValue(request.id)}`);
  }
  return new InferResult({
    modelName: requiredString(header, 'model_name'),
    modelVersion: optionalString(header, 'model_version') ?? '',
    id,
    parameters: decodeParameters(own(header, 'parameters')),
    outputs,
  });
}

/** Length of the JSON at the start of the body: all of it unless the header field says otherwise. */
function jsonLength(answer: HttpAnswer): number {
  const value = answer.headers[HEADER_LENGTH];
  if (value === undefined) return answer.body.length;
  const length = typeof value === 'string' && /^\d{1,15}$/.test(value) ? Number(value) : Number.NaN;
  if (!(length <= answer.body.length)) {
    throw badResponse(
      `Inference-Header-Content-Length is ${showValue(value)}, the body has ${answer.body.length} bytes`,
    );
  }
  return length;
}

function decodeOutput(entry: Record<string, unknown>, binary: BinaryPart): InferOutput {
  const name = requiredString(entry, 'name');
  const datatype = own(entry, 'datatype');
  if (!isDatatype(datatype)) throw badResponse(`output "${name}" has the unknown datatype ${showValue(datatype)}`);
  const shape = decodeShape(name, own(entry, 'shape'));
  const count = elementCount(shape)!;
  const parameters = decodeParameters(own(entry, 'parameters'));
  const size = parameters.binary_data_size;
  delete parameters.binary_data_size;
  const inJson = Object.hasOwn(entry, 'data');
  if (inJson === (size !== undefined)) {
    throw badResponse(
      `output "${name}" has ${inJson ? 'both data and binary_data_size' : 'neither data nor binary_data_size'}`,
    );
  }
  const data = inJson
    ? fromJson(name, datatype, shape, count, own(entry, 'data'))
    : fromBinary(name, datatype, shape, count, takeBytes(name, size, binary));
  return new OutputTensor(name, datatype, shape, data, parameters) as InferOutput;
}

function decodeShape(name: string, value: unknown): readonly number[] {
  if (!Array.isArray(value) || elementCount(value) === undefined) {
    const shown = Array.isArray(value) ? `[${value.slice(0, 16).map(showValue).join()}]` : showValue(value);
    throw badResponse(`output "${name}" has the impossible shape ${shown}`);
  }
  return value;
}

function takeBytes(name: string, size: unknown, binary: BinaryPart): Buffer {
  const left = binary.bytes.length - binary.at;
  if (!(Number.isSafeInteger(size) && (size as number) >= 0 && (size as number) <= left)) {
    throw badResponse(`output "${name}" has the binary_data_size ${size}, of the body ${left} bytes are left`);
  }
  binary.at += size as number;
  return binary.bytes.subarray(binary.at - (size as number), binary.at);
}

function fromBinary(name: string, datatype: Datatype, shape: readonly number[], count: number, bytes: Buffer): AnyData {
  if (datatype === 'BYTES') return bytesElements(name, count, bytes);
  const expected = count * datatypeInfo(datatype).elementBytes;
  if (bytes.length !== expected) {
    throw badResponse(
      `output "${name}" of shape ${formatShape(shape)} needs ${expected} bytes and has ${bytes.length}`,
    );
  }
  // A copy in a buffer of its own: the body's bytes need not be aligned, and must not be kept alive.
  const copy = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) as ArrayBuffer;
  return new (ARRAYS[datatype] as new (buffer: ArrayBuffer) => AnyData)(copy);
}

/** Elements as views into one copy of the tensor's bytes. */
function bytesElements(name: string, count: number, bytes: Buffer): Uint8Array[] {
  const elements = decodeBytesTensor(new Uint8Array(bytes), count);
  if (elements === undefined) throw badResponse(`the bytes of output "${name}": ${bytesTensorFault(bytes, count)}`);
  return elements;
}

function fromJson(name: string, datatype: Datatype, shape: readonly number[], count: number, data: unknown): AnyData {
  if (!datatypeInfo(datatype).json) throw badResponse(`output "${name}" is ${datatype}, which has no JSON form`);
  const values = Array.isArray(data) && Array.isArray(data[0]) ? flatten(name, shape, data) : data;
  if (!Array.isArray(values) || values.length !== count) {
    const got = Array.isArray(values) ? `${values.length} elements` : 'no array';
    throw badResponse(`output "${name}" of shape ${formatShape(shape)} needs ${count} elements, its data has ${got}`);
  }
  try {
    return convert(datatype, values);
  } catch (error) {
    if (error instanceof RangeError || error instanceof TypeError) {
      throw badResponse(`data of output "${name}": ${error.message}`, error);
    }
    throw error;
  }
}

/** Elements of nested arrays, which must nest just as the shape says. */
function flatten(name: string, shape: readonly number[], data: readonly unknown[]): unknown[] {
  let level = data;
  for (const [axis, size] of shape.entries()) {
    if (axis === 0) {
      if (level.length !== size) throw notNested(name, shape);
      continue;
    }
    for (const part of level) if (!Array.isArray(part) || part.length !== size) throw notNested(name, shape);
    level = (level as unknown[][]).flat();
  }
  return level as unknown[];
}

function notNested(name: string, shape: readonly number[]): ConnectionError {
  return badResponse(`data of output "${name}" is not nested as its shape ${formatShape(shape)} says`);
}

function convert(datatype: Datatype, values: readonly unknown[]): AnyData {
  if (datatype === 'BYTES') return toBytesElements(values.map(onlyString));
  // An integer too large for an exact number arrives as a bigint; as a float it is simply rounded.
  const float = datatypeInfo(datatype).kind === 'float';
  return fromValues(
    datatype,
    float ? values.map((value) => (typeof value === 'bigint' ? Number(value) : value)) : values,
  );
}

function onlyString(value: unknown): string {
  if (typeof value !== 'string') throw new TypeError(`${showValue(value)} is not a string`);
  return value;
}

function assertOutputNames(outputs: readonly InferOutput[], wanted: readonly string[]): void {
  const names = new Set<string>();
  for (const { name } of outputs) {
    if (names.has(name)) throw badResponse(`the answer has output "${name}" twice`);
    names.add(name);
  }
  for (const name of wanted) if (!names.has(name)) throw badResponse(`the answer lacks output "${name}"`);
}

/** Parameters of an answer; a prototype-free copy. */
function decodeParameters(value: unknown): Record<string, string | number | bigint | boolean> {
  const result: Record<string, string | number | bigint | boolean> = Object.create(null);
  if (value === undefined) return result;
  for (const [key, entry] of Object.entries(asObject(value, '"parameters"'))) {
    if (typeof entry === 'object') throw badResponse(`parameter ${showValue(key)} of the answer is not a scalar`);
    result[key] = entry as string | number | bigint | boolean;
  }
  return result;
}
