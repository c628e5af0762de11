/**
 * The values of LogSettings: one of a boolean, a number and a text, also where it is that type's zero.
 */
import { type MessageTable, readMessage } from './message.ts';
import { BYTES, VARINT } from './protobuf-reader.ts';
import { bytesField } from './protobuf-writer.ts';

const BOOL_PARAM = 1;
const UINT32_PARAM = 2;
const STRING_PARAM = 3;

const SETTING_VALUE = {
  [BOOL_PARAM]: { name: 'flag', kind: 'bool' },
  [UINT32_PARAM]: { name: 'number', kind: 'int' },
  [STRING_PARAM]: { name: 'text', kind: 'string' },
} satisfies MessageTable;

/** The value in the bytes of a SettingValue; null where none is set. @throws BAD_REQUEST */
export function readSettingValue(bytes: Buffer): unknown {
  if (bytes.length === 0) return null;
  const { flag, number, text } = readMessage(SETTING_VALUE, bytes);
  // Of a oneof the one is set whose field is there.
  const field = bytes[0]! >> 3;
  return field === BOOL_PARAM ? flag : field === UINT32_PARAM ? number : text;
}

/** @param value a boolean, an integer from 0 to 127, or a text */
export function writeSettingValue(value: boolean | number | string): Buffer {
  if (typeof value === 'string') {
    const text = Buffer.from(value);
    return text.length === 0 ? Buffer.from([(STRING_PARAM << 3) | BYTES, 0]) : bytesField(STRING_PARAM, text);
  }
  const field = typeof value === 'boolean' ? BOOL_PARAM : UINT32_PARAM;
  return Buffer.from([(field << 3) | VARINT, Number(value)]);
}
