/**
 * One model's queue and instances in simulated time: what latencies, refusals and batches given settings would bring for given arrivals.
 *
 * The decisions are the server's own (src/scheduler): how many rows a batch collects, whether a request joins one that is forming, begins one, or is refused,
 * with the margin learnt from earlier predictions. Only queue, clock and run times are simulated. Run times are drawn from the measured spread.
 * Time is in µs. Pure: the same seed gives the same result. Bound: `queue.max_rows` rows wait.
 */
import type { Arrivals } from '../load/arrivals.ts';
import { Latencies, type LatencySummary } from '../load/latencies.ts';
import { type Decision, place, RUN_RATIO, SafetyMargin, startsInUs } from '../scheduler/admission.ts';
import { batchRows } from '../scheduler/batch-choice.ts';
import { costUs } from '../scheduler/cost-curve.ts';
import { seededRandom } from '../scheduler/random.ts';
import { type CostModel, slowdownOf, spreadOf } from './cost-model.ts';

export interface Settings {
  /** 0 and 1: each request runs alone. */
  readonly maxBatchSize: number;
  readonly maxQueueDelayUs: number;
  readonly instances: number;
  readonly queueMaxRows: number;
  /** Undefined: no deadline, so only the queue's bound refuses. */
  readonly sloMs: number | undefined;
}

export interface Traffic {
  readonly arrivals: Arrivals;
  readonly rowsPerRequest: number;
  /** Arrivals after this time are not simulated. */
  readonly endMs: number;
  readonly requestsMax: number;
}

export interface SimulationResult {
  readonly offered: number;
  /** Let in, and answered within the objective, where there is one. */
  readonly latency: LatencySummary;
  /** Answered 429 at once. */
  readonly refused: number;
  /** Answered 504: let in, and too late all the same. */
  readonly late: number;
  /** Such answers a second. */
  readonly goodPerS: number;
  /** Share of the time in which an instance ran, as the mean over the instances, 0 to 1. */
  readonly busy: number;
  readonly meanBatchRows: number;
  /** Most rows that waited. */
  readonly queueRowsPeak: number;
}

interface Request {
  readonly atUs: number;
  readonly rows: number;
  /** When it was predicted to have run; undefined where nothing was. */
  readonly predictedUs: number | undefined;
}

/** A batch that collects rows, or waits. */
interface Batch {
  readonly capacity: number;
  readonly requests: Request[];
  rows: number;
}

interface Instance {
  freeUs: number;
  /** When its run was expected to end. */
  expectedUs: number;
}

export function simulate(model: CostModel, settings: Settings, traffic: Traffic, seed: number): SimulationResult {
  const simulation = new Simulation(model, settings, seed);
  const { arrivals, rowsPerRequest, endMs, requestsMax } = traffic;
  for (let offered = 0; offered < requestsMax; offered++) {
    const atMs = arrivals.next();
    if (!(atMs < endMs)) break;
    simulation.arrive(atMs * 1000, rowsPerRequest);
  }
  return simulation.finish();
}

class Simulation {
  readonly #model: CostModel;
  readonly #settings: Settings;
  readonly #sloUs: number;
  readonly #capacity: number;
  /** Its cost with all instances at work, which is what the server will have learnt where it matters. */
  readonly #curveUs: Float64Array;
  readonly #random: () => number;
  readonly #margin = new SafetyMargin();
  readonly #instances: Instance[];
  readonly #waiting: Batch[] = [];
  readonly #latencies = new Latencies(3);
  #waitingRows = 0;
  #peakRows = 0;
  #offered = 0;
  #refused = 0;
  #late = 0;
  #batches = 0;
  #rowsRun = 0;
  #busyUs = 0;
  #lastArrivalUs = 0;

