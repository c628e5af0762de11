/**
 * `npm run soak`: random faults against a real server under load.
 *
 *     npm run soak                                      ten minutes, a seed from the clock
 *     npm run soak -- --minutes 60 --seed 7
 *     npm run soak -- --help
 */
import fs from 'node:fs';
import os from 'node:os';
import { parseArgs } from 'node:util';
import { CleanUps } from '../bench/benchmark.ts';
import { thisMachine } from '../bench/machine.ts';
import { runCommand } from '../support/command.ts';
import { table } from './judgement.ts';
import { soak } from './soak.ts';

const MINUTES_MIN = 0.25;
const MINUTES_MAX = 7 * 24 * 60;

const HELP = `usage: npm run soak -- [options]

Puts a real server under a steady mixed load while processes are killed and stopped and clients misbehave, at random, and judges what clients, memory,
descriptors, queues and the log tell of it.

  --minutes N    for how long, from ${MINUTES_MIN}; by default 10
  --seed N       the same requests and the same faults in the same order; the instants at which processes are hit differ
  --log FILE     write the server's log to a file
  --help         this text

Exit code: 0 everything held, 1 something did not, 2 wrong arguments.`;

interface Options {
  readonly minutes: number;
  readonly seed: number;
  readonly logFile: string | undefined;
}

/** Undefined when help was asked for. @throws Error for arguments that make no sense. */
function readOptions(): Options | undefined {
  const { values } = parseArgs({
    options: {
      minutes: { type: 'string', default: '10' },
      seed: { type: 'string' },
      log: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  });
  if (values.help) return undefined;
  const minutes = Number(values.minutes);
  if (!(minutes >= MINUTES_MIN && minutes <= MINUTES_MAX)) {
    throw new Error(`--minutes must be a number from ${MINUTES_MIN} to ${MINUTES_MAX}, not ${values.minutes}`);
  }
  const seed = values.seed === undefined ? Date.now() >>> 0 : Number(values.seed);
  if (!(Number.isInteger(seed) && seed >= 0 && seed < 2 ** 32)) {
    throw new Error(`--seed must be a whole number below 2^32, not ${values.seed}`);
  }
  return { minutes, seed, logFile: values.log };
}

async function main({ minutes, seed, logFile }: Options): Promise<void> {
  const cleanUp = new CleanUps();
  const file = logFile === undefined ? undefined : fs.createWriteStream(logFile);
  const { commit, node, cores, loadAverage } = thisMachine();
  console.log(`soak of ${minutes} min; repeat with --seed ${seed}`);
  console.log(`commit ${commit} · Node ${node} · ${cores} cores · load average at start ${loadAverage}`);
  try {
    const { checks, faults } = await soak(cleanUp, {
      seconds: minutes * 60,
      seed,
      log: console.log,
      onServerLog: (line) => file?.write(`${JSON.stringify(line)}\n`),
    });
    console.log(`\n${table(checks)}`);
    for (const fault of faults) console.log(fault);
    const held = checks.every(({ ok }) => ok !== false);
    console.log(
      `\n${held ? 'everything held' : 'VIOLATED'} · seed ${seed} · load average at end ${os.loadavg()[0]!.toFixed(2)}`,
    );
    if (!held) process.exitCode = 1;
  } finally {
    await cleanUp.run();
    file?.end();
  }
}

await runCommand(readOptions, HELP, main);
