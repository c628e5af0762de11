/**
 * What an ingress process can foretell of a model's queue: when a request that comes now will have its answer, how many rows the next batch should hold, and when
 * the queue will have drained.
 *
 * Owner: the model's serving half. Costs come from the instances (their cost tables), the backlog from the queue; both are read anew for each question. A model of
 * which hardly anything is known yet is taken to cost nothing: its first requests are let in, and teach.
 */
import { Backlog, type RunCost } from '../queue/backlog.ts';
import { type CostEntry, costVersion, readCosts } from '../queue/cost-table.ts';
import { COST_POINTS } from '../queue/geometry.ts';
import type { SlabLayout } from '../queue/layout.ts';
import type { Segment } from '../queue/segment.ts';
import { PRIORITY_LEVELS_MAX } from '../queue/states.ts';
import { type Decision, Expected, place, RUN_RATIO, SafetyMargin, startsInUs } from '../scheduler/admission.ts';
import { batchRows } from '../scheduler/batch-choice.ts';
import { costUs } from '../scheduler/cost-curve.ts';

/** How long rows let in by their head are counted without their body, at least. */
const EXPECTED_SPAN_US = 10_000;
/** Of so many batches one may become twice as large as seems to pay. */
const TRY_EVERY = 16;

/** Cost of a shape key as the mean over the instances. */
interface KeyCost {
  readonly hash: number;
  readonly rowBytes: number;
  readonly us: Float64Array;
  readonly batchRows: number;
  /** Of a batch of that size; 0 where the size says nothing. */
  readonly fullRunUs: number;
}

export interface Foresight {
  readonly decision: Decision;
  /** When the answer will be there, µs from now; 0 when an instance is free. */
  readonly finishUs: number;
}

const AT_ONCE: Foresight = { decision: 'own', finishUs: 0 };

export class Outlook implements RunCost {
  readonly #segment: Segment;
  /** Longest time of a batch. */
  readonly #limitUs: number;
  readonly #collects: boolean;
  readonly #backlog: Backlog;
  readonly #margin = new SafetyMargin();
  readonly #expected = new Expected(EXPECTED_SPAN_US);
  #version = -1;
  #batches = 0;
  readonly #costs = new Map<number, KeyCost>();
  /** The key of the latest request that was placed: what a head is taken to ask for. */
  #usual: KeyCost | undefined;
  #rowBodyBytes = 0;

  /**
   * @param sloUs longest time of a request by the model's configuration; 0 for none.
   * @param collects whether batches wait for rows to fill them.
   */
  constructor(segment: Segment, sloUs: number, collects: boolean) {
    this.#collects = collects;
    this.#segment = segment;
    this.#limitUs = sloUs > 0 ? sloUs * RUN_RATIO : Number.POSITIVE_INFINITY;
    this.#backlog = new Backlog(segment, this);
  }

  /** Rows that a new batch of this layout should hold at most. */
  batchRows(layout: SlabLayout): number {
    const { maxBatchRows } = this.#segment.geometry;
    this.#refresh();
    const cost = this.#costOf(layout.hash, layout.rowBytes);
    if (cost === undefined) return maxBatchRows;
    // What larger batches cost is not known for ever: now and then one is formed.
    const larger = 2 * cost.batchRows;
    const tries =
      ++this.#batches % TRY_EVERY === 0 && larger <= maxBatchRows && costUs(cost.us, larger) <= this.#limitUs;
    return tries ? larger : cost.batchRows;
  }