  constructor(model: CostModel, settings: Settings, seed: number) {
    const { instances, maxBatchSize, maxQueueDelayUs, sloMs } = settings;
    this.#model = model;
    this.#settings = settings;
    this.#sloUs = sloMs === undefined ? Number.POSITIVE_INFINITY : sloMs * 1000;
    this.#curveUs = model.curveUs.map((us) => us * slowdownOf(model, instances));
    const rowsMax = Math.max(1, maxBatchSize);
    const limitUs = this.#sloUs * RUN_RATIO;
    this.#capacity = rowsMax === 1 ? 1 : batchRows(this.#curveUs, rowsMax, limitUs, maxQueueDelayUs > 0);
    // Another stream than that of the arrivals, which may have the same seed: long gaps must not go with long runs.
    this.#random = seededRandom(Math.imul(seed + 1, 0x9e3779b1));
    this.#instances = Array.from({ length: instances }, () => ({ freeUs: 0, expectedUs: 0 }));
  }

  /** A request comes, no earlier than the one before. */
  arrive(atUs: number, rows: number): void {
    this.#runUntil(atUs);
    this.#offered++;
    this.#lastArrivalUs = atUs;
    const { decision, finishUs } = this.#place(atUs, rows);
    if (decision === 'refuse' || this.#waitingRows + rows > this.#settings.queueMaxRows) {
      this.#refused++;
      return;
    }
    const batch = decision === 'share' ? this.#waiting.at(-1)! : this.#newBatch(rows);
    batch.requests.push({ atUs, rows, predictedUs: finishUs === undefined ? undefined : atUs + finishUs });
    batch.rows += rows;
    this.#waitingRows += rows;
    this.#peakRows = Math.max(this.#peakRows, this.#waitingRows);
    this.#runUntil(atUs);
  }

