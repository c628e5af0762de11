/** Plain-text tables for the terminal: columns padded to their widest cell, two blanks between them, no frame. */
import { printable } from './terminal.ts';

export interface Column {
  readonly title: string;
  readonly align?: 'right';
}

/**
 * @param rows one cell per column each; cells may hold anything, control characters are escaped
 * @param widthMax lines are cut to this many characters, with an ellipsis; undefined = never
 * @returns lines with a line end each: the titles, then the rows
 */
export function renderTable(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  widthMax: number | undefined,
): string {
  const table = [columns.map(({ title }) => title), ...rows.map((row) => row.map(printable))];
  const widths = columns.map((_, i) => Math.max(...table.map((row) => lengthOf(row[i] ?? ''))));
  const lines = table.map((row) =>
    columns
      .map(({ align }, i) => {
        const cell = row[i] ?? '';
        const blanks = ' '.repeat(widths[i]! - lengthOf(cell));
        return align === 'right' ? blanks + cell : cell + blanks;
      })
      .join('  ')
      .trimEnd(),
  );
  return lines.map((line) => `${cutLine(line, widthMax)}\n`).join('');
}

/** The line, cut to `widthMax` characters where it is longer. */
export function cutLine(line: string, widthMax: number | undefined): string {
  if (widthMax === undefined || line.length <= widthMax) return line;
  const characters = [...line];
  return characters.length <= widthMax ? line : `${characters.slice(0, widthMax - 1).join('')}…`;
}

function lengthOf(text: string): number {
  return [...text].length;
}
