/**
 * A served model version as this ingress process sees it: decoder, encoder, its end of the queue, its counters.
 *
 * Owner: the model table; made when the supervisor announces the version, closed when it withdraws it and the last request is answered.
 */
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import { IngressCounters, OUTCOMES, type Outcome } from '../metrics/counters.ts';
import { clientSignature, planOutputs } from '../postprocess/planned-outputs.ts';
import type { BoundRequest, RequestTemplate } from '../protocol/bound-request.ts';
import { modelKey, type ServedModel } from '../protocol/control.ts';
import { InferResponseEncoder } from '../protocol/grpc/infer-response.ts';
import type { ModelInterface } from '../protocol/model-interface.ts';
import { RequestDecoder } from '../protocol/request-decoder.ts';
import { ResponseEncoder } from '../protocol/response-encoder.ts';
import type { SharedMemory } from '../protocol/shared-memory.ts';
import { Doorbells, hear } from '../queue/bells.ts';
import { counterIndex } from '../queue/geometry.ts';
import { encodeKey, SlabLayout } from '../queue/layout.ts';
import { type Claim, Producer } from '../queue/producer.ts';
import { ResultReader } from '../queue/result.ts';
import { Segment } from '../queue/segment.ts';
import type { BodyBudget } from './body.ts';
import type { JsonThreads } from './json-threads.ts';
import { Outlook } from './outlook.ts';
import { OutputWork } from './output-work.ts';
import { CACHED_INPUT_BYTES_MAX, ResponseCache } from './response-cache.ts';
import type { RowsOwner } from './split-request.ts';
import { clientInterface, Transform } from './transform.ts';
import { TurnEnd } from './turn-end.ts';

export const OUTCOME_INDEX = Object.fromEntries(OUTCOMES.map((name, n) => [name, n])) as Record<Outcome, number>;

/** Layout of a template, and where each output the client asked for stands in it. */
export interface Binding {
  readonly layout: SlabLayout;
  readonly positions: readonly number[];
  /** Bytes of the answer for each row, of the outputs whose shape is known. */
  readonly answerRowBytes: number;
  /** Whether any output is to be written as JSON. */
  readonly hasJson: boolean;
  /** Whether any output has to be processed before that. */
  readonly hasWork: boolean;
}

const LAYOUTS_MAX = 256;

/** A model that has been loaded, as requests are held against it. */
export function interfaceOf(model: ServedModel, serving: NonNullable<ServedModel['serving']>): ModelInterface {
  return clientInterface(runInterface(model, serving), serving.transform);
}

/** The same as its runs are: before a transform, if there is one, but with its outputs processed. */
function runInterface(
  { name, version }: ServedModel,
  { signature: raw, batching, maxRows, splits, outputs }: NonNullable<ServedModel['serving']>,
): ModelInterface {
  const { maxBatchSize } = batching;
  // The texts have been held against the signature where it was loaded.
  const context = { signature: raw, batched: maxBatchSize > 0, lines: () => undefined };
  const signature = clientSignature(raw, planOutputs(context, outputs));
  const most = splits ? Math.max(maxRows, maxBatchSize) : maxBatchSize;
  return { name, version, signature, batching: maxBatchSize > 0, maxBatchSize, maxRows: most };
}

/** What the models of an ingress process have in common. */
export interface QueueEnd {
  /** The process's place in every queue. */
  readonly slot: number;
  /** Write ends of the doorbells of all ingress processes. */
  readonly bellFds: readonly number[];
  readonly maxTensorBytes: number;
  /** Compiled entry of the threads of transforms. */
  readonly transformEntry: URL;
  readonly budget: BodyBudget;
  readonly log: Logger;
  /** Where tensors may be that are not in a request. */
  readonly sharedMemory: SharedMemory;
}

/** The serving half of a model: there once it has been loaded for the first time. */
export class Serving {
  readonly decoder: RequestDecoder;
  readonly encoder: ResponseEncoder;
  readonly messageEncoder: InferResponseEncoder;
  readonly producer: Producer<RowsOwner>;
  readonly reader: ResultReader;
  readonly counters: IngressCounters;
  readonly segment: Segment;
  readonly jsonThreads: JsonThreads;
  readonly outputWork: OutputWork;
  /** Undefined for a model without one. */
  readonly transform: Transform | undefined;
  readonly sloUs: number;
  readonly outlook: Outlook;
  /** Undefined for a model without one. */
  readonly cache: ResponseCache | undefined;
  /** Why no request is taken at present; undefined while they are. */
  outage: string | undefined;
  readonly #model: ServedModel & { serving: NonNullable<ServedModel['serving']> };
  readonly #slot: number;
  /** By level of priority. */
  readonly #bindings: WeakMap<RequestTemplate, Binding>[] = [];
  readonly #layouts = new Map<string, SlabLayout>();
  #inFlight = 0;

