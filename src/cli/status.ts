/**
 * `status`: what a running server says of itself on its metrics port, as tables or as it came.
 *
 * The server may be another version: fields that are missing show as "-", unknown ones are left out.
 * Bounds: ANSWER_BYTES_MAX, ANSWER_TIMEOUT_MS.
 */
import { EXIT, ExitError } from '../config/exit-codes.ts';
import { type Command, lastText, valueOption } from './command.ts';
import { serverUrl } from './server-url.ts';
import { printable, type Terminal } from './terminal.ts';
import { type Column, renderTable } from './text-table.ts';

const ANSWER_BYTES_MAX = 16 * 2 ** 20;
const ANSWER_TIMEOUT_MS = 10_000;

export const statusCommand: Command = {
  name: 'status',
  usage: 'status',
  describe: 'Show the processes and models of a running server',
  positionals: {},
  options: {
    url: valueOption('Metrics address of the server', {
      defaultDescription: 'the server that runs here, else http://127.0.0.1:8002',
    }),
    json: { description: "Print the server's JSON as it is", type: 'boolean' },
  },
  examples: [
    ['status', 'Processes and models of the server on this machine'],
    ['status --url http://gpu-box:8002 --json', 'Everything another server reports, for scripts'],
  ],
  run: async (args, terminal) => {
    const text = await fetchStatus(serverUrl(lastText(args.url), 'metrics', terminal));
    const status = parseObject(text);
    terminal.out(args.json === true ? `${text.trimEnd()}\n` : formatStatus(status, terminal));
    return EXIT.OK.code;
  },
};

type Json = Readonly<Record<string, unknown>>;

/** The status as text for people; tables are fitted to the terminal's width, reasons are not cut. */
export function formatStatus(status: Json, { columns }: Pick<Terminal, 'columns'>): string {
  const server = objectOf(status.server);
  const addresses = Object.entries(objectOf(status.addresses)).map(([name, address]) => `${name} ${cell(address)}`);
  const about = [
    `batchport ${cell(server.version)}`,
    cell(server.state),
    ...(server.ready === false ? [`not ready: ${cell(server.reason)}`] : []),
    `pid ${cell(server.pid)}`,
    `up ${duration(server.uptime_s)}`,
    ...addresses,
  ];
  const models = objectsOf(status.models);
  const processes = objectsOf(status.processes);
  return [
    `${printable(about.join(', '))}\n`,
    renderTable(PROCESS_COLUMNS, processes.map(processRow), columns) + notes(processes, processNotes),
    models.length === 0
      ? 'no models\n'
      : renderTable(MODEL_COLUMNS, models.map(modelRow), columns) + notes(models, modelNotes),
    ...memoryTable(objectsOf(objectOf(status.memory).devices), columns),
  ].join('\n');
}

/** What each model has of the memory of each device. */
function memoryTable(devices: readonly Json[], columns: number | undefined): string[] {
  const rows = devices.flatMap((device) => objectsOf(device.models).map((model) => memoryRow(device, model)));
  return rows.length === 0 ? [] : [renderTable(MEMORY_COLUMNS, rows, columns)];
}

/** Sentences for which a table is too narrow, whole: one a line, whatever the width of the terminal. */
function notes(items: readonly Json[], of: (item: Json) => string[]): string {
  return items
    .flatMap(of)
    .map((note) => `  ${printable(note)}\n`)
    .join('');
}

function processNotes(it: Json): string[] {
  const name = [it.role, it.device].filter((part) => typeof part === 'string').join(' ');
  const { how, at } = objectOf(it.last_exit);
  return [
    ...(typeof it.reason === 'string' && it.reason !== '' ? [`${name} is ${cell(it.state)}: ${it.reason}`] : []),
    ...(typeof how === 'string' ? [`${name}, last exit ${cell(at)}: ${how}`] : []),
  ];
}

function modelNotes(it: Json): string[] {
  return typeof it.reason === 'string' && it.reason !== ''
    ? [`${cell(it.name)} ${cell(it.version)} is ${cell(it.state)}: ${it.reason}`]
    : [];
}

const PROCESS_COLUMNS: readonly Column[] = [
  { title: 'ROLE' },
  { title: 'DEVICE' },
  { title: 'PID', align: 'right' },
  { title: 'EPOCH', align: 'right' },
  { title: 'STATE' },
  { title: 'UP', align: 'right' },
  { title: 'RSS', align: 'right' },
  { title: 'RESTARTS', align: 'right' },
  { title: 'LAST EXIT' },
];

function processRow(it: Json): string[] {
  const { code, signal } = objectOf(it.last_exit);
  return [
    cell(it.role),
    cell(it.device),
    cell(it.pid),
    cell(it.epoch),
    cell(it.state),
    duration(it.uptime_s),
    mebibytes(it.rss_bytes),
    cell(it.restarts),
    typeof code === 'number' ? `code ${code}` : cell(signal),
  ];
}