  finish(): SimulationResult {
    this.#runUntil(Number.POSITIVE_INFINITY);
    const { instances } = this.#settings;
    const timeUs = Math.max(this.#lastArrivalUs, ...this.#instances.map(({ freeUs }) => freeUs));
    return {
      offered: this.#offered,
      latency: this.#latencies.summary(),
      refused: this.#refused,
      late: this.#late,
      goodPerS: timeUs === 0 ? 0 : (this.#latencies.count / timeUs) * 1e6,
      busy: timeUs === 0 ? 0 : this.#busyUs / timeUs / instances,
      meanBatchRows: this.#batches === 0 ? 0 : this.#rowsRun / this.#batches,
      queueRowsPeak: this.#peakRows,
    };
  }

  /** Where a request goes, and when it would have run, µs from now, as far as that is predicted. */
  #place(atUs: number, rows: number): { decision: Decision; finishUs: number | undefined } {
    const last = this.#waiting.at(-1);
    const room = last !== undefined && last.rows + rows <= last.capacity;
    if (this.#sloUs === Number.POSITIVE_INFINITY) return { decision: room ? 'share' : 'own', finishUs: undefined };
    // With an instance free nothing is gained by refusing.
    const idle = this.#instances.some(({ freeUs }) => freeUs <= atUs);
    if (idle && last === undefined) return { decision: 'own', finishUs: undefined };
    const curve = this.#curveUs;
    const aheadUs = this.#aheadUs();
    const places = {
      ownStartUs: this.#startsInUs(atUs, aheadUs),
      ownRunUs: costUs(curve, rows),
      fullRunUs: costUs(curve, this.#capacity),
      sharedFinishUs: room
        ? this.#startsInUs(atUs, aheadUs - costUs(curve, last.rows)) + costUs(curve, last.rows + rows)
        : Number.POSITIVE_INFINITY,
      sharedLeftUs: room ? last.requests[0]!.atUs + this.#sloUs - atUs : Number.POSITIVE_INFINITY,
    };
    const decision = place(places, this.#sloUs, this.#margin.us(this.#sloUs));
    const finishUs = decision === 'share' ? places.sharedFinishUs : places.ownStartUs + places.ownRunUs;
    return { decision, finishUs };
  }

  #newBatch(rows: number): Batch {
    const batch = { capacity: Math.max(this.#capacity, rows), requests: [], rows: 0 };
    this.#waiting.push(batch);
    return batch;
  }

  #aheadUs(): number {
    let us = 0;
    for (const { rows } of this.#waiting) us += costUs(this.#curveUs, rows);
    return us;
  }

  #startsInUs(atUs: number, aheadUs: number): number {
    let runningUs = 0;
    let firstFreeUs = Number.POSITIVE_INFINITY;
    for (const { freeUs, expectedUs } of this.#instances) {
      // A run that takes longer than expected is taken to go on for a little: nobody knows for how long.
      const leftUs = freeUs <= atUs ? 0 : Math.max(0.1 * (freeUs - atUs), expectedUs - atUs);
      runningUs += leftUs;
      firstFreeUs = Math.min(firstFreeUs, leftUs);
    }
    return startsInUs({ instances: this.#instances.length, runningUs, firstFreeUs }, aheadUs);
  }

  /** Begins every run that begins by then. */
  #runUntil(nowUs: number): void {
    for (let first = this.#waiting[0]; first !== undefined; first = this.#waiting[0]) {
      const instance = this.#instances.reduce((one, other) => (other.freeUs < one.freeUs ? other : one));
      const startUs = Math.max(instance.freeUs, this.#readyUs(first));
      if (startUs > nowUs) return;
      this.#waiting.shift();
      this.#run(first, instance, startUs);
    }
  }

  /** When an idle instance would take a batch: once it is full, or has waited for as long as is asked. */
  #readyUs({ requests, rows, capacity }: Batch): number {
    const openedUs = requests[0]!.atUs;
    const filledUs = requests.at(-1)!.atUs;
    return rows >= capacity ? filledUs : Math.max(filledUs, openedUs + this.#settings.maxQueueDelayUs);
  }

  #run(batch: Batch, instance: Instance, startUs: number): void {
    this.#waitingRows -= batch.rows;
    const wanted = this.#wanted(batch, startUs);
    const rows = wanted.reduce((sum, request) => sum + request.rows, 0);
    if (rows === 0) return;
    const busy = this.#instances.filter(({ freeUs }) => freeUs > startUs).length + 1;
    const meanUs = costUs(this.#model.curveUs, rows) * slowdownOf(this.#model, busy);
    const { aroundUs } = this.#model;
    const runUs = meanUs * spreadOf(this.#model, rows, this.#random());
    instance.expectedUs = startUs + costUs(this.#curveUs, rows);
    instance.freeUs = startUs + runUs;
    this.#batches++;
    this.#rowsRun += rows;
    this.#busyUs += runUs;
    for (const { atUs, predictedUs } of wanted) {
      const latencyUs = instance.freeUs - atUs + aroundUs;
      const isGood = latencyUs <= this.#sloUs;
      if (predictedUs !== undefined) {
        const lateUs = isGood ? instance.freeUs - predictedUs : Number.POSITIVE_INFINITY;
        this.#margin.note(lateUs, this.#sloUs, instance.freeUs);
      }
      if (isGood) this.#latencies.add(latencyUs / 1000);
      else this.#late++;
    }
  }

  /** Leaves out what is late already, and then, the most urgent first, what would be late after the run. */
  #wanted({ requests }: Batch, startUs: number): readonly Request[] {
    if (this.#sloUs === Number.POSITIVE_INFINITY) return requests;
    let from = 0;
    let rows = requests.reduce((sum, request) => sum + request.rows, 0);
    for (; from < requests.length; from++) {
      const deadlineUs = requests[from]!.atUs + this.#sloUs;
      if (deadlineUs > startUs && deadlineUs >= startUs + costUs(this.#curveUs, rows)) break;
      rows -= requests[from]!.rows;
    }
    this.#late += from;
    for (const { predictedUs } of requests.slice(0, from)) {
      if (predictedUs !== undefined) this.#margin.note(Number.POSITIVE_INFINITY, this.#sloUs, startUs);
    }
    return requests.slice(from);
  }
}
