/**
 * What a run costs: its time as a function of its rows, learnt from the runs themselves.
 *
 *     runs ──▶ per power of two of rows: the latest RING runs ──▶ median of (time ÷ what the curve said) ──▶ the curve is corrected by that
 *
 * A median is moved by less than half of its runs, so a run that was interrupted changes nothing, and a machine that has become slower is believed after RING / 2
 * runs. Sizes not seen for STALE_US are corrected by what the nearest size seen says. Sizes never seen are read off a straight line through the others
 * (Theil and Sen: the median slope). The curve never falls with rows (pool adjacent violators).
 *
 * Pure: the clock is passed in. Bounds: POINTS × RING runs are kept.
 */

/** Rows at which the curve is kept: 1, 2, 4 … 4096. */
export const COST_POINTS = 13;

const RING = 16;
/** Runs of a size from which on a single odd one does not decide. */
const SURE_RUNS = 4;
const STALE_US = 10_000_000;
/** Once a size is known, at most one run of it in this time is looked at. */
const SAMPLE_EVERY_US = 1000;
const REFIT_EVERY_US = 20_000;
const ERROR_WEIGHT = 1 / 64;
const ERROR_MAX = 4;

/** A curve as it travels: µs at 2^n rows; which of these sizes have been seen, and which more than a few times (bits); runs it was learnt from; mean relative error. */
export interface CostFigures {
  readonly us: Float64Array;
  readonly seen: number;
  readonly sure: number;
  readonly runs: number;
  readonly errorRatio: number;
}

/** Time of a run of `rows` rows, µs, on the curve `us`; linear between its points. */
export function costUs(us: Float64Array, rows: number): number {
  if (rows <= 1) return us[0]!;
  const below = Math.min(COST_POINTS - 2, 31 - Math.clz32(rows));
  const at = 2 ** below;
  return us[below]! + ((us[below + 1]! - us[below]!) * (rows - at)) / at;
}

/** The straight line nearest to a curve's seen points: µs of a run without rows, µs of a row. */
export function costLine({ us, seen }: Pick<CostFigures, 'us' | 'seen'>): { baseUs: number; rowUs: number } {
  const points: number[] = [];
  for (let n = 0; n < COST_POINTS; n++) if ((seen & (1 << n)) !== 0) points.push(n);
  if (points.length === 0) return { baseUs: 0, rowUs: 0 };
  if (points.length === 1) {
    // One size tells nothing of how much of it is fixed: half of a row's cost as good as any guess.
    const rowUs = us[points[0]!]! / (1 + 2 ** points[0]!);
    return { baseUs: rowUs, rowUs };
  }
  const slopes: number[] = [];
  for (const a of points) {
    for (const b of points) if (b > a) slopes.push((us[b]! - us[a]!) / (2 ** b - 2 ** a));
  }
  const rowUs = Math.max(0, median(slopes));
  const baseUs = Math.max(0, median(points.map((n) => us[n]! - rowUs * 2 ** n)));
  return { baseUs, rowUs };
}

/** Learns one curve. */
export class CostCurve {
  /** µs at 2^n rows; all 0 before anything is known. */
  readonly us = new Float64Array(COST_POINTS);
  #seen = 0;
  #sure = 0;
  #runs = 0;
  #errorRatio = 0;
  readonly #rows = new Int32Array(COST_POINTS * RING);
  readonly #times = new Float64Array(COST_POINTS * RING);
  readonly #counts = new Int32Array(COST_POINTS);
  readonly #notedUs = new Float64Array(COST_POINTS).fill(Number.NEGATIVE_INFINITY);
  #refitUs = Number.NEGATIVE_INFINITY;
  #newest = Number.NEGATIVE_INFINITY;

  /** @param known figures of an earlier life to go on from. */
  constructor(known?: CostFigures) {
    if (known === undefined || known.seen === 0) return;
    this.us.set(known.us);
    this.#seen = known.seen;
    this.#sure = known.sure;
    this.#runs = known.runs;
    this.#errorRatio = known.errorRatio;
  }

  get known(): boolean {
    return this.#seen !== 0;
  }

