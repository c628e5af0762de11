/**
 * `npm run bench`: runs the benchmarks and says which targets are met.
 *
 *     npm run bench                             all but overload and faults, about four minutes
 *     npm run bench -- http-binary start        some
 *     npm run bench -- overload                 the latency objective below and far above capacity
 *     npm run bench -- faults                   what faults cost, once, whatever the number of rounds
 *     npm run bench -- --help                   which there are, and the options
 *
 * A target that is not met is a result, not a failure. Exit code: 0 all ran, 1 one broke, 2 wrong arguments.
 */
import fs from 'node:fs';
import { parseArgs } from 'node:util';
import { runCommand } from '../support/command.ts';
import { type Benchmark, CleanUps, type Measurement, type Size } from './benchmark.ts';
import { BURSTS } from './bursts.ts';
import { COMPUTE_BOUND } from './compute-bound.ts';
import { FAULTS } from './faults.ts';
import { GRPC_BINARY } from './grpc-binary.ts';
import { HTTP_BINARY } from './http-binary.ts';
import { HTTP_JSON } from './http-json.ts';
import { IDLE_MEMORY } from './idle-memory.ts';
import { LARGE_JSON } from './large-json.ts';
import { LOAD_KINDS, type LoadKind, loadGenerator } from './load.ts';
import { LOAD_BESIDE } from './load-beside.ts';
import { thisMachine } from './machine.ts';
import { NEIGHBOURS } from './neighbours.ts';
import { OVERLOAD } from './overload.ts';
import { POSTPROCESS } from './postprocess.ts';
import { QUEUE_COST } from './queue-cost.ts';
import { document, heading, type RunFacts, table, verdicts } from './report.ts';
import { SHARED_MEMORY } from './shared-memory.ts';
import { START } from './start.ts';
import { TUNE } from './tune.ts';

const BENCHMARKS: readonly Benchmark[] = [
  HTTP_BINARY,
  HTTP_JSON,
  GRPC_BINARY,
  LARGE_JSON,
  SHARED_MEMORY,
  COMPUTE_BOUND,
  IDLE_MEMORY,
  START,
  QUEUE_COST,
  POSTPROCESS,
  TUNE,
  OVERLOAD,
  NEIGHBOURS,
  LOAD_BESIDE,
  BURSTS,
  FAULTS,
];

const FULL: Size = { quick: false, rounds: 5, roundS: 3, warmUpS: 2 };
const QUICK: Size = { quick: true, rounds: 1, roundS: 0.3, warmUpS: 0 };
const ROUNDS_MAX = 1000;

const HELP = `usage: npm run bench -- [options] [BENCHMARK…]

Runs all benchmarks but overload and faults, which takes about four minutes, or those named. Overload takes three and a half, the faults two and a half.

  --quick        the smallest size, which shows only that they work
  --rounds N     rounds of each, whose median counts; by default ${FULL.rounds}
  --load KIND    what sends the requests: ${LOAD_KINDS.join(', ')}; auto is wrk where it is installed
  --json FILE    write the values of every round to a file
  --help         this text

Benchmarks:
${BENCHMARKS.map(({ name, about }) => `  ${name.padEnd(15)}${about}`).join('\n')}

A target that is not met is a result, not a failure. Exit code: 0 all ran, 1 one broke, 2 wrong arguments.`;

interface Options {
  readonly benchmarks: readonly Benchmark[];
  readonly size: Size;
  readonly load: LoadKind;
  readonly json: string | undefined;
}

/** Undefined when help was asked for. @throws Error for arguments that make no sense. */
function readOptions(): Options | undefined {
  const { values, positionals } = parseArgs({
    options: {
      quick: { type: 'boolean', default: false },
      rounds: { type: 'string' },
      load: { type: 'string', default: 'auto' },
      json: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
    allowPositionals: true,
  });
  if (values.help) return undefined;
  const size = values.quick ? QUICK : FULL;
  const rounds = values.rounds === undefined ? size.rounds : Number(values.rounds);
  if (!(Number.isInteger(rounds) && rounds >= 1 && rounds <= ROUNDS_MAX)) {
    throw new Error(`--rounds must be a whole number from 1 to ${ROUNDS_MAX}, not ${values.rounds}`);
  }
  const load = LOAD_KINDS.find((kind) => kind === values.load);
  if (load === undefined) throw new Error(`--load must be one of ${LOAD_KINDS.join(', ')}, not ${values.load}`);
  const unknown = positionals.filter((name) => !BENCHMARKS.some((benchmark) => benchmark.name === name));
  if (unknown.length > 0) {
    throw new Error(`no benchmark ${unknown.join(', ')}; there are ${BENCHMARKS.map(({ name }) => name).join(', ')}`);
  }
  const chosen = BENCHMARKS.filter(({ name, onlyByName }) =>
    positionals.length === 0 ? onlyByName !== true : positionals.includes(name),
  );
  return { benchmarks: chosen, size: { ...size, rounds }, load, json: values.json };
}

async function runAll({ benchmarks, size: wanted, load: kind, json }: Options): Promise<void> {
  const overall = new CleanUps();
  const measurements: Measurement[] = [];
  try {
    const load = loadGenerator(kind, overall);
    const size = { ...wanted, roundS: Math.max(wanted.roundS, load.leastS) };
    const { quick, rounds, roundS } = size;
    const facts: RunFacts = { machine: thisMachine(), quick, rounds, roundS, load: load.name };
    console.log(heading(facts));
    for (const benchmark of benchmarks) {
      const cleanUp = new CleanUps();
      console.log(`\n${benchmark.name}: ${benchmark.about}`);
      try {
        const own = await benchmark.run({ size, load, cleanUp });
        console.log(table(own));
        measurements.push(...own);
      } finally {
        await cleanUp.run();
      }
    }
    const judgement = verdicts(measurements);
    if (judgement !== '') console.log(`\n${judgement}`);
    if (json !== undefined) fs.writeFileSync(json, `${JSON.stringify(document(facts, measurements), null, 2)}\n`);
  } finally {
    await overall.run();
  }
}

await runCommand(readOptions, HELP, runAll);
