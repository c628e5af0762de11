/**
 * The `parameters` maps of a gRPC request, its inputs and its outputs: the same rules as for those in JSON, see ../request-parameters.ts.
 */
import { BatchportError } from '../../config/errors.ts';
import { refuseReserved } from '../request-parameters.ts';
import { malformed, type ProtobufReader, VARINT } from './protobuf-reader.ts';

/** Fields of a map's entry. */
const KEY = 1;
const VALUE = 2;
/** Fields of InferParameter; one of them is set. */
const INT64_PARAM = 2;
const UINT64_PARAM = 5;

/** What the server acts on. */
export interface ReadParameters {
  timeoutUs: number | undefined;
  priority: number | undefined;
}

/**
 * Reads one entry of a map at the reader.
 *
 * @param parameters gets what the server acts on; undefined for those of inputs and outputs, of which there is nothing.
 * @throws BAD_REQUEST
 */
export function readParameter(reader: ProtobufReader, owner: string, parameters: ReadParameters | undefined): void {
  let name = '';
  let valueAt = -1;
  let valueEnd = -1;
  const outer = reader.enter();
  while (reader.next()) {
    if (reader.field === KEY) name = reader.string();
    else if (reader.field === VALUE) {
      reader.bytes();
      valueAt = reader.start;
      valueEnd = reader.at;
    } else reader.skip();
  }
  reader.leave(outer);
  refuseReserved(name, owner);
  if (parameters === undefined || (name !== 'timeout' && name !== 'priority')) return;
  const count = valueAt < 0 ? undefined : readCount(reader, valueAt, valueEnd, `parameter '${name}' of ${owner}`);
  if (name === 'timeout') parameters.timeoutUs = count || undefined;
  else parameters.priority = count || undefined;
}

/** An integer of 0 or more. Past 2^53 − 1 it stays at that, which is further than any timeout or priority goes. */
function readCount(reader: ProtobufReader, at: number, end: number, name: string): number {
  const { at: atBefore, end: endBefore } = reader;
  reader.at = at;
  reader.end = end;
  let count = Number.NaN;
  let seen = 'nothing';
  while (reader.next()) {
    if (reader.field !== INT64_PARAM && reader.field !== UINT64_PARAM) {
      reader.skip();
      count = Number.NaN;
      seen = 'another kind of value';
      continue;
    }
    if (reader.wireType !== VARINT) malformed(`${name} has the wire type ${reader.wireType}`);
    reader.varint();
    const signed = reader.field === INT64_PARAM;
    count = signed || reader.high >= 0 ? reader.signed : Number.POSITIVE_INFINITY;
    seen = String(reader.exact(signed));
  }
  reader.at = atBefore;
  reader.end = endBefore;
  if (!(count >= 0)) {
    throw new BatchportError('BAD_REQUEST', `${name} must be an integer of 0 or more, got ${seen}`);
  }
  return Math.min(count, Number.MAX_SAFE_INTEGER);
}
