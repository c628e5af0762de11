/**
 * Outputs of a model for people to read: name, datatype and shape, then the values by rows of the last axis, or the K largest
 * of each such row with their labels.
 *
 * Bounds: ROWS_SHOWN rows of VALUES_SHOWN values, TOP_ROWS_SHOWN rows of at most TOP_MAX of the largest.
 */
import { formatShape } from '../tensor/shape.ts';
import { lengthOf, numberAt, type TensorData, tableText } from './element-text.ts';
import { printable } from './terminal.ts';
import { renderTable } from './text-table.ts';

const ROWS_SHOWN = 8;
const TOP_ROWS_SHOWN = 64;
const VALUES_SHOWN = 10;
export const TOP_MAX = 1000;

export type OutputTensor = TensorData & { readonly name: string; readonly shape: readonly number[] };

export interface PrintOptions {
  /** Print the K largest of each row instead of the first values. */
  readonly top: number | undefined;
  /** By index along the last axis. */
  readonly labels: readonly string[] | undefined;
  readonly columns: number | undefined;
}

/** Lines of one output, with a line end each. */
export function formatOutput(output: OutputTensor, options: PrintOptions): string {
  const { shape } = output;
  const title = `${printable(output.name)}  ${output.datatype} ${formatShape(shape)}\n`;
  if (lengthOf(output) === 0) return `${title}  no elements\n`;
  const width = shape.at(-1) ?? 1;
  const rows = lengthOf(output) / width;
  const top = output.datatype === 'BYTES' ? undefined : options.top;
  const rowsMax = top === undefined ? ROWS_SHOWN : TOP_ROWS_SHOWN;
  const shown = Array.from({ length: Math.min(rows, rowsMax) }, (_, row) => row);
  const body =
    top === undefined ? valueRows(output, shown, width, options) : topRows(output, shown, width, top, options);
  const more = rows > shown.length ? `  … ${rows - shown.length} more rows\n` : '';
  return title + indented(body) + more;
}

function valueRows(output: OutputTensor, rows: readonly number[], width: number, options: PrintOptions): string {
  const count = Math.min(width, VALUES_SHOWN);
  const cells = rows.map((row) => {
    const values = Array.from({ length: count }, (_, i) => tableText(output, row * width + i));
    return [...rowName(output.shape, row), ...values, ...(width > count ? [`… ${width - count} more`] : [])];
  });
  const columns = cells[0]!.map(() => ({ title: '', align: 'right' }) as const);
  const table = renderTable(columns, cells, innerWidth(options));
  // Values need no titles.
  return table.slice(table.indexOf('\n') + 1);
}

function topRows(
  output: OutputTensor,
  rows: readonly number[],
  width: number,
  top: number,
  options: PrintOptions,
): string {
  const named = rowName(output.shape, 0).length > 0;
  const columns = [
    ...(named ? [{ title: 'ROW', align: 'right' } as const] : []),
    { title: 'INDEX', align: 'right' } as const,
    { title: 'VALUE', align: 'right' } as const,
    ...(options.labels === undefined ? [] : [{ title: 'LABEL' }]),
  ];
  const cells = rows.flatMap((row) =>
    largest(output, row * width, width, top).map((index) => [
      ...rowName(output.shape, row),
      String(index),
      tableText(output, row * width + index),
      ...(options.labels === undefined ? [] : [options.labels[index] ?? '-']),
    ]),
  );
  return renderTable(columns, cells, innerWidth(options));
}

/** Indices within the row of the K largest elements, the largest first; equal ones in order, NaN last. */
export function largest(tensor: TensorData, start: number, width: number, top: number): number[] {
  const indices = Array.from({ length: width }, (_, i) => i);
  indices.sort((a, b) => {
    const left = numberAt(tensor, start + a)!;
    const right = numberAt(tensor, start + b)!;
    if (left > right) return -1;
    if (left < right) return 1;
    return Number(Number.isNaN(left)) - Number(Number.isNaN(right)) || a - b;
  });
  return indices.slice(0, top);
}

/** Position of a row of the last axis, `[2,0]`; nothing where there is only one axis. */
function rowName(shape: readonly number[], row: number): string[] {
  const outer = shape.slice(0, -1);
  if (outer.every((dim) => dim === 1)) return [];
  const index: number[] = [];
  let rest = row;
  for (const dim of outer.toReversed()) {
    index.unshift(rest % dim);
    rest = Math.floor(rest / dim);
  }
  return [formatShape(index)];
}

function innerWidth({ columns }: PrintOptions): number | undefined {
  return columns === undefined ? undefined : columns - 2;
}

function indented(lines: string): string {
  return lines.replace(/^(?=.)/gm, '  ');
}
