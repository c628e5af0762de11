/**
 * InferTensorContents to the bytes of a tensor: integers that ride in a wider field are checked against the datatype, 64-bit ones are moved as two halves.
 *
 * Elements come packed or one by one, in any number of pieces; they are counted before anything is allocated. A tensor of FP32 or FP64 in one packed piece, and that
 * is how clients send it, is the message's own bytes.
 */
import { BatchportError } from '../../config/errors.ts';
import { BYTES_LENGTH_BYTES, writeBytesElementLength } from '../../tensor/bytes-tensor.ts';
import { type Datatype, datatypeInfo } from '../../tensor/datatype.ts';
import type { TensorSpec } from '../../tensor/signature.ts';
import type { InterfaceChecks } from '../model-interface.ts';
import { BYTES, FIXED32, FIXED64, ProtobufReader, VARINT } from './protobuf-reader.ts';

interface Contents {
  readonly field: number;
  readonly name: string;
  /** Of one element by itself; those of numbers may also be packed. */
  readonly wireType: number;
}

const BYTES_FIELD = 8;
const INT: Contents = { field: 2, name: 'int_contents', wireType: VARINT };
const UINT: Contents = { field: 4, name: 'uint_contents', wireType: VARINT };

/** Where the elements of a datatype stand; FP16 and BF16 have no such place. */
const CONTENTS: { readonly [D in Datatype]: Contents | undefined } = {
  BOOL: { field: 1, name: 'bool_contents', wireType: VARINT },
  INT8: INT,
  INT16: INT,
  INT32: INT,
  INT64: { field: 3, name: 'int64_contents', wireType: VARINT },
  UINT8: UINT,
  UINT16: UINT,
  UINT32: UINT,
  UINT64: { field: 5, name: 'uint64_contents', wireType: VARINT },
  FP32: { field: 6, name: 'fp32_contents', wireType: FIXED32 },
  FP64: { field: 7, name: 'fp64_contents', wireType: FIXED64 },
  BYTES: { field: BYTES_FIELD, name: 'bytes_contents', wireType: BYTES },
  FP16: undefined,
  BF16: undefined,
};
/** Contents of other datatypes, by field. */
const NAMES = new Map(Object.values(CONTENTS).map((contents) => [contents?.field, contents?.name]));

/** Pieces of elements, as pairs of start and end in the message; the elements in a piece stand one behind the other without tags. */
interface Pieces {
  readonly at: number[];
  elements: number;
  bytes: number;
}

/**
 * The tensor that an input's contents are.
 *
 * @param ranges InferTensorContents in `message`, as pairs of start and end.
 * @param count elements that the shape calls for.
 * @returns `count` elements, row-major, little-endian, BYTES serialised; it may be a view of `message`.
 * @throws BAD_TENSOR, BAD_REQUEST
 */
export function readTypedContents(
  message: Buffer,
  ranges: readonly number[],
  spec: TensorSpec,
  count: number,
  checks: InterfaceChecks,
): Uint8Array {
  const contents = CONTENTS[spec.datatype];
  if (contents === undefined) {
    return refuse(
      `input '${spec.name}' is ${spec.datatype}, which has no typed contents; send it in raw_input_contents`,
    );
  }
  const pieces = findPieces(message, ranges, spec, contents);
  if (pieces.elements !== count) {
    return refuse(
      `input '${spec.name}' has ${pieces.elements} elements in ${contents.name}, but its shape calls for ${count}`,
    );
  }
  if (contents.wireType === BYTES) return serialise(message, pieces, spec, checks);
  if (contents.wireType === VARINT) return readIntegers(message, pieces, spec, count);
  return join(message, pieces.at, pieces.bytes);
}

function findPieces(message: Buffer, ranges: readonly number[], spec: TensorSpec, contents: Contents): Pieces {
  const pieces: Pieces = { at: [], elements: 0, bytes: 0 };
  for (let n = 0; n < ranges.length; n += 2) {
    const reader = new ProtobufReader(message, ranges[n]!, ranges[n + 1]!);
    while (reader.next()) {
      if (reader.field !== contents.field) {
        const other = NAMES.get(reader.field);
        reader.skip();
        if (other === undefined || isEmptyPack(reader)) continue;
        refuse(`input '${spec.name}' is ${spec.datatype} and takes ${contents.name}, but has ${other}`);
      } else takePiece(reader, contents, pieces);
    }
  }
  return pieces;
}