const MEMORY_COLUMNS: readonly Column[] = [
  { title: 'MEMORY OF' },
  { title: 'TOTAL', align: 'right' },
  { title: 'FREE', align: 'right' },
  { title: 'MODEL' },
  { title: 'VERSION', align: 'right' },
  { title: 'SHARE', align: 'right' },
  { title: 'WEIGHTS', align: 'right' },
  { title: 'LARGEST BATCH', align: 'right' },
];

function memoryRow(device: Json, model: Json): string[] {
  return [
    cell(device.device),
    mebibytes(device.total_bytes),
    mebibytes(device.free_bytes),
    cell(model.model),
    cell(model.version),
    mebibytes(model.share_bytes),
    mebibytes(model.weights_bytes),
    mebibytes(model.peak_bytes),
  ];
}

const MODEL_COLUMNS: readonly Column[] = [
  { title: 'MODEL' },
  { title: 'VERSION', align: 'right' },
  { title: 'STATE' },
  { title: 'DEVICES' },
  { title: 'INSTANCES', align: 'right' },
  { title: 'MAX BATCH', align: 'right' },
  { title: 'QUEUED', align: 'right' },
  { title: 'RUNNING', align: 'right' },
  { title: 'BATCHES', align: 'right' },
  { title: 'ROWS', align: 'right' },
  { title: 'FAILED', align: 'right' },
];

function modelRow(it: Json): string[] {
  const queue = objectOf(it.queue);
  const devices = objectsOf(it.devices);
  const running = devices.map(({ instances }) => objectOf(instances).running).filter((n) => typeof n === 'number');
  return [
    cell(it.name),
    cell(it.version),
    cell(it.state),
    cell(devices.map(({ device }) => device)),
    running.length === 0 ? '-' : String(running.reduce((sum, n) => sum + n, 0)),
    cell(it.max_batch_size),
    cell(queue.rows_queued),
    cell(queue.rows_running),
    cell(it.batches),
    cell(it.rows),
    cell(it.failures),
  ];
}

async function fetchStatus(url: string): Promise<string> {
  const hint = 'is the server running? give --url, if its metrics port is another';
  let response: Response;
  try {
    response = await fetch(`${url}/status`, {
      headers: { accept: 'application/json' },
      signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS),
    });
    if (response.ok) return await boundedText(response);
  } catch (error) {
    if (error instanceof ExitError) throw error;
    throw new ExitError('UNAVAILABLE', `no answer from ${url}: ${reasonOf(error)}`, { hint, cause: error });
  }
  await response.body?.cancel();
  throw new ExitError('UNAVAILABLE', `${url}/status answered ${response.status} ${response.statusText}`.trimEnd(), {
    hint: 'status reads the metrics port, not the port of the inference protocol',
  });
}

async function boundedText(response: Response): Promise<string> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of response.body ?? []) {
    length += part.length;
    if (length > ANSWER_BYTES_MAX) {
      throw new ExitError('UNAVAILABLE', `the answer of ${response.url} passes ${ANSWER_BYTES_MAX} bytes`);
    }
    parts.push(part);
  }
  return Buffer.concat(parts).toString('utf8');
}

function parseObject(text: string): Json {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Json;
  } catch {
    // Told below, like any other answer that is not a status.
  }
  throw new ExitError('UNAVAILABLE', 'the answer is not the JSON of a batchport server', {
    hint: 'another program may listen there; give --url',
  });
}

/** fetch hides what happened in its error's cause. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (error.name === 'TimeoutError') return `nothing within ${ANSWER_TIMEOUT_MS / 1000} s`;
  const { cause } = error;
  if (cause instanceof Error) return cause.message === '' ? String((cause as { code?: unknown }).code) : cause.message;
  return error.message;
}

function objectOf(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

function objectsOf(value: unknown): Json[] {
  return Array.isArray(value) ? value.map(objectOf) : [];
}

function cell(value: unknown): string {
  if (value === undefined || value === null || value === '') return '-';
  if (Array.isArray(value)) return value.length === 0 ? '-' : value.map(cell).join(',');
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

function mebibytes(value: unknown): string {
  return typeof value === 'number' ? `${Math.round(value / 2 ** 20)} MiB` : '-';
}

function duration(value: unknown): string {
  if (typeof value !== 'number' || !Number.isFinite(value)) return '-';
  const seconds = Math.floor(value);
  const days = Math.floor(seconds / 86_400);
  const hours = Math.floor((seconds % 86_400) / 3600);
  const minutes = Math.floor((seconds % 3600) / 60);
  if (days > 0) return `${days}d${hours}h`;
  if (hours > 0) return `${hours}h${minutes}m`;
  return minutes > 0 ? `${minutes}m${seconds % 60}s` : `${seconds}s`;
}