  get figures(): CostFigures {
    return { us: this.us, seen: this.#seen, sure: this.#sure, runs: this.#runs, errorRatio: this.#errorRatio };
  }

  /**
   * Takes note of a run.
   *
   * @returns whether the curve has been fitted anew.
   */
  note(rows: number, us: number, nowUs: number): boolean {
    if (!(rows >= 1) || !(us > 0)) return false;
    this.#runs++;
    if (this.known) {
      const predicted = costUs(this.us, rows);
      const error = Math.min(ERROR_MAX, Math.abs(us - predicted) / predicted);
      this.#errorRatio += (error - this.#errorRatio) * ERROR_WEIGHT;
    }
    const point = Math.min(COST_POINTS - 1, 31 - Math.clz32(rows));
    const count = this.#counts[point]!;
    if (count >= RING && nowUs - this.#notedUs[point]! < SAMPLE_EVERY_US) return false;
    this.#notedUs[point] = nowUs;
    this.#newest = Math.max(this.#newest, nowUs);
    this.#counts[point] = count + 1;
    const unsure = count + 1 === SURE_RUNS && (this.#sure & (1 << point)) === 0;
    if (unsure) this.#sure |= 1 << point;
    const at = point * RING + (count % RING);
    this.#rows[at] = rows;
    this.#times[at] = us;
    const unseen = (this.#seen & (1 << point)) === 0;
    if (!unseen && !unsure && nowUs - this.#refitUs < REFIT_EVERY_US) return false;
    this.#refitUs = nowUs;
    this.#refit(point, unseen ? us / rows : 0);
    return true;
  }

  /** @param rowUs cost of a row at `point`, where that is seen for the first time; else 0. */
  #refit(point: number, rowUs: number): void {
    if (rowUs > 0) this.#meet(point, rowUs);
    const ratios = new Float64Array(COST_POINTS);
    for (let n = 0; n < COST_POINTS; n++) {
      if (this.#counts[n]! > 0 && this.#newest - this.#notedUs[n]! <= STALE_US) ratios[n] = this.#ratio(n);
    }
    for (let n = 0; n < COST_POINTS; n++) {
      if ((this.#seen & (1 << n)) !== 0) this.us[n]! *= nearest(ratios, n);
    }
    this.#fillUnseen();
    this.#level();
  }

  /** A first value for a size. */
  #meet(point: number, rowUs: number): void {
    if (this.#seen === 0)
      for (let n = 0; n < COST_POINTS; n++) this.us[n] = (rowUs * 2 ** point * (1 + 2 ** n)) / (1 + 2 ** point);
    this.#seen |= 1 << point;
  }

  /** Median of what the latest runs of a size took, relative to the curve. */
  #ratio(point: number): number {
    const ratios: number[] = [];
    for (let i = 0; i < Math.min(RING, this.#counts[point]!); i++) {
      ratios.push(this.#times[point * RING + i]! / costUs(this.us, this.#rows[point * RING + i]!));
    }
    return median(ratios);
  }

  /** Between sizes seen the curve is straight, beyond them it goes on like the line through all. */
  #fillUnseen(): void {
    const { rowUs } = costLine({ us: this.us, seen: this.#seen });
    let before = -1;
    for (let n = 0; n < COST_POINTS; n++) {
      if ((this.#seen & (1 << n)) !== 0) {
        before = n;
        continue;
      }
      let after = n + 1;
      while (after < COST_POINTS && (this.#seen & (1 << after)) === 0) after++;
      if (before >= 0 && after < COST_POINTS) {
        const share = (2 ** n - 2 ** before) / (2 ** after - 2 ** before);
        this.us[n] = this.us[before]! + (this.us[after]! - this.us[before]!) * share;
      } else if (before >= 0) this.us[n] = this.us[before]! + rowUs * (2 ** n - 2 ** before);
      // Fewer rows than ever seen: on the line, but not below what their share of it would be.
      else {
        const first = this.us[after]!;
        this.us[n] = Math.max(first - rowUs * (2 ** after - 2 ** n), (first * 2 ** n) / 2 ** after);
      }
    }
  }

  /** Makes the curve rise: neighbours that fall are replaced by their mean. */
  #level(): void {
    const values: number[] = [];
    const counts: number[] = [];
    for (const value of this.us) {
      values.push(value);
      counts.push(1);
      for (let n = values.length - 1; n > 0 && values[n - 1]! > values[n]!; n--) {
        const count = counts[n - 1]! + counts[n]!;
        values[n - 1] = (values[n - 1]! * counts[n - 1]! + values[n]! * counts[n]!) / count;
        counts[n - 1] = count;
        values.pop();
        counts.pop();
      }
    }
    let at = 0;
    for (let n = 0; n < values.length; n++) for (let i = 0; i < counts[n]!; i++) this.us[at++] = values[n]!;
  }
}

/** The ratio of the nearest point that has one; of two equally near ones that of more rows. 1 where none has. */
function nearest(ratios: Float64Array, point: number): number {
  for (let away = 0; away < COST_POINTS; away++) {
    if (ratios[point + away]! > 0) return ratios[point + away]!;
    if (ratios[point - away]! > 0) return ratios[point - away]!;
  }
  return 1;
}

function median(values: number[]): number {
  values.sort((a, b) => a - b);
  const middle = values.length >> 1;
  return values.length % 2 === 1 ? values[middle]! : (values[middle - 1]! + values[middle]!) / 2;
}
