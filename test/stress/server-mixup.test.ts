/**
 * Answers must not be mixed up: many callers at once, every element sent is unique, and each answer is compared with what its own request sent.
 *
 * The models are identities, so a wrong element names the request it came from. Variants: one process of each kind, several ingress processes and
 * instances, two device processes. Each caller has one connection and no retries, so that a request which is lost fails the test.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client } from '../../src/client/client.ts';
import { openFiles } from '../support/process-table.ts';
import { type Random, seedFromEnv } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { startServer, type TestServer } from '../support/server.ts';

const CALLERS = 64;
/** Of the model whose rows have a fixed length. */
const FIXED_REQUESTS = 40_000;
/** Of the model whose rows vary in length, in all mixtures of binary and JSON. */
const DYNAMIC_REQUESTS = 10_000;
const ROWS_MAX = 5;
const FIXED_COLUMNS = 4;
/** Lengths of rows in the dynamic model: each is a shape key of its own. */
const DYNAMIC_COLUMNS = [1, 2, 3, 4, 7, 16, 33, 64];
/** Liveness: far beyond what a loaded machine needs. */
const RUN_LIMIT_MS = 150_000;
const SETTLE_LIMIT_MS = 20_000;
const FAULTS_SHOWN = 5;

const COLUMNS_MAX = Math.max(FIXED_COLUMNS, ...DYNAMIC_COLUMNS);
// Each element of a run is a different whole number, which FP32 holds exactly.
assert((FIXED_REQUESTS + DYNAMIC_REQUESTS) * ROWS_MAX * COLUMNS_MAX <= 2 ** 24);

const seeded = seedFromEnv();

/** The element at `column` of row `row` of request `n`. */
function elementAt(n: number, row: number, column: number): number {
  return (n * ROWS_MAX + row) * COLUMNS_MAX + column;
}

/** Where an element was sent. */
function originOf(element: number): string {
  const rowNumber = Math.floor(element / COLUMNS_MAX);
  return `request ${Math.floor(rowNumber / ROWS_MAX)}, row ${rowNumber % ROWS_MAX}, column ${element % COLUMNS_MAX}`;
}

/** What was sent and what came back, over all callers. */
class Tally {
  requests = 0;
  rows = 0;
  answers = 0;
  readonly faults: string[] = [];
  faultCount = 0;

  fault(text: string): void {
    this.faultCount++;
    if (this.faults.length < FAULTS_SHOWN) this.faults.push(text);
  }
}

interface Load {
  readonly model: string;
  readonly requests: number;
  /** Number of the first request, so that no two loads of a run share an element. */
  readonly firstRequest: number;
  readonly columns: readonly number[];
  /** Whether requests and answers are JSON at random, each for itself. */
  readonly mixedForms: boolean;
}

const FIXED: Load = {
  model: 'rows',
  requests: FIXED_REQUESTS,
  firstRequest: 0,
  columns: [FIXED_COLUMNS],
  mixedForms: false,
};
const DYNAMIC: Load = {
  model: 'dynamic',
  requests: DYNAMIC_REQUESTS,
  firstRequest: FIXED_REQUESTS,
  columns: DYNAMIC_COLUMNS,
  mixedForms: true,
};

/** Sends the requests `first`, `first + CALLERS`, … one after another. */
async function call(client: Client, load: Load, first: number, random: Random, tally: Tally): Promise<void> {
  const signal = AbortSignal.timeout(RUN_LIMIT_MS);
  for (let i = first; i < load.requests; i += CALLERS) {
    const n = load.firstRequest + i;
    const rows = random.int(1, ROWS_MAX);
    const columns = random.pick(load.columns);
    const data = new Float32Array(rows * columns);
    for (let at = 0; at < data.length; at++) data[at] = elementAt(n, Math.floor(at / columns), at % columns);
    tally.requests++;
    tally.rows += rows;
    try {
      const result = await client.infer(load.model, {
        inputs: [{ name: 'x', datatype: 'FP32', shape: [rows, columns], data }],
        outputs: load.mixedForms ? [{ name: 'y', binary: random.chance(0.5) }] : ['y'],
        binary: !load.mixedForms || random.chance(0.5),
        timeoutMs: 0,
        signal,
      });
      tally.answers++;
      compare(result.output('y', 'FP32'), n, rows, columns, tally);
    } catch (error) {
      tally.fault(`request ${n} (${rows}×${columns}) was lost: ${error}`);
      if (signal.aborted) return;
    }
  }
}

function compare(
  { shape, data }: { readonly shape: readonly number[]; readonly data: Float32Array },
  n: number,
  rows: number,
  columns: number,
  tally: Tally,
): void {
  if (shape.length !== 2 || shape[0] !== rows || shape[1] !== columns) {
    tally.fault(`request ${n} of ${rows}×${columns} got the shape [${shape}]`);
    return;
  }
  for (let at = 0; at < data.length; at++) {
    const sent = elementAt(n, Math.floor(at / columns), at % columns);
    if (data[at] === sent) continue;
    tally.fault(`${originOf(sent)} of ${rows}×${columns} got ${data[at]}, which is ${originOf(data[at]!)}`);
    return;
  }
}

/**
 * One client per caller, each with its one connection open, spread evenly over the ingress processes: while callers connect, only the ingress they
 * are meant for runs.
 */
