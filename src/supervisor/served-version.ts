/**
 * A served model version as the supervisor keeps it: state, shared memory, and which device has how many instances of it.
 *
 * Owner: the supervisor's model list. The segment is created when the first device has loaded the version and lives as long as this record, across the death
 * of every other process.
 */

import { dirname, join } from 'node:path';
import type { ModelConfig, OutputConfig, TransformConfig, WarmUpConfig } from '../config/model-config.ts';
import { COUNTER_WORDS } from '../metrics/counters.ts';
import { planOutputs } from '../postprocess/planned-outputs.ts';
import { type Batching, type CanaryReport, modelKey, type ServedModel } from '../protocol/control.ts';
import { Doorbells } from '../queue/bells.ts';
import { planQueue } from '../queue/geometry.ts';
import { Segment } from '../queue/segment.ts';
import { INSTANCES_MAX } from '../queue/states.ts';
import { declaredProblem } from '../repository/declared-tensors.ts';
import { HeldFile } from '../repository/held-file.ts';
import type { RepositoryModel, RepositoryVersion } from '../repository/model-directory.ts';
import { initialModelState, type ModelEvent, type ModelStateRecord, transition } from '../repository/model-state.ts';
import { SharedTexts, type TextFiles } from '../repository/text-files.ts';
import type { ModelSignature } from '../tensor/signature.ts';

/** One version on one device. */
export interface Placement {
  readonly device: string;
  /** Instance slots that belong to the device: the first `config.instances.max` of these may run. */
  readonly slots: readonly number[];
  /** `idle`: unloaded until somebody asks for it, see Idleness. */
  state: 'waiting' | 'loading' | 'serving' | 'unloading' | 'idle' | 'failed';
  /** Why it failed. */
  reason: string;
  /** It has failed, and what goes on now is another try: until that succeeds it counts as failed. */
  probation: boolean;
  /** Why its device process is given up for now; it may come back. */
  outage: string | undefined;
  /** Why its device process, which has it, runs nothing now; it may go on. */
  doubt: string | undefined;
  /** Slots whose instances run, and those that have been ordered. */
  readonly running: Set<number>;
  readonly starting: Set<number>;
  loadMs: number;
  /** What the last load found out about the canary run. */
  canary: CanaryReport | undefined;
}

export class ServedVersion {
  readonly name: string;
  readonly version: string;
  readonly file: HeldFile;
  readonly sizeBytes: number;
  /** Of the files that it was last loaded from, see model-weights.ts; undefined before that, and where they could not be looked at. */
  fingerprint: string | undefined;
  readonly config: ModelConfig;
  /** Files that the configuration names; undefined where it names none. */
  readonly texts: TextFiles | undefined;
  /** Rises with every load on command, so that an old and a new one of the same number are told apart. */
  readonly generation: number;
  readonly placements: readonly Placement[];
  readonly #ingressSlots: number;
  readonly #bellWriteFds: readonly number[];
  #record: ModelStateRecord;
  signature: ModelSignature | undefined;
  batching: Batching | undefined;
  segment: Segment | undefined;
  bells: Doorbells | undefined;
  #sharedTexts: SharedTexts | undefined;
  /** Whether the server is ready only when it is: so for those of the start, and for others once they have served. */
  counts = true;
  /** What there is to say of one that serves; empty mostly. */
  note = '';
  /** It waits to take the place of another one of its number, which stands for both as long as it serves. */
  standby = false;
  /** It gets no more requests. */
  #withdrawn = false;
  /** Its weights are gone and do not come back. */
  #ended = false;
  /** Rows of batches that were taken over after a death, and rows that were given up. */
  requeuedRows = 0;
  lostRows = 0;

  constructor(
    model: Pick<RepositoryModel, 'name' | 'config' | 'texts'> &
      Pick<RepositoryVersion, 'version' | 'path' | 'sizeBytes'>,
    devices: readonly string[],
    ingressSlots: number,
    bellWriteFds: readonly number[],
    generation = 1,
  ) {
    this.generation = generation;
    this.name = model.name;
    this.version = model.version;
    this.file = new HeldFile(model.path);
    this.sizeBytes = model.sizeBytes;
    this.config = model.config;
    this.texts = model.texts;
    this.#ingressSlots = ingressSlots;
    this.#bellWriteFds = bellWriteFds;
    this.#record = initialModelState(Date.now());
    const each = Math.min(model.config.instances.max, Math.floor(INSTANCES_MAX / Math.max(1, devices.length)));
    this.placements = devices.map((device, n) => ({
      device,
      slots: Array.from({ length: each }, (_, slot) => n * each + slot),
      state: 'waiting',
      reason: '',
      probation: false,
      outage: undefined,
      doubt: undefined,
      running: new Set(),
      starting: new Set(),
      loadMs: 0,
      canary: undefined,
    }));
  }

