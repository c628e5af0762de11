/**
 * Messages other than those of inference, which are small and rare: written and read by a table of their fields.
 *
 * As proto3 has it, a value equal to its type's zero is not written, and what is not there is read as that. Fields that the table does not have are passed over.
 */
import { BYTES, ProtobufReader, VARINT } from './protobuf-reader.ts';

/** What a field holds; `int` is any of int32, int64 and the enumerations, within ±2^53. */
export type FieldKind = 'string' | 'bytes' | 'bool' | 'int' | MessageTable;

export interface MessageField {
  readonly name: string;
  readonly kind: FieldKind;
  readonly repeated?: boolean;
}

/** Fields by number. */
export interface MessageTable {
  readonly [field: number]: MessageField;
}

export type MessageValue = Readonly<Record<string, unknown>>;

/** Writes the fields of `value` that the table has. */
export function writeMessage(table: MessageTable, value: MessageValue): Buffer {
  const parts: Buffer[] = [];
  for (const [number, { name, kind, repeated }] of Object.entries(table)) {
    const held = value[name];
    if (held === undefined || held === null) continue;
    if (repeated !== true) writeField(parts, Number(number), kind, held);
    else if (kind === 'int') writePacked(parts, Number(number), held as readonly number[]);
    else for (const element of held as readonly unknown[]) writeField(parts, Number(number), kind, element, true);
  }
  return Buffer.concat(parts);
}

function writeField(parts: Buffer[], number: number, kind: FieldKind, value: unknown, element = false): void {
  if (kind === 'bool' || kind === 'int') {
    const varint = writeInteger(BigInt(value as number | boolean));
    if (Number(value) !== 0) parts.push(tag(number, VARINT), varint);
    return;
  }
  const bytes = encoded(kind, value);
  if (bytes.length === 0 && typeof kind === 'string' && !element) return;
  parts.push(tag(number, BYTES), writeInteger(BigInt(bytes.length)), bytes);
}

function encoded(kind: 'string' | 'bytes' | MessageTable, value: unknown): Buffer {
  if (kind === 'bytes') return value as Buffer;
  return kind === 'string' ? Buffer.from(value as string) : writeMessage(kind, value as MessageValue);
}

function writePacked(parts: Buffer[], number: number, values: readonly number[]): void {
  if (values.length === 0) return;
  const packed = Buffer.concat(values.map((value) => writeInteger(BigInt(value))));
  parts.push(tag(number, BYTES), writeInteger(BigInt(packed.length)), packed);
}

function tag(number: number, wireType: number): Buffer {
  return writeInteger(BigInt((number << 3) | wireType));
}

/** A varint; negative integers take ten bytes. */
function writeInteger(value: bigint): Buffer {
  const bytes: number[] = [];
  let rest = BigInt.asUintN(64, value);
  for (; rest >= 128n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

/**
 * Reads a message. Numbers that are repeated or larger than 2^53 − 1 are in none of those that are read here.
 *
 * @throws BAD_REQUEST
 */
export function readMessage(table: MessageTable, bytes: Buffer): MessageValue {
  return readFields(table, new ProtobufReader(bytes));
}

function readFields(table: MessageTable, reader: ProtobufReader): MessageValue {
  const value: Record<string, unknown> = {};
  for (const { name, kind, repeated } of Object.values(table) as MessageField[]) {
    value[name] = repeated === true ? [] : zeroOf(kind);
  }
  while (reader.next()) {
    const field = table[reader.field];
    if (field === undefined) {
      reader.skip();
      continue;
    }
    const read = readField(field.kind, reader);
    if (field.repeated === true) (value[field.name] as unknown[]).push(read);
    else value[field.name] = read;
  }
  return value;
}

function readField(kind: FieldKind, reader: ProtobufReader): unknown {
  switch (kind) {
    case 'string':
      return reader.string();
    case 'bool':
      return reader.bool();
    case 'int':
      reader.expect(VARINT);
      reader.varint();
      return reader.signed;
    case 'bytes':
      reader.bytes();
      return Buffer.from(reader.buffer.subarray(reader.start, reader.at));
    default: {
      const outer = reader.enter();
      const value = readFields(kind, reader);
      reader.leave(outer);
      return value;
    }
  }
}

function zeroOf(kind: FieldKind): unknown {
  if (kind === 'string') return '';
  if (kind === 'bool') return false;
  if (kind === 'int') return 0;
  return kind === 'bytes' ? Buffer.alloc(0) : {};
}
