/**
 * Writes an output tensor as the flat JSON array of its `data`.
 *
 * Every value reads back as the same bits (FP32 read as FP32, INT64 read as a 64-bit integer). What JSON has no form for, a NaN, an
 * infinity, a BYTES element that is not UTF-8, is an error that names the element and points to the binary form: never `null`, never U+FFFD.
 */
import { isUtf8 } from 'node:buffer';
import { BatchportError } from '../config/errors.ts';
import { BYTES_LENGTH_BYTES, bytesElementLength, bytesTensorFault } from '../tensor/bytes-tensor.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import {
  FLOAT32_TEXT_MAX,
  INTEGER_TEXT_MAX,
  writeDigits,
  writeFloat32,
  writeInteger64,
} from '../tensor/number-text.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import type { JsonWriter } from './json-writer.ts';

const COMMA = 0x2c;
const MINUS = 0x2d;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;

/** Elements that are written at a time, to make room for their longest text. */
const CHUNK = 256;

type NarrowIntegers = Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array;

/**
 * Writes `count` elements of an output's datatype.
 *
 * @param data row-major, little-endian, at any alignment; BYTES serialised.
 * @throws BAD_REQUEST when a value has no JSON form
 */
export function writeJsonTensor(writer: JsonWriter, spec: TensorSpec, count: number, data: Uint8Array): void {
  writer.writeByte(OPEN_BRACKET);
  if (count > 0) {
    writeElements(writer, spec, count, data);
    // In place of the comma behind the last element.
    writer.bytes[writer.at - 1] = CLOSE_BRACKET;
  } else writer.writeByte(CLOSE_BRACKET);
}

function writeElements(writer: JsonWriter, spec: TensorSpec, count: number, data: Uint8Array): void {
  if (spec.datatype === 'BYTES') {
    writeStrings(writer, spec, count, data);
    return;
  }
  const { elementBytes } = datatypeInfo(spec.datatype);
  const { buffer, byteOffset } = data.byteOffset % elementBytes === 0 ? data : new Uint8Array(data);
  for (let start = 0; start < count; start += CHUNK) {
    const size = Math.min(CHUNK, count - start);
    const offset = byteOffset + start * elementBytes;
    switch (spec.datatype) {
      case 'FP32':
        writeFloats(writer, spec, start, new Float32Array(buffer, offset, size), new Int32Array(buffer, offset, size));
        break;
      case 'FP64':
        writeDoubles(writer, spec, start, new Float64Array(buffer, offset, size));
        break;
      case 'INT64':
        writeIntegers64(writer, new Uint32Array(buffer, offset, 2 * size), true);
        break;
      case 'UINT64':
        writeIntegers64(writer, new Uint32Array(buffer, offset, 2 * size), false);
        break;
      case 'INT32':
        writeIntegers(writer, new Int32Array(buffer, offset, size));
        break;
      case 'UINT32':
        writeIntegers(writer, new Uint32Array(buffer, offset, size));
        break;
      case 'INT16':
        writeIntegers(writer, new Int16Array(buffer, offset, size));
        break;
      case 'UINT16':
        writeIntegers(writer, new Uint16Array(buffer, offset, size));
        break;
      case 'INT8':
        writeIntegers(writer, new Int8Array(buffer, offset, size));
        break;
      case 'UINT8':
        writeIntegers(writer, new Uint8Array(buffer, offset, size));
        break;
      case 'BOOL':
        writeBooleans(writer, new Uint8Array(buffer, offset, size));
        break;
      default:
        throw new Error(`This is a bug: output '${spec.name}' is ${spec.datatype}, which has no JSON form`);
    }
  }
}

function failValue(spec: TensorSpec, index: number, what: string): never {
  throw new BatchportError(
    'BAD_REQUEST',
    `output '${spec.name}': element ${index} is ${what}, which JSON cannot carry; ask for this output in binary ("binary_data": true)`,
  );
}

/** `start` is the index of the chunk's first element in the tensor. */
function writeFloats(
  writer: JsonWriter,
  spec: TensorSpec,
  start: number,
  values: Float32Array,
  words: Int32Array,
): void {
  writer.reserve(values.length * (FLOAT32_TEXT_MAX + 1));
  const out = writer.bytes;
  let at = writer.at;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (!Number.isFinite(value)) failValue(spec, start + i, String(value));
    at = writeFloat32(out, at, value, words[i]!);
    out[at++] = COMMA;
  }
  writer.at = at;
}

function writeDoubles(writer: JsonWriter, spec: TensorSpec, start: number, values: Float64Array): void {
  let negativeZero = false;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (!Number.isFinite(value)) failValue(spec, start + i, String(value));
    if (value === 0 && Object.is(value, -0)) negativeZero = true;
  }
  // JavaScript's own form is the shortest that reads back, but it drops the sign of zero.
  const text = negativeZero
    ? Array.from(values, (value) => (Object.is(value, -0) ? '-0.0' : String(value))).join()
    : values.join();
  writer.reserve(text.length + 1);
  writer.at += writer.bytes.write(text, writer.at, 'latin1');
  writer.bytes[writer.at++] = COMMA;
}

function writeIntegers(writer: JsonWriter, values: NarrowIntegers): void {
  writer.reserve(values.length * (INTEGER_TEXT_MAX + 1));
  const out = writer.bytes;
  let at = writer.at;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (value < 0) out[at++] = MINUS;
    at = writeDigits(out, at, Math.abs(value));
    out[at++] = COMMA;
  }
  writer.at = at;
}

function writeIntegers64(writer: JsonWriter, words: Uint32Array, signed: boolean): void {
  writer.reserve((words.length / 2) * (INTEGER_TEXT_MAX + 1));
  const out = writer.bytes;
  let at = writer.at;
  for (let i = 0; i < words.length; i += 2) {
    at = writeInteger64(out, at, words[i]!, words[i + 1]!, signed);
    out[at++] = COMMA;
  }
  writer.at = at;
}

function writeBooleans(writer: JsonWriter, values: Uint8Array): void {
  writer.reserve(6 * values.length);
  for (let i = 0; i < values.length; i++) {
    writer.at += writer.bytes.write(values[i] === 0 ? 'false,' : 'true,', writer.at, 'latin1');
  }
}

function writeStrings(writer: JsonWriter, spec: TensorSpec, count: number, data: Uint8Array): void {
  const fault = bytesTensorFault(data, count);
  if (fault !== undefined)
    throw new Error(`This is a bug: output '${spec.name}' is no serialised BYTES tensor: ${fault}`);
  let from = 0;
  for (let i = 0; i < count; i++) {
    const start = from + BYTES_LENGTH_BYTES;
    const end = start + bytesElementLength(data, from);
    if (!isUtf8(data.subarray(start, end))) failValue(spec, i, 'not valid UTF-8');
    // At most \u00XX for each byte, two quotes and a comma.
    writer.reserve(6 * (end - start) + 3);
    writeString(writer, data, start, end);
    writer.bytes[writer.at++] = COMMA;
    from = end;
  }
}

function writeString(writer: JsonWriter, data: Uint8Array, start: number, end: number): void {
  const out = writer.bytes;
  let at = writer.at;
  out[at++] = QUOTE;
  for (let i = start; i < end; i++) {
    const byte = data[i]!;
    if (byte < 0x20) at += out.write(`\\u00${byte < 16 ? '0' : ''}${byte.toString(16)}`, at, 'latin1');
    else {
      if (byte === QUOTE || byte === BACKSLASH) out[at++] = BACKSLASH;
      out[at++] = byte;
    }
  }
  out[at++] = QUOTE;
  writer.at = at;
}
