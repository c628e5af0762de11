/**
 * The `parameters` maps of a gRPC request, its inputs and its outputs: the same rules as for those in JSON, see ../request-parameters.ts.
 */
import { BatchportError } from '../../config/errors.ts';
import { CLASSIFICATION, checkClasses, refuseReserved } from '../request-parameters.ts';
import {
  BYTE_SIZE_PARAMETER,
  OFFSET_PARAMETER,
  REGION_PARAMETER,
  type SharedReferenceDraft,
} from '../shared-memory.ts';
import { malformed, type ProtobufReader, VARINT } from './protobuf-reader.ts';

/** Fields of a map's entry. */
const KEY = 1;
const VALUE = 2;
/** Fields of InferParameter; one of them is set. */
const INT64_PARAM = 2;
const STRING_PARAM = 3;
const UINT64_PARAM = 5;

/** What the server acts on. */
export interface ReadParameters {
  timeoutUs: number | undefined;
  priority: number | undefined;
}

/** What the parameters of an output say so far. */
export interface OutputParametersDraft extends SharedReferenceDraft {
  classes: number;
}

/** Where the value of a map's entry lies in the message; -1 where there is none. */
interface Entry {
  readonly name: string;
  readonly at: number;
  readonly end: number;
}

function readEntry(reader: ProtobufReader): Entry {
  let name = '';
  let at = -1;
  let end = -1;
  const outer = reader.enter();
  while (reader.next()) {
    if (reader.field === KEY) name = reader.string();
    else if (reader.field === VALUE) {
      reader.bytes();
      at = reader.start;
      end = reader.at;
    } else reader.skip();
  }
  reader.leave(outer);
  return { name, at, end };
}

/**
 * Reads one entry of the request's own map at the reader.
 *
 * @param parameters gets what the server acts on.
 * @throws BAD_REQUEST
 */
export function readParameter(reader: ProtobufReader, parameters: ReadParameters): void {
  const owner = 'the request';
  const entry = readEntry(reader);
  refuseReserved(entry.name, owner);
  if (entry.name === 'timeout') parameters.timeoutUs = readCount(reader, entry, owner) || undefined;
  else if (entry.name === 'priority') parameters.priority = readCount(reader, entry, owner) || undefined;
}

/** Reads one entry of the map of an output. @param draft gets what is asked for. @throws BAD_REQUEST */
export function readOutputParameter(reader: ProtobufReader, owner: string, draft: OutputParametersDraft): void {
  const entry = readEntry(reader);
  if (entry.name !== CLASSIFICATION) readTensorEntry(reader, entry, owner, draft);
  else draft.classes = checkClasses(readCount(reader, entry, owner) ?? 0, owner);
}

/** Reads one entry of the map of an input. @param shared gets where in shared memory the tensor is. @throws BAD_REQUEST */
export function readTensorParameter(reader: ProtobufReader, owner: string, shared: SharedReferenceDraft): void {
  readTensorEntry(reader, readEntry(reader), owner, shared);
}

function readTensorEntry(reader: ProtobufReader, entry: Entry, owner: string, shared: SharedReferenceDraft): void {
  if (entry.name === REGION_PARAMETER) shared.region = readText(reader, entry, owner);
  else if (entry.name === BYTE_SIZE_PARAMETER) shared.byteSize = readCount(reader, entry, owner) ?? 0;
  else if (entry.name === OFFSET_PARAMETER) shared.offset = readCount(reader, entry, owner) ?? 0;
  else refuseReserved(entry.name, owner);
}

/** Goes through the fields of an entry's value. */
function readValue(reader: ProtobufReader, { at, end }: Entry, read: () => void): void {
  if (at < 0) return;
  const { at: atBefore, end: endBefore } = reader;
  reader.at = at;
  reader.end = end;
  while (reader.next()) read();
  reader.at = atBefore;
  reader.end = endBefore;
}

/** An integer of 0 or more; undefined for no value. Past 2^53 − 1 it stays at that, which is further than any timeout, priority or size goes. */
function readCount(reader: ProtobufReader, entry: Entry, owner: string): number | undefined {
  if (entry.at < 0) return undefined;
  const name = `parameter '${entry.name}' of ${owner}`;
  let count = Number.NaN;
  let seen = 'nothing';
  readValue(reader, entry, () => {
    if (reader.field !== INT64_PARAM && reader.field !== UINT64_PARAM) {
      reader.skip();
      count = Number.NaN;
      seen = 'another kind of value';
      return;
    }
    if (reader.wireType !== VARINT) malformed(`${name} has the wire type ${reader.wireType}`);
    reader.varint();
    const signed = reader.field === INT64_PARAM;
    count = signed || reader.high >= 0 ? reader.signed : Number.POSITIVE_INFINITY;
    seen = String(reader.exact(signed));
  });
  if (!(count >= 0)) {
    throw new BatchportError('BAD_REQUEST', `${name} must be an integer of 0 or more, got ${seen}`);
  }
  return Math.min(count, Number.MAX_SAFE_INTEGER);
}

function readText(reader: ProtobufReader, entry: Entry, owner: string): string {
  let text: string | undefined;
  readValue(reader, entry, () => {
    if (reader.field === STRING_PARAM) text = reader.string();
    else {
      reader.skip();
      text = undefined;
    }
  });
  if (text !== undefined) return text;
  throw new BatchportError('BAD_REQUEST', `parameter '${entry.name}' of ${owner} must be a string`);
}
