/**
 * Conditions on the result of a run, such as `p99>50` or `goodput<300`: for scripts that have to notice when a server has become slow.
 */

import { PERCENTILES } from './latencies.ts';
import type { RunResult } from './run.ts';

/** A figure of a result; undefined where there is none, such as a percentile of too few answers. */
type Figure = (result: RunResult) => number | undefined;

const FIGURES: Readonly<Record<string, Figure>> = {
  ...Object.fromEntries(
    PERCENTILES.map((percentile): [string, Figure] => [`p${percentile}`, ({ ok }) => ok.percentilesMs.get(percentile)]),
  ),
  mean: ({ ok }) => (ok.count === 0 ? undefined : ok.meanMs),
  max: ({ ok }) => (ok.count === 0 ? undefined : ok.maxMs),
  rate: ({ okPerS }) => okPerS,
  goodput: ({ goodPerS }) => goodPerS,
  'not-ok': ({ ok, requests }) => requests - ok.count,
};

export const FIGURE_NAMES = Object.keys(FIGURES);

export interface FailCondition {
  readonly text: string;
  readonly figure: string;
  readonly isAbove: boolean;
  readonly limit: number;
}

/** @returns undefined where the text is no condition. */
export function parseFailCondition(text: string): FailCondition | undefined {
  const match = /^\s*([a-z0-9.-]+)\s*([<>])\s*(\d+(?:\.\d+)?)\s*$/.exec(text);
  if (match === null || !Object.hasOwn(FIGURES, match[1]!)) return undefined;
  return { text, figure: match[1]!, isAbove: match[2] === '>', limit: Number(match[3]) };
}

/**
 * What makes the condition true, as text such as `p99 is 61.2`; undefined while it is false.
 *
 * A figure that is not known meets any condition: a run that answered too little must not pass a test of its latency.
 */
export function metBy({ figure, isAbove, limit }: FailCondition, result: RunResult): string | undefined {
  const value = FIGURES[figure]!(result);
  if (value === undefined) return `${figure} is not known: too few answers`;
  const isMet = isAbove ? value > limit : value < limit;
  return isMet ? `${figure} is ${Number(value.toPrecision(4))}` : undefined;
}
