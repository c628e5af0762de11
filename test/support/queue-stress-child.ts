/**
 * What the processes of the stress test share: their orders, and the outcomes that they count in the segment, where the counts survive them.
 */
import { counterIndex } from '../../src/queue/geometry.ts';
import type { Segment, SegmentReference } from '../../src/queue/segment.ts';
import type { ModelSignature } from '../../src/tensor/signature.ts';
import { NUMBERS, WORDS } from './queue-models.ts';

export const MODELS = { numbers: NUMBERS, words: WORDS } as const satisfies Record<string, ModelSignature>;
export type ModelName = keyof typeof MODELS;

/** Counted by each producer in the counters of its slot, over all its incarnations. */
export const OUTCOMES = [
  'asked',
  'right',
  'wrong',
  'twice',
  'workerLost',
  'otherStatus',
  'givenUp',
  'refused',
] as const;
export type Outcome = (typeof OUTCOMES)[number];

export function outcomeIndex(segment: Segment, slot: number, outcome: Outcome): number {
  return counterIndex(segment.geometry, { ingress: slot }) + OUTCOMES.indexOf(outcome);
}

interface Order {
  readonly parentPid: number;
  readonly reference: SegmentReference;
  /** Write ends of the doorbells, descriptors of the parent. */
  readonly bellFds: readonly number[];
  readonly model: ModelName;
  readonly seed: number;
}

export interface ProducerOrder extends Order {
  readonly slot: number;
  /** Read end of its own doorbell, a descriptor of the parent. */
  readonly bellFd: number;
  /** Requests to make; undefined: until told to finish. */
  readonly requests: number | undefined;
  /** Requests under way at a time. */
  readonly window: number;
  readonly maxRows: number;
}

export interface ConsumerOrder extends Order {
  readonly slots: readonly number[];
  /** Share of batches that take some time longer. */
  readonly slowShare: number;
}

export type ToProducer = { readonly type: 'start'; readonly order: ProducerOrder } | { readonly type: 'finish' };

export type FromChild =
  /** It is at work. */
  | { readonly type: 'up' }
  /** All its requests are answered or given up. */
  | { readonly type: 'done'; readonly faults: readonly string[] };
