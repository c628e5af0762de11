/**
 * `npm test`: runs the compiled test files and closes with one summary of all of them.
 *
 *     node dist/test/run.js                      everything
 *     node dist/test/run.js --kind unit          one kind; may be repeated
 *     node dist/test/run.js --skip-kind model    all but one kind; may be repeated
 *     node dist/test/run.js client queue/seal    files whose path holds one of these
 *     node dist/test/run.js --help
 *
 * A kind is a folder under test/. Each file runs in a process of its own. Kinds that use the whole machine run one file at a time, after the others, of
 * which `CONCURRENCY` files run at once. A test has `TEST_LIMIT_MS` (on Node 20 that is the limit of a whole file). When nothing at all ends for
 * `STALL_LIMIT_MS`, the files that run are ended, which fails them and the whole: a file may hang even though its tests are done.
 *
 * node:test makes a summary for each of its two runs; both are held back and added up. Exit code: 0 all passed, 1 a test failed, 2 nothing to run.
 */
import fs from 'node:fs';
import path from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const KINDS = {
  support: { alone: false, about: 'the helpers of the tests' },
  unit: { alone: false, about: 'one module at a time' },
  fuzz: { alone: false, about: 'random input, for a bounded time' },
  model: { alone: true, about: 'the queue protocol under a model checker' },
  stress: { alone: true, about: 'many threads and processes at once' },
  fault: { alone: false, about: 'one fault per file, with real processes' },
  integration: { alone: false, about: 'a whole server' },
  conformance: { alone: false, about: 'clients that others wrote; .ci/run fetches them' },
  soak: { alone: true, about: 'random faults under load, for a short time' },
  bench: { alone: true, about: 'small sizes of the benchmarks' },
} as const satisfies Record<string, { alone: boolean; about: string }>;

const CONCURRENCY = 3;
const TEST_LIMIT_MS = 5 * 60_000;
const STALL_LIMIT_MS = 6 * 60_000;

type Kind = keyof typeof KINDS;
type TestEvent = { readonly type: string; readonly data: Readonly<Record<string, unknown>> };

const HELP = `usage: npm test -- [options] [PATHPART…]

Runs the compiled tests (npm run build compiles them): all of them, or the files whose path below test/ holds one of the parts, such as queue/ or unit/cli.

  --kind KIND        only tests of this kind; may be repeated
  --skip-kind KIND   no tests of this kind; may be repeated
  --help             this text

Kinds:
${Object.entries(KINDS)
  .map(([kind, { about }]) => `  ${kind.padEnd(12)}${about}`)
  .join('\n')}

Environment: TEST_SEED=N repeats a random test; FUZZ_SECONDS=N makes the fuzz tests longer.
Exit code: 0 all passed, 1 a test failed, 2 nothing to run or wrong arguments.`;

/** Lines of node:test's summary, in its order. */
const SUMMARY = ['tests', 'suites', 'pass', 'fail', 'cancelled', 'skipped', 'todo', 'duration_ms'] as const;
const SUMMARY_LINE = new RegExp(`^(${SUMMARY.join('|')}) (\\d+(?:\\.\\d+)?)$`);

/** Adds up the summaries of several runs. */
class Totals {
  readonly counts = new Map<string, number>(SUMMARY.map((name) => [name, 0]));

  /** Whether the event is a line of a summary; if so it is counted. */
  take({ type, data }: TestEvent): boolean {
    // Node 24 also sends the summary as an event of its own.
    if (type === 'test:summary') return true;
    // A test's own diagnostics name its file.
    if (type !== 'test:diagnostic' || data.nesting !== 0 || data.file !== undefined) return false;
    const match = SUMMARY_LINE.exec(String(data.message));
    if (match === null) return false;
    const [, name, value] = match;
    this.counts.set(name!, this.counts.get(name!)! + Number(value));
    return true;
  }

  get failed(): boolean {
    return this.counts.get('fail')! + this.counts.get('cancelled')! > 0;
  }

  *lines(): Generator<TestEvent> {
    for (const [name, value] of this.counts) {
      yield { type: 'test:diagnostic', data: { nesting: 0, message: `${name} ${value}`, level: 'info' } };
    }
  }
}

/** Compiled test files of a kind, in the order of their paths, that hold one of the filters. */
function filesOf(root: string, kind: Kind, filters: readonly string[]): string[] {
  const dir = path.join(root, kind);
  if (!fs.existsSync(dir)) return [];
  return fs
    .readdirSync(dir, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.test.js'))
    .map((file) => path.join(dir, file))
    .filter((file) => filters.length === 0 || filters.some((filter) => path.relative(root, file).includes(filter)))
    .sort();
}

/** Events of all runs one after another, and a single summary. */
async function* events(
  runs: readonly { readonly files: readonly string[]; readonly concurrency: number }[],
  totals: Totals,
  abort: AbortController,
): AsyncGenerator<TestEvent> {
  for (const { files, concurrency } of runs) {
    if (files.length === 0 || abort.signal.aborted) continue;
    const stalled = setTimeout(() => abort.abort(new Error('nothing ended for too long')), STALL_LIMIT_MS);
    const stream = run({ files: [...files], concurrency, timeout: TEST_LIMIT_MS, signal: abort.signal });
    try {
      for await (const event of stream as AsyncIterable<TestEvent>) {
        stalled.refresh();
        if (!totals.take(event)) yield event;
      }
    } finally {
      clearTimeout(stalled);
    }
  }
  yield* totals.lines();
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    options: {
      kind: { type: 'string', multiple: true },
      'skip-kind': { type: 'string', multiple: true },
      help: { type: 'boolean', short: 'h' },
    },
    allowPositionals: true,
  });
  if (values.help === true) {
    console.log(HELP);
    return 0;
  }
  const named = values.kind ?? Object.keys(KINDS);
  const skipped = values['skip-kind'] ?? [];
  for (const kind of [...named, ...skipped]) {
    if (!Object.hasOwn(KINDS, kind)) throw new Error(`no kind "${kind}"; there are: ${Object.keys(KINDS).join(', ')}`);
  }
  const kinds = named.filter((kind) => !skipped.includes(kind)) as Kind[];
  const root = fileURLToPath(new URL('.', import.meta.url));
  const filters = positionals.map((filter) => filter.replace(/\.ts$/, '.js').replace(/^test\//, ''));
  const select = (alone: boolean) =>
    kinds.filter((kind) => KINDS[kind].alone === alone).flatMap((kind) => filesOf(root, kind, filters));
  const runs = [
    { files: select(false), concurrency: CONCURRENCY },
    { files: select(true), concurrency: 1 },
  ];
  if (runs.every(({ files }) => files.length === 0)) {
    console.error('no test file fits; `npm run build` compiles them');
    return 2;
  }
  const abort = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => abort.abort());
  const totals = new Totals();
  await pipeline(Readable.from(events(runs, totals, abort)), new spec(), process.stdout, { end: false });
  return totals.failed || abort.signal.aborted ? 1 : 0;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 2;
}