  /** Absolute path of the module of its transform, if it has one. */
  get transformFile(): string {
    return join(dirname(dirname(this.file.path)), this.config.transform?.module ?? '');
  }

  get key(): string {
    const key = modelKey(this.name, this.version);
    return this.generation === 1 ? key : `${key}#${this.generation}`;
  }

  get withdrawn(): boolean {
    return this.#withdrawn;
  }

  /** It gets no more requests; those that it has are still answered. */
  withdraw(): void {
    this.#withdrawn = true;
  }

  /** No device will have it any more: what is still in its queue is not run. */
  end(): void {
    this.withdraw();
    this.#ended = true;
    for (const placement of this.placements) if (placement.state !== 'failed') placement.state = 'idle';
  }

  get ended(): boolean {
    return this.#ended;
  }

  /** Gives its queue and its file back; nobody may use it any more. */
  close(): void {
    const { segment } = this;
    this.segment = undefined;
    this.bells = undefined;
    this.signature = undefined;
    this.file.release();
    segment?.close();
    this.#sharedTexts?.close();
    this.#sharedTexts = undefined;
  }

  get record(): ModelStateRecord {
    return this.#record;
  }

  move(event: ModelEvent, reason?: string): void {
    this.#record = transition(this.#record, event, Date.now(), reason);
  }

