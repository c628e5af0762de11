/**
 * Recorded arrivals: a text file with one time per line, in seconds from any origin. Empty lines and lines that begin with `#` are passed over, and whatever
 * follows a comma or blank after the time, so that the first column of a CSV serves as it is.
 *
 * Bounds: files of up to FILE_BYTES_MAX. The times may lie in another order; they are sorted.
 */
import { readFileSync, statSync } from 'node:fs';

const FILE_BYTES_MAX = 256 * 2 ** 20;

/** @throws Error that says what is wrong with the file, with the line. */
export function readTrace(path: string): Float64Array {
  const { size } = statSync(path);
  if (size > FILE_BYTES_MAX) throw new Error(`${size} bytes; at most ${FILE_BYTES_MAX} are read`);
  return parseTrace(readFileSync(path, 'utf8'));
}

/** @returns times in ms since the first, in order. @throws Error naming the line that is no time */
export function parseTrace(text: string): Float64Array {
  const timesS: number[] = [];
  for (const [index, line] of text.split('\n').entries()) {
    const first = line.trim().split(/[\s,;]/, 1)[0]!;
    if (first === '' || first.startsWith('#')) continue;
    const timeS = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(first) ? Number(first) : Number.NaN;
    if (!Number.isFinite(timeS)) throw new Error(`line ${index + 1}: ${JSON.stringify(first.slice(0, 40))} is no time`);
    timesS.push(timeS);
  }
  if (timesS.length === 0) throw new Error('holds no times');
  const sorted = Float64Array.from(timesS).sort();
  const origin = sorted[0]!;
  return sorted.map((timeS) => (timeS - origin) * 1000);
}
