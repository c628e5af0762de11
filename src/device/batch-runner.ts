/**
 * Runs a sealed batch and settles each of its claims.
 *
 *     rows that are late or that nobody wants any more are left out: 504, and where their neighbours' run gets shorter by it, the batch is run in parts around them
 *
 *     whole ── fails ─▶ halves ── fail ─▶ … ─▶ one request: its error
 *       ├ kills its process twice ─▶ one by one (src/queue/states.ts, TAKEOVERS_MAX)
 *       └ more rows than memory holds ─▶ parts that fit (run-memory.ts); one request too large: its rows in parts
 *
 * So a request whose own data makes the model fail never harms the others in its batch, and only a single row that finds no memory is an error. Parts
 * are ranges of rows of the same slab: nothing is copied for it. Bound: at most 2 × claims − 1 runs a batch, plus those for memory.
 */
import type { InstanceCounters } from '../metrics/counters.ts';
import type { Batch, Consumer } from '../queue/consumer.ts';
import { STATUS_DEADLINE, STATUS_MODEL_FAILED, STATUS_OK, STATUS_OUT_OF_MEMORY } from '../queue/result.ts';
import type { Segment } from '../queue/segment.ts';
import { OrtError } from '../runtime/ort-error.ts';
import type { Runner } from '../runtime/runner.ts';
import { costUs } from '../scheduler/cost-curve.ts';
import { nowUs } from '../system/clock.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { isOutOfMemory } from './out-of-memory.ts';
import { writeResults } from './result-table.ts';
import type { RunCosts } from './run-costs.ts';
import type { RunMemory } from './run-memory.ts';
import { type LooseOutput, RunFault, SlabRun } from './slab-run.ts';

/** So many batches in a row may be left out because they are expected to come too late. */
const HOPELESS_MAX = 3;

export class BatchRunner {
  readonly #segment: Segment;
  readonly #consumer: Consumer;
  readonly #counters: InstanceCounters;
  readonly #memory: RunMemory;
  readonly #slabRun: SlabRun;
  readonly #costs: RunCosts;
  /** Batches in a row that were left out as a whole since they would have come too late. */
  #hopeless = 0;

  constructor(
    runner: Runner,
    segment: Segment,
    consumer: Consumer,
    signature: ModelSignature,
    counters: InstanceCounters,
    memory: RunMemory,
    costs: RunCosts,
  ) {
    this.#segment = segment;
    this.#consumer = consumer;
    this.#counters = counters;
    this.#memory = memory;
    this.#costs = costs;
    this.#slabRun = new SlabRun(runner, segment, consumer, signature);
  }

  /** Runs the batch and settles each of its claims. The caller finishes it. @throws ArenaPoisoned: some claims may not be settled then, and a next life has to run them */
  run(batch: Batch): void {
    if (!batch.oneByOne) this.#leaveOutLate(batch);
    if (batch.wantedClaims === 0) {
      for (let claim = 0; claim < batch.claims; claim++) this.#consumer.settle(batch, claim, STATUS_DEADLINE, 0);
      this.#counters.skipped();
      return;
    }
    this.#consumer.running(batch);
    if (batch.oneByOne) {
      this.#runOneByOne(batch);
      return;
    }
    for (let from = 0; from < batch.claims; ) {
      this.#leaveOutAbandoned(batch, from);
      if (batch.wanted[from] === 0) {
        this.#consumer.settle(batch, from++, STATUS_DEADLINE, 0);
        continue;
      }
      const to = this.#partEnd(batch, from);
      this.#runWanted(batch, from, to);
      from = to;
    }
  }

  /** A batch that has killed its instances: whoever kills again stands alone and is known by it. */
  #runOneByOne(batch: Batch): void {
    for (let claim = 0; claim < batch.claims; claim++) {
      if (batch.wanted[claim] === 0 || this.#consumer.settled(batch, claim)) continue;
      this.#consumer.alone(batch, claim);
      this.#runClaims(batch, claim, claim + 1);
    }
  }

  /** Leaves out what has passed its deadline, and then, the most urgent first, what would pass it during the run. */
  #leaveOutLate(batch: Batch): void {
    const now = nowUs();
    let rows = 0;
    let expiring = false;
    for (let claim = 0; claim < batch.claims; claim++) {
      if (batch.wanted[claim] === 0) continue;
      const deadline = this.#consumer.deadlineUs(batch, claim);
      if (deadline > 0 && deadline <= now) this.#leaveOut(batch, claim);
      else {
        rows += batch.claimRows[claim]!;
        expiring ||= deadline > 0;
      }
    }
    const curve = this.#costs.curve(batch.layout.hash);
    // Should the costs be wrong, nothing would be run any more, and they would stay so: now and then a batch runs all the same.
    if (!expiring || curve === undefined || this.#hopeless >= HOPELESS_MAX) {
      this.#hopeless = 0;
      return;
    }
    while (rows > 0) {
      const claim = this.#mostUrgent(batch);
      if (claim < 0 || this.#consumer.deadlineUs(batch, claim) >= now + costUs(curve, rows)) break;
      rows -= batch.claimRows[claim]!;
      this.#leaveOut(batch, claim);
    }
    this.#hopeless = batch.wantedClaims === 0 ? this.#hopeless + 1 : 0;
  }