  /**
   * Makes the shared memory once the signature is known. Later loads must agree with it.
   *
   * @throws SystemError without memory; OutputMismatch where the configuration does not fit it; Error when another device sees another model.
   */
  establish(signature: ModelSignature, batching: Batching): void {
    if (this.signature !== undefined) {
      if (
        JSON.stringify(this.signature) !== JSON.stringify(signature) ||
        this.batching?.maxBatchSize !== batching.maxBatchSize
      ) {
        throw new Error(
          'the model file has changed since it was first loaded, and has other inputs, outputs or batches now; load the model anew, or restart the server',
        );
      }
      return;
    }
    const problem = declaredProblem(this.config.tensors, signature);
    if (problem !== undefined) throw new Error(problem);
    const lines = (file: string) => this.texts?.files.find(({ name }) => name === file)?.lines;
    planOutputs({ signature, batched: batching.maxBatchSize > 0, lines }, this.config.outputs);
    const instanceSlots = this.placements.reduce((sum, { slots }) => sum + slots.length, 0);
    const segment = Segment.create(
      this.key,
      planQueue({
        maxBatchRows: Math.max(1, batching.maxBatchSize),
        maxRows: this.config.queue.maxRows,
        maxBytes: this.config.queue.maxBytes,
        ingressSlots: this.#ingressSlots,
        instanceSlots,
        counters: COUNTER_WORDS,
      }),
    );
    try {
      if (this.texts !== undefined && this.texts.files.length > 0)
        this.#sharedTexts = new SharedTexts(this.key, this.texts);
    } catch (error) {
      segment.close();
      throw error;
    }
    this.segment = segment;
    this.bells = new Doorbells(segment, this.#bellWriteFds);
    this.signature = signature;
    this.batching = batching;
  }

  /** It cannot be served, and time does not mend that. */
  refuse(reason: string): void {
    this.#record = initialModelState(Date.now(), reason);
    for (const placement of this.placements) {
      placement.state = 'failed';
      placement.reason = reason;
    }
  }

  /** Says anew why it cannot be served. */
  explain(reason: string): void {
    if (this.#record.state === 'UNAVAILABLE') this.#record = initialModelState(this.#record.sinceMs, reason);
  }

  /** Whether it failed on every device in a way that time does not mend. */
  get failed(): boolean {
    return this.placements.every(hasFailed);
  }

  /** Whether no device serves it or will soon: nothing may be left waiting for it. */
  get abandoned(): boolean {
    return this.#ended || this.placements.every(isOut);
  }

  /** Whether nothing is about to change: every device serves it, or will not soon. */
  get settled(): boolean {
    return this.placements.every((placement) => placement.state === 'serving' || isOut(placement));
  }

  /** Whether another device than this one serves it, or may soon. */
  comingElsewhere(placement: Placement): boolean {
    return this.placements.some((other) => other !== placement && !isOut(other));
  }

  /** Devices that serve it now. */
  get servingDevices(): string[] {
    return this.placements.filter(({ state }) => state === 'serving').map(({ device }) => device);
  }

  /** To be called when the doubts about devices have changed: it is ready while one that serves it is beyond doubt. */
  weighDoubts(): void {
    const serving = this.placements.filter(({ state }) => state === 'serving');
    if (serving.length === 0) return;
    const isSound = serving.some(({ doubt }) => doubt === undefined);
    if (!isSound && this.#record.state === 'READY') this.move('lost', serving[0]!.doubt);
    if (isSound && this.#record.state === 'UNAVAILABLE') this.move('load');
    if (isSound && this.#record.state === 'LOADING') this.move('loaded');
  }

  /** As ingress processes are told. */
  announcement(): ServedModel {
    const { segment, signature, batching } = this;
    const serving =
      this.#withdrawn || segment === undefined || signature === undefined || batching === undefined
        ? undefined
        : {
            signature,
            batching,
            queue: segment.reference(),
            maxRows: this.config.queue.maxRows,
            splits: this.config.splitLargeRequests,
            sloMs: this.config.sloMs,
            priorities: this.config.priorities,
            collects: this.config.maxQueueDelayUs > 0,
            responseCache: this.config.responseCache,
            outputs: this.config.outputs,
            texts: this.#sharedTexts?.reference,
            transform: this.config.transform && { ...this.config.transform, file: this.transformFile },
            devices: this.placements.map(({ device }) => device),
          };
    return {
      name: this.name,
      version: this.version,
      state: this.#record.state,
      reason: this.#record.reason || this.note,
      incarnation: this.#withdrawn ? -this.generation : this.generation,
      wanted: !this.#withdrawn,
      // A version that has served and whose devices are coming back keeps taking requests: they wait in its queue.
      accepting: serving !== undefined && !this.abandoned,
      serving,
      config: publicConfig(this.config),
    };
  }
}

function hasFailed({ state, probation }: Placement): boolean {
  return state === 'failed' || (probation && state !== 'serving');
}

function isOut(placement: Placement): boolean {
  return hasFailed(placement) || (placement.outage !== undefined && placement.state !== 'serving');
}

/** The configuration as users write it, but for `max_batch_size`, which may be found out by a trial. */
export function publicConfig(config: ModelConfig): Record<string, unknown> {
  return {
    max_queue_delay_us: config.maxQueueDelayUs,
    split_large_requests: config.splitLargeRequests,
    instances: instancesOf(config),
    queue: { max_rows: config.queue.maxRows, max_bytes: config.queue.maxBytes },
    ...(config.devices === undefined ? {} : { devices: config.devices }),
    ...(config.priorities === undefined
      ? {}
      : { priority_levels: config.priorities.levels, default_priority_level: config.priorities.default }),
    ...(config.sloMs === undefined ? {} : { slo_ms: config.sloMs }),
    ...(config.idleUnloadS === undefined ? {} : { idle_unload_s: config.idleUnloadS }),
    ...(config.runTimeoutMs === undefined ? {} : { run_timeout_ms: config.runTimeoutMs }),
    ...(config.responseCache === undefined ? {} : { response_cache: publicCache(config.responseCache) }),
    ...(config.memoryBudgetBytes === undefined ? {} : { memory_budget_bytes: config.memoryBudgetBytes }),
    ...(config.outputs.length === 0 ? {} : { outputs: config.outputs.map(publicOutput) }),
    ...(config.transform === undefined ? {} : { transform: publicTransform(config.transform) }),
    ...(config.warmUps.length === 0 ? {} : { warmup: config.warmUps.map(publicWarmUp) }),
    default_model_filename: config.modelFilename,
    version_policy: policyOf(config),
    runtime: runtimeOf(config),
  };
}

function publicCache({ maxBytes, ttlS }: NonNullable<ModelConfig['responseCache']>): Record<string, unknown> {
  return { enable: true, max_bytes: maxBytes, ...(ttlS === undefined ? {} : { ttl_s: ttlS }) };
}

function policyOf({ versionPolicy: policy }: ModelConfig): unknown {
  switch (policy.kind) {
    case 'all':
      return 'all';
    case 'latest':
      return { latest: policy.count };
    case 'specific':
      return { specific: policy.versions };
  }
}

function runtimeOf({ runtime }: ModelConfig): Record<string, unknown> {
  const { intraOpThreads, graphOptimization, session, provider } = runtime;
  return {
    ...(intraOpThreads === undefined ? {} : { intra_op_threads: intraOpThreads }),
    graph_optimization: graphOptimization,
    session,
    provider,
  };
}

function publicOutput({ name, labels, postprocess }: OutputConfig): Record<string, unknown> {
  return { name, ...(labels === undefined ? {} : { labels }), ...(postprocess.length === 0 ? {} : { postprocess }) };
}

function publicTransform({ module, inputs, outputs, timeoutMs, threads }: TransformConfig): Record<string, unknown> {
  return { module, ...(inputs && { inputs }), ...(outputs && { outputs }), timeout_ms: timeoutMs, threads };
}

function publicWarmUp(one: WarmUpConfig): Record<string, unknown> {
  if (one.kind === 'request') return { request: one.file, runs: one.runs };
  return { data: one.data, rows: one.rows, inputs: one.inputs, runs: one.runs };
}

function instancesOf({ instances: { min, max, targetRows } }: ModelConfig): Record<string, number> {
  return { min, max, ...(targetRows === undefined ? {} : { target_rows: targetRows }) };
}
