/** Bars of plain text, an eighth of a character fine. */
const EIGHTHS = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'] as const;

/** @returns a bar of `width` characters for `max`, of none for 0; longer values are cut, with an arrow */
export function bar(value: number, max: number, width: number): string {
  if (!(value > 0) || !(max > 0)) return '';
  if (value > max) return `${'█'.repeat(width - 1)}▶`;
  const eighths = Math.round((value / max) * width * 8);
  return '█'.repeat(Math.floor(eighths / 8)) + EIGHTHS[eighths % 8]!;
}
