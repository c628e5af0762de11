/**
 * The lines of a text file, by number: names of classes, the characters of a dictionary.
 *
 * The text lies in memory that threads share, so that a task that needs it costs no copy, and lines are taken out as the bytes that they are.
 * Bounds: TEXT_BYTES_MAX of text, LINE_BYTES_MAX of a line.
 */
import { isUtf8 } from 'node:buffer';

export const TEXT_BYTES_MAX = 4 * 2 ** 20;
export const LINE_BYTES_MAX = 1024;

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;

export interface TextLines {
  /** UTF-8. */
  readonly text: Uint8Array;
  /** Start and end of each line in it, without what ends the line. */
  readonly bounds: Uint32Array;
  /** Bytes of the longest line. */
  readonly longest: number;
}

/**
 * Reads a text: UTF-8, a line feed, with or without a carriage return before it, behind each line but perhaps the last. An empty line counts.
 *
 * @param bytes copied.
 * @returns the lines, or what is wrong with the text, to follow its name.
 */
export function readLines(bytes: Uint8Array): TextLines | { readonly problem: string } {
  if (bytes.length > TEXT_BYTES_MAX) return { problem: `is larger than ${TEXT_BYTES_MAX} bytes` };
  const text = new Uint8Array(new SharedArrayBuffer(bytes.length));
  text.set(bytes);
  const bounds: number[] = [];
  let longest = 0;
  for (let start = 0; start < text.length; ) {
    const found = text.indexOf(LINE_FEED, start);
    const next = found === -1 ? text.length : found;
    const end = next > start && text[next - 1] === CARRIAGE_RETURN ? next - 1 : next;
    const number = bounds.length / 2 + 1;
    if (end - start > LINE_BYTES_MAX) return { problem: `has more than ${LINE_BYTES_MAX} bytes in line ${number}` };
    if (!isUtf8(bytes.subarray(start, end))) return { problem: `is not UTF-8 in line ${number}` };
    bounds.push(start, end);
    longest = Math.max(longest, end - start);
    start = next + 1;
  }
  const shared = new Uint32Array(new SharedArrayBuffer(4 * bounds.length));
  shared.set(bounds);
  return { text, bounds: shared, longest };
}

export function lineCount({ bounds }: TextLines): number {
  return bounds.length / 2;
}

/** Bytes of line `n`, from 0, as a view; empty where there is no such line. */
export function lineAt({ text, bounds }: TextLines, n: number): Uint8Array {
  return text.subarray(bounds[2 * n] ?? 0, bounds[2 * n + 1] ?? 0);
}
