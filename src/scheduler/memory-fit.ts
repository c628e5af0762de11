/**
 * What one run of a model needs beyond its weights, as a function of its rows: a line `base + perRow · rows`, fitted to measured peaks.
 *
 * The slope is the least-squares one, the line is then raised until no measured point lies above it. Rows beyond the largest measured number are charged a little
 * more per row (EXTRAPOLATION), since nobody has seen them yet; the charge goes as they are measured.
 *
 * Fits are kept by shape key (the dimensions of a row), because a longer text needs more than a short one. A key that nobody has measured yet is guessed from the
 * one that takes most per element; the arena's limit catches a guess that was too low.
 *
 * Pure: states are values. Bounds: POINTS_MAX points a key, KEYS_MAX keys.
 */

/** Most that a run of so many rows has taken at any moment, weights not counted. */
export interface MemoryPoint {
  readonly rows: number;
  readonly bytes: number;
}

/** The points of one shape key, ascending by rows. */
export interface KeyPoints {
  readonly key: string;
  /** Elements of one row over all inputs. */
  readonly elements: number;
  readonly points: readonly MemoryPoint[];
}

export interface MemoryFit {
  readonly baseBytes: number;
  readonly rowBytes: number;
  /** Largest number of rows that was measured; 0 for a guess. */
  readonly measuredRows: number;
}

export const POINTS_MAX = 8;
export const KEYS_MAX = 32;
const EXTRAPOLATION = 1 / 16;

/** @param points at least one. */
export function fitOf(points: readonly MemoryPoint[]): MemoryFit {
  const last = points.at(-1);
  if (last === undefined) throw new Error('This is a bug: a fit of no points');
  const measuredRows = last.rows;
  if (points.length === 1) return { baseBytes: 0, rowBytes: last.bytes / last.rows, measuredRows };
  const n = points.length;
  const meanRows = points.reduce((sum, { rows }) => sum + rows, 0) / n;
  const meanBytes = points.reduce((sum, { bytes }) => sum + bytes, 0) / n;
  let spread = 0;
  let together = 0;
  for (const { rows, bytes } of points) {
    spread += (rows - meanRows) ** 2;
    together += (rows - meanRows) * (bytes - meanBytes);
  }
  const rowBytes = Math.max(0, together / spread);
  const baseBytes = points.reduce((most, { rows, bytes }) => Math.max(most, bytes - rowBytes * rows), 0);
  return { baseBytes, rowBytes, measuredRows };
}

/** What a run of so many rows takes at most, as far as is known. */
export function bytesOf({ baseBytes, rowBytes, measuredRows }: MemoryFit, rows: number): number {
  const unseen = Math.max(0, rows - measuredRows);
  return baseBytes + rowBytes * rows + rowBytes * unseen * EXTRAPOLATION;
}

/** Most rows that a run can have within so much memory: 0 where not even one fits, Infinity where rows cost nothing. */
export function rowsWithin(fit: MemoryFit, roomBytes: number): number {
  const { baseBytes, rowBytes, measuredRows } = fit;
  const left = roomBytes - baseBytes;
  if (left < 0) return 0;
  if (rowBytes === 0) return Number.POSITIVE_INFINITY;
  const seen = left / rowBytes;
  if (seen <= measuredRows) return Math.floor(seen);
  return Math.floor(measuredRows + (left - rowBytes * measuredRows) / (rowBytes * (1 + EXTRAPOLATION)));
}

/**
 * The points of a key with one more. Where a number of rows was measured before, the larger figure stays; where there are too many, the one goes that is nearest
 * to its neighbours, never the first or the last.
 */
export function withPoint(points: readonly MemoryPoint[], point: MemoryPoint): readonly MemoryPoint[] {
  const before = points.find(({ rows }) => rows === point.rows);
  if (before !== undefined && before.bytes >= point.bytes) return points;
  const all = [...points.filter(({ rows }) => rows !== point.rows), point].sort((a, b) => a.rows - b.rows);
  if (all.length <= POINTS_MAX) return all;
  let drop = 1;
  for (let n = 1; n + 1 < all.length; n++) if (gap(all, n) < gap(all, drop)) drop = n;
  return all.toSpliced(drop, 1);
}

/** How far apart the neighbours of a point are, by their ratio. */
function gap(points: readonly MemoryPoint[], n: number): number {
  return points[n + 1]!.rows / points[n - 1]!.rows;
}

/** The keys with a further point of one of them, which is now the last: where there are too many keys, the one goes that was measured longest ago. */
export function withMeasured(
  keys: readonly KeyPoints[],
  measured: { readonly key: string; readonly elements: number; readonly point: MemoryPoint },
): readonly KeyPoints[] {
  const { key, elements, point } = measured;
  const before = keys.find((one) => one.key === key);
  const points = withPoint(before?.points ?? [], point);
  if (points === before?.points) return keys;
  return [...keys.filter((one) => one.key !== key), { key, elements, points }].slice(-KEYS_MAX);
}

/** What is known about a shape key: its own fit, or a guess from the others; undefined while nothing has been measured at all. */
export function fitFor(keys: readonly KeyPoints[], key: string, elements: number): MemoryFit | undefined {
  const own = keys.find((one) => one.key === key);
  if (own !== undefined) return fitOf(own.points);
  let guess: MemoryFit | undefined;
  for (const other of keys) {
    const { baseBytes, rowBytes } = fitOf(other.points);
    // More elements take more in proportion; fewer are not taken to need less, as what they need may not depend on them at all.
    const scale = Math.max(1, elements / Math.max(1, other.elements));
    guess = {
      baseBytes: Math.max(guess?.baseBytes ?? 0, baseBytes),
      rowBytes: Math.max(guess?.rowBytes ?? 0, rowBytes * scale),
      measuredRows: 0,
    };
  }
  return guess;
}

/** The most that any key is known to need for so many rows; undefined while nothing has been measured. */
export function largestPeak(keys: readonly KeyPoints[], rows: number): number | undefined {
  if (keys.length === 0) return undefined;
  return keys.reduce((most, { points }) => Math.max(most, bytesOf(fitOf(points), rows)), 0);
}