/** Whether the field just read is a packed one without elements, which some writers put where others put nothing. */
function isEmptyPack({ field, wireType, start, at }: ProtobufReader): boolean {
  return wireType === BYTES && start === at && field !== BYTES_FIELD;
}

function takePiece(reader: ProtobufReader, { wireType }: Contents, pieces: Pieces): void {
  if (wireType === BYTES || reader.wireType === wireType) {
    const before = reader.at;
    if (wireType === BYTES) reader.bytes();
    else reader.skip();
    pieces.elements++;
    add(pieces, wireType === BYTES ? reader.start : before, reader.at);
    return;
  }
  reader.bytes();
  const length = reader.at - reader.start;
  if (wireType === VARINT) {
    for (let at = reader.start; at < reader.at; at++) if (reader.buffer[at]! < 0x80) pieces.elements++;
  } else {
    const elementBytes = wireType === FIXED32 ? 4 : 8;
    if (length % elementBytes !== 0) {
      throw new BatchportError('BAD_REQUEST', `A packed field of ${length} bytes is no whole number of elements.`);
    }
    pieces.elements += length / elementBytes;
  }
  if (length > 0) add(pieces, reader.start, reader.at);
}

function add(pieces: Pieces, start: number, end: number): void {
  pieces.at.push(start, end);
  pieces.bytes += end - start;
}

function join(message: Buffer, pieces: readonly number[], bytes: number): Uint8Array {
  if (pieces.length === 2) return message.subarray(pieces[0], pieces[1]);
  const data = Buffer.allocUnsafe(bytes);
  let to = 0;
  for (let n = 0; n < pieces.length; n += 2) to += message.copy(data, to, pieces[n], pieces[n + 1]);
  return data;
}

function serialise(
  message: Buffer,
  { at, elements, bytes }: Pieces,
  spec: TensorSpec,
  checks: InterfaceChecks,
): Uint8Array {
  const total = bytes + elements * BYTES_LENGTH_BYTES;
  checks.checkBytes(spec, total);
  const data = Buffer.allocUnsafe(total);
  let to = 0;
  for (let n = 0; n < at.length; n += 2) {
    const start = at[n]!;
    const end = at[n + 1]!;
    writeBytesElementLength(data, to, end - start);
    to += BYTES_LENGTH_BYTES;
    to += message.copy(data, to, start, end);
  }
  return data;
}

function readIntegers(message: Buffer, { at }: Pieces, spec: TensorSpec, count: number): Uint8Array {
  const { elementBytes, kind } = datatypeInfo(spec.datatype);
  const data = Buffer.allocUnsafe(count * elementBytes);
  const signed = kind === 'int';
  let element = 0;
  let to = 0;
  for (let n = 0; n < at.length; n += 2) {
    const reader = new ProtobufReader(message, at[n]!, at[n + 1]!);
    while (reader.at < reader.end) {
      reader.varint();
      const { low, high } = reader;
      if (kind === 'bool') data[to] = low !== 0 || high !== 0 ? 1 : 0;
      else if (elementBytes === 8) {
        data.writeInt32LE(low, to);
        data.writeInt32LE(high, to + 4);
      } else {
        if (!fits(low, high, elementBytes, signed)) {
          refuse(
            `input '${spec.name}': element ${element} is ${reader.exact(signed)}, which is out of range for ${spec.datatype}`,
          );
        }
        data[to] = low;
        if (elementBytes > 1) data[to + 1] = low >>> 8;
        if (elementBytes > 2) {
          data[to + 2] = low >>> 16;
          data[to + 3] = low >>> 24;
        }
      }
      to += elementBytes;
      element++;
    }
  }
  return data;
}

/** Whether a 64-bit integer, in two halves, is one of 1, 2 or 4 bytes. */
function fits(low: number, high: number, bytes: number, signed: boolean): boolean {
  const spare = 32 - 8 * bytes;
  return signed
    ? high === low >> 31 && (low << spare) >> spare === low
    : high === 0 && (low << spare) >>> spare === low >>> 0;
}

function refuse(message: string): never {
  throw new BatchportError('BAD_TENSOR', message);
}