  /** The wanted claim with the earliest deadline; -1 where none has one. */
  #mostUrgent(batch: Batch): number {
    let urgent = -1;
    let earliest = Number.POSITIVE_INFINITY;
    for (let claim = 0; claim < batch.claims; claim++) {
      if (batch.wanted[claim] === 0) continue;
      const deadline = this.#consumer.deadlineUs(batch, claim);
      if (deadline === 0 || deadline >= earliest) continue;
      urgent = claim;
      earliest = deadline;
    }
    return urgent;
  }

  /** Leaves out what has been given up since the batch was closed: the runs before may have taken long. */
  #leaveOutAbandoned(batch: Batch, from: number): void {
    for (let claim = from; claim < batch.claims; claim++) {
      if (batch.wanted[claim] === 1 && this.#consumer.abandoned(batch, claim)) this.#unwanted(batch, claim);
    }
  }

  /** Settles the claims [from, to) if nobody wants any of them any more. @returns whether that is so */
  #leaveOutDeserted(batch: Batch, from: number, to: number): boolean {
    this.#leaveOutAbandoned(batch, from);
    const wanted = batch.wanted.indexOf(1, from);
    if (wanted >= 0 && wanted < to) return false;
    for (let claim = from; claim < to; claim++) this.#consumer.settle(batch, claim, STATUS_DEADLINE, 0);
    return true;
  }

  #leaveOut(batch: Batch, claim: number): void {
    this.#unwanted(batch, claim);
    this.#counters.late(batch.claimRows[claim]!);
  }

  #unwanted(batch: Batch, claim: number): void {
    batch.wanted[claim] = 0;
    batch.wantedClaims--;
  }

  /**
   * End of the claims from the wanted one `from` on that run as one: up to the last wanted one, the cap that memory has set, or a gap of unwanted rows whose
   * time is worth more than another run.
   */
  #partEnd(batch: Batch, from: number): number {
    const first = batch.firstRow[from]!;
    const rowsMax = this.#memory.rowsMax(batch.layout);
    let to = from + 1;
    for (let claim = to; claim < batch.claims; claim++) {
      if (endOf(batch, claim) - first > rowsMax) break;
      if (batch.wanted[claim] === 0) continue;
      if (claim > to && this.#gapPays(batch, from, to, claim)) break;
      to = claim + 1;
    }
    return to;
  }

  /** Whether two runs around the unwanted claims [gap, next) take less time than one over them. */
  #gapPays(batch: Batch, from: number, gap: number, next: number): boolean {
    // Unwanted strings are not looked at, and a model may not take the empty ones in their place.
    if (batch.layout.bytesInputs.length > 0) return true;
    const curve = this.#costs.curve(batch.layout.hash);
    if (curve === undefined) return false;
    const before = endOf(batch, gap - 1) - batch.firstRow[from]!;
    const after = endOf(batch, batch.wanted.lastIndexOf(1, batch.claims - 1)) - batch.firstRow[next]!;
    const whole = before + after + batch.firstRow[next]! - endOf(batch, gap - 1);
    return costUs(curve, before) + costUs(curve, after) < costUs(curve, whole);
  }

  /** Runs the claims [from, to), unless nobody wants any of them any more. */
  #runClaims(batch: Batch, from: number, to: number): void {
    if (!this.#leaveOutDeserted(batch, from, to)) this.#runWanted(batch, from, to);
  }

  /** Runs the claims [from, to), some of which are wanted, as one, or in halves if that fails. */
  #runWanted(batch: Batch, from: number, to: number): void {
    try {
      const table = to - from === 1 ? this.#runOne(batch, from) : this.#runSeveral(batch, from, to);
      for (let claim = from; claim < to; claim++) {
        if (batch.wanted[claim] === 1) this.#consumer.settle(batch, claim, STATUS_OK, table);
        else this.#consumer.settle(batch, claim, STATUS_DEADLINE, 0);
      }
    } catch (error) {
      const status = statusOf(error);
      // It may have been cancelled for that.
      if (this.#leaveOutDeserted(batch, from, to)) return;
      if (to - from === 1) {
        this.#counters.failure();
        this.#consumer.settle(batch, from, status, this.#consumer.message(batch, (error as Error).message));
        return;
      }
      this.#counters.split();
      const middle = (from + to) >> 1;
      this.#runClaims(batch, from, middle);
      this.#runClaims(batch, middle, to);
    }
  }

  /** @returns offset of the result table, 0 when every output is in the slab. */
  #runSeveral(batch: Batch, from: number, to: number): number {
    const firstRow = batch.firstRow[from]!;
    return this.#runAndStore(batch, firstRow, batch.firstRow[to - 1]! + batch.claimRows[to - 1]! - firstRow);
  }

  /** Runs one request, in parts of its rows where memory does not hold it as one. Returns as runSeveral(). */
  #runOne(batch: Batch, claim: number): number {
    if (batch.layout.whole) return this.#runAndStore(batch, 0, 1);
    const firstRow = batch.firstRow[claim]!;
    const rows = batch.claimRows[claim]!;
    if (rows <= this.#memory.rowsMax(batch.layout)) {
      try {
        return this.#runAndStore(batch, firstRow, rows);
      } catch (error) {
        if (!isOutOfMemory(error) || rows === 1) throw error;
      }
    }
    const outputs = this.#runInParts(batch, firstRow, rows);
    return writeResults(this.#segment, this.#consumer, batch, firstRow, rows, outputs);
  }

  #runAndStore(batch: Batch, firstRow: number, rows: number): number {
    return this.#runRows(batch, firstRow, rows, (outputs) =>
      writeResults(this.#segment, this.#consumer, batch, firstRow, rows, outputs),
    );
  }

  /** Runs rows as one and takes note of time and memory. */
  #runRows<T>(
    batch: Batch,
    firstRow: number,
    rows: number,
    use: (outputs: readonly (LooseOutput | undefined)[]) => T,
  ): T {
    return this.#memory.run(batch.layout, rows, (giveBack) => {
      this.#consumer.runningOn();
      const startedUs = nowUs();
      const result = this.#slabRun.run(batch, firstRow, rows, use, giveBack);
      const endedUs = nowUs();
      this.#counters.batch(rows, endedUs - startedUs, endedUs);
      this.#costs.note(batch.layout, rows, endedUs - startedUs, endedUs);
      return result;
    });
  }

  /** Runs the rows of one request in parts that fit, and joins the outputs that are not in the slab. */
  #runInParts(batch: Batch, firstRow: number, rows: number): (LooseOutput | undefined)[] {
    const parts: (LooseOutput | undefined)[][] = [];
    for (let done = 0; done < rows; ) {
      const count = Math.min(rows - done, this.#memory.rowsMax(batch.layout));
      try {
        parts.push(this.#runRows(batch, firstRow + done, count, (outputs) => outputs.map(copied)));
        done += count;
      } catch (error) {
        if (!isOutOfMemory(error) || count === 1) throw error;
      }
    }
    return parts[0]!.map((_, n) => joined(parts.map((outputs) => outputs[n])));
  }
}