  constructor(model: ServedModel, end: QueueEnd, jsonThreads: JsonThreads) {
    const { serving } = model;
    const { slot, bellFds, maxTensorBytes, sharedMemory } = end;
    if (serving === undefined) throw new Error('a model that was never loaded cannot serve: this is a bug');
    this.#model = { ...model, serving };
    this.#slot = slot;
    this.jsonThreads = jsonThreads;
    const contract = interfaceOf(model, serving);
    const requestLimits = { maxElements: maxTensorBytes, maxTensorBytes };
    this.decoder = new RequestDecoder(contract, requestLimits, sharedMemory);
    if (serving.transform !== undefined) {
      const run = new RequestDecoder(runInterface(model, serving), requestLimits);
      this.transform = new Transform(serving.transform, contract, run, end);
    }
    this.encoder = new ResponseEncoder(contract);
    this.outputWork = new OutputWork(serving);
    this.messageEncoder = new InferResponseEncoder(contract);
    this.segment = Segment.attach(serving.queue);
    const bells = new Doorbells(this.segment, bellFds);
    this.sloUs = (serving.sloMs ?? 0) * 1000;
    this.outlook = new Outlook(this.segment, this.sloUs, serving.collects);
    const published = () => turnEnd.published();
    const limits = { maxRows: serving.maxRows };
    this.producer = new Producer(this.segment, slot, bells, limits, placed, published, this.outlook);
    const turnEnd = new TurnEnd(this.segment, slot, this.producer, () => this.poll());
    this.reader = new ResultReader(this.segment);
    this.counters = new IngressCounters(this.segment.f64, counterIndex(this.segment.geometry, { ingress: slot }));
    this.counters.inFlight(0);
    if (serving.responseCache !== undefined) this.cache = new ResponseCache(serving.responseCache, this.counters);
  }

  get key(): string {
    return modelKey(this.#model.name, this.#model.version);
  }

  /**
   * Whether a request may be refused before its body is there; where it may be answered from the cache, which costs no run, only what it asks for decides.
   *
   * @param bodyBytes as declared; -1 where they are not.
   */
  decidesFromHead(bodyBytes: number): boolean {
    return this.cache === undefined || bodyBytes > CACHED_INPUT_BYTES_MAX;
  }

  /** Requests accepted and not yet answered. */
  get inFlight(): number {
    return this.#inFlight;
  }

  entered(): void {
    this.counters.inFlight(++this.#inFlight);
  }

  left(): void {
    this.counters.inFlight(--this.#inFlight);
  }

  /** @throws BAD_REQUEST for a priority that the model does not have */
  bindingOf(request: BoundRequest): Binding {
    const { template, priority } = request;
    const level = this.#levelOf(priority);
    this.#bindings[level] ??= new WeakMap();
    const bindings = this.#bindings[level];
    let binding = bindings.get(template);
    if (binding === undefined) {
      // The set of outputs is part of the key, their order is not.
      const indices = [...new Set(template.outputs.map(({ index }) => index))].sort((a, b) => a - b);
      const layout = this.#layoutOf(template, indices, level);
      const positions = template.outputs.map(({ index }) => indices.indexOf(index));
      binding = {
        layout,
        positions,
        answerRowBytes: template.outputs.reduce((sum, wanted, n) => {
          const tensor = layout.outputs[positions[n]!]!.tensor;
          return sum + this.outputWork.rowBytes(wanted, tensor?.rowElements, tensor?.rowBytes ?? 0);
        }, 0),
        hasJson: template.outputs.some(({ binary }) => !binary),
        hasWork: template.outputs.some((wanted) => this.outputWork.isNeeded(wanted)),
      };
      bindings.set(template, binding);
    }
    return binding;
  }

  /** The level, from 0, of the priority that a request brings; undefined for none. A model without levels takes any for the same. */
  #levelOf(priority: number | undefined): number {
    const { priorities } = this.#model.serving;
    if (priorities === undefined) return 0;
    if (priority === undefined) return priorities.default - 1;
    if (priority <= priorities.levels) return priority - 1;
    throw new BatchportError(
      'BAD_REQUEST',
      `priority is ${priority}; model '${this.#model.name}' has priorities from 1, the most urgent, to ${priorities.levels} (0 or none: ${priorities.default})`,
    );
  }

  #layoutOf(template: RequestTemplate, outputs: readonly number[], level: number): SlabLayout {
    const name = `${level} ${template.shapeKey}`;
    let layout = this.#layouts.get(name);
    if (layout === undefined) {
      const key = encodeKey(template.whole, outputs, template.shapes, level);
      layout = new SlabLayout(this.#model.serving.signature, key, this.segment.geometry.claimsPerSlab);
      if (this.#layouts.size >= LAYOUTS_MAX) this.#layouts.clear();
      this.#layouts.set(name, layout);
    }
    return layout;
  }

  /** Takes finished results out of the queue and answers them. */
  poll(): void {
    hear(this.segment, this.#slot);
    this.producer.poll(this.reader, deliver);
  }

  close(): void {
    this.transform?.close();
    this.segment.close();
  }
}

function deliver(owner: RowsOwner, _claim: unknown, reader: ResultReader): void {
  owner.complete(reader);
}

function placed(owner: RowsOwner, claim: Claim<RowsOwner>): void {
  owner.placed(claim);
}
