/**
 * A number of bytes as people write it: "67108864", "64MiB", "2 GB".
 *
 * Invariant: a parsed size is a whole, safe number of bytes. Fractions are refused, so nothing is ever rounded.
 */

const UNITS: ReadonlyMap<string, number> = new Map([
  ['', 1],
  ['b', 1],
  ['kb', 1e3],
  ['mb', 1e6],
  ['gb', 1e9],
  ['tb', 1e12],
  ['kib', 2 ** 10],
  ['mib', 2 ** 20],
  ['gib', 2 ** 30],
  ['tib', 2 ** 40],
]);

/** What a size looks like; without flags, since it also stands in published JSON Schemas. */
export const SIZE_PATTERN = /^([0-9]{1,16}) ?([Bb]|[KkMmGgTt][Ii]?[Bb])?$/;

/** For messages: what is accepted. */
export const SIZE_FORMS = 'a number of bytes or a string such as "64MiB" or "2GB"';

/** @returns bytes, or undefined when the text is not a size or not a safe integer. */
export function parseSizeBytes(text: string): number | undefined {
  const match = SIZE_PATTERN.exec(text);
  if (match === null) {
    return undefined;
  }
  const scale = UNITS.get((match[2] ?? '').toLowerCase());
  const sizeBytes = Number(match[1]) * (scale ?? Number.NaN);
  return Number.isSafeInteger(sizeBytes) ? sizeBytes : undefined;
}

/** The shortest exact form: whole binary units where they fit ("64MiB"), else the number of bytes ("1000 bytes"). */
export function formatSizeBytes(sizeBytes: number): string {
  for (const [index, unit] of ['TiB', 'GiB', 'MiB', 'KiB'].entries()) {
    const scale = 1024 ** (4 - index);
    if (sizeBytes >= scale && sizeBytes % scale === 0) {
      return `${sizeBytes / scale}${unit}`;
    }
  }
  return `${sizeBytes} bytes`;
}

/** For people, with two or three digits: "1.5 GiB", "340 MiB", "0 bytes". */
export function roundSizeBytes(sizeBytes: number): string {
  for (const [index, unit] of ['TiB', 'GiB', 'MiB', 'KiB'].entries()) {
    const size = sizeBytes / 1024 ** (4 - index);
    if (size >= 1) return `${size < 10 ? size.toFixed(1).replace(/\.0$/, '') : Math.round(size)} ${unit}`;
  }
  return `${Math.round(sizeBytes)} bytes`;
}
