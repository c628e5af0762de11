/**
 * Looks for the settings that meet an objective at the least cost: simulates the traffic with each candidate.
 *
 * Cost is first the number of instances, then the share of the time in which they are busy; of settings whose share is within BUSY_SAME of the least, the one
 * with the lowest p99. An objective is met where at most NOT_SERVED_RATIO of the requests are refused or late, ten times fewer than its 99th percentile would allow.
 * Pure. Bound: instances × (batch sizes + delays) simulations of REQUESTS_MAX requests.
 */
import { type ArrivalPlan, arrivalsOf } from '../load/arrivals.ts';
import { RUN_RATIO } from '../scheduler/admission.ts';
import { batchRows } from '../scheduler/batch-choice.ts';
import { costUs } from '../scheduler/cost-curve.ts';
import { type CostModel, slowdownOf } from './cost-model.ts';
import { type Settings, type SimulationResult, simulate } from './simulator.ts';

const NOT_SERVED_RATIO = 0.001;
const BUSY_SAME = 0.05;
/** Shares of the objective that an idle instance may wait for rows. */
const DELAY_RATIOS = [0.01, 0.02, 0.05, 0.1, 0.2] as const;
/** Beyond the peak that was simulated: the simulation is no worst case. */
const QUEUE_ROOM = 2;

export interface Objective {
  readonly sloMs: number;
  readonly plan: ArrivalPlan;
  readonly rowsPerRequest: number;
  readonly instancesMax: number;
  readonly maxBatchSize: number;
  readonly endMs: number;
  readonly requestsMax: number;
  readonly seed: number;
}

export interface Candidate {
  readonly settings: Settings;
  readonly result: SimulationResult;
  readonly meets: boolean;
}

export interface Advice {
  /** The best of those that meet the objective, or of all where none does. */
  readonly best: Candidate;
  /** All that were simulated. */
  readonly candidates: readonly Candidate[];
}

export function advise(model: CostModel, objective: Objective): Advice {
  const candidates: Candidate[] = [];
  const consider = (instances: number, maxBatchSize: number, maxQueueDelayUs: number) => {
    candidates.push(tryOut(model, objective, { instances, maxBatchSize, maxQueueDelayUs }));
  };
  for (let instances = 1; instances <= objective.instancesMax; instances++) {
    const sizes = batchSizes(objective);
    for (const size of sizes) consider(instances, size, 0);
    // A delay only pays where batches can grow by it.
    const largest = sizes.at(-1)!;
    if (largest > objective.rowsPerRequest) {
      for (const ratio of DELAY_RATIOS) consider(instances, largest, Math.round(ratio * objective.sloMs * 1000));
    }
    if (candidates.some(({ meets }) => meets)) break;
  }
  return { best: bestOf(candidates), candidates };
}

/** What settings bring at a rate. */
export interface Rate {
  readonly ratePerS: number;
  readonly result: SimulationResult;
}

/** The same settings at multiples of the objective's rate, for the chart. */
export function sweep(
  model: CostModel,
  objective: Objective,
  settings: Settings,
  ratePerS: number,
  factors: readonly number[],
): Rate[] {
  return factors.map((factor) => ({
    ratePerS: ratePerS * factor,
    result: run(model, { ...objective, plan: faster(objective.plan, factor) }, settings),
  }));
}

/** Rows a second that the instances can do with full batches. */
export function capacityPerS(model: CostModel, { maxBatchSize, maxQueueDelayUs, instances, sloMs }: Settings): number {
  const limitUs = sloMs === undefined ? Number.POSITIVE_INFINITY : sloMs * 1000 * RUN_RATIO;
  const rows = maxBatchSize <= 1 ? 1 : batchRows(model.curveUs, maxBatchSize, limitUs, maxQueueDelayUs > 0);
  return ((rows * instances) / (costUs(model.curveUs, rows) * slowdownOf(model, instances))) * 1e6;
}

function tryOut(
  model: CostModel,
  objective: Objective,
  one: Pick<Settings, 'instances' | 'maxBatchSize' | 'maxQueueDelayUs'>,
): Candidate {
  const { sloMs } = objective;
  const unbounded = { ...one, sloMs, queueMaxRows: Number.POSITIVE_INFINITY };
  const result = run(model, objective, unbounded);
  const meets = result.latency.count > 0 && result.refused + result.late <= NOT_SERVED_RATIO * result.offered;
  const settings = { ...unbounded, queueMaxRows: queueRows(model, unbounded, result) };
  return { settings, result, meets };
}

/** Twice what waited at most, and no less than two batches; never more rows than can be run within the objective, which would only come too late. */
function queueRows(model: CostModel, settings: Settings, { queueRowsPeak }: SimulationResult): number {
  const inTime = (capacityPerS(model, settings) * (settings.sloMs ?? 0)) / 1000;
  const least = 2 * Math.max(1, settings.maxBatchSize);
  return Math.ceil(Math.max(least, Math.min(QUEUE_ROOM * queueRowsPeak, inTime)));
}

function run(model: CostModel, objective: Objective, settings: Settings): SimulationResult {
  const { plan, rowsPerRequest, endMs, requestsMax, seed } = objective;
  const traffic = { arrivals: arrivalsOf(plan), rowsPerRequest, endMs, requestsMax };
  return simulate(model, settings, traffic, seed);
}

/** Powers of two that hold a request, up to the largest. */
function batchSizes({ maxBatchSize, rowsPerRequest }: Objective): number[] {
  if (maxBatchSize <= 1) return [maxBatchSize];
  const sizes: number[] = [];
  for (let size = 1; size < maxBatchSize; size *= 2) if (size >= rowsPerRequest) sizes.push(size);
  return [...sizes, maxBatchSize];
}

function bestOf(candidates: readonly Candidate[]): Candidate {
  const meeting = candidates.filter(({ meets }) => meets);
  if (meeting.length === 0) return candidates.reduce((one, other) => (served(other) > served(one) ? other : one));
  const leastBusy = Math.min(...meeting.map(({ result }) => result.busy));
  const cheap = meeting.filter(({ result }) => result.busy <= leastBusy + BUSY_SAME);
  return cheap.reduce((one, other) => (p99(other) < p99(one) ? other : one));
}

function served({ result }: Candidate): number {
  return result.goodPerS;
}

function p99({ result }: Candidate): number {
  return result.latency.percentilesMs.get(99) ?? result.latency.maxMs;
}

function faster(plan: ArrivalPlan, factor: number): ArrivalPlan {
  if (plan.kind === 'trace') return { ...plan, stretch: plan.stretch / factor };
  return { ...plan, ratePerS: plan.ratePerS * factor };
}