  /**
   * Whether rows may join an open slab: its batch becomes larger, and must still be in time for those already there and for them.
   *
   * @param deadlineUs absolute; 0 for none.
   */
  mayJoin(slab: number, rows: number, deadlineUs: number, nowUs: number): boolean {
    const leftUs = Math.min(left(deadlineUs, nowUs), left(this.#backlog.deadlineUs(slab), nowUs));
    // Late already: it makes no difference any more.
    if (leftUs === Number.POSITIVE_INFINITY || leftUs <= 0) return true;
    this.#refresh();
    this.#backlog.look(nowUs, 0, 0, this.#backlog.level(slab));
    return this.#sharedFinishUs(slab, rows, 0) + this.#margin.us(leftUs) <= leftUs;
  }

  /** Where a request would go, or that it would be too late; and when it would have run, µs from now. */
  decide(layout: SlabLayout, rows: number, leftUs: number, marginUs: number, nowUs: number): Foresight {
    this.#refresh();
    const cost = this.#costOf(layout.hash, layout.rowBytes);
    return cost === undefined ? AT_ONCE : this.#decide(cost, layout, rows, 0, leftUs, marginUs, nowUs);
  }

  /**
   * As decide(), before the body is there: its rows and shape are those that bodies of this length usually have, and it may be as urgent as any.
   */
  decideHead(bodyBytes: number, timeoutUs: number, nowUs: number): Foresight {
    this.#refresh();
    if (this.#usual === undefined) return AT_ONCE;
    const expected = this.#expected.rows(nowUs);
    const rows = this.headRows(bodyBytes);
    const head = { hash: this.#usual.hash, level: 0 };
    return this.#decide(this.#usual, head, rows, expected, timeoutUs, this.#margin.us(timeoutUs), nowUs);
  }

  #decide(
    { us, batchRows: most, fullRunUs }: KeyCost,
    { hash, level }: Pick<SlabLayout, 'hash' | 'level'>,
    rows: number,
    expectedRows: number,
    leftUs: number,
    marginUs: number,
    nowUs: number,
  ): Foresight {
    this.#backlog.look(nowUs, hash, rows + expectedRows, level);
    // With an instance free nothing is gained by refusing; and should the costs be wrong, it is found out.
    if (this.#backlog.idle && expectedRows === 0) return AT_ONCE;
    const { roomy } = this.#backlog;
    const expectedUs = roomy >= 0 ? 0 : (expectedRows * costUs(us, most)) / most;
    const ownStartUs = startsInUs(this.#load(), this.#backlog.waitingUs + expectedUs);
    const ownRunUs = costUs(us, Math.min(rows, COST_ROWS_MAX));
    const sharedFinishUs = roomy < 0 ? Number.POSITIVE_INFINITY : this.#sharedFinishUs(roomy, rows, expectedRows);
    const sharedLeftUs = roomy < 0 ? Number.POSITIVE_INFINITY : left(this.#backlog.deadlineUs(roomy), nowUs);
    const places = { ownStartUs, ownRunUs, fullRunUs, sharedFinishUs, sharedLeftUs };
    const decision = place(places, leftUs, marginUs);
    return { decision, finishUs: decision === 'share' ? sharedFinishUs : ownStartUs + ownRunUs };
  }

  /** When an open slab with more rows would have run, µs from the last look. */
  #sharedFinishUs(slab: number, rows: number, expectedRows: number): number {
    const aheadUs = this.#backlog.waitingUs - this.#backlog.slabUs(slab, 0);
    return startsInUs(this.#load(), aheadUs) + this.#backlog.slabUs(slab, rows + expectedRows);
  }

  #load() {
    const { instances, runningUs, firstFreeUs } = this.#backlog;
    return { instances: Math.max(1, instances), runningUs, firstFreeUs };
  }

  /** Rows that a body of this length (-1: unknown) usually has. */
  headRows(bodyBytes: number): number {
    if (this.#rowBodyBytes === 0 || bodyBytes <= 0) return 1;
    return Math.max(1, Math.min(this.#segment.geometry.maxBatchRows, Math.round(bodyBytes / this.#rowBodyBytes)));
  }

  /** A head has been let in, and what it brings is counted until it is there. */
  expect(rows: number, nowUs: number): void {
    this.#expected.add(rows, nowUs);
  }

  unexpect(rows: number, nowUs: number): void {
    this.#expected.remove(rows, nowUs);
  }

  /** A body turned out to hold these rows. */
  noteBody(layout: SlabLayout, rows: number, bodyBytes: number): void {
    this.#refresh();
    this.#usual = this.#costOf(layout.hash, layout.rowBytes);
    const rowBytes = bodyBytes / rows;
    this.#rowBodyBytes =
      this.#rowBodyBytes === 0 ? rowBytes : this.#rowBodyBytes + (rowBytes - this.#rowBodyBytes) / 16;
  }

  /** Time to be left between the predicted finish and the deadline of a request that has `timeoutUs` in all. */
  marginUs(timeoutUs: number): number {
    return this.#margin.us(timeoutUs);
  }

  /** An answer came this much later than predicted (negative: earlier; Infinity: too late). */
  noteLateness(lateUs: number, timeoutUs: number, nowUs: number): void {
    this.#margin.note(lateUs, timeoutUs, nowUs);
  }

  /** Time until what waits now has run, µs. */
  drainUs(nowUs: number): number {
    this.#refresh();
    this.#backlog.look(nowUs, 0, 0, PRIORITY_LEVELS_MAX);
    return startsInUs(this.#load(), this.#backlog.waitingUs);
  }

  /** For the backlog: what a run costs. */
  runUs(hash: number, rows: number): number {
    const cost = this.#costOf(hash, 0);
    return cost === undefined ? 0 : costUs(cost.us, Math.min(rows, COST_ROWS_MAX));
  }

  /** The cost of a key; where it has not run yet, that of another one in proportion to its bytes. */
  #costOf(hash: number, rowBytes: number): KeyCost | undefined {
    const known = this.#costs.get(hash);
    if (known !== undefined) return known;
    let nearest: KeyCost | undefined;
    for (const cost of this.#costs.values()) {
      const nearer = nearest === undefined || distance(cost.rowBytes, rowBytes) < distance(nearest.rowBytes, rowBytes);
      if (nearer) nearest = cost;
    }
    if (nearest === undefined || rowBytes === 0 || nearest.rowBytes === 0) return nearest;
    const ratio = rowBytes / nearest.rowBytes;
    return this.#keyCost(
      hash,
      rowBytes,
      nearest.us.map((us) => us * ratio),
      true,
    );
  }

  /** @param sure whether the curve is good enough to make batches smaller for it. */
  #keyCost(hash: number, rowBytes: number, us: Float64Array, sure: boolean): KeyCost {
    const { maxBatchRows } = this.#segment.geometry;
    if (!sure) return { hash, rowBytes, us, batchRows: maxBatchRows, fullRunUs: 0 };
    const most = batchRows(us, maxBatchRows, this.#limitUs, this.#collects);
    return { hash, rowBytes, us, batchRows: most, fullRunUs: costUs(us, most) };
  }

  /** Reads the cost tables, if they have changed. To be called once for each question, before the first look at a cost. */
  #refresh(): void {
    const { instanceSlots } = this.#segment.geometry;
    let version = 0;
    for (let slot = 0; slot < instanceSlots; slot++) version += costVersion(this.#segment, slot);
    if (version === this.#version) return;
    this.#version = version;
    const tables = new Map<number, CostEntry[]>();
    for (let slot = 0; slot < instanceSlots; slot++) {
      for (const entry of readCosts(this.#segment, slot)) {
        // Nobody is refused for what a run or two took.
        if (entry.sure === 0) continue;
        tables.set(entry.hash, [...(tables.get(entry.hash) ?? []), entry]);
      }
    }
    this.#costs.clear();
    for (const [hash, entries] of tables) {
      const sure = entries.reduce((bits, entry) => bits | entry.sure, 0);
      // Two sizes at least, without which nothing is known of how the time grows.
      const several = (sure & (sure - 1)) !== 0;
      this.#costs.set(hash, this.#keyCost(hash, entries[0]!.rowBytes, mean(entries), several));
    }
    for (const cost of this.#costs.values()) if (cost.hash === this.#usual?.hash) this.#usual = cost;
  }
}

const COST_ROWS_MAX = 2 ** (COST_POINTS - 1);

function mean(entries: readonly CostEntry[]): Float64Array {
  const us = new Float64Array(COST_POINTS);
  for (const entry of entries) for (let n = 0; n < COST_POINTS; n++) us[n]! += entry.us[n]! / entries.length;
  return us;
}

/** Time to an absolute deadline; 0 stands for none. */
function left(deadlineUs: number, nowUs: number): number {
  return deadlineUs === 0 ? Number.POSITIVE_INFINITY : deadlineUs - nowUs;
}

/** How far apart two sizes are, as a ratio. */
function distance(a: number, b: number): number {
  return Math.abs(Math.log((a + 1) / (b + 1)));
}
