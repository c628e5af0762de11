/** Results for people and for programs: a table with a verdict for each target, and a JSON document with the values of every round. */
import { isMet, type Measurement, type Target } from './benchmark.ts';
import type { Machine } from './machine.ts';
import { median } from './statistics.ts';

/** Above this the machine is doing something else as well. */
const QUIET_LOAD_AVERAGE = 0.5;

/** What is known of a run before it begins. */
export interface RunFacts {
  readonly machine: Machine;
  readonly quick: boolean;
  readonly rounds: number;
  readonly roundS: number;
  readonly load: string;
}

export function heading({ machine, quick, rounds, roundS, load }: RunFacts): string {
  const { commit, node, cpu, cores, kernel, memoryBytes, loadAverage, at } = machine;
  const lines = [
    `commit ${commit} · Node ${node} · ${at}`,
    `${cpu}, ${cores} cores, ${Math.round(memoryBytes / 2 ** 30)} GiB, Linux ${kernel} · load average at start ${loadAverage}`,
    `${rounds === 1 ? '1 round' : `${rounds} interleaved rounds`} of ${roundS} s · ${load}`,
  ];
  if (quick) lines.push('quick: shows that the benchmarks work; the values mean nothing');
  else if (loadAverage > QUIET_LOAD_AVERAGE) lines.push('the machine is busy with other work: do not trust the values');
  return lines.join('\n');
}

/** A table: name, median, least and greatest value of the rounds, target and verdict. */
export function table(measurements: readonly Measurement[]): string {
  const rows = measurements.map((measurement) => {
    const { name, values, target } = measurement;
    const format = (value: number) => formatValue(name, value);
    const spread = values.length === 1 ? '' : `${format(Math.min(...values))} – ${format(Math.max(...values))}`;
    const verdict = target === undefined ? '' : `${formatTarget(target)} ${isMet(measurement) ? 'met' : 'NOT MET'}`;
    return [name, format(median(values)), spread, verdict];
  });
  const cells = [['', 'median', 'rounds', 'target'], ...rows];
  const widths = [0, 1, 2, 3].map((column) => Math.max(...cells.map((row) => row[column]!.length)));
  return cells
    .map(([name, value, spread, verdict]) =>
      [name!.padEnd(widths[0]!), value!.padStart(widths[1]!), spread!.padStart(widths[2]!), verdict]
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** One line for each target. */
export function verdicts(measurements: readonly Measurement[]): string {
  const judged = measurements.filter(({ target }) => target !== undefined);
  return judged
    .map((measurement) => {
      const { name, values, target } = measurement;
      const verdict = isMet(measurement) ? 'met    ' : 'NOT MET';
      return `${verdict}  ${name}: ${formatValue(name, median(values))}, target ${formatTarget(target!)}`;
    })
    .join('\n');
}

/** The document that `--json` writes. */
export function document(facts: RunFacts, measurements: readonly Measurement[]) {
  return {
    ...facts,
    results: measurements.map((measurement) => ({
      ...measurement,
      median: median(measurement.values),
      ...(measurement.target === undefined ? {} : { met: isMet(measurement) }),
    })),
  };
}

function formatTarget(target: Target): string {
  return 'atLeast' in target ? `≥ ${target.atLeast}` : `≤ ${target.atMost}`;
}

/** The unit is the end of the name. */
function formatValue(name: string, value: number): string {
  if (name.endsWith('_bytes')) return `${(value / 2 ** 20).toFixed(1)} MiB`;
  if (name.endsWith('_ratio')) return value.toFixed(3);
  if (name.endsWith('_per_s')) return `${Math.round(value)}/s`;
  if (name.endsWith('_us')) return `${value.toFixed(value < 1000 ? 1 : 0)} µs`;
  if (name.endsWith('_ms')) return `${value.toFixed(0)} ms`;
  return Number.isInteger(value) ? String(value) : value.toFixed(1);
}
