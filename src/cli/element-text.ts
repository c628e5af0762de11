/** Elements of a tensor as text: short for tables, exact for JSON. */
import type { DataOf } from '../client/data.ts';
import { type Datatype, datatypeInfo } from '../tensor/datatype.ts';
import { bfloat16Value, float16Value } from '../tensor/float16.ts';
import { printable } from './terminal.ts';

/** An output's elements in the form its datatype has in JavaScript. */
export type TensorData = { [D in Datatype]: { readonly datatype: D; readonly data: DataOf[D] } }[Datatype];

const TABLE_TEXT_LENGTH_MAX = 40;
/** Significant digits of a float in a table. */
const TABLE_DIGITS = 6;
/** Whole floats below this are shown with all their digits. */
const EXACT_MAX = 1e9;

/** Number of elements. */
export function lengthOf(tensor: TensorData): number {
  return tensor.data.length;
}

/** Value of an element that can be compared with others; undefined for BYTES. FP16 and BF16 are decoded. */
export function numberAt(tensor: TensorData, index: number): number | bigint | undefined {
  switch (tensor.datatype) {
    case 'BYTES':
      return undefined;
    case 'FP16':
      return float16Value(tensor.data[index]!);
    case 'BF16':
      return bfloat16Value(tensor.data[index]!);
    default:
      return tensor.data[index]!;
  }
}

/** For people: floats rounded, texts cut. */
export function tableText(tensor: TensorData, index: number): string {
  if (tensor.datatype === 'BYTES') return bytesText(tensor.data[index]!);
  const value = numberAt(tensor, index)!;
  if (tensor.datatype === 'BOOL') return value === 0 ? 'false' : 'true';
  if (typeof value === 'bigint' || datatypeInfo(tensor.datatype).kind !== 'float') return String(value);
  if (Object.is(value, -0)) return '-0';
  const exact = Number.isInteger(value) && Math.abs(value) < EXACT_MAX;
  return String(exact ? value : Number(value.toPrecision(TABLE_DIGITS)));
}

/**
 * As JSON, exact: 64-bit integers with all digits; what JSON has no number for as the text "NaN", "Infinity" or "-Infinity";
 * bytes that are not UTF-8 as `{"base64": "…"}`.
 */
export function jsonText(tensor: TensorData, index: number): string {
  if (tensor.datatype === 'BYTES') {
    const bytes = tensor.data[index]!;
    const text = utf8(bytes);
    return JSON.stringify(text ?? { base64: Buffer.from(bytes).toString('base64') });
  }
  const value = numberAt(tensor, index)!;
  if (tensor.datatype === 'BOOL') return value === 0 ? 'false' : 'true';
  if (typeof value === 'bigint') return String(value);
  if (!Number.isFinite(value)) return JSON.stringify(String(value));
  return Object.is(value, -0) ? '-0' : String(tensor.datatype === 'FP32' ? shortestSingle(value) : value);
}

/** The shortest decimal that reads back as the same FP32; the double would show digits that are not the value's. */
function shortestSingle(value: number): number {
  for (let digits = 6; digits < 9; digits++) {
    const rounded = Number(value.toPrecision(digits));
    if (Math.fround(rounded) === value) return rounded;
  }
  return Number(value.toPrecision(9));
}

function bytesText(bytes: Uint8Array): string {
  const text = utf8(bytes);
  const shown = text === undefined ? `0x${Buffer.from(bytes).toString('hex')}` : JSON.stringify(text);
  const safe = printable(shown);
  return safe.length <= TABLE_TEXT_LENGTH_MAX ? safe : `${[...safe].slice(0, TABLE_TEXT_LENGTH_MAX - 1).join('')}…`;
}

function utf8(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}