function endOf(batch: Batch, claim: number): number {
  return batch.firstRow[claim]! + batch.claimRows[claim]!;
}

/** An output that outlives its run. */
function copied(output: LooseOutput | undefined): LooseOutput | undefined {
  if (output === undefined) return undefined;
  const data = new Uint8Array(output.byteLength);
  output.read(data);
  return { ...output, read: (target) => target.set(data) };
}

/** Outputs of consecutive rows as one. */
function joined(outputs: readonly (LooseOutput | undefined)[]): LooseOutput | undefined {
  const parts = outputs.filter((output) => output !== undefined);
  const [first] = parts;
  if (first === undefined) return undefined;
  let byteLength = 0;
  let rows = 0;
  for (const part of parts) {
    byteLength += part.byteLength;
    rows += part.shape[0]!;
    if (part.shape.slice(1).join() !== first.shape.slice(1).join()) {
      throw new RunFault(
        STATUS_MODEL_FAILED,
        'The request had to be run in parts for want of memory, and their outputs differ in shape.',
      );
    }
  }
  const read = (target: Uint8Array): void => {
    let at = 0;
    for (const part of parts) {
      part.read(target.subarray(at, at + part.byteLength));
      at += part.byteLength;
    }
  };
  return { shape: [rows, ...first.shape.slice(1)], byteLength, strings: first.strings, read };
}

/** What a request is answered with after a failed run. Throws what is not a run's own failure: that is a bug. */
function statusOf(error: unknown): number {
  if (error instanceof RunFault) return error.status;
  if (!(error instanceof OrtError)) throw error;
  return isOutOfMemory(error) ? STATUS_OUT_OF_MEMORY : STATUS_MODEL_FAILED;
}
