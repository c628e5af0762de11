/**
 * What a benchmark is, what it is given and what it measures.
 *
 * A benchmark lies in a file of its own and is listed in run.ts. Whatever it compares is measured in interleaved rounds, so that a machine that gets
 * slower meanwhile harms both sides. What it starts it hands to `cleanUp`.
 */
import type { CleanUp } from '../support/repository.ts';
import type { LoadGenerator } from './load.ts';
import { median } from './statistics.ts';

/** How long a benchmark may take. */
export interface Size {
  /** Only shows that the benchmark works; what it measures means nothing. */
  readonly quick: boolean;
  readonly rounds: number;
  readonly roundS: number;
  readonly warmUpS: number;
}

export interface Bench {
  readonly size: Size;
  readonly load: LoadGenerator;
  readonly cleanUp: CleanUp;
}

export type Target = { readonly atLeast: number } | { readonly atMost: number };

export interface Measurement {
  /** `topology.metric`, its unit last. */
  readonly name: string;
  /** One value per round; the result is their median. */
  readonly values: readonly number[];
  /** What the project holds itself to; absent where a value is only stated. */
  readonly target?: Target;
}

export interface Benchmark {
  readonly name: string;
  readonly about: string;
  /** It takes long, and is not about speed: run only when it is asked for. */
  readonly onlyByName?: true;
  run(bench: Bench): Promise<readonly Measurement[]>;
}

/** Whether a measurement reaches its target; undefined where it has none. */
export function isMet({ values, target }: Measurement): boolean | undefined {
  if (target === undefined) return undefined;
  const value = median(values);
  return 'atLeast' in target ? value >= target.atLeast : value <= target.atMost;
}

/** Collects clean-up actions and runs them, the latest first. */
export class CleanUps implements CleanUp {
  readonly #actions: (() => void | Promise<void>)[] = [];

  after(action: () => void | Promise<void>): void {
    this.#actions.push(action);
  }

  /** Runs every action, also after one that fails. @throws what the first failed action threw. */
  async run(): Promise<void> {
    const errors: unknown[] = [];
    for (let action = this.#actions.pop(); action !== undefined; action = this.#actions.pop()) {
      try {
        await action();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }
}

/** Calls both sides in turn, first the one and then the other first, and gives the results of each. */
export async function interleave<A, B>(
  rounds: number,
  one: () => Promise<A>,
  other: () => Promise<B>,
): Promise<{ readonly ones: A[]; readonly others: B[] }> {
  const ones: A[] = [];
  const others: B[] = [];
  for (let round = 0; round < rounds; round++) {
    if (round % 2 === 0) ones.push(await one());
    others.push(await other());
    if (round % 2 === 1) ones.push(await one());
  }
  return { ones, others };
}

/** Values of both sides, round by round, made into one. */
export function pairwise<A, B>(ones: readonly A[], others: readonly B[], combine: (one: A, other: B) => number) {
  return ones.map((one, round) => combine(one, others[round]!));
}