async function connect(server: TestServer): Promise<Client[]> {
  const clients = Array.from({ length: CALLERS }, () => new Client(server.url, { connections: 1, retry: false }));
  const ingresses = await server.pids('ingress');
  for (const [slot, pid] of ingresses.entries()) {
    const others = ingresses.filter((other) => other !== pid);
    for (const other of others) process.kill(other, 'SIGSTOP');
    try {
      const mine = clients.filter((_, n) => n % ingresses.length === slot);
      for (const ready of await Promise.all(mine.map((client) => client.modelReady('rows')))) assert.equal(ready, true);
    } finally {
      for (const other of others) process.kill(other, 'SIGCONT');
    }
  }
  return clients;
}

interface QueueStatus {
  readonly rows_queued: number;
  readonly rows_running: number;
  readonly used_bytes: number;
  readonly slabs: Readonly<Record<string, number>>;
}

interface ModelStatus {
  readonly name: string;
  readonly rows: number;
  readonly batches: number;
  readonly failures: number;
  readonly rows_requeued: number;
  readonly rows_lost: number;
  readonly queue: QueueStatus;
}

function isIdle({ rows_queued, rows_running, used_bytes, slabs }: QueueStatus): boolean {
  const { free = 0, ...taken } = slabs;
  return rows_queued + rows_running + used_bytes === 0 && free > 0 && Object.values(taken).every((n) => n === 0);
}

/**
 * The model's status once all is settled: the last answer is on its way a moment before its slab is free and its time is counted.
 */
async function settledStatus(server: TestServer, load: Load): Promise<ModelStatus> {
  const deadline = Date.now() + SETTLE_LIMIT_MS;
  for (;;) {
    const { models } = await server.status();
    const status = (models as readonly ModelStatus[]).find(({ name }) => name === load.model);
    assert(status !== undefined);
    const timed = await server.metric('batchport_request_seconds_count', { model: load.model });
    if (isIdle(status.queue) && timed >= load.requests) return status;
    assert(Date.now() < deadline, `${timed} requests timed; still not idle: ${JSON.stringify(status)}`);
  }
}

/** Share of rows that may run empty. */
const EMPTY_MAX = 0.001;

/** Runs a load and holds what was sent against what came back and against what the server counted. */
async function runLoad(server: TestServer, clients: readonly Client[], load: Load): Promise<void> {
  const tally = new Tally();
  await Promise.all(clients.map((client, caller) => call(client, load, caller, seeded.fork(), tally)));
  assert.equal(tally.faultCount, 0, `${tally.faultCount} faults, the first ones:\n${tally.faults.join('\n')}`);
  assert.equal(tally.requests, load.requests);
  assert.equal(tally.answers, load.requests);

  const { rows, failures, rows_requeued, rows_lost, batches } = await settledStatus(server, load);
  assert.deepEqual({ failures, rows_requeued, rows_lost }, { failures: 0, rows_requeued: 0, rows_lost: 0 });
  // An ingress that does not get the processor for 20 ms in the middle of a copy loses its place in the batch and takes another: the first one runs empty.
  const empty = rows - tally.rows;
  assert(empty >= 0 && empty <= tally.rows * EMPTY_MAX, `${empty} more rows have run than were sent`);
  const metric = (name: string, labels = {}) => server.metric(`batchport_${name}`, { model: load.model, ...labels });
  assert.deepEqual(
    {
      answered: await metric('requests_total', { outcome: 'ok' }),
      requests: await metric('requests_total'),
      timed: await metric('request_seconds_count'),
      rowsReceived: await metric('request_rows_total'),
      rowsRun: await metric('batch_rows_sum'),
      batches: await metric('batch_rows_count'),
      inFlight: await metric('requests_in_flight'),
    },
    {
      answered: load.requests,
      requests: load.requests,
      timed: load.requests,
      rowsReceived: tally.rows,
      rowsRun: rows,
      batches,
      inFlight: 0,
    },
  );
}

interface Variant {
  readonly title: string;
  readonly args: readonly string[];
  readonly config?: object;
  readonly ingresses: number;
  readonly instances: number;
  readonly devices: readonly string[];
}

const VARIANTS: readonly Variant[] = [
  { title: 'one ingress and one instance', args: ['--ingress', '1'], ingresses: 1, instances: 1, devices: ['cpu'] },
  {
    title: 'two ingresses and two instances',
    args: ['--ingress', '2'],
    config: { instances: { min: 2, max: 2 } },
    ingresses: 2,
    instances: 2,
    devices: ['cpu'],
  },
  {
    title: 'two device processes',
    args: ['--ingress', '1', '--device', 'cpu', '--device', 'cpu'],
    ingresses: 1,
    instances: 2,
    devices: ['cpu', 'cpu#2'],
  },
];

for (const { title, args, config, ingresses, instances, devices } of VARIANTS) {
  test(`every answer belongs to its request: ${title}`, async (t) => {
    const entry = config === undefined ? {} : { config };
    const repository = makeRepository(t, { rows: entry, dynamic: entry });
    const server = await startServer(t, { repository: repository.dir, args });
    const clients = await connect(server);
    t.after(() => Promise.all(clients.map((client) => client.close())));

    await runLoad(server, clients, FIXED);
    await runLoad(server, clients, DYNAMIC);

    const pids = await server.pids('ingress');
    assert.equal(pids.length, ingresses);
    for (const pid of pids) {
      const sockets = openFiles(pid).filter((file) => file.startsWith('socket:')).length;
      assert(sockets >= CALLERS / ingresses, `an ingress holds ${sockets} sockets: its callers went elsewhere`);
    }
    assert.equal((await server.pids('device')).length, devices.length);
    assert.equal(await server.metric('batchport_instances', { model: 'rows' }), instances);
    for (const device of devices) {
      const rows = await server.metric('batchport_batch_rows_executed_total', { model: 'rows', device });
      assert(rows > 0, `no row was run on ${device}`);
    }
  });
}
