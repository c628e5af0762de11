/**
 * What a run costs: its time as a function of its rows, learnt from the runs themselves.
 *
 *     cost(rows) = shape(rows) × speed
 *
 *     speed   changes with the machine, at any moment: median of what the latest SPEED_RUNS runs took, relative to the shape
 *     shape   is the model's: per power of two of rows the latest RING runs, their times divided by the speed of the moment; the median corrects the shape
 *
 * A median is not moved by less than half of its runs, so a run that was interrupted changes nothing. Since speed is taken off, runs of different times can be compared,
 * and a size that is seldom run keeps its relation to the others while the machine becomes slower. Sizes never seen are read off a straight line through the others
 * (Theil and Sen: the median slope). The curve never falls with rows (pool adjacent violators).
 *
 * Pure: the clock is passed in. Bounds: POINTS × RING runs are kept.
 */

import { COST_POINTS } from '../queue/geometry.ts';

const RING = 32;
/** Far fewer than RING, so that a sudden change is laid to the machine and not to the model. */
const SPEED_RUNS = 9;
const UNSEEN_WEIGHT = 0.1;
/** Runs of a size from which on a single odd one does not decide. */
const SURE_RUNS = 4;
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
  /** The same at speed 1. */
  readonly #shape = new Float64Array(COST_POINTS);
  #speed = 1;
  #seen = 0;
  #sure = 0;
  #runs = 0;
  #errorRatio = 0;
  readonly #rows = new Int32Array(COST_POINTS * RING);
  /** At speed 1. */
  readonly #times = new Float64Array(COST_POINTS * RING);
  readonly #counts = new Int32Array(COST_POINTS);
  readonly #notedUs = new Float64Array(COST_POINTS).fill(Number.NEGATIVE_INFINITY);
  /** Full from the start, so that a single run never decides. */
  readonly #speeds = new Float64Array(SPEED_RUNS).fill(1);
  #speedCount = 0;
  #refitUs = Number.NEGATIVE_INFINITY;

  /** @param known figures of an earlier life to go on from. */
  constructor(known?: CostFigures) {
    if (known === undefined || known.seen === 0) return;
    this.us.set(known.us);
    this.#shape.set(known.us);
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
    // The nearest size that is kept: what it costs weighs more in the cost of this run than its neighbour does.
    const point = Math.min(COST_POINTS - 1, Math.round(Math.log2(rows)));
    const bit = 1 << point;
    const count = this.#counts[point]!;
    if (count >= RING && nowUs - this.#notedUs[point]! < SAMPLE_EVERY_US) return false;
    this.#notedUs[point] = nowUs;
    this.#counts[point] = count + 1;
    const isNew = (this.#seen & bit) === 0;
    if (isNew) this.#meet(point, rows, us);
    // What a size costs that is hardly known tells nothing of the speed.
    if ((this.#sure & bit) !== 0) {
      this.#speeds[this.#speedCount++ % SPEED_RUNS] = us / costUs(this.#shape, rows);
      this.#speed = median([...this.#speeds]);
    }
    const at = point * RING + (count % RING);
    this.#rows[at] = rows;
    this.#times[at] = us / this.#speed;
    const isSure = count + 1 === SURE_RUNS;
    if (isSure) this.#sure |= bit;
    if (!isNew && !isSure && nowUs - this.#refitUs < REFIT_EVERY_US) return false;
    this.#refitUs = nowUs;
    this.#refit();
    return true;
  }

  #refit(): void {
    for (let n = 0; n < COST_POINTS; n++) if (this.#counts[n]! > 0) this.#shape[n]! *= this.#ratio(n);
    this.#fillUnseen();
    this.#level();
    for (let n = 0; n < COST_POINTS; n++) this.us[n] = this.#shape[n]! * this.#speed;
  }

  /** A size is seen for the first time. */
  #meet(point: number, rows: number, us: number): void {
    if (this.#seen === 0) for (let n = 0; n < COST_POINTS; n++) this.#shape[n] = (us * (1 + 2 ** n)) / (1 + rows);
    this.#seen |= 1 << point;
  }

  /** Median of what the latest runs of a size took, relative to the shape. */
  #ratio(point: number): number {
    const ratios: number[] = [];
    for (let at = point * RING; at < point * RING + Math.min(RING, this.#counts[point]!); at++) {
      ratios.push(this.#times[at]! / costUs(this.#shape, this.#rows[at]!));
    }
    return median(ratios);
  }

  /** Between sizes seen the curve is straight, beyond them it goes on like the line through all. */
  #fillUnseen(): void {
    const { rowUs } = costLine({ us: this.#shape, seen: this.#seen });
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
        this.#shape[n] = this.#shape[before]! + (this.#shape[after]! - this.#shape[before]!) * share;
      } else if (before >= 0) this.#shape[n] = this.#shape[before]! + rowUs * (2 ** n - 2 ** before);
      // Fewer rows than ever seen: on the line, but not below what their share of it would be.
      else {
        const first = this.#shape[after]!;
        this.#shape[n] = Math.max(first - rowUs * (2 ** after - 2 ** n), (first * 2 ** n) / 2 ** after);
      }
    }
  }

  /** Makes the curve rise: neighbours that fall are replaced by their mean, weighted by the runs behind them. */
  #level(): void {
    const values: number[] = [];
    const weights: number[] = [];
    const counts: number[] = [];
    for (let point = 0; point < COST_POINTS; point++) {
      values.push(this.#shape[point]!);
      weights.push(Math.max(UNSEEN_WEIGHT, Math.min(RING, this.#counts[point]!)));
      counts.push(1);
      for (let n = values.length - 1; n > 0 && values[n - 1]! > values[n]!; n--) {
        const weight = weights[n - 1]! + weights[n]!;
        values[n - 1] = (values[n - 1]! * weights[n - 1]! + values[n]! * weights[n]!) / weight;
        weights[n - 1] = weight;
        counts[n - 1]! += counts[n]!;
        values.pop();
        weights.pop();
        counts.pop();
      }
    }
    let at = 0;
    for (let n = 0; n < values.length; n++) for (let i = 0; i < counts[n]!; i++) this.#shape[at++] = values[n]!;
  }
}

function median(values: number[]): number {
  values.sort((a, b) => a - b);
  const middle = values.length >> 1;
  return values.length % 2 === 1 ? values[middle]! : (values[middle - 1]! + values[middle]!) / 2;
}
