/**
 * What the runs of an instance cost, by shape key: learnt from each run, published in the instance's cost table, from which a later instance in the slot goes on.
 *
 * Owner: the instance thread. Bound: COST_KEYS keys; the one not seen for longest makes room.
 */
import { readCosts, writeCost } from '../queue/cost-table.ts';
import { COST_KEYS } from '../queue/geometry.ts';
import type { Segment } from '../queue/segment.ts';
import { CostCurve } from '../scheduler/cost-curve.ts';

interface Known {
  readonly index: number;
  readonly hash: number;
  readonly rowBytes: number;
  readonly curve: CostCurve;
  usedUs: number;
}

/** A shape key, as far as costs go; a SlabLayout is one. */
export interface CostKey {
  readonly hash: number;
  readonly rowBytes: number;
}

export class RunCosts {
  readonly #segment: Segment;
  readonly #slot: number;
  readonly #known: Known[];
  #last: Known | undefined;

  constructor(segment: Segment, slot: number) {
    this.#segment = segment;
    this.#slot = slot;
    this.#known = readCosts(segment, slot).map((entry, index) => {
      const { hash, rowBytes } = entry;
      return { index, hash, rowBytes, curve: new CostCurve(entry), usedUs: 0 };
    });
    for (const known of this.#known) this.#publish(known);
  }

  /** Whether anything has run, in this life or an earlier one. */
  get known(): boolean {
    return this.#known.length > 0;
  }

  /** The curve of a key, µs at powers of two of rows; undefined before its first run. */
  curve(hash: number): Float64Array | undefined {
    return this.#find(hash)?.curve.us;
  }

  /** Takes note of a run. */
  note(key: CostKey, rows: number, us: number, nowUs: number): void {
    let known = this.#find(key.hash);
    if (known === undefined) {
      known = this.#add(key);
      this.#last = known;
    }
    known.usedUs = nowUs;
    if (known.curve.note(rows, us, nowUs)) this.#publish(known);
  }

  #find(hash: number): Known | undefined {
    if (this.#last?.hash === hash) return this.#last;
    const known = this.#known.find((one) => one.hash === hash);
    if (known !== undefined) this.#last = known;
    return known;
  }

  #add({ hash, rowBytes }: CostKey): Known {
    let index = this.#known.length;
    if (index >= COST_KEYS) {
      const oldest = this.#known.reduce((a, b) => (b.usedUs < a.usedUs ? b : a));
      index = oldest.index;
    }
    const known = { index, hash, rowBytes, curve: new CostCurve(), usedUs: 0 };
    this.#known[index] = known;
    return known;
  }

  #publish({ index, hash, rowBytes, curve }: Known): void {
    writeCost(this.#segment, this.#slot, index, { hash, rowBytes, ...curve.figures });
  }
}
