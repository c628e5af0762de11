/**
 * The rules that a soak holds its server to, with what was seen. Pure.
 */
import { growth } from './growth.ts';
import type { Sample } from './samples.ts';
import type { Tally } from './tally.ts';

export interface Check {
  readonly name: string;
  readonly value: string;
  /** Empty where a value is only stated. */
  readonly rule: string;
  /** Undefined where nothing is judged. */
  readonly ok: boolean | undefined;
}

const MIB = 2 ** 20;
/** Memory may grow by this much over the time that is judged. */
const GROWTH_MAX = 0.1;
/**
 * What the heap of a small process moves by, whatever is kept. In an ingress process the young generation grows for minutes, to three times
 * --max-semi-space-size, and the threads for large JSON have heaps of their own.
 */
const GROWTH_MIN_BYTES: Readonly<Record<string, number>> = {
  supervisor: 10 * MIB,
  ingress: 64 * MIB,
  device: 24 * MIB,
};
/** Below this the slope says nothing: heaps and arenas are still reaching their size. */
const JUDGED_MIN_S = 60;
/** A large process of a role in the second half of the storm, beside that of the first: nine of ten samples are smaller. */
const LEVEL_MAX = 1.25;
const LARGE_RANK = 0.9;

export function stated(name: string, value: string | number): Check {
  return { name, value: String(value), rule: '', ok: undefined };
}

/** A count that has to be zero. */
export function none(name: string, count: number): Check {
  return { name, value: String(count), rule: '0', ok: count === 0 };
}

export function requestChecks(tally: Tally): Check[] {
  const { sent, answered, lost, wrong, faultCount } = tally;
  return [
    stated('requests', sent),
    { name: 'answered with their own rows', value: String(answered), rule: 'all', ok: answered === sent },
    none('lost', lost),
    none('wrong or answered twice', wrong),
    none('tries that failed without an excuse', faultCount - lost - wrong),
    ...[...tally.failedTries].sort().map(([reason, count]) => stated(`tries that failed with ${reason}`, count)),
    stated('median of the answers', `${Math.round(tally.latencyMs(0.5))} ms`),
    stated('99 of 100 answers within', `${Math.round(tally.latencyMs(0.99))} ms`),
    stated('slowest answer', tally.slowest),
  ];
}

/** @param calmS start of the time in which no process dies, seconds. */
export function memoryChecks(samples: readonly Sample[], calmS: number): Check[] {
  const endS = samples.at(-1)?.atS ?? 0;
  const storm = samples.filter(({ atS }) => atS < calmS);
  // The first third is left out: new processes grow into their size.
  const from = (startS: number) => samples.filter(({ atS }) => atS >= startS + (endS - startS) / 3);
  const supervisor = from(0).filter(({ role }) => role === 'supervisor');
  const children = from(calmS).filter(({ role }) => role !== 'supervisor');
  const pids = [...new Set(children.map(({ pid }) => pid))];
  return [
    ...(supervisor.length === 0 ? [] : [growthCheck(supervisor)]),
    ...pids.map((one) => growthCheck(children.filter(({ pid }) => pid === one))),
    ...levelChecks(storm.filter(({ role }) => role !== 'supervisor')),
  ];
}

/** @param samples of one process, at least one */
function growthCheck(samples: readonly Sample[]): Check {
  const { role, place } = samples[0]!;
  const name = `memory of ${role} ${place}`.trim();
  const { by, level, forS, samples: count } = growth(samples.map(({ atS, rssBytes }) => ({ atS, value: rssBytes })));
  const value = `${mib(level)}, ${by < 0 ? '−' : '+'}${mib(Math.abs(by))} (${count} samples)`;
  if (forS < JUDGED_MIN_S) return stated(name, value);
  const limit = Math.max(GROWTH_MIN_BYTES[role]!, GROWTH_MAX * level);
  return { name, value, rule: `by ≤ ${mib(limit)} in ${Math.round(forS)} s`, ok: by <= limit };
}

/** Processes come and go; those of a role must not become larger. One of ten may: a life with the largest batches is no trend. */
function levelChecks(storm: readonly Sample[]): Check[] {
  const half = ((storm[0]?.atS ?? 0) + (storm.at(-1)?.atS ?? 0)) / 2;
  return [...new Set(storm.map(({ role }) => role))].map((role) => {
    const large = (second: boolean) => {
      const samples = storm.filter((sample) => sample.role === role && sample.atS >= half === second);
      const bytes = samples.map(({ rssBytes }) => rssBytes).sort((a, b) => a - b);
      return bytes[Math.floor(bytes.length * LARGE_RANK)] ?? 0;
    };
    const [before, after] = [large(false), large(true)];
    const value = `${mib(before)}, then ${mib(after)}`;
    const name = `large ${role} while processes died`;
    if (half < JUDGED_MIN_S) return stated(name, value);
    const limit = Math.max(before * LEVEL_MAX, before + GROWTH_MIN_BYTES[role]!);
    return { name, value, rule: `≤ ${mib(limit)}`, ok: after <= limit };
  });
}

function mib(bytes: number): string {
  return `${(bytes / MIB).toFixed(1)} MiB`;
}

/** For people: one line per check. */
export function table(checks: readonly Check[]): string {
  const cells = checks.map(({ name, value, rule, ok }) => [
    ok === undefined ? '' : ok ? 'ok' : 'VIOLATED',
    name,
    value,
    rule === '' ? '' : `rule: ${rule}`,
  ]);
  const widths = [0, 1, 2].map((column) => Math.max(...cells.map((row) => row[column]!.length)));
  return cells
    .map(([ok, name, value, rule]) =>
      `${ok!.padEnd(widths[0]!)}  ${name!.padEnd(widths[1]!)}  ${value!.padEnd(widths[2]!)}  ${rule}`.trimEnd(),
    )
    .join('\n');
}
